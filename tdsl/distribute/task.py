"""What a rank computes at a time, as an ordinary program on the buffers that it has.

    C[i, j] = sum(A[i, k] * B[k, j])      where 51 <= i < 101, 0 <= k < 45, ...
    -> C[i, j] = sum(A[i, k] * B[k, j])   where 0 <= i < 50, 0 <= k < 45, ...: indices of the buffers

Its variables count from 0, and reads are moved by the first index of the buffer, so that the tasks of many
ranks are one program. Of the nest stays what is inside of the loops that are fixed: a split by one of
these is a renaming of its inner loop. A nest without directives of its own is left to the default schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tdsl.distribute.plan import Run
from tdsl.distribute.stages import Stage
from tdsl.errors import ScheduleError
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ZERO, Expr, Read, Var, const
from tdsl.lang.program import FuncDef, Input, Program, map_expressions
from tdsl.lang.simplify import add, simplify, substitute, subtract
from tdsl.lang.types import DType
from tdsl.node import Node, transform
from tdsl.placement.ownership import Box
from tdsl.schedule.nest import (
    SERIAL,
    At,
    FuncPlan,
    Fuse,
    Loop,
    Nest,
    Relation,
    Rename,
    Root,
    Rotate,
    Split,
    State,
    fresh_plan,
)  # fmt: skip


def task(stage: Stage, run: Run, boxes: Mapping[str, Box]) -> State:
    """The state of the program that a step runs; `boxes` is what the buffer for each of its reads holds."""
    ranges = dict(run.ranges)
    starts = {name: const(lo) for name, (lo, _) in ranges.items()}

    def own(d: Definition) -> Definition:
        moved = {v: add(Var(v), starts[v]) for v in d.variables}
        at = d.index  # of the func itself, whose box starts at 0
        d = map_expressions(d, lambda e: simplify(_read_buffers(substitute(e, moved), boxes)))
        spans = tuple((n, ZERO, const(ranges[n][1] - ranges[n][0])) for n, _, _ in d.ranges)
        return replace(d, index=at, ranges=spans)

    def other(d: Definition) -> Definition:
        return map_expressions(d, lambda e: simplify(_read_buffers(e, boxes)))

    f, state = stage.func, stage.state
    spans = [ranges[name] for name in f.variables]
    natural = tuple((ZERO, const(hi - lo - 1)) for lo, hi in spans)
    made = replace(
        f, definitions=(own(stage.definition),), limits=natural, natural=natural, declared=False
    )
    inside = tuple(
        replace(g, definitions=tuple(map(other, g.definitions))) for g in reversed(stage.inside)
    )
    program = state.program
    extents = {n: tuple(const(hi - lo) for lo, hi in box) for n, box in boxes.items()}
    inputs = tuple(
        Input(name, extents[name], _dtype(program, name)) for name in stage.sources if name in boxes
    )
    names = (*(t.name for t in inputs), *(s.name for s in program.scalars))
    local = Program(f.name, inputs, program.scalars, (*inside, made), (f.name,), names, (f.name,))
    plans = [(g.name, _inner_plan(stage, state.plan(g.name))) for g in inside]
    return State(local, (*plans, (f.name, _own_plan(stage, made))))


def _read_buffers(e: Expr, boxes: Mapping[str, Box]) -> Expr:
    """Reads of buffers, at their own indices."""

    def visit(n: Node) -> Node:
        if isinstance(n, Read) and n.name in boxes:
            starts = (const(lo) for lo, _ in boxes[n.name])
            index = tuple(subtract(i, lo) for i, lo in zip(n.index, starts, strict=True))
            return replace(n, index=index)
        return n

    return transform(e, visit)


def _dtype(program: Program, name: str) -> DType:
    return program.func(name).dtypes[0] if program.has_func(name) else program.input(name).dtype


def _inner_plan(stage: Stage, plan: FuncPlan) -> FuncPlan:
    """The plan of a func inside of a stage: what is computed at a fixed loop is computed first."""
    if isinstance(plan.place, At) and _is_fixed(
        stage, plan.place.level.func, plan.place.level.loop
    ):
        plan = replace(plan, place=Root())
    if plan.store is not None and _is_fixed(stage, plan.store.func, plan.store.loop):
        plan = replace(plan, store=None)
    return plan


def _is_fixed(stage: Stage, func: str, loop: str) -> bool:
    return func == stage.name and loop in stage.outer


def _own_plan(stage: Stage, made: FuncDef) -> FuncPlan:
    plan = stage.state.plan(stage.name)
    nest = inner_nest(plan.nests[0], stage.outer, made.definitions[0].variables)
    left_alone = replace(
        plan, nests=(nest,), distributed=(), communicated=(), touched=False, place=None, loc=None
    ) == replace(fresh_plan(made), nests=(nest,))  # fmt: skip
    plain = all(isinstance(r, Rename) for r in nest.relations)
    if left_alone and plain and all(x.kind == SERIAL for x in nest.loops):
        return fresh_plan(made)
    return replace(plan, nests=(nest,), distributed=(), communicated=(), place=Root())


def inner_nest(nest: Nest, fixed: tuple[str, ...], variables: tuple[str, ...]) -> Nest:
    """The loops inside of those that are fixed, the outermost ones.

    >>> from tdsl.schedule.nest import Loop, Split
    >>> nest = Nest((Loop("i_o"), Loop("i_i")), (Split("i", "i_o", "i_i", None, 4, "guard"),))
    >>> inner_nest(nest, ("i_o",), ("i",)).relations
    (Rename(old='i', new='i_i'),)
    """
    known = set(fixed)
    kept: list[Relation] = []
    for r in reversed(nest.relations):
        match r:
            case Split(parent, outer, inner):
                if {outer, inner} <= known:
                    known.add(parent)
                elif outer in known:
                    kept.append(Rename(parent, inner))
                elif inner in known:
                    raise Strided(outer, inner)
                else:
                    kept.append(r)
            case Fuse(fused, outer, inner):
                if fused in known:
                    known |= {outer, inner}
                else:
                    kept.append(r)
            case Rename(old, new) | Rotate(old, new):
                if new in known:
                    known.add(old)
                else:
                    kept.append(Rename(old, new))
    ones = tuple(Loop(v) for v in variables if v in known)
    return Nest((*ones, *nest.loops[len(fixed) :]), tuple(reversed(kept)), nest.aliases)


class Strided(Exception):  # made a ScheduleError where the schedule is known
    """The inner loop of a split is fixed and its outer one is not: what is left is no box."""

    def __init__(self, outer: str, inner: str) -> None:
        Exception.__init__(self)
        self.outer, self.inner = outer, inner


def check_nest(stage: Stage) -> None:
    """ScheduleError where the iterations inside of the fixed loops are no box."""
    plan = stage.state.plan(stage.name)
    try:
        inner_nest(plan.nests[0], stage.outer, stage.definition.variables)
    except Strided as error:
        raise ScheduleError(
            f"{stage.name!r}: inside of {error.inner!r} are every few points only, as {error.outer!r} is "
            "not outside of it",
            loc=plan.loc,
            label="scheduled here",
            hint=f"reorder, so that {error.outer!r} is around {error.inner!r}, or communicate outside",
        ) from None
