"""The problem of the planner: a variable for each strategy and each placement, tables of their prices.

All prices depend on one variable or on two, so a choice costs the sum of the entries of `unary` and
`pairs` that it selects; infinity is illegal. Memory is linear in the same selections.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tdsl.communication.stages import const_value, dtypes_of
from tdsl.lang.interpreted_boxes import realised_boxes
from tdsl.lang.program import FuncDef, Program
from tdsl.lang.simplify import simplify
from tdsl.machine.model import Machine
from tdsl.placement.grid import Grid
from tdsl.placement.notation import Placement
from tdsl.placement.ownership import SpanBox
from tdsl.planner.cluster import Cluster
from tdsl.planner.price_row import Price, PriceRow
from tdsl.planner.prices import Prices, StagePrices
from tdsl.planner.strategies import (
    Choices,
    Options,
    Strategy,
    is_compatible,
    may_be_partial,
    placed_as,
    placements_of,
    reads_parts,
    strategies_of,
    with_all_distributed,
)
from tdsl.planner.structure import Structure, structure_of
from tdsl.planner.symmetry import Symmetry
from tdsl.schedule.state import State

Table = NDArray[np.float64]
Variable = tuple[str, str]  # "loops" of a func or "place" of a tensor
Pair = tuple[Variable, Variable]
Choice = dict[Variable, int]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The stages, from number `first` to number `last`, in which a tensor is stored, and its bytes.

    `bytes` has them for each choice of the variable.
    """

    first: int
    last: int
    bytes: Table


@dataclass(slots=True)
class Problem:
    """Variables with the sizes of their domains, the seconds of choices, and their bytes of memory.

    A stage needs the bytes of the variables whose `lifetimes` include it, and those of its `buffers`, which
    depend on pairs of choices.
    """

    sizes: dict[Variable, int] = field(default_factory=dict)
    unary: dict[Variable, Table] = field(default_factory=dict)
    pairs: dict[Pair, Table] = field(default_factory=dict)
    lifetimes: dict[Variable, Lifetime] = field(default_factory=dict)
    buffers: list[Mapping[Pair, Table]] = field(default_factory=list)  # of each stage

    def add(self, variable: Variable, costs: Table) -> None:
        """Add costs of one variable."""
        self.sizes[variable] = len(costs)
        self.unary[variable] = self.unary[variable] + costs if variable in self.unary else costs

    def add_pair(self, a: Variable, b: Variable, costs: Table) -> None:
        """Add costs of two variables: rows are choices of `a`, columns of `b`."""
        if (b, a) in self.pairs:
            a, b, costs = b, a, costs.T
        self.pairs[a, b] = self.pairs[a, b] + costs if (a, b) in self.pairs else costs

    def seconds(self, choice: Mapping[Variable, int]) -> float:
        """The cost of a choice."""
        single = sum(float(t[choice[v]]) for v, t in self.unary.items())
        return single + sum(float(t[choice[a], choice[b]]) for (a, b), t in self.pairs.items())

    def memory(self, choice: Mapping[Variable, int]) -> int:
        """The bytes that the stage with the largest demand needs."""
        return max(map(int, self.stage_bytes(choice)), default=0)

    def stage_bytes(self, choice: Mapping[Variable, int]) -> Table:
        """The bytes that each stage needs."""
        change = np.zeros(len(self.buffers) + 1)
        for v, life in self.lifetimes.items():
            change[life.first] += life.bytes[choice[v]]
            change[life.last + 1] -= life.bytes[choice[v]]
        stored = np.cumsum(change)[:-1]
        for n, pairs in enumerate(self.buffers):
            stored[n] += sum(float(t[choice[a], choice[b]]) for (a, b), t in pairs.items())
        return stored


@dataclass(slots=True)
class Space:
    """The problem of a program on a grid, with what its choices are: strategies, placements, prices."""

    grid: Grid
    problem: Problem
    funcs: tuple[FuncDef, ...]
    tensors: tuple[str, ...]
    strategies: dict[str, tuple[Strategy, ...]]
    placements: dict[str, tuple[Placement, ...]]
    refused: dict[str, Mapping[str, str]]
    prices: dict[tuple[str, str], tuple[PriceRow, ...]]  # by func and tensor, of each strategy of the func
    tasks: dict[str, Table]

    def chosen_prices(self, choice: Choice) -> Iterator[tuple[str, str, Price]]:
        """The price of each tensor of each func, in the order of the program."""
        for (func, tensor), prices in self.prices.items():
            yield func, tensor, prices[choice["loops", func]].price(choice["place", tensor])


def space_of(
    state: State, grid: Grid, cluster: Cluster, machine: Machine, fixed: Mapping[str, Placement],
    forbidden: frozenset[str] = frozenset(), same: tuple[tuple[str, str], ...] = (),
) -> Space:  # fmt: skip
    """The problem of a state whose sizes are numbers; what it places or distributes is fixed, as is `fixed`.

    Communication of a `forbidden` kind is illegal, as are "copies" if forbidden; the pairs of tensors in
    `same` have one placement.
    """
    return GridPrices(state, grid, cluster, machine, fixed, forbidden, same).space()


