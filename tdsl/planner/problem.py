"""The problem of the planner: a variable for each strategy and each placement, tables of their prices.

All prices depend on one variable or on two, so a choice costs the sum of the entries of `unary` and
`pairs` that it selects; infinity is illegal. Memory is linear in the same selections.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
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
from tdsl.planner.prices import Price, Prices, StagePrices
from tdsl.planner.strategies import (
    Strategy,
    is_compatible,
    may_be_partial,
    placed_as,
    placements_of,
    reads_parts,
    strategies_of,
    with_all_distributed,
)
from tdsl.schedule.state import State

Table = NDArray[np.float64]
Variable = tuple[str, str]  # "loops" of a func or "place" of a tensor
Choice = dict[Variable, int]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(slots=True)
class Problem:
    """Variables with the sizes of their domains, the seconds of choices, and their bytes of memory.

    `rows` has for each stage the bytes in use while it runs: of choices of a variable, and of pairs.
    """

    sizes: dict[Variable, int] = field(default_factory=dict)
    unary: dict[Variable, Table] = field(default_factory=dict)
    pairs: dict[tuple[Variable, Variable], Table] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

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
        return max((int(row.bytes(choice)) for row in self.rows), default=0)


@dataclass(slots=True)
class Row:
    """The bytes in use while a stage runs."""

    stage: str
    unary: dict[Variable, Table] = field(default_factory=dict)
    pairs: dict[tuple[Variable, Variable], Table] = field(default_factory=dict)

    def bytes(self, choice: Mapping[Variable, int]) -> float:
        """The bytes of a choice."""
        single = sum(t[choice[v]] for v, t in self.unary.items())
        return float(single + sum(t[choice[a], choice[b]] for (a, b), t in self.pairs.items()))


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
    prices: dict[tuple[str, str], dict[tuple[int, int], Price]]  # by func and tensor, by choices of both
    tasks: dict[str, Table]

    def chosen_prices(self, choice: Choice) -> Iterator[tuple[str, str, Price]]:
        """The price of each tensor of each func, in the order of the program."""
        for (func, tensor), prices in self.prices.items():
            yield func, tensor, prices[choice["loops", func], choice["place", tensor]]


def space_of(
    state: State, grid: Grid, cluster: Cluster, machine: Machine, fixed: Mapping[str, Placement],
    forbidden: frozenset[str] = frozenset(), same: tuple[tuple[str, str], ...] = (),
) -> Space:  # fmt: skip
    """The problem of a state whose sizes are numbers; what it places or distributes is fixed, as is `fixed`.

    Communication of a `forbidden` kind is illegal, as are "copies" if forbidden; the pairs of tensors in
    `same` have one placement.
    """
    program = state.program
    boxes: dict[str, SpanBox] = {
        n: tuple((lo, hi + 1) for lo, hi in box) for n, box in realised_boxes(program).items()
    }
    given = {f.name for f in program.funcs if state.plan(f.name).distributed}
    wholes = boxes | {t.name: tuple((0, const_value(simplify(e))) for e in t.shape) for t in program.inputs}
    sizes = {n: sum(t.bytes for t in dtypes_of(program, n)) for n in wholes}
    base = with_all_distributed(state, grid)
    funcs = tuple(f for f in program.funcs if f.name in boxes and base.plan(f.name).distributed)
    prices = Prices(grid, cluster.machine(machine), cluster.rates(machine), wholes, sizes)
    inputs = tuple(t.name for t in program.inputs)
    tensors = (*inputs, *(f.name for f in funcs))
    placed = dict(state.placed) | dict(fixed)
    summed = {f.name for f in funcs if may_be_partial(f)} - {*program.outputs}
    placements = {
        n: placements_of(
            wholes[n], grid, _letters(program, n), partial=n in summed and n not in inputs,
            copies="copies" not in forbidden, given=placed.get(n),
        )
        for n in tensors
    }  # fmt: skip
    space = Space(grid, Problem(), funcs, tensors, {}, placements, {}, {}, {})
    for f in funcs:
        choices = strategies_of(base, f, grid, boxes[f.name], is_given=f.name in given)
        space.strategies[f.name], space.refused[f.name] = choices.strategies, choices.refused
        _price_stage(space, f, prices, forbidden)
    for v, w in (*state.overwrites, *same):
        _place_equally(space, v, w)
    _add_memory(space, state, prices)
    return space


def _letters(program: Program, name: str) -> str:
    """A letter for each dimension: the variables of a func if they are different letters."""
    if not program.has_func(name):
        return LETTERS[: len(program.input(name).shape)]
    names = program.func(name).variables
    if all(len(n) == 1 and n.isalpha() for n in names):
        return "".join(names)
    return LETTERS[: len(names)]


def _price_stage(space: Space, f: FuncDef, prices: Prices, forbidden: frozenset[str]) -> None:
    """Add the tables of a func: its tasks, the fetch of each source, the delivery of its results."""
    problem, placements = space.problem, space.placements
    strategies = space.strategies[f.name]
    loops = ("loops", f.name)
    sources = strategies[0].stage.sources if strategies else ()
    tensors = (*sources, f.name)
    tasks = np.full(len(strategies), np.inf)
    tables = {t: np.full((len(strategies), len(placements[t])), np.inf) for t in tensors}
    for t in tensors:
        space.prices[f.name, t] = {}
    for n, strategy in enumerate(strategies):
        stages: dict[tuple[int, ...], StagePrices] = {}
        stage = stages[()] = prices.of_stage(strategy.stage)
        tasks[n] = stage.task_seconds()
        for t in tensors:
            for m, p in enumerate(placements[t]):
                legal = is_compatible(f, strategy, p) if t == f.name else reads_parts(strategy, t, p)
                if not legal:
                    continue
                if t == f.name:
                    if p.partial not in stages:
                        stages[p.partial] = prices.of_stage(placed_as(strategy, p))
                    price = stages[p.partial].deliver(p)
                else:
                    price = stage.fetch(t, p)
                space.prices[f.name, t][n, m] = price
                tables[t][n, m] = np.inf if price.kind in forbidden else price.seconds
    problem.add(loops, tasks)
    space.tasks[f.name] = tasks
    for t in tensors:
        problem.add(("place", t), np.zeros(len(placements[t])))
        problem.add_pair(loops, ("place", t), tables[t])


def _place_equally(space: Space, v: str, w: str) -> None:
    """Two tensors have the same placement, as one that overwrites the other has."""
    for t in (v, w):
        if ("place", t) not in space.problem.sizes:
            space.problem.add(("place", t), np.zeros(len(space.placements[t])))
    same = [[a.entries == b.entries for b in space.placements[w]] for a in space.placements[v]]
    space.problem.add_pair(("place", v), ("place", w), np.where(same, 0.0, np.inf))


def _add_memory(space: Space, state: State, prices: Prices) -> None:
    """Add what is in use at each stage: inputs and outputs, results until they are last read, buffers."""
    program, names = state.program, [f.name for f in space.funcs]
    inputs = [t.name for t in program.inputs]
    for t in inputs:  # of which some may be read by no stage
        if ("place", t) not in space.problem.sizes:
            space.problem.add(("place", t), np.zeros(len(space.placements[t])))
    blocks = {
        t: np.array([float(prices.block_bytes(t, p)) for p in space.placements[t]]) for t in space.tensors
    }
    readers = {t: [n for n, f in enumerate(names) if (f, t) in space.prices] for t in space.tensors}
    replaced = dict(state.overwrites)
    for at, func in enumerate(names):
        alive = [*inputs]
        for n, name in enumerate(names[: at + 1]):
            needed = name in program.outputs or max(readers[name], default=n) >= at
            if needed and name not in replaced:
                alive.append(name)
        row = Row(func, {("place", t): blocks[t] for t in alive})
        for t in (t for f, t in space.prices if f == func):
            buffers = np.zeros((len(space.strategies[func]), len(space.placements[t])))
            for (n, m), price in space.prices[func, t].items():
                buffers[n, m] = price.buffer
            if np.any(buffers):
                row.pairs[("loops", func), ("place", t)] = buffers
        space.problem.rows.append(row)


def all_choices(problem: Problem) -> Iterator[Choice]:
    """Every choice of a small problem."""
    names = list(problem.sizes)
    for values in itertools.product(*(range(problem.sizes[v]) for v in names)):
        yield dict(zip(names, values, strict=True))
