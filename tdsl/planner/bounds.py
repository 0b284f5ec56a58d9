"""Lower bounds of the prices of strategies in closed form, without the boxes of ranks.

The first rank has the largest block of each variable, which is a block of nested ceilings; its task is a
lower bound of the tasks. An element that is read by R ranks and stored by C of them is received R - C times
at least, and a sum of R parts is received R - 1 times; the busiest rank receives no less than the average.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tdsl.communication.rank_boxes import Numbers
from tdsl.communication.stages import Stage
from tdsl.cost.network import links_of
from tdsl.lang.expr import TRUE, Var
from tdsl.machine.model import Machine
from tdsl.placement.grid import Grid
from tdsl.placement.notation import Copies, Placement
from tdsl.placement.ownership import SpanBox, element_count
from tdsl.planner.cluster import Cluster
from tdsl.planner.prices import link_seconds, operations_of
from tdsl.planner.problem import has_partial_placements, shapes_of
from tdsl.planner.strategies import (
    AxisStrategy,
    Options,
    Strategy,
    axis_options,
    repeated,
    strategies_of,
    with_all_distributed,
)
from tdsl.schedule.state import State

Seconds = NDArray[np.float64]
ROUNDING = 1e-9  # relative, of sums


@dataclass(frozen=True, slots=True)
class GridBounds:
    """The least seconds of each strategy of each func on a grid; a plan takes `least` at least."""

    seconds: Mapping[str, Mapping[Strategy, float]]

    @property
    def least(self) -> float:
        """The sum of the least bounds of the funcs."""
        return sum(min(bounds.values(), default=0.0) for bounds in self.seconds.values())

    def within(self, limit: float) -> dict[str, list[Strategy]]:
        """The strategies of each func that a plan may have whose seconds are within a limit."""
        least = {name: min(bounds.values(), default=0.0) for name, bounds in self.seconds.items()}
        kept = {}
        for name, bounds in self.seconds.items():
            others = sum(x for n, x in least.items() if n != name)
            kept[name] = [s for s, x in bounds.items() if x + others <= limit * (1 + ROUNDING)]
        return kept

    def beyond(self, limit: float) -> float:
        """The least seconds of a plan that has another strategy than those within a limit."""
        kept, total = self.within(limit), self.least
        excluded = (
            x + total - min(bounds.values())
            for name, bounds in self.seconds.items() for s, x in bounds.items() if s not in {*kept[name]}
        )  # fmt: skip
        return min(excluded, default=math.inf)


class ProgramBounds:
    """The bounds of a program without directives for ranks, on all grids of a cluster."""

    def __init__(self, state: State, cluster: Cluster, machine: Machine, *, copies: bool) -> None:
        grid, program = Grid(rank=cluster.ranks), state.program
        boxes, wholes, sizes = shapes_of(program)
        base = with_all_distributed(state, grid)
        self.options: dict[str, Options] = {}
        self._funcs: dict[str, FuncBounds] = {}
        complete = {n: not has_partial_placements(program, n) for n in wholes}
        copied = {n: copies or all(hi - lo <= 1 for lo, hi in box) for n, box in wholes.items()}
        for f in program.funcs:
            if f.name not in boxes or not base.plan(f.name).distributed:
                continue
            self.options[f.name] = axis_options(base, f, grid, boxes[f.name])
            everywhere = [Strategy(n, (repeated(f),)) for n in self.options[f.name].choices]
            chosen = strategies_of(
                base, f, grid, boxes[f.name], is_given=False, options=self.options[f.name], kept=everywhere
            )
            self._funcs[f.name] = FuncBounds(
                self.options[f.name], {stage.definition_index: stage for stage in chosen.stages},
                cluster.machine(machine), cluster.rates(machine), wholes, sizes, copied, complete[f.name],
            )  # fmt: skip

    def on(self, grid: Grid, fixed: Mapping[str, Placement]) -> GridBounds:
        """The bounds on a grid on which some placements are fixed."""
        return GridBounds({name: bounds.seconds(grid, fixed) for name, bounds in self._funcs.items()})


@dataclass(slots=True)
class FuncBounds:
    """The bounds of the strategies of a func: `stages` has that of each definition on one axis, by "*".

    `copied` is true for the tensors of which all ranks may own all elements, `complete` where the results
    may not be partial sums; `wholes` and `sizes` have the boxes of tensors and the bytes of their elements.
    """

    options: Options
    stages: Mapping[int, Stage]
    machine: Machine
    rates: tuple[float, float]
    wholes: Mapping[str, SpanBox]
    sizes: Mapping[str, int]
    copied: Mapping[str, bool]
    complete: bool
    _counts: dict[object, int] = field(default_factory=dict)

    def seconds(self, grid: Grid, fixed: Mapping[str, Placement]) -> dict[Strategy, float]:
        """The least seconds of each strategy on a grid on which some placements are fixed."""
        bounds: list[float] = []
        for n, choices in self.options.choices.items():
            chosen = np.array([*itertools.product(range(len(choices)), repeat=len(grid.shape))], np.int64)
            stage = self.stages.get(n)
            if stage is None:
                bounds += [0.0] * len(chosen)
            else:
                bounds += self._seconds(stage, choices, chosen, grid, fixed).tolist()
        return dict(zip(self.options.strategies(len(grid.shape)), bounds, strict=True))

    def _seconds(
        self, stage: Stage, choices: Sequence[AxisStrategy], chosen: Numbers, grid: Grid,
        fixed: Mapping[str, Placement],
    ) -> Seconds:  # fmt: skip
        """The bounds of strategies: rows of `chosen` are those, columns the axes of the grid."""
        shape = np.array(grid.shape, np.int64)
        extents = {v: hi - lo for v, (lo, hi) in stage.bounds.items()}
        # Of a variable, its largest block and the least number of ranks with different blocks.
        blocks, ranks = dict[str, Numbers](), dict[str, Numbers]()
        for v, extent in extents.items():
            block = np.full(len(chosen), extent)
            for at, size in zip(chosen.T, grid.shape, strict=True) if v in choices else ():
                block = np.where(at == choices.index(v), -(-block // size), block)
            blocks[v], ranks[v] = block, -(-extent // np.maximum(block, 1))
        repeated = choices.index("*") if "*" in choices else -1
        copies = np.where(chosen == repeated, shape, 1).prod(axis=1)
        points = math.prod(extents.values())
        share = np.prod([*blocks.values()], axis=0, initial=1).astype(float) / max(points, 1)
        moved = self._elements(stage, stage.name, blocks).astype(float) * self.sizes[stage.name]
        for t in stage.sources:
            read = np.minimum(self._elements(stage, t, blocks), element_count(self.wholes[t]))
            moved = moved + read * self.sizes[t]
        operations, memory = self.rates
        seconds: Seconds = np.maximum(share * operations_of(stage) / operations, moved / memory)
        for t in stage.sources:
            stored = 1
            if t in fixed:
                entries = zip(fixed[t].entries, grid.shape, strict=True)
                stored = math.prod(size for e, size in entries if isinstance(e, Copies))
            if t in fixed or not self.copied[t]:
                readers = copies * math.prod(ranks[v] for v in ranks if v not in stage.dependencies(t))
                times = np.maximum(readers - stored, 0)
                seconds = seconds + self._received(times * self._read(stage, t), grid, self.sizes[t])
        if self.complete and stage.definition_index == 0 and stage.definition.where == TRUE:
            parts = math.prod(ranks[v] for v, _, _ in stage.definition.ranges)
            elements = np.maximum(parts - 1, 0) * element_count(stage.whole)
            seconds = seconds + self._received(elements, grid, self.sizes[stage.name])
        return seconds

    def _received(self, elements: Numbers, grid: Grid, size: int) -> Seconds:
        """The least seconds in which ranks receive so many elements of `size` bytes in all, over any link."""
        most = -(-elements // grid.size)
        links = links_of(self.machine, len(grid.depths))
        messages = (most > 0).astype(np.int64)
        least: Seconds = np.min([link_seconds(link, most, messages, size) for link in links], axis=0)
        return least

    def _elements(self, stage: Stage, tensor: str, blocks: Mapping[str, Numbers]) -> Numbers:
        """The elements of a tensor that the first rank accesses, for blocks of several strategies."""
        names = stage.dependencies(tensor)
        if not names:
            columns = np.zeros((1, len(next(iter(blocks.values()), np.zeros(1)))), np.int64)
        else:
            columns = np.array([blocks[v] for v in names])
        distinct, numbers = np.unique(columns, axis=1, return_inverse=True)
        counts = [self._count(stage, tensor, names, tuple(x)) for x in distinct.T.tolist()]
        return np.array(counts, np.int64)[numbers.reshape(-1)]

    def _count(self, stage: Stage, tensor: str, names: tuple[str, ...], blocks: tuple[int, ...]) -> int:
        key = stage.definition_index, tensor, blocks
        if key not in self._counts:
            ranges = dict(stage.bounds)
            ranges |= {v: (ranges[v][0], ranges[v][0] + n) for v, n in zip(names, blocks, strict=False)}
            box: SpanBox | None = None
            if all(lo < hi for lo, hi in ranges.values()):
                box = (
                    stage.box_written(ranges) if tensor == stage.name else stage.box_of_ranges(tensor, ranges)
                )
            self._counts[key] = 0 if box is None else element_count(box)
        return self._counts[key]

    def _read(self, stage: Stage, tensor: str) -> int:
        """The least number of different elements of a source that all ranks together read."""
        reads = [r for r in stage.definition.reads if r.name == tensor]
        if not reads or stage.definition.where != TRUE or stage.definition_index:
            return 0
        spans = {}
        for e, (lo, hi) in zip(reads[0].index, self.wholes[tensor], strict=True):
            if isinstance(e, Var) and e.name in stage.bounds:
                first, end = stage.bounds[e.name]
                spans[e.name] = max(0, min(hi, end) - max(lo, first))
        return math.prod(spans.values())
