"""Errors of pins that no schedule keeps: which func, by how many bytes, and which pins hold instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tdsl.autoschedule.edges import REGISTER_BYTES
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import ScheduleError
from tdsl.lang.program import Program, bind_sizes
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.tilegraph.graph import TileGraph
from tdsl.tilegraph.pins import INLINE, Pins, stores
from tdsl.tilegraph.schedule import Schedule

TRIED = 3  # sets of pins that are tried before one is proposed


@frozen
class Refused:
    """A schedule that does not keep to pins, its label, and where it keeps the funcs that are misplaced."""

    label: str
    schedule: Schedule
    broken: Mapping[str, str]


def impossible(
    pins: Pins, program: Program, sizes: Mapping[str, int], tried: Sequence[Refused],
    holds: Callable[[Pins], bool],
) -> ScheduleError:  # fmt: skip
    """The error for pins that none of the schedules keeps which were `tried`.

    It names the func that no schedule keeps where it is pinned, or else that of the schedule which comes
    nearest, and how many bytes it needs; the hint has pins of which `holds` says that some schedule does.
    """
    ranked = sorted(tried, key=lambda r: (len(r.broken), _distance(pins, r)))
    never = [n for n in pins.levels if all(n in r.broken for r in tried)]
    name, *others = never or [next(n for n in pins.levels if n in ranked[0].broken)]
    nearest = min((r for r in ranked if name in r.broken), key=lambda r: _steps(pins, name, r.broken[name]))
    graph = TileGraph.of_state(Schedule.of_program(bind_sizes(program, sizes)).state)
    why = _contradiction(pins, graph, name) or _reason(pins, graph, name, nearest)
    if others:
        why += "; nor can " + ", ".join(f"{n!r} in {pins.levels[n]}" for n in others)
    elif not never:
        why += ", and others keep it but not another pin"
    where = INLINE if pins.levels[name] == INLINE else f"in {pins.levels[name]}"
    return ScheduleError(
        f"{name!r} cannot be kept {where}: {why}",
        loc=here(),
        label="this call",
        hint=_hint(pins, ranked, holds),
    )


def _hint(pins: Pins, ranked: Sequence[Refused], holds: Callable[[Pins], bool]) -> str:
    """The hint with the nearest pins that hold, which are tried."""
    proposed: list[Pins] = []
    for r in ranked:
        others = _pins_of(pins, r)
        if others not in proposed:
            proposed.append(others)
    for others in proposed[:TRIED]:
        if holds(others):
            if not others.levels:
                return "leave out the pin: no schedule that was tried has the func in memory"
            return f"pin={others} is the nearest that holds; or schedule it by hand"
    return "leave out one of the pins, or schedule it by hand"


def _pins_of(pins: Pins, r: Refused) -> Pins:
    """The pins with the levels at which a schedule keeps the funcs, without those that it does not store."""
    levels = {n: r.broken.get(n, level) for n, level in pins.levels.items()}
    return Pins({n: x for n, x in levels.items() if not (n in r.broken and x == INLINE)}, pins.machine)


def _distance(pins: Pins, r: Refused) -> int:
    """The number of levels between the pins and where a schedule keeps the funcs, for all together."""
    return sum(_steps(pins, name, at) for name, at in r.broken.items())


def _steps(pins: Pins, name: str, at: str) -> int:
    order = [INLINE, *(x.name for x in pins.machine.levels)]
    return abs(order.index(at) - order.index(pins.levels[name]))


def _contradiction(pins: Pins, graph: TileGraph, name: str) -> str:
    """Which readers of a func contradict its pin; "" if none do."""
    conflict = None if pins.is_far(name) else _conflicting_readers(pins, graph, name)
    if conflict is None:
        return ""
    first, far, later = conflict
    return f"{first!r} reads it before, and {later!r} after all of {far!r}, which is pinned to memory"


def _reason(pins: Pins, graph: TileGraph, name: str, nearest: Refused) -> str:
    """Why a func is not kept where it is pinned, with the bytes that it needs there."""
    at = nearest.broken[name]
    comes = f"{nearest.label!r} comes nearest"
    if pins.levels[name] == INLINE:
        return f"{comes}, which keeps it in {at}"
    if pins.is_far(name):
        return f"every schedule that was tried computes it in tiles: {comes}, which has it {_placed(at)}"
    level = pins.machine.level(pins.levels[name])
    needed, room = _least(pins, graph, level), _room(pins.machine, level)
    most = sum(needed.values())
    if room is not None and most > room:
        others = [n for n in needed if n != name]
        together = f" of it, {', '.join(others)}" if others else ""
        return f"a point of the result needs {most:.0f} bytes{together}, {most - room:.0f} too many"
    return _excess(pins, name, level, nearest)


def _placed(at: str) -> str:
    return at if at == INLINE else f"in {at}"


def _excess(pins: Pins, name: str, level: MemoryLevel, nearest: Refused) -> str:
    """By how many bytes the nearest schedule goes beyond the level of a pin, or what else is wrong."""
    at, machine = nearest.broken[name], pins.machine
    prediction, room = nearest.schedule.prediction(), _room(machine, level)
    storing = stores(nearest.schedule, name)
    of_compiler = level.managed and not machine.block_threads
    size = max((prediction.kept(n) if of_compiler else prediction.needed_with(n)) for n in storing)
    comes = f"{nearest.label!r} comes nearest, which has it in {at}"
    if of_compiler:
        return f"{comes} with {size:.0f} bytes; what the registers of a CPU hold, the compiler chooses"
    if room is not None and size > room:
        return f"{comes} and needs {size:.0f} bytes while it is used, {size - room:.0f} too many"
    if not machine.block_threads:
        why = "more passes than that"
    elif at != machine.levels[-1].name:
        why = "other threads read it"
    else:  # what blocks share is read by other threads, too
        why = "none that was tried computes it in the blocks of what reads it"
        updated = len(nearest.schedule.program.func(name).definitions) > 1
        why += ": what has updates gets a kernel of its own" if updated else ""
    return f"{comes}; its {size:.0f} bytes would fit, but {why}"


def _room(machine: Machine, level: MemoryLevel) -> int | None:
    """The bytes of a level for what stays there: of the registers of a GPU, those of a thread."""
    if machine.block_threads and level.name == "registers":
        return REGISTER_BYTES * machine.registers
    return machine.capacity(level)


def _least(pins: Pins, graph: TileGraph, level: MemoryLevel) -> dict[str, float]:
    """The bytes that one point of the results needs of the funcs pinned to a level or nearer."""
    program, order = graph.program, [x.name for x in pins.machine.levels]
    points = {o: tuple((lo, lo) for lo, _ in graph.boxes[o]) for o in program.outputs}
    tile = graph.propagate([f.name for f in program.funcs], points)
    nearer = order[: order.index(level.name) + 1]
    names = [n for n, x in pins.levels.items() if x in nearer and n in tile.boxes]
    return {n: graph.bytes_moved(n, tile.boxes[n]) for n in names}


def _conflicting_readers(pins: Pins, graph: TileGraph, name: str) -> tuple[str, str, str] | None:
    """Two readers of a func between which all of another is computed: (the first, that other, the second)."""
    readers = graph.consumers(name)
    for first in readers:
        for far in sorted(pins.far - {name}):
            for later in readers:
                if graph.follows(far, first) and later != far and graph.follows(later, far):
                    return first, far, later
    return None
