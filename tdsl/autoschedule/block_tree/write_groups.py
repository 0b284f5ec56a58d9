"""Writes funcs that need the same rows as directives: a kernel with a block or a part of one for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tdsl.autoschedule.block_tree.write_lanes import reduce_by_lines, reduce_by_threads, share_row
from tdsl.autoschedule.patterns.row_groups import RowGroup
from tdsl.autoschedule.recipes.grid import fused
from tdsl.autoschedule.recipes.partial_sums import in_parts
from tdsl.core.node import frozen
from tdsl.cost.sectors import WARP
from tdsl.lang.program import FuncDef
from tdsl.schedule.fluent import Stage
from tdsl.schedule.properties import volume

_OTHER_AXES = ("blockIdx.y", "blockIdx.z")  # axes of blocks other than the first
_LINES = 8  # warps that put the sums of columns of all blocks together


@frozen
class BlockRows:
    """The variables that count the rows of a func, and the funcs that are computed `inside` of these.

    `threads`, a power of two up to 1024, share a row, `vector` neighbours at a time; a block has `together`
    rows. What several stages read is `held` in registers. Other stages of the same rows are computed
    with it (`siblings`), sums of columns of `each` rows that follow each other; 0 for one row in a block.
    Above 1, a row is in so many `parts`, each of a block.
    """

    rows: tuple[str, ...]
    inside: tuple[str, ...]
    threads: int = field(metadata={"among": [1 << n for n in range(11)]})
    together: int
    vector: int
    held: tuple[str, ...]
    siblings: tuple[str, ...] = ()
    each: int = 0
    parts: int = 1


def write_group(owner: Stage, group: RowGroup, plan: BlockRows) -> None:
    """Schedule the funcs of a group, whose first has the stage `owner`, by a plan."""
    _Writer(owner, group, plan).write()


@dataclass(slots=True)
class _Writer:
    """Writes a plan as directives."""

    owner: Stage
    group: RowGroup
    plan: BlockRows

    def write(self) -> None:
        schedule, plan, owner, group = self.owner.schedule, self.plan, self.owner, self.group
        outer = plan.rows[: group.outer]
        for v, axis in zip(outer, _OTHER_AXES, strict=False):
            owner.bind(v, axis)
        at = self.open_rows(owner, plan.rows[group.outer :])
        row, axes = at[-1], ("threadIdx.y", "blockIdx.x")[plan.together == 1 :]
        for loop, axis in zip(reversed(at[: -1 if plan.each else None]), axes, strict=False):
            owner.bind(loop, axis)
        first, *rest = group.funcs
        if first.definitions[0].ranges:
            schedule.cache_write(owner, at=row)
        stages = [(owner, first), *((self.sibling(f, row), f) for f in group.siblings)]
        for f in rest:
            if f.definitions[0].ranges or not group.along(f) or f.name in plan.held:
                schedule[f.name].compute_at(owner, row)
                stages.append((schedule[f.name], f))
            else:
                schedule[f.name].inline()
        for name in plan.held:
            if name not in plan.inside:
                copy = schedule.cache_read(name, owner, at=row, inside=True)
                box = group.row_boxes[name]
                self.share(
                    copy, [x.name for x, ends in zip(copy.loops, box, strict=True) if volume((ends,)) != 1]
                )
        for stage, f in stages:
            names = group.along(f)
            if f.definitions[0].ranges and not group.reduces_rows(f):
                stage.reorder(*[x.name for x in stage.loops if x.name not in names], *names)
                reduce_by_threads(stage, names, plan.threads, plan.vector, unrolled=bool(plan.held))
            elif names:
                self.share(stage, names)
        for f in group.sums:
            merged = schedule[f.name]
            (part,) = (v for v, _, _ in schedule.state.program.func(f.name).definitions[0].ranges)
            reduce_by_lines(merged, list(f.definitions[0].free), part, WARP, _LINES)

    def open_rows(self, stage: Stage, rows: Sequence[str]) -> list[str]:
        """Open the loops over rows, which go around the others; their names, outermost first."""
        names = [x.name for x in stage.loops]
        first = names[: names.index(rows[0])] if self.group.outer else []
        stage.reorder(*first, *rows, *(x for x in names if x not in (*first, *rows)))
        loops = [fused(stage, list(rows))]
        if self.plan.each:
            loops[-1:] = [x.name for x in stage.split(loops[-1], self.plan.each)]
        if self.plan.together > 1:
            loops[:1] = [x.name for x in stage.split(loops[0], self.plan.together)]
        return loops

    def sibling(self, f: FuncDef, row: str) -> Stage:
        """The stage that computes another func, or its sums of rows that follow each other, with the rows."""
        stage, rows = self.owner.schedule[f.name], self.group.row_of[f.name]
        if self.group.reduces_rows(f):
            partial, part, _ = in_parts(stage, fused(stage, list(rows)), self.plan.each)
            inner = [x.name for x in partial.loops if x.name not in (part, *f.definitions[0].free)]
            partial.reorder(part, *inner, *f.definitions[0].free)
            if self.plan.together > 1:
                partial.split(part, self.plan.together)
            stage = partial
        else:
            self.open_rows(stage, rows)
        return stage.compute_with(self.owner, row)

    def share(self, stage: Stage, names: list[str]) -> None:
        """The points of a row for its threads."""
        share_row(stage, names, self.plan.threads, self.plan.vector, unrolled=bool(self.plan.held))