class GridPrices:
    """Prices of a program on a grid, computed once for all of its problems; arguments as of `space_of`."""

    def __init__(
        self, state: State, grid: Grid, cluster: Cluster, machine: Machine, fixed: Mapping[str, Placement],
        forbidden: frozenset[str] = frozenset(), same: tuple[tuple[str, str], ...] = (),
    ) -> None:  # fmt: skip
        program = state.program
        self.state, self.grid, self.forbidden, self.same = state, grid, forbidden, same
        self.boxes, wholes, sizes = shapes_of(program)
        self.given = {f.name for f in program.funcs if state.plan(f.name).distributed}
        self.base = with_all_distributed(state, grid)
        self.funcs = tuple(
            f for f in program.funcs if f.name in self.boxes and self.base.plan(f.name).distributed
        )
        self.prices = Prices(grid, cluster.machine(machine), cluster.rates(machine), wholes, sizes)
        self.tensors = (*(t.name for t in program.inputs), *(f.name for f in self.funcs))
        placed = dict(state.placed) | dict(fixed)
        placements_once = functools.cache(placements_of)  # equal ones are one object, which other tables know
        self.placements = {
            n: placements_once(
                wholes[n], grid, _letters(program, n), partial=has_partial_placements(program, n),
                copies="copies" not in forbidden, given=placed.get(n),
            )
            for n in self.tensors
        }  # fmt: skip

    def space(
        self, options: Mapping[str, Options] | None = None,
        kept: Mapping[str, Iterable[Strategy]] | None = None,
    ) -> Space:  # fmt: skip
        """The problem with all strategies, or with those `kept` of each func; `options` are of one axis."""
        entries: dict[object, int] = {}
        numbers = {
            id(p): entries.setdefault(tuple(x.entries for x in p), len(entries))
            for p in {id(p): p for p in self.placements.values()}.values()
        }
        space = Space(self.grid, Problem(), self.funcs, self.tensors, {}, self.placements, {}, {}, {})
        known: dict[object, tuple[FuncDef, Structure, PricedFunc]] = {}
        program, prices = self.state.program, self.prices
        for f in self.funcs:
            structure, key = structure_of(self.base, f), object()
            if f.name not in self.given and kept is None:
                replaced = f.name in dict(self.state.overwrites)
                roles = tuple(
                    (
                        prices.wholes.get(t), prices.sizes.get(t),
                        program.has_func(t) and may_be_partial(program.func(t)),
                        numbers.get(id(self.placements.get(t))),
                    )
                    for t in structure.tensors
                )  # fmt: skip
                key = structure.definitions, self.boxes[f.name], roles, replaced
            if key not in known:
                choices = strategies_of(
                    self.base, f, self.grid, self.boxes[f.name], is_given=f.name in self.given,
                    options=None if options is None else options[f.name],
                    kept=None if kept is None else kept[f.name],
                )  # fmt: skip
                known[key] = f, structure, _price(choices, f, self.placements, prices, self.forbidden)
            _add_func(space, f, structure, *known[key])
        for v, w in (*self.state.overwrites, *self.same):
            _place_equally(space, v, w)
        _add_memory(space, self.state, prices)
        return space


def shapes_of(program: Program) -> tuple[dict[str, SpanBox], dict[str, SpanBox], dict[str, int]]:
    """The box that is computed of each func, those of all tensors, and the bytes of an element of each."""
    boxes: dict[str, SpanBox] = {
        n: tuple((lo, hi + 1) for lo, hi in box) for n, box in realised_boxes(program).items()
    }
    wholes = boxes | {t.name: tuple((0, const_value(simplify(e))) for e in t.shape) for t in program.inputs}
    return boxes, wholes, {n: sum(t.bytes for t in dtypes_of(program, n)) for n in wholes}


def has_partial_placements(program: Program, tensor: str) -> bool:
    """True if ranks may have parts of the sums that a tensor consists of."""
    is_inner = program.has_func(tensor) and tensor not in program.outputs
    return is_inner and may_be_partial(program.func(tensor))


def _letters(program: Program, name: str) -> str:
    """A letter for each dimension: the variables of a func if they are different letters."""
    if not program.has_func(name):
        return LETTERS[: len(program.input(name).shape)]
    names = program.func(name).variables
    if all(len(n) == 1 and n.isalpha() for n in names):
        return "".join(names)
    return LETTERS[: len(names)]


@dataclass(frozen=True, slots=True)
class PricedFunc:
    """The strategies of a func, the seconds of its tasks, the rows of its sources and, last, its results."""

    choices: Choices
    tasks: Table
    rows: Mapping[str, tuple[PriceRow, ...]]
    seconds: Mapping[str, Table]  # of the rows of a tensor, in one table
    buffers: Mapping[str, Table]  # bytes; of the tensors for which there are any


