"""The strategies of a func: what `distribute` accepts for each axis of a grid.

There is no table of operators: a strategy is legal if `distribute` accepts it, and its boxes are those of
the region function.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Literal

from tdsl.communication.stages import Stage, stage_of
from tdsl.core.node import frozen
from tdsl.lang.definition import has_effects
from tdsl.lang.program import FuncDef
from tdsl.placement.grid import Grid
from tdsl.placement.notation import Blocks, Copies, Entry, Fixed, Partial, Placement, axis_name
from tdsl.placement.ownership import SpanBox
from tdsl.schedule.linear import NotLinear, check_linear
from tdsl.schedule.ranks import distribute
from tdsl.schedule.state import AxisEntry, Illegal, Inline, Root, State, fresh_plan

AxisStrategy = str | int | frozenset[str]  # a variable, "*", a coordinate, or the sources that are partial
MAX_LINEAR_SOURCES = 4  # sources of a func of which all subsets are tried as partial


@frozen
class Strategy:
    """How a func is distributed: its definition, and for each axis what computes it.

    That is a variable of the definition, "*", a coordinate, or the set of sources of whose parts each
    coordinate computes its own part.
    """

    definition: int
    axes: tuple[AxisStrategy, ...]

    @property
    def entries(self) -> tuple[str | int, ...]:
        """What `distribute` takes."""
        return tuple("partial" if isinstance(x, frozenset) else x for x in self.axes)

    def __str__(self) -> str:
        return " ".join(map(str, self.entries))


@frozen
class Options:
    """What an axis may distribute, for each definition, and for each variable that it may not the reason."""

    choices: Mapping[int, tuple[AxisStrategy, ...]]
    refused: Mapping[str, str]

    def strategies(self, axes: int) -> Iterator[Strategy]:
        """All strategies on a grid of some number of axes."""
        for definition, choices in self.choices.items():
            for chosen in itertools.product(choices, repeat=axes):
                yield Strategy(definition, chosen)


@frozen
class Choices:
    """The strategies of a func with the stage of each, and for each variable that has none the reason."""

    strategies: tuple[Strategy, ...]
    stages: tuple[Stage, ...]
    refused: Mapping[str, str]


def repeated(f: FuncDef) -> int | Literal["*"]:
    """What an axis says if it distributes nothing: "*", or a coordinate if the func may run only once."""
    return 0 if any(map(has_effects, f.definitions)) else "*"


def with_all_distributed(state: State, grid: Grid) -> State:
    """The state in which every func that is not inlined is distributed, those that were not by "*"."""
    plans = dict(state.plans)
    for f in state.program.funcs:
        plan = state.plan(f.name)
        if not (plan.distributed or isinstance(plan.place, Inline)):
            entry: AxisEntry = Copies() if repeated(f) == "*" else Fixed(0)
            everywhere = (entry,) * len(grid.axes)
            plans[f.name] = replace(fresh_plan(f), distributed=everywhere, place=Root())
    return replace(state, grid=grid, plans=tuple(plans.items()))


def strategies_of(
    state: State, f: FuncDef, grid: Grid, box: SpanBox, *, is_given: bool, options: Options | None = None,
    kept: Iterable[Strategy] | None = None,
) -> Choices:  # fmt: skip
    """All strategies of a func in a state in which every func is distributed, or those of them in `kept`.

    If the user distributed it (`is_given`), that is the only one. `options` are those of an axis if known.
    """
    if is_given:
        plan = state.plan(f.name)
        axes = tuple(_given(state, f, e, n) for n, e in enumerate(plan.distributed))
        stage = stage_of(_copied(state, f.name, grid, len(box)), f, box)
        return Choices((Strategy(plan.distributed_definition, axes),), (stage,), {})
    strategies, stages, families = [], [], dict[int, _Stages]()
    options = options or axis_options(state, f, grid, box)
    for strategy in options.strategies(len(grid.axes)) if kept is None else kept:
        n = strategy.definition
        if n not in families:
            families[n] = _Stages(state, f, n, grid, box)
        composed = families[n].stage(strategy.axes)
        if composed is not None:
            stages.append(composed)
            strategies.append(strategy)
    return Choices(tuple(strategies), tuple(stages), options.refused)


class _Stages:
    """The stages of the strategies of one definition of a func.

    The loops of a variable depend on the axes over which it is distributed, not on the other variables: the
    directive is applied for each variable with all other axes repeated, and the stages of strategies consist
    of the variables of these.
    """

    def __init__(self, state: State, f: FuncDef, definition: int, grid: Grid, box: SpanBox) -> None:
        self.state, self.func, self.definition, self.grid, self.box = state, f, definition, grid, box
        self.rest = repeated(f)
        self.base = self._directive((self.rest,) * len(grid.axes))
        self.singles: dict[tuple[str, tuple[int, ...]], Stage | None] = {}

    def _directive(self, axes: tuple[AxisStrategy, ...]) -> Stage | None:
        """The stage after the directive; None if that is not legal."""
        state = _distributed(self.state, self.func, self.definition, axes, self.grid)
        if isinstance(state, Illegal):
            return None
        return stage_of(_copied(state, self.func.name, self.grid, len(self.box)), self.func, self.box)

    def _single(self, variable: str, numbers: tuple[int, ...]) -> Stage | None:
        """The stage in which one variable is distributed over the axes of some numbers."""
        if (variable, numbers) not in self.singles:
            axes = (variable if n in numbers else self.rest for n in range(len(self.grid.axes)))
            self.singles[variable, numbers] = self._directive(tuple(axes))
        return self.singles[variable, numbers]

    def stage(self, axes: tuple[AxisStrategy, ...]) -> Stage | None:
        """The stage of a strategy; None if the directive is not legal."""
        base = self.base
        if base is None:
            return self._directive(axes)
        outer, entries = list(base.outer), list(base.entries)
        loops, parts = dict(base.loops), {part.name: part for part in base.parts}
        numbers: dict[str, list[int]] = {}
        for n, x in enumerate(axes):
            if isinstance(x, str) and x != "*":
                numbers.setdefault(x, []).append(n)
            elif x != self.rest:
                entry = Partial("sum") if isinstance(x, frozenset) else Copies()
                entries[n], outer[n] = entry, axis_name(self.grid.names[n], entry)
                loops[outer[n]] = (0, self.grid.shape[n])
        for variable, at in numbers.items():
            single = self._single(variable, tuple(at))
            if single is None:
                return None
            for n in at:
                outer[n], entries[n] = single.outer[n], single.entries[n]
            parts |= {part.name: part for part in single.parts if part.name == variable}
            loops |= single.loops
        if len({*outer}) < len(outer):
            return self._directive(axes)
        return replace(
            base, outer=tuple(outer), entries=tuple(entries), parts=tuple(parts.values()), loops=loops,
            _variable_spans={}, _terms={},
        )  # fmt: skip


def placed_as(stage: Stage, placement: Placement) -> Stage:
    """A stage whose results have a placement."""
    state = stage.state.with_placements(stage.state.grid, ((stage.name, placement),))
    return replace(stage, state=state)


def _copied(state: State, func: str, grid: Grid, ndim: int) -> State:
    """The state in which a func has a copy on each rank; placements of inputs stay."""
    letters = "abcdefghijklmnopqrstuvwxyz"[:ndim]
    copies = Placement(letters, tuple(Copies() for _ in grid.axes))
    others = tuple((name, p) for name, p in state.placed if name != func)
    return state.with_placements(state.grid, (*others, (func, copies)))


def _given(state: State, f: FuncDef, entry: object, axis: int) -> AxisStrategy:
    match entry:
        case Copies():
            return "*"
        case Fixed(coordinate):
            return coordinate
        case Partial():
            sources = {r.name for d in f.definitions for r in d.reads}
            return frozenset(n for n, p in state.placed if n in sources and axis in p.partial)
        case _:
            return str(entry)


def axis_options(state: State, f: FuncDef, grid: Grid, box: SpanBox) -> Options:
    """What an axis of any size may distribute of a func."""
    refused: dict[str, str] = {}
    options: dict[int, tuple[AxisStrategy, ...]] = {}
    for definition, d in enumerate(f.definitions):
        legal: list[AxisStrategy] = []
        for v in d.variables:
            result = _distributed(state, f, definition, (v,), grid, axis=0)
            if isinstance(result, Illegal):
                refused.setdefault(v, result.reason + (f": {result.hint}" if result.hint else ""))
            elif v not in d.free or f.variables != d.free or _extent(box, d.free.index(v)) > 1:
                legal.append(v)
                refused.pop(v, None)
        if definition and not legal:
            continue
        if definition == 0:
            legal += [repeated(f), *_linear_sources(state, f)]
        else:
            legal.append("*")
        options[definition] = tuple(legal)
    return Options(options, refused)


def _extent(box: SpanBox, dim: int) -> int:
    return box[dim][1] - box[dim][0]


def _linear_sources(state: State, f: FuncDef) -> Iterator[frozenset[str]]:
    """The sets of sources in which a func is linear and homogeneous, and which may be partial sums."""
    if len(f.definitions) > 1 or len(f.dtypes) > 1:
        return
    program = state.program
    sources = [
        name for name in dict.fromkeys(r.name for r in f.definitions[0].reads)
        if program.has_func(name) and may_be_partial(program.func(name))
    ]  # fmt: skip
    if len(sources) > MAX_LINEAR_SOURCES:
        return
    for count in range(1, len(sources) + 1):
        for chosen in itertools.combinations(sources, count):
            try:
                check_linear(f, {}, set(chosen))
            except NotLinear:
                continue
            yield frozenset(chosen)


def may_be_partial(f: FuncDef) -> bool:
    """True if ranks may have parts of the sums that a func consists of."""
    combine = f.definitions[-1].combine
    if len(f.dtypes) > 1 or (combine is not None and (combine.kind != "sum" or bool(combine.scalars()))):
        return False
    return combine is not None or len(f.definitions) == 1


def _distributed(
    state: State, f: FuncDef, definition: int, axes: tuple[AxisStrategy, ...], grid: Grid,
    axis: int | None = None,
) -> State | Illegal:  # fmt: skip
    """The state with a func distributed in a way, or why that is not legal; `axis`: along that one only."""
    entries = tuple("partial" if isinstance(x, frozenset) else x for x in axes)
    levels = grid.levels
    if axis is not None:
        name, size = grid.axes[axis]
        levels = (((name, size),),)
        state = state.with_placements(None, state.placed)
    try:
        return distribute(
            state.with_plan(f.name, fresh_plan(f)), f.name, definition, loops=entries, grid=levels
        )
    except Illegal as reason:
        return reason


def placements_of(
    box: SpanBox, grid: Grid, letters: str, *, partial: bool, copies: bool, given: Placement | None
) -> tuple[Placement, ...]:
    """The placements of a tensor: along each axis blocks of a dimension, copies, or partial sums.

    A dimension that several axes cut is cut in each order of them.

    >>> square = ((0, 8), (0, 8))
    >>> [str(p) for p in placements_of(square, Grid(x=2), "ab", partial=False, copies=True, given=None)]
    ['ab -> a', 'ab -> b', 'ab -> *']
    >>> row = ((0, 8),)
    >>> [str(p) for p in placements_of(row, Grid(x=2, y=2), "a", partial=False, copies=False, given=None)]
    ['a -> a a', "a -> a' a"]
    """
    if given is not None:
        return (given,)
    dims = [dim for dim, (lo, hi) in enumerate(box) if hi - lo > 1]
    others: list[Entry] = [Copies()] if copies or not dims else []
    others += [Partial("sum")] if partial else []
    placements: list[Placement] = []
    for chosen in itertools.product([*dims, *others], repeat=len(grid.axes)):
        cuts = [[n for n, x in enumerate(chosen) if x == dim] for dim in dims]
        for orders in itertools.product(*(itertools.permutations(axes) for axes in cuts)):
            cut = zip(dims, orders, strict=True)
            blocks = dict(block for dim, order in cut for block in blocks_by_order(dim, order))
            entries = (blocks[n] if isinstance(x, int) else x for n, x in enumerate(chosen))
            placements.append(Placement(letters, tuple(entries)))
    return tuple(placements)


def blocks_by_order(dim: int, order: tuple[int, ...]) -> Iterator[tuple[int, Blocks]]:
    """The entry of each axis with which the axes cut a dimension in an order."""
    level = 0
    for n, axis in enumerate(order):
        level += bool(n) and axis < order[n - 1]
        yield axis, Blocks(dim, level)


def is_compatible(f: FuncDef, strategy: Strategy, placement: Placement) -> bool:
    """True if a strategy of a func may compute results of this placement."""
    ranges = {name for name, _, _ in f.definitions[strategy.definition].ranges}
    for n in placement.partial:
        x = strategy.axes[n]
        if not (isinstance(x, frozenset) or strategy.definition or x in ranges):
            return False
    return True


def reads_parts(strategy: Strategy, source: str, placements: tuple[Placement, ...]) -> tuple[bool, ...]:
    """For each placement of a source: True if it is partial along axes as a strategy says of this source.

    A strategy that takes parts of other sources along an axis needs this one complete along it.
    """
    taken = [(n, source in x) for n, x in enumerate(strategy.axes) if isinstance(x, frozenset)]
    if not taken:
        return (True,) * len(placements)
    return tuple(all(part == (n in p.partial) for n, part in taken) for p in placements)
