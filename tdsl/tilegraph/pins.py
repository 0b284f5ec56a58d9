"""Pins: where the user wants a func to live, whatever a search would choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tdsl.autoschedule.edges import REGISTER_BYTES
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import ScheduleError, TargetError, TypeMismatch, did_you_mean
from tdsl.lang.program import Program, bind_sizes
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.tilegraph.graph import TileGraph
from tdsl.tilegraph.schedule import Schedule

INLINE = "inline"


@frozen
class Pins:
    """The level of memory at which each of some funcs has to be kept, or "inline"."""

    levels: Mapping[str, str]
    machine: Machine

    def is_far(self, name: str) -> bool:
        """Whether a func has to be there as a whole before it is read: pinned to the last level."""
        return self.levels.get(name) == self.machine.levels[-1].name

    @property
    def far(self) -> set[str]:
        """The funcs that are pinned to the last level."""
        return {n for n in self.levels if self.is_far(n)}

    @property
    def inlined(self) -> tuple[str, ...]:
        """The funcs that must be computed wherever they are read."""
        return tuple(n for n, level in self.levels.items() if level == INLINE)

    def broken(self, schedule: Schedule) -> str:
        """The first func that a schedule keeps further out than it is pinned; empty where there is none."""
        prediction = schedule.prediction()
        order = [x.name for x in self.machine.levels]
        for name, level in self.levels.items():
            if level == INLINE:
                continue
            if not prediction.state.program.has_func(name):
                if self.is_far(name):  # it is made in tiles that nothing keeps
                    return name
                continue
            at, pinned = order.index(prediction.home(name).name), order.index(level)
            if at > pinned or (self.is_far(name) and at < pinned and self._is_inside(schedule, name)):
                return name
        return ""

    @staticmethod
    def _is_inside(schedule: Schedule, name: str) -> bool:
        return name not in {s.func.name for s in schedule.prediction().nests.roots()}


def read_pins(program: Program, machine: Machine, pin: object) -> Pins:
    """The pins that a call gives, by name of a func or by (producer, consumer).

    ScheduleError for funcs that are not there and pins that contradict each other, TypeMismatch for what is
    neither a func nor an edge, TargetError for a level that the machine does not have.
    """
    given = {} if pin is None else pin
    if not isinstance(given, Mapping):
        raise TypeMismatch(
            f"pin= says for funcs where they live, it cannot be {pin!r}",
            loc=here(),
            label="this call",
            hint='pin={"score": "L2"}, or pin={("score", "top"): "memory"}',
        )
    levels: dict[str, tuple[str, object]] = {}
    for key, value in given.items():
        name, level = _producer(program, key), _level(machine, value)
        if name in program.outputs and level != machine.levels[-1].name:
            raise ScheduleError(
                f"{name!r} is a result, it cannot be pinned to {level}",
                loc=here(),
                label="this call",
                hint="results are written to the caller's arrays; pin what they are made of",
            )
        if name in levels and levels[name][0] != level:
            raise ScheduleError(
                f"{name!r} is pinned to {levels[name][0]} by {levels[name][1]!r} and to {level} by {key!r}",
                loc=here(),
                label="this call",
                hint="a func lives in one place; pin it once",
            )
        if level == INLINE:
            _check_inline(program, name, machine)
        levels[name] = (level, key)
    return Pins({n: level for n, (level, _) in levels.items()}, machine)


def _check_inline(program: Program, name: str, machine: Machine) -> None:
    try:
        Schedule.of_program(program)[name].inline()
    except ScheduleError as error:
        levels = ", ".join(repr(x.name) for x in machine.levels)
        raise ScheduleError(
            f"{name!r} cannot be pinned inline: {error.message.partition(': ')[2]}",
            loc=here(),
            label="this call",
            hint=f"pin it to a level of memory: {levels}",
        ) from None


def _level(machine: Machine, value: object) -> str:
    """The name of a level of memory, or "inline"."""
    known = [*(x.name for x in machine.levels), INLINE]
    matches = [x for x in known if isinstance(value, str) and x.lower() == value.lower()]
    if not matches:
        raise TargetError(
            f"the memory of this machine has no level {value!r}",
            loc=here(),
            label="this call",
            hint=did_you_mean(value, known),
        )
    return matches[0]


def _producer(program: Program, key: object) -> str:
    """The func that a key of pins is about; an edge must be there."""
    names = [f.name for f in program.funcs]
    pair = key if isinstance(key, tuple) else (key,)
    if len(pair) not in (1, 2):
        raise TypeMismatch(
            f"a pin is for a func or for an edge, not for {key!r}",
            loc=here(),
            label="this call",
            hint='pin={"score": "L2"}, or pin={("score", "top"): "L2"}: what "top" reads of "score"',
        )
    for name in pair:
        if name in program.parameters:
            raise ScheduleError(
                f"{name!r} is an argument, it cannot be pinned",
                loc=here(),
                label="this call",
                hint="arguments are the caller's arrays; to copy what is read of one, see cache_read()",
            )
        if name not in names:
            raise ScheduleError(
                f"there is no func {name!r} to pin",
                loc=here(),
                label="this call",
                hint=did_you_mean(str(name), names),
            )
    if len(pair) == 2:
        graph = TileGraph.of_state(Schedule.of_program(program).state)
        readers = graph.consumers(str(pair[0]))
        if not {pair[1], *_split_off(graph, str(pair[1]))} & {*readers}:
            raise ScheduleError(
                f"{pair[1]!r} does not read {pair[0]!r}",
                loc=here(),
                label="this call",
                hint="an edge is (producer, consumer); "
                f"{pair[0]!r} is read by {', '.join(readers) or 'no func'}",
            )
    return str(pair[0])


def _split_off(graph: TileGraph, name: str) -> list[str]:
    """The reductions in the expressions of a func, which are funcs of their own: y_sum of y."""
    read = [e.producer for e in graph.edges if e.consumer == name]
    return [n for n in read if n.startswith(f"{name}_") and graph.consumers(n) == [name]]


def impossible(
    pins: Pins,
    program: Program,
    sizes: Mapping[str, int],
    tried: Sequence[tuple[str, str, Schedule]],
) -> ScheduleError:
    """The error for a func that nothing keeps where it is pinned: what contradicts it, or by how much.

    `tried` are the schedules that were found, what they are, and the first func that each does not keep.
    """
    name = tried[0][0]
    level = pins.machine.level(pins.levels[name])
    graph = TileGraph.of_state(Schedule.of_program(bind_sizes(program, sizes)).state)
    conflict = None if pins.is_far(name) else _conflicting_readers(pins, graph, name)
    needed = _least(pins, graph, level)
    most, room = sum(needed.values()), _room(pins.machine, level)
    hint = "pin it further out, or schedule it by hand"
    if conflict is not None:
        first, far, later = conflict
        why = f"{first!r} reads it before, and {later!r} after all of {far!r}, which is pinned to memory"
        hint = f"pin {far!r} nearer, or {name!r} to memory"
    elif room is not None and most > room:
        others = [n for n in needed if n != name]
        together = f" of it, {', '.join(others)}" if others else ""
        why = f"a point of the result needs {most:.0f} bytes{together}, {most - room:.0f} too many"
        hint = f"{_nearest_with_room(pins, level, name, most)}, or sum in tiles: see online() of a stage"
    elif pins.is_far(name):
        label, schedule = next((label, s) for func, label, s in tried if func == name)
        why = f"every schedule that was tried makes it in tiles, as {label!r} in {_home(schedule, name)}"
        hint = "leave out the pin, or schedule it by hand"
    else:
        why, kept = _nearest(pins, level, name, [(label, s) for func, label, s in tried if func == name])
        hint = f'pin={{"{name}": "{kept}"}} is what that schedule keeps; or schedule it by hand'
    return ScheduleError(
        f"{name!r} cannot be kept in {level.name}: {why}", loc=here(), label="this call", hint=hint
    )


def _room(machine: Machine, level: MemoryLevel) -> int | None:
    """The bytes of a level for what stays there: of the registers of a GPU, those of a thread."""
    if machine.block_threads and level.name == "registers":
        return REGISTER_BYTES * machine.registers
    return machine.capacity(level)


def _nearest_with_room(pins: Pins, level: MemoryLevel, name: str, size: float) -> str:
    """The pin of a func to the nearest level beyond `level` with room for so many bytes, with this room."""
    levels = pins.machine.levels
    for outer in levels[levels.index(level) + 1 :]:
        room = _room(pins.machine, outer)
        if room is None or size <= room:
            of = "" if room is None else f" of {room} bytes"
            return f'pin={{"{name}": "{outer.name}"}}: {outer.name}{of} is the nearest with room'
    return "pin it further out"


def _home(schedule: Schedule, name: str) -> str:
    prediction = schedule.prediction()
    return prediction.home(name).name if prediction.state.program.has_func(name) else "passing"


def _nearest(
    pins: Pins, level: MemoryLevel, name: str, tried: Sequence[tuple[str, Schedule]]
) -> tuple[str, str]:
    """By how much the schedule that has a func nearest to a level, and least of it, goes beyond that.

    Returns that and the level at which this schedule has it.
    """
    order = [x.name for x in pins.machine.levels]
    closest = [(order.index(_home(s, name)), s.prediction().needed_with(name), label) for label, s in tried]
    at, size, label = min(closest)
    room = _room(pins.machine, level)
    nearest = f"nearest comes {label!r}, which has it in {order[at]}"
    if room is None or size <= room:
        why = "more passes than that"
        if pins.machine.block_threads:
            why = "other threads read it"
            if at == len(order) - 1:  # what blocks share is read by other threads, too
                why = "none that was tried makes it in the blocks of what reads it"
                updated = len(tried[0][1].program.func(name).definitions) > 1
                why += ": what has updates gets a kernel of its own" if updated else ""
        return f"{nearest}; its {size:.0f} bytes would have room, but {why}", order[at]
    return f"{nearest} and needs {size:.0f} bytes while it is used, {size - room:.0f} too many", order[at]


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