def _price(
    choices: Choices, f: FuncDef, placements: Mapping[str, tuple[Placement, ...]], prices: Prices,
    forbidden: frozenset[str],
) -> PricedFunc:  # fmt: skip
    """The prices of a func: its tasks, the fetch of each source, the delivery of its results."""
    strategies = choices.strategies
    sources = choices.stages[0].sources if strategies else ()
    tensors = (*sources, f.name)
    rows: dict[str, list[PriceRow]] = {t: [] for t in tensors}
    tasks: list[float] = []
    family, symmetry = prices.of_func(), Symmetry(prices.grid)
    first: dict[Strategy, int] = {}  # of the strategies that differ in the order of equal axes
    for n, strategy in enumerate(strategies):
        same = first.setdefault(symmetry.ordered(strategy), n)
        order = symmetry.order(strategies[same], strategy)
        moved = {t: order and symmetry.numbers(placements[t], order) for t in tensors}
        if same == n or None in moved.values():
            stage = family.of_stage(choices.stages[n])
            tasks.append(stage.task_seconds())
            for t, row in _priced_rows(stage, strategy, f, placements).items():
                rows[t].append(row.without(forbidden))
        else:
            tasks.append(tasks[same])
            for t, numbers in moved.items():
                rows[t].append(rows[t][same].taken(numbers or ()))
    shapes = {t: (len(rows[t]), len(placements[t])) for t in tensors}
    seconds = {t: np.array([row.seconds for row in rows[t]], float).reshape(shapes[t]) for t in tensors}
    buffers = {t: np.array([row.buffers for row in rows[t]], float).reshape(shapes[t]) for t in tensors}
    return PricedFunc(
        choices, np.array(tasks), {t: tuple(x) for t, x in rows.items()}, seconds,
        {t: x for t, x in buffers.items() if np.any(x)},
    )  # fmt: skip


def _priced_rows(
    stage: StagePrices, strategy: Strategy, f: FuncDef, placements: Mapping[str, tuple[Placement, ...]]
) -> dict[str, PriceRow]:  # fmt: skip
    """The prices of the sources of a strategy and of its results."""
    rows: dict[str, PriceRow] = {}
    for t in stage.stage.sources:
        rows[t] = stage.fetch(t, placements[t], reads_parts(strategy, t, placements[t]))
    results = PriceRow.of({}, len(placements[f.name]))
    for first in {p.partial: p for p in placements[f.name]}.values():
        if is_compatible(f, strategy, first):
            as_placed = stage
            if first.partial:
                as_placed = stage.family.of_stage(placed_as(stage.stage, first))
            results = results.or_else(as_placed.deliver(placements[f.name]))
    return rows | {f.name: results}


def _add_func(
    space: Space, f: FuncDef, structure: Structure, priced: FuncDef, known: Structure, prices: PricedFunc
) -> None:  # fmt: skip
    """Add the tables of a func, which are those of a func `priced` of equal structure."""
    loops, names = ("loops", f.name), dict(zip(known.tensors, structure.tensors, strict=True))
    space.strategies[f.name] = known.renamed(priced, prices.choices.strategies, f, structure.tensors)
    space.refused[f.name] = prices.choices.refused if f is priced else {}
    space.problem.add(loops, prices.tasks)
    space.tasks[f.name] = prices.tasks
    buffers: dict[Pair, Table] = {}
    for tensor, rows in prices.rows.items():
        t = names[tensor]
        space.prices[f.name, t] = rows
        space.problem.add(("place", t), np.zeros(len(space.placements[t])))
        space.problem.add_pair(loops, ("place", t), prices.seconds[tensor])
        if tensor in prices.buffers:
            buffers[loops, ("place", t)] = prices.buffers[tensor]
    space.problem.buffers.append(buffers)


def _place_equally(space: Space, v: str, w: str) -> None:
    """Two tensors have the same placement, as one that overwrites the other has."""
    for t in (v, w):
        if ("place", t) not in space.problem.sizes:
            space.problem.add(("place", t), np.zeros(len(space.placements[t])))
    same = [[a.entries == b.entries for b in space.placements[w]] for a in space.placements[v]]
    space.problem.add_pair(("place", v), ("place", w), np.where(same, 0.0, np.inf))


def _add_memory(space: Space, state: State, prices: Prices) -> None:
    """Add what is in use at each stage: inputs, outputs, buffers, and what is freed until it is last read."""
    program, position = state.program, {f.name: n for n, f in enumerate(space.funcs)}
    inputs = {t.name: None for t in program.inputs}
    for t in inputs:  # of which some may be read by no stage
        if ("place", t) not in space.problem.sizes:
            space.problem.add(("place", t), np.zeros(len(space.placements[t])))
    last = {t: n for n, (f, t) in ((position[f], (f, t)) for f, t in space.prices)}
    replaced, end = dict(state.overwrites), len(space.funcs) - 1
    for t in space.tensors:
        if t in replaced:
            continue
        sizes = prices.block_bytes(t, space.placements[t])
        first = 0 if t in inputs else position[t]
        lasting = (t in inputs and t not in state.donated) or t in program.outputs
        space.problem.lifetimes["place", t] = Lifetime(first, end if lasting else last.get(t, 0), sizes)


def all_choices(problem: Problem) -> Iterator[Choice]:
    """Every choice of a small problem."""
    names = list(problem.sizes)
    for values in itertools.product(*(range(problem.sizes[v]) for v in names)):
        yield dict(zip(names, values, strict=True))
