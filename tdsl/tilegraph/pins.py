"""Pins: where the user wants a func to live, whatever a search would choose."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tdsl.autoschedule.edges import copied
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import ScheduleError, TargetError, TypeMismatch, did_you_mean
from tdsl.lang.program import Program
from tdsl.machine.model import Machine
from tdsl.schedule.directive import apply
from tdsl.schedule.state import initial_state
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

    def __str__(self) -> str:
        return "{" + ", ".join(f'"{n}": "{level}"' for n, level in self.levels.items()) + "}"

    @property
    def inlined(self) -> tuple[str, ...]:
        """The funcs that must be computed wherever they are read."""
        return tuple(n for n, level in self.levels.items() if level == INLINE)

    def broken(self, schedule: Schedule) -> dict[str, str]:
        """The funcs that a schedule does not keep where they are pinned, each with what keeps it instead.

        That is the name of a level of memory, or "inline" for a func without memory that has to have some.
        """
        at_root = {s.func.name for s in schedule.prediction().nests.roots()}
        order = [x.name for x in self.machine.levels]
        broken = {}
        for name, pinned in self.levels.items():
            storing = stores(schedule, name)
            at = order[-1] if self.is_far(name) and storing & at_root else level_of(schedule, storing)
            if self.is_far(name) and not schedule.state.program.has_func(name):
                keeps = False  # its values are computed in tiles
            elif pinned == INLINE or self.is_far(name):
                keeps = at == pinned
            else:
                keeps = at == INLINE or order.index(at) <= order.index(pinned)
            if not keeps:
                broken[name] = at
        return broken


def level_of(schedule: Schedule, storing: Collection[str]) -> str:
    """The farthest level of memory at which a schedule keeps some funcs; "inline" without any."""
    prediction = schedule.prediction()
    order = [x.name for x in prediction.machine.levels]
    return max((prediction.home(n).name for n in storing), key=order.index, default=INLINE)


def stores(schedule: Schedule, name: str) -> set[str]:
    """The funcs of a complete schedule that store the values of a func; none if it is inlined.

    These are the func itself, its copies, and for a func that `online` replaces, the results of tiles.
    """
    program = schedule.prediction().state.program
    storing = {name} if program.has_func(name) else set()
    if not schedule.state.program.has_func(name):
        storing = _replacing(schedule, name)
    while copies := {f.name for f in program.funcs if copied(f) in storing} - storing:
        storing |= copies
    return {n for n in storing if program.has_func(n)}


def _replacing(schedule: Schedule, name: str) -> set[str]:
    """The funcs that a directive of a schedule added when it removed a func from the program."""
    state = initial_state(schedule.program)
    for directive in schedule.directives:
        before, state = state, apply(directive, state)
        if not state.program.has_func(name):
            return {*state.by_name} - {*before.by_name}
    return set()


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
