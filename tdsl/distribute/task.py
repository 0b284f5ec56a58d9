"""Builds a task: the computation of a step as an ordinary program on the buffers of a rank.

    C[i, j] = sum(A[i, k] * B[k, j])      where 51 <= i < 101, 0 <= k < 45, ...
    -> C[i, j] = sum(A[i, k] * B[k, j])   where 0 <= i < 50, 0 <= k < 45, ...: indices of the buffers

Its variables count from 0, and reads are offset by the first index of the buffer, so that many ranks share
one program. Its nest is that inside of the fixed loops, the outer loops of the stage: a split whose outer
loop is fixed becomes a renaming of the inner loop. A nest without directives gets the default schedule.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from tdsl.communication.stages import Stage, dtypes_of
from tdsl.communication.steps import Run
from tdsl.core.node import Node, transform
from tdsl.errors import ScheduleError
from tdsl.lang.bounds import NO_FACTS
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ZERO, Binary, Const, Expr, Read, Var, const
from tdsl.lang.program import FuncDef, Input, Program, map_expressions
from tdsl.lang.regions import Ranges, interval_of, modular_index
from tdsl.lang.simplify import add, simplify, substitute, subtract
from tdsl.placement.ownership import SpanBox, stored_shape
from tdsl.placement.spans import PeriodicSpan, Span, is_wrapped
from tdsl.schedule.state import (
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

NO_RANGES: Ranges = {}
CALL_PARAMETERS = {"out", "self"}


def task(stage: Stage, run: Run, boxes: Mapping[str, SpanBox]) -> State:
    """The state of the program that a step runs; `boxes` has the box of the buffer of each tensor."""
    f, state, program = stage.func, stage.state, stage.state.program
    ranges = dict(run.ranges)
    starts = {name: const(lo) for name, (lo, _) in ranges.items()}
    names = {name: components(stage, name) for name in boxes}

    known = NO_FACTS  # ranges of variables: they simplify padding away, so interior blocks share a program
    if len(f.definitions) == 1:
        for name, (lo, hi) in ranges.items():
            known = known.with_range(name, ZERO, const(hi - lo - 1))

    def of_buffers(e: Expr) -> Expr:
        return simplify(_read_buffers(e, boxes, names))

    def localise(d: Definition) -> Definition:
        """A definition of the stage's own func, offset such that its box begins at 0."""
        moved = {n: add(Var(n), lo) for n, lo in starts.items() if n in d.variables}
        runs = {n: (ZERO, const(hi - lo - 1)) for n, (lo, hi) in ranges.items()}
        for e, span in zip(d.index, run.box, strict=True):
            match e:
                case Var(name) if name in d.free:
                    moved[name] = add(e, const(span[0]))
        spans = tuple((n, ZERO, const(ranges[n][1] - ranges[n][0])) if n in ranges else (n, lo, hi)
                      for n, lo, hi in d.ranges)  # fmt: skip
        buffer_boxes = {**boxes, f.name: run.box}
        d = map_expressions(
            d,
            lambda e: simplify(_read_buffers(substitute(e, moved), buffer_boxes, names, runs), known),
        )
        index = tuple(subtract(e, const(lo)) for e, (lo, _) in zip(d.index, run.box, strict=True))
        return replace(d, index=tuple(map(simplify, index)), ranges=spans)

    natural = tuple((ZERO, const(hi - lo - 1)) for lo, hi in run.box)
    first, *updates = f.definitions
    if stage.definition_index:
        assert stage.combine is not None
        first = replace(first, values=stage.combine.init)
    definitions = tuple(localise(d) for d in (first, *updates))
    local_func = replace(f, definitions=definitions, limits=natural, natural=natural, declared=False)
    inside = tuple(g.map_expressions(of_buffers) for g in reversed(stage.task_funcs))
    inputs = tuple(
        Input(part, tuple(map(const, stored_shape(boxes[name]))), dtype)
        for name in stage.sources
        if name in boxes
        for part, dtype in zip(names[name], dtypes_of(program, stage.tensor_of(name)), strict=True)
    )
    parameters = (*(t.name for t in inputs), *(s.name for s in program.scalars))
    local = Program(f.name, inputs, program.scalars, (*inside, local_func), (f.name,), parameters, (f.name,))
    plans = [(g.name, _inner_plan(stage, state.plan(g.name))) for g in inside]
    return State(local, (*plans, (f.name, _stage_plan(stage, local_func))))


def _read_buffers(
    e: Expr, boxes: Mapping[str, SpanBox], names: Mapping[str, tuple[str, ...]], ranges: Ranges = NO_RANGES
) -> Expr:  # fmt: skip
    """`e` with reads of tensors replaced by reads of buffers; `names` has the parameters of the task."""

    def visit(n: Node) -> Node:
        if isinstance(n, Read) and n.name in boxes:
            spans = zip(n.index, boxes[n.name], strict=True)
            index = tuple(_buffer_index(i, span, ranges) for i, span in spans)
            if n.name in names:
                return replace(n, name=names[n.name][n.component], component=0, index=index)
            return replace(n, index=index)
        return n

    return transform(e, visit)


