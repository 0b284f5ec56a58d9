"""The search: which funcs share tiles, how, and what that costs.

1. Candidates: the default schedule; every func by itself; the best cuts that a beam finds, and tiles inside
   of tiles for each level of memory; and, where sums need other reductions over their terms, one pass over
   tiles of the terms.
2. Each becomes an ordinary schedule: the default schedule fills in what a candidate leaves open.
3. Terms that a mask makes nothing are left out of all of them, where the target is a CPU.
4. Where products in another order take clearly fewer operations, the same of the program that `reassociate`
   makes; with less than half of them, of the program as it stands the default groups alone.
5. The roofline prices them; what does not fit a managed memory is out. The default is left only for what is
   clearly faster, since the recipes are tuned and the model is not exact, or as fast with half of the bytes.
6. Pins take out what does not keep to them.

Nothing is random, and ties go to the earlier candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from functools import partial
from itertools import islice

from tdsl.autoschedule.choose_inline import choose_inline
from tdsl.autoschedule.explain import Decision
from tdsl.autoschedule.recipes.bands import bands
from tdsl.autoschedule.recipes.choices import if_suited
from tdsl.autoschedule.recipes.online_bands import online_bands
from tdsl.autoschedule.recipes.online_blocks import online_blocks
from tdsl.autoschedule.recipes.online_tensor_cores import online_tensor_cores
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.cost.moved import total
from tdsl.errors import ScheduleError
from tdsl.lang.program import Program
from tdsl.machine.model import Machine
from tdsl.schedule.bind import bind_state
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.legality import check_all
from tdsl.schedule.masked import masked_funcs
from tdsl.schedule.state import Inline, State
from tdsl.target import Target
from tdsl.tilegraph.alternatives import CLEARLY
from tdsl.tilegraph.default import completion
from tdsl.tilegraph.graph import TileGraph
from tdsl.tilegraph.levels import Part, nested_tiles
from tdsl.tilegraph.orders import fewer_operations
from tdsl.tilegraph.pin_errors import Refused, impossible
from tdsl.tilegraph.pins import Pins, read_pins
from tdsl.tilegraph.schedule import Schedule
from tdsl.tilegraph.write import write_tiles
from tdsl.tilegraph.write_blocks import write_blocks

ON_GPUS = 0.9  # of it on GPUs, where recipes are not tuned by measurements either
CALMER = 0.5  # of the bytes beyond the nearest cache, from which an equal price is enough
CALLS = "calls apart"  # what other candidates must beat in a small program of several calls
SMALL = 2e-4  # seconds of these, above which what begins loops and kernels matters little
OF_CALLS = 0.75  # of its time: small kernels take longer than what the model counts
SETTLED = 0.5  # of the operations, from which their order is settled without a look at the price
TRIED = 64  # terms of a tile, to see whether a sum has such a form
BANDS = (16, 32, 64)  # rows that are tried, beside what the recipe chooses


@frozen
class Candidate:
    """A schedule, what it is, and the seconds that the roofline gives it."""

    label: str
    schedule: Schedule
    seconds: float


@frozen
class SearchResult:
    """What a search has tried: the candidate to take first, the others by their price.

    `refused` are those of which recipes or places do not suit the program, and why.
    """

    candidates: list[Candidate]
    refused: dict[str, ScheduleError]


def candidates(
    program: Program, sizes: Mapping[str, int], target: Target, pin: object = None,
    results: Collection[str] = (),
) -> list[Candidate]:  # fmt: skip
    """The legal candidates of a search."""
    return search(program, sizes, target, pin, results).candidates


def search(
    program: Program, sizes: Mapping[str, int], target: Target, pin: object = None,
    results: Collection[str] = (),
) -> SearchResult:  # fmt: skip
    """The legal candidates, the best first, the others by predicted time; and the illegal ones with errors.

    With `results`, what calls of operators give, the schedules of these calls are candidates, too, and those
    that others must beat in small programs.
    `pin` says for funcs, by name or as (producer, consumer), at which level they live, or "inline".
    ScheduleError where nothing keeps to that, or a pin makes no sense.
    """
    machine = target.machine()
    pins = read_pins(program, machine, pin)
    legal: list[Candidate] = []
    against_pins: list[Refused] = []
    refused: dict[str, ScheduleError] = {}
    for label, schedule in _schedules(program, sizes, target, pins, {*results}, refused):
        if broken := pins.broken(schedule):
            against_pins.append(Refused(label, schedule, broken))
        else:
            legal.append(Candidate(label, schedule, schedule.prediction().seconds))
    if not legal and against_pins:

        def holds(others: Pins) -> bool:
            schedules = _schedules(program, sizes, target, others, {*results}, {})
            return any(not others.broken(schedule) for _, schedule in schedules)

        raise impossible(pins, program, sizes, against_pins, holds)
    if not legal:
        raise next(iter(refused.values()))
    return SearchResult(_in_order(legal, ON_GPUS if machine.block_threads else CLEARLY), refused)


def _schedules(
    program: Program, sizes: Mapping[str, int], target: Target, pins: Pins, results: set[str],
    refused: dict[str, ScheduleError],
) -> Iterator[tuple[str, Schedule]]:  # fmt: skip
    """The legal schedules for candidates, each with its label; the errors of illegal ones go to `refused`."""
    seen = set[str]()
    for label, schedule, make in _makers(program, sizes, target, pins, results):
        try:
            if not make(schedule) or str(schedule) in seen:
                continue
            seen.add(str(schedule))
            _check_room(label, schedule, pins.machine)
            check_all(schedule.state)
        except ScheduleError as error:  # any other one is a fault, of the program or of the search
            refused[label] = error
            continue
        yield label, schedule


def _in_order(legal: list[Candidate], clearly: float) -> list[Candidate]:
    """The candidate to take first, the others by their price; `legal` begins with what must be beaten."""
    if legal[0].label == CALLS and legal[0].seconds > SMALL and len(legal) > 1:
        legal = [legal[1], legal[0], *legal[2:]]  # the default is as good a start
    first, *others = legal
    others.sort(key=lambda c: c.seconds)
    enough = OF_CALLS if first.label == CALLS else clearly
    if others and (others[0].seconds < enough * first.seconds or _is_calmer(others[0], first)):
        return [others[0], first, *others[1:]]
    return [first, *others]


def _is_calmer(other: Candidate, first: Candidate) -> bool:
    """True if another candidate costs no more than the first and exchanges far fewer bytes.

    Counted is what passes the caches beyond the nearest one: of schedules that take equally long by
    themselves, the one that needs less of the caches and of the memory that all cores share is better.
    """
    if first.label == CALLS or other.seconds > first.seconds:
        return False
    predictions = [c.schedule.prediction() for c in (first, other)]
    levels = [x.name for x in predictions[0].machine.caches[1:]]
    of_first, of_other = (sum(total(p.moved(x)) for x in levels) for p in predictions)
    return of_other < CALMER * of_first


def _check_room(label: str, schedule: Schedule, machine: Machine) -> None:
    """ScheduleError where what a schedule puts into managed memory has no room there."""
    capacity = machine.level("shared").bytes if machine.block_threads else None
    if capacity is None:
        return
    needed = schedule.footprint("shared")
    if needed > capacity:
        raise ScheduleError(
            f"the schedule {label!r} needs {needed:.0f} bytes of shared memory for a block, "
            f"{needed - capacity:.0f} more than there are",
            loc=here(),
            label="this call",
            hint="schedule it by hand, in smaller tiles",
        )


Make = Callable[[Schedule], bool]


def _tiled(start: Schedule, machine: Machine, pins: Pins) -> Iterator[tuple[str, Make]]:
    """The best cuts, with recipes for the funcs between them, or with nested tiles."""
    state = inline_funcs(_inlined(start, machine)[0])
    graph = TileGraph.of_state(state)

    def together(name: str) -> bool:  # what updates write is anywhere
        return not pins.is_far(name) and len(state.program.func(name).definitions) == 1

    for parts in nested_tiles(graph, machine, together=together):
        owners = {p.owner for p in parts}
        separate = ", ".join(sorted(owners - {*state.program.outputs}))
        label = f"cut after {separate}" if separate else "no cuts"
        tiled = tuple(p for p in parts if p.parts)
        yield label, partial(_by_groups, machine=machine, cuts=owners)
        if tiled:
            yield f"{label}, tiles", partial(_by_groups, machine=machine, cuts=owners, tiled=tiled)


def _makers(
    program: Program, sizes: Mapping[str, int], target: Target, pins: Pins, results: set[str]
) -> Iterator[tuple[str, Schedule, Make]]:
    """Candidates: what they are, a schedule to go on from, and how."""
    starts = {"": Schedule.of_program(program, sizes, target)}
    if pins.machine.has_vectors:
        for name in masked_funcs(program):
            starts[""][name].skip_masked()
    order = fewer_operations(program, sizes)
    if order is not None:
        schedule = copy(starts[""])
        for func, source in order.steps:
            schedule[func].reassociate(source)
        if all(map(schedule.state.program.has_func, pins.levels)):
            starts["reassociated, "] = schedule
    settled = len(starts) > 1 and order is not None and order.part < SETTLED
    for label, start in starts.items():
        for name in pins.inlined:
            start[name].inline()
        for way, make in islice(_ways(start, pins, results), None if label or not settled else 1):
            yield label + way, copy(start), make


def _ways(start: Schedule, pins: Pins, results: set[str]) -> Iterator[tuple[str, Make]]:
    """What becomes of a program: its calls or the default first, then what competes with it."""
    machine, program = pins.machine, start.state.program
    if results:
        yield CALLS, partial(_by_groups, machine=machine, cuts=results)
    yield "default", partial(_by_groups, machine=machine, cuts=pins.far)
    for name in _online_sums(program):
        yield f"online {name}", partial(_online, name=name, machine=machine)
    names = [f.name for f in program.funcs if f.name not in program.outputs]
    if not machine.block_threads and names:
        for rows in BANDS:
            yield f"bands of {rows} rows", partial(_in_bands, rows=rows, machine=machine)
        yield "apart", partial(_by_groups, machine=machine, cuts=set(names))
    if (machine.has_vectors or machine.block_threads) and names:
        yield from _tiled(start, machine, pins)


def _online_sums(program: Program) -> list[str]:
    """Sums whose terms need other reductions over them, those of the most dimensions first."""
    sums = []
    for f in program.funcs:
        d = f.definitions[0]
        if len(f.definitions) == 1 and d.init is not None and len(d.ranges) == 1:
            scratch = Schedule.of_program(program)
            try:
                scratch[f.name].online(d.ranges[0][0], TRIED)
            except ScheduleError:
                continue
            sums.append(f)
    return [f.name for f in sorted(sums, key=lambda f: -len(f.variables))[:2]]


def _by_groups(
    schedule: Schedule, machine: Machine, cuts: Collection[str] = (), tiled: tuple[Part, ...] = ()
) -> bool:
    """The groups of the default schedule, none of which goes beyond a cut, as directives.

    Those that are `tiled` get nested tiles instead.
    """
    names = {name for part in tiled for name in part.members}
    for d in _inlined(schedule, machine)[1] if tiled else ():
        if d.func not in cuts:
            schedule[d.func].inline()
    for part in reversed(tiled):
        (write_blocks if machine.block_threads else write_tiles)(schedule, part, machine)
    for name in sorted({*cuts} - names - {*schedule.state.program.outputs}):
        if not schedule.state.program.has_func(name):
            continue  # in another order some are not computed
        if not isinstance(schedule.state.plan(name).place, Inline):  # as a pin has it
            schedule[name].compute_root()  # no recipe of a reader places it elsewhere
    try:
        with schedule.all_or_nothing():
            _fill_in(schedule, bind_state(schedule.state, schedule.sizes), machine)
    except ScheduleError:  # a directive needs a size that the program leaves open
        _fill_in(schedule, schedule.state, machine)
    return True


def _fill_in(schedule: Schedule, state: State, machine: Machine) -> None:
    """Add the directives of the default schedule for a state to a schedule."""
    for directive in completion(state, machine).directives:
        schedule.do(directive)


def _inlined(schedule: Schedule, machine: Machine) -> tuple[State, list[Decision]]:
    """The state with the funcs inlined that the default schedule inlines, and these decisions."""
    state = bind_state(schedule.state, schedule.sizes)
    return choose_inline(state, products_read_values=machine.block_threads > 0)


def _in_bands(schedule: Schedule, rows: int, machine: Machine) -> bool:
    """The chains that end in outputs by bands of another height."""
    plans = [if_suited(bands, schedule[o], machine=machine, rows=rows) for o in schedule.program.outputs]
    return any(plans)


def _online(schedule: Schedule, name: str, machine: Machine) -> bool:
    """One pass over the terms of a sum; what is left over has its own loops."""
    if machine.block_threads:
        if if_suited(online_tensor_cores, schedule[name], machine=machine) is None:
            online_blocks(schedule[name], machine=machine)
        return _by_groups(schedule, machine)
    online_bands(schedule[name], machine=machine)
    return True


def notes_of(ranked: list[Candidate]) -> tuple[str, ...]:
    """Why the first candidate was chosen, and not the others."""
    best, *others = ranked
    lines = [f"taken: {best.label}, {_milliseconds(best.seconds)}"]
    for c in others:
        faster = c.seconds < best.seconds
        change = c.seconds / best.seconds if best.seconds else 1.0  # of nothing all take no time
        why = "not clearly faster" if faster else f"{change:.2f} times as long"
        lines.append(f"not taken: {c.label}, {_milliseconds(c.seconds)}: {why}")
    return tuple(lines)


def _milliseconds(s: float) -> str:
    return f"{s * 1e3:.3g} ms"