def _buffer_index(index: Expr, span: Span, ranges: Ranges) -> Expr:
    """The position of an index in a buffer of a span; without a modulo where `ranges` stay in one period."""
    wrapped = modular_index(index)
    if wrapped is None and not isinstance(span, PeriodicSpan):
        return subtract(index, const(span[0]))
    x, n = wrapped or (index, 0)
    start = span[0]
    if isinstance(span, PeriodicSpan):
        assert is_wrapped(span) and n in (0, span.period), "a buffer has no other gaps"
        start, n = span.start, span.period
    turns = [(int(e.value) - start) // n for e in interval_of(x, ranges) if isinstance(e, Const)]
    if len(turns) == 2 and turns[0] == turns[1]:
        return subtract(x, const(start + n * turns[0]))
    if isinstance(span, PeriodicSpan):
        return Binary("mod", subtract(x, const(start)), const(n))
    return subtract(index, const(start))


def components(stage: Stage, name: str) -> tuple[str, ...]:
    """The parameters of a task for a source: one, or one for each of its values.

    A source with the name of a parameter that every call has, such as `out`, gets another one.
    """
    program = stage.state.program
    count = len(dtypes_of(program, stage.tensor_of(name)))
    used = {*CALL_PARAMETERS, *program.parameters, *(f.name for f in program.funcs)}
    if count == 1 and name not in CALL_PARAMETERS:
        return (name,)
    if count == 1:
        return (next(x for n in itertools.count() if (x := f"{name}_{n}") not in used),)
    while any(f"{name}_{n}" in used for n in range(count)):
        name += "_"
    return tuple(f"{name}_{n}" for n in range(count))


def _inner_plan(stage: Stage, plan: FuncPlan) -> FuncPlan:
    """The plan of a func inside of a stage; computed or stored at a fixed loop becomes at the root."""
    if isinstance(plan.place, At) and _is_fixed(stage, plan.place.level.func, plan.place.level.loop):
        plan = replace(plan, place=Root())
    if plan.store is not None and _is_fixed(stage, plan.store.func, plan.store.loop):
        plan = replace(plan, store=None)
    return plan


def _is_fixed(stage: Stage, func: str, loop: str) -> bool:
    return func == stage.name and loop in stage.outer


def _stage_plan(stage: Stage, func: FuncDef) -> FuncPlan:
    plan = stage.state.plan(stage.name)
    nest = inner_nest(
        plan.nests[stage.definition_index], stage.outer, func.definitions[stage.definition_index].variables
    )
    fresh = fresh_plan(func)
    local = replace(
        plan,
        distributed=(),
        distributed_definition=0,
        communicated=(),
        ahead=(),
        overlapped=(),
        routed=(),
        deterministic=False,
        place=Root(),
    )
    local = local.with_nest(stage.definition_index, nest)
    if stage.definition_index:
        local = local.with_nest(0, fresh.nests[0])
    is_default = replace(local, scheduled=False, place=None, loc=None) == fresh.with_nest(
        stage.definition_index, nest
    )
    only_renames = all(isinstance(r, Rename) for r in nest.relations)
    if is_default and only_renames and all(x.kind == SERIAL for x in nest.loops):
        return fresh
    return local


def inner_nest(nest: Nest, fixed: tuple[str, ...], variables: tuple[str, ...]) -> Nest:
    """The nest inside of the outermost loops `fixed`.

    >>> from tdsl.schedule.state import Loop, Split
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
                    raise StridedIterations(outer, inner)
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
    return Nest((*ones, *(x for x in nest.loops if x.name not in fixed)), tuple(reversed(kept)), nest.aliases)


class StridedIterations(Exception):  # converted to a ScheduleError by `check_nest`
    """The inner loop of a split is fixed and its outer one is not: the remaining points are no box."""

    def __init__(self, outer: str, inner: str) -> None:
        Exception.__init__(self)
        self.outer, self.inner = outer, inner


def check_nest(stage: Stage) -> None:
    """ScheduleError if the iterations inside of the fixed loops are no box."""
    plan = stage.state.plan(stage.name)
    try:
        inner_nest(plan.nests[stage.definition_index], stage.outer, stage.definition.variables)
    except StridedIterations as error:
        raise ScheduleError(
            f"{stage.name!r}: inside of {error.inner!r} are every few points only, as {error.outer!r} is "
            "not outside of it",
            loc=plan.loc,
            label="scheduled here",
            hint=f"reorder, so that {error.outer!r} is around {error.inner!r}, or communicate outside",
        ) from None
