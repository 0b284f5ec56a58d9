"""The distributed funcs of a program, and the boxes that their iterations read and write.

A stage is the distributed definition of a func: its first (updates then run on each rank), or an update, of
which each rank computes a partial result. Its outer loops are those that the coordinates of the rank fix and
those that the rank steps through, down to the innermost `communicate`; the rest of its nest is a task.
Funcs that are not distributed are computed in the tasks of the stages that read them. All boxes come from
the region function.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tdsl.communication.derived_variables import (
    DerivedVariable,
    PointTerms,
    derived_variables,
    point_terms,
)
from tdsl.core.node import frozen
from tdsl.core.source import Loc
from tdsl.errors import ScheduleError
from tdsl.lang.access_boxes import propagate, reads_of_func
from tdsl.lang.affine import variables
from tdsl.lang.bounds import NO_FACTS
from tdsl.lang.definition import Definition
from tdsl.lang.expr import TRUE, Const, Expr, Read, Var, const
from tdsl.lang.interp import evaluate
from tdsl.lang.program import FuncDef, Program
from tdsl.lang.reduction import Combine, builtin_combiner
from tdsl.lang.regions import (
    Box,
    Interval,
    interval_where,
    modular_index,
    restrict_ranges,
    union,
)
from tdsl.lang.types import DType
from tdsl.placement.notation import Copies, Fixed, Partial, axis_name
from tdsl.placement.ownership import SpanBox, is_empty
from tdsl.placement.spans import Span, wrapped
from tdsl.schedule.bounds_inference import box_with_updates, term_ranges
from tdsl.schedule.ranks import distributed_loops
from tdsl.schedule.state import AxisEntry, State

Ranges = Mapping[str, Span]  # of variables and loops: half-open intervals
Spans = tuple[Span, ...]  # of the first outer loops, in their order


@frozen
class RoutedRead:
    """Reads of elements of `tensor` that data select, which tasks read as `name`, a source of its own.

    y[t, d] = tensor[at[t], d]  ->  y[t, d] = name[t, d], where name[t, d] = tensor[key[t], d]

    `key` computes the row-major index in the dimensions `axes` of the tensor, whose indices are `index`. Its
    variables are the first dimensions of `name`, which has the other dimensions of the tensor as well.
    """

    name: str
    tensor: str
    axes: tuple[int, ...]
    index: tuple[Expr, ...]
    key: Stage
    loc: Loc | None = field(default=None, compare=False)


@dataclass(slots=True)
class Stage:
    """The distributed definition of a func, number `definition_index` of its definitions.

    `outer` are the loops around its tasks, the first `fixed` of them fixed by the coordinates of the rank,
    and `counts` their extents. `levels` is, for the func and each of its `sources` (inputs and other stages),
    the number of these loops inside of which it is communicated; `ahead` is the number of iterations of the
    last of them by which a source is prefetched. `task_funcs` are the other funcs computed in its tasks,
    consumers first. `entries` has what `distribute` says of each axis: a loop, or what takes the place of
    one; such an axis has an outer loop in name only, whose iterations have equal boxes. Sources that are
    `aliases` are parts of a tensor with boxes of their own, those of `routes` elements that data select.
    """

    state: State
    func: FuncDef
    definition_index: int
    whole: SpanBox
    outer: tuple[str, ...]
    fixed: int
    counts: tuple[int, ...]
    levels: dict[str, int]
    ahead: Mapping[str, int]
    task_funcs: tuple[FuncDef, ...]
    sources: tuple[str, ...]
    bounds: Ranges
    parts: tuple[DerivedVariable, ...]
    loops: Ranges
    entries: tuple[AxisEntry, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    routes: tuple[RoutedRead, ...] = ()
    routed_funcs: tuple[FuncDef, ...] = ()  # the task funcs, with those that compute indices of routes
    _variable_spans: dict[object, Span] = field(default_factory=dict)
    _terms: dict[object, PointTerms] = field(default_factory=dict)
    _boxes: dict[object, SpanBox | None] = field(default_factory=dict)
    _dependencies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _spans: dict[object, Span] = field(default_factory=dict)
    _indices: dict[tuple[str, int], tuple[list[Expr], tuple[str, ...]]] = field(default_factory=dict)
    # None: also read by updates or task funcs
    _reads: dict[str, tuple[Read, ...] | None] = field(default_factory=dict)
    # the axes of which every coordinate computes the same; each one from its own part of partial sources; one
    # coordinate, which follows
    repeated_axes: tuple[int, ...] = field(init=False)
    partial_axes: tuple[int, ...] = field(init=False)
    fixed_axes: tuple[tuple[int, int], ...] = field(init=False)
    has_partial_results: bool = field(init=False)  # not if each iteration computes complete values
    since: Mapping[str, str] = field(init=False)  # sources fetched in a window, with the func that begins it
    behind: Mapping[str, str] = field(init=False)  # and with the tensor whose messages precede
    until: str | None = field(init=False)  # the func before which results arrive, if they are in flight

    def __post_init__(self) -> None:
        entries = list(enumerate(self.entries))
        self.repeated_axes = tuple(n for n, e in entries if isinstance(e, Copies))
        self.partial_axes = tuple(n for n, e in entries if isinstance(e, Partial))
        self.fixed_axes = tuple((n, e.coordinate) for n, e in entries if isinstance(e, Fixed))
        names, outer = {n for n, _, _ in self.definition.ranges}, set(self.outer)
        plan, tensors = self.state.plan(self.name), {s: self.tensor_of(s) for s in self.sources}
        windows, order = dict(plan.since), dict(plan.behind)
        self.since = {s: windows[t] for s, t in tensors.items() if t in windows}
        self.behind = {s: order[t] for s, t in tensors.items() if t in order}
        self.until = plan.until
        self.has_partial_results = (
            bool(self.definition_index or self.partial_axes or dict(self.state.placed)[self.name].partial)
            or any(part.name in names and part.loops & outer for part in self.parts)
            or is_empty(tuple(self.bounds[n] for n in names))  # no iteration writes the identity
        )

    @property
    def name(self) -> str:
        """The name of the func."""
        return self.func.name

    def tensor_of(self, source: str) -> str:
        """The tensor that a source is, or is an alias of."""
        return self.aliases.get(source, source)

    @property
    def box_funcs(self) -> tuple[FuncDef, ...]:
        """The funcs through which boxes of sources follow from those that the func reads, consumers first."""
        return self.routed_funcs or self.task_funcs

    @property
    def task_sources(self) -> tuple[str, ...]:
        """The sources that tasks read; others are only read where the indices of routes are computed."""
        if not self.routes:
            return self.sources
        funcs = (self.func, *self.task_funcs)
        read = {name for f in funcs for d in f.definitions for name in d.sources}
        return tuple(s for s in self.sources if s in read)

    def fetched_sources(self, depth: int, ahead: int) -> list[str]:
        """The sources communicated inside of `depth` loops, `ahead` iterations before, except for routes.

        Those that are fetched in a window, which starts before the iteration, come last.
        """
        routed = {r.name for r in self.routes}
        at = (depth, ahead)
        sources = (
            s for s in self.sources if s not in routed and (self.levels[s], self.ahead.get(s, 0)) == at
        )
        return sorted(sources, key=lambda s: s in self.since)

    @property
    def definition(self) -> Definition:
        """The distributed definition."""
        return self.func.definitions[self.definition_index]

    @property
    def combine(self) -> Combine | None:
        """The combine of the partial results of iterations; None if each computes complete values."""
        if self.partial_axes and self.definition.combine is None:
            return builtin_combiner("sum", self.func.dtypes)
        if not self.has_partial_results:
            return None
        return self.definition.combine if self.definition_index + 1 == len(self.func.definitions) else None

    @property
    def in_order(self) -> bool:
        """True if parts are combined in the order of ranks, so that results are bitwise reproducible."""
        return self.state.plan(self.name).deterministic

    @property
    def dims(self) -> tuple[str | None, ...]:
        """The variable of each dimension of the results; None where an iteration may write all of it."""
        free = self.definition.free
        return tuple(e.name if isinstance(e, Var) and e.name in free else None for e in self.definition.index)

    @property
    def reduction_ranges(self) -> tuple[tuple[str, Span], ...]:
        """The range of each reduction variable of the definition, then the coordinates of partial axes."""
        variables = tuple((n, self.bounds[n]) for n, _, _ in self.definition.ranges)
        return (*variables, *((self.outer[n], (0, self.counts[n])) for n in self.partial_axes))

    def ranges(self, spans: Spans) -> Ranges | None:
        """The ranges of the variables while the first outer loops have these spans; None if one is empty."""
        if any(not spans[n][0] <= at < spans[n][1] for n, at in self.fixed_axes):
            return None
        given = dict(zip(self.outer, spans, strict=False))
        ranges: dict[str, Span] = {}
        for part in self.parts:
            key = (part.name, *(given.get(x) for x in self.outer if x in part.loops))
            if key not in self._variable_spans:
                self._variable_spans[key] = self._span(part, given)
            ranges[part.name] = self._variable_spans[key]
        return None if is_empty(tuple(ranges.values())) else ranges

    def _span(self, part: DerivedVariable, given: Mapping[str, Span]) -> Span:
        points = {x: lo for x in part.loops if x in given for lo, hi in [given[x]] if hi - lo == 1}
        terms = self.terms(part, frozenset(points))
        values = self.values_of(terms, points)
        return self.span_of(terms, values, {x: given.get(x, self.loops[x]) for x in terms.loops})

    @staticmethod
    def values_of(terms: PointTerms, points: Mapping[str, int]) -> tuple[int, ...]:
        """The values of terms at one iteration of the loops that they depend on."""
        at = {x: np.asarray(n) for x, n in points.items()}
        return tuple(int(evaluate(e, at)) for e in terms.terms)

    def terms(self, part: DerivedVariable, points: frozenset[str]) -> PointTerms:
        """A derived variable in terms of its largest subexpressions in the loops `points` alone."""
        if (part.name, points) not in self._terms:
            self._terms[part.name, points] = point_terms(part, points)
        return self._terms[part.name, points]

    def span_of(self, terms: PointTerms, values: tuple[int, ...], loops: Ranges) -> Span:
        """The span of a variable for values of its terms and ranges of its other loops."""
        part = terms.variable
        key = (terms, values, *loops.values())
        if key not in self._variable_spans:
            free = {**loops, **{f"term {n}": (value, value + 1) for n, value in enumerate(values)}}
            first, behind = self.bounds[part.name]
            span = (0, 0)
            if not is_empty(tuple(free.values())):
                lo, hi = interval_where(part.root, intervals(free), part.where)
                span = max(const_value(lo), first), min(const_value(hi) + 1, behind)
            self._variable_spans[key] = span
        return self._variable_spans[key]

    def written_box(self, spans: Spans) -> SpanBox | None:
        """The box of the func that is computed while the first outer loops have these spans."""
        ranges = self.ranges(spans)
        return None if ranges is None else self.box_written(ranges)

    def box_written(self, ranges: Ranges) -> SpanBox:
        """The box of the func that is computed while the variables have these ranges."""
        dims = zip(self.dims, self.whole, strict=True)
        return tuple(all_of if name is None else ranges[name] for name, all_of in dims)

    def read_box(self, tensor: str, spans: Spans) -> SpanBox | None:
        """The box of a source that is read while the first outer loops have these spans."""
        ranges = self.ranges(spans)
        return None if ranges is None else self.box_of_ranges(tensor, ranges)

    def read_boxes(self, ranges: Iterable[tuple[str, Span]]) -> dict[str, SpanBox]:
        """The boxes of all sources that tasks read while the variables have some ranges."""
        boxes = {source: self.box_of_ranges(source, dict(ranges)) for source in self.task_sources}
        return {source: box for source, box in boxes.items() if box is not None}

    def box_of_ranges(self, tensor: str, ranges: Ranges) -> SpanBox | None:
        """The box of a source that is read while the variables have these ranges."""
        names = self.dependencies(tensor)
        key = (tensor, *(ranges[name] for name in names))
        if key not in self._boxes:
            d = self.definition
            reads = self._reads[tensor]
            if reads is None:
                region = required_boxes(
                    self.func, self.definition_index, self.box_funcs, intervals(ranges)
                ).get(tensor)
                self._boxes[key] = None if region is None else int_box(region)
            else:
                narrow = restrict_ranges(intervals(ranges), d.where) if d.where != TRUE else intervals(ranges)
                nonempty = not any(map(_is_empty, narrow.values()))
                axes = range(len(reads[0].index))
                box = (self._axis_span(tensor, n, narrow) for n in axes) if nonempty else None
                self._boxes[key] = None if box is None else tuple(box)
        return self._boxes[key]

    def axis_dependencies(self, tensor: str, axis: int) -> tuple[str, ...] | None:
        """The variables on which one span of the box of a tensor depends; None if spans depend on others'.

        They do where a condition restricts the iterations, and where updates or other funcs read the tensor.
        """
        self.dependencies(tensor)
        if self._reads[tensor] is None or self.definition.where != TRUE:
            return None
        return self._axis_indices(tensor, axis)[1]

    def axis_span(self, tensor: str, axis: int, ranges: Ranges) -> Span:
        """One span of the box of a tensor, for ranges of its `axis_dependencies`, none of them empty."""
        return self._axis_span(tensor, axis, intervals(ranges))

    def _axis_indices(self, tensor: str, axis: int) -> tuple[list[Expr], tuple[str, ...]]:
        """The indices of an axis of a tensor, and the variables of these indices and of the condition."""
        if (tensor, axis) not in self._indices:
            reads = self._reads[tensor]
            assert reads is not None, "only this definition reads the tensor"
            indices = list(dict.fromkeys(r.index[axis] for r in reads))
            names = variables(self.definition.where).union(*map(variables, indices))
            self._indices[tensor, axis] = indices, tuple(sorted(names))
        return self._indices[tensor, axis]

    def _axis_span(self, tensor: str, axis: int, ranges: dict[str, Interval]) -> Span:
        """A span of the box of a tensor; spans are cached by axis: neighbouring ranks share most."""
        _, names = self._axis_indices(tensor, axis)
        key = (tensor, axis, *(ranges.get(name) for name in names))
        if key not in self._spans:
            indices, where, around_ends = self.accessed(tensor, axis)
            self._spans[key] = _accessed_span(indices, ranges, where, around_ends=around_ends)
        return self._spans[key]

    def accessed(self, tensor: str, axis: int) -> tuple[tuple[Expr, ...], Expr, bool]:
        """The indices by which an axis of a tensor is read, the condition, and whether they may wrap around.

        Spans of the axis depend on these and on the ranges of variables alone.
        """
        placement = dict(self.state.placed).get(self.tensor_of(tensor))
        is_routed = any(r.name == tensor for r in self.routes)
        cyclic = not is_routed and placement is not None and placement.cyclic_size(axis) is not None
        indices, _ = self._axis_indices(tensor, axis)
        return tuple(indices), self.definition.where, not (is_routed or cyclic)

    def dependencies(self, tensor: str) -> tuple[str, ...]:
        """The variables on which the box of a tensor may depend."""
        if tensor not in self._dependencies:
            d = self.definition
            names = set(d.variables)
            self._reads[tensor] = None
            if tensor == self.name:
                names = {name for name in self.dims if name is not None}
            elif self.definition_index + 1 == len(self.func.definitions) and not any(
                r.name == tensor
                for g in self.box_funcs for x in g.definitions for r in x.reads
            ):  # fmt: skip
                reads = tuple(r for r in d.reads if r.name == tensor)
                self._reads[tensor] = reads
                names = {v for r in reads for e in r.index for v in variables(e)} | variables(d.where)
            self._dependencies[tensor] = tuple(name for name in d.variables if name in names)
        return self._dependencies[tensor]

    def uniform_axes(self, tensor: str) -> tuple[int, ...]:
        """The grid axes along which all ranks with iterations access the same box of a tensor."""
        names = self.dependencies(tensor)
        loops = {x for part in self.parts if part.name in names for x in part.loops}
        return tuple(n for n in range(self.fixed) if self.outer[n] not in loops)


def _accessed_span(
    indices: Sequence[Expr], ranges: dict[str, Interval], where: Expr, *, around_ends: bool
) -> Span:
    """The span of a dimension that some indices access, which may wrap around the ends of the dimension."""
    ((first, behind),) = int_box(
        (functools.reduce(union, (interval_where(e, ranges, where) for e in indices)),)
    )
    wraps = [modular_index(e) for e in indices]
    extents = {m[1] for m in wraps if m is not None}
    if not around_ends or len(extents) != 1 or not (first >= 0 and {behind} == extents):
        return first, behind
    plain = (e if m is None else m[0] for e, m in zip(indices, wraps, strict=True))
    ends = [interval_where(e, ranges, where) for e in plain]
    if any(not isinstance(end, Const) for both in ends for end in both):
        return first, behind
    ((lo, hi),) = int_box((functools.reduce(union, ends),))
    return wrapped(lo, hi, behind) if hi - lo < behind - first else (first, behind)


def stages_of(state: State, boxes: Mapping[str, SpanBox]) -> tuple[Stage, ...]:
    """The stages of a state whose sizes are numbers, producers first.

    `boxes` has the box that is computed of each func; a func that is not needed has none, and is no stage.
    """
    return tuple(
        stage_of(state, f, boxes[f.name])
        for f in state.program.funcs
        if f.name in boxes and state.plan(f.name).distributed
    )


def stage_of(state: State, f: FuncDef, whole: SpanBox) -> Stage:
    """The stage of a distributed func, which computes the box `whole`."""
    plan = state.plan(f.name)
    nest = plan.nests[plan.distributed_definition]
    region = tuple((const(lo), const(hi - 1)) for lo, hi in whole)
    parts, symbolic = derived_variables(f, plan.distributed_definition, nest, region)
    spans = {part.name: _span_of(part.bounds) for part in parts}
    runs = {x: _span_of(run) for x, run in symbolic.items()}
    task_funcs, sources = task_funcs_and_sources(state, f)
    fixed, loops = len(plan.distributed), len(distributed_loops(plan))
    at = {tensor: nest.position(loop) + 1 - loops + fixed for tensor, loop in plan.communicated}
    for name in at.keys() - {*sources, f.name}:
        if not state.program.has_func(name) or state.plan(name).distributed:
            continue  # simplification with known sizes removed all reads of it
        raise ScheduleError(
            f"{f.name!r} communicates {name!r}, which each rank computes for itself",
            loc=plan.loc,
            label="scheduled here",
            hint=f's["{name}"].distribute(...), or communicate what it reads',
        )
    levels = {name: at.get(name, fixed) for name in (*sources, f.name)}
    assert state.grid is not None
    axes = tuple(
        x if isinstance(x, str) else axis_name(axis, x)
        for x, axis in zip(plan.distributed, state.grid.names, strict=True)
    )
    depth = max(fixed + any(f.name in x.loops for x in state.interleaved), *levels.values())
    outer = (*axes, *nest.names()[loops : loops + depth - fixed])
    runs |= {x: (0, n) for x, n in zip(axes, state.grid.shape, strict=True) if x not in runs}
    counts = tuple(hi - lo for lo, hi in (runs[x] for x in outer))
    return Stage(
        state, f, plan.distributed_definition, whole, outer, fixed, counts, levels, dict(plan.ahead),
        task_funcs, sources, spans, parts, runs, plan.distributed,
    )  # fmt: skip


def _span_of(i: Interval) -> Span:
    lo, hi = i
    return const_value(lo), const_value(hi) + 1


def task_funcs_and_sources(state: State, f: FuncDef) -> tuple[tuple[FuncDef, ...], tuple[str, ...]]:
    """The other funcs that the tasks of a stage compute, consumers first, and the sources that all read."""
    computed, missing = {f.name}, {f.name}
    sources: dict[str, None] = {}
    task_funcs = []
    while missing:
        (name,) = state.in_order(missing)[-1:]
        missing.remove(name)
        g = state.program.func(name)
        if g is not f:
            task_funcs.append(g)
        for d in g.definitions:
            for r in d.reads:
                if state.program.has_func(r.name) and not state.plan(r.name).distributed:
                    missing |= {r.name} - computed
                    computed.add(r.name)
                elif r.name != f.name:
                    sources[r.name] = None
    return tuple(task_funcs), tuple(sources)


def required_boxes(
    f: FuncDef, definition: int, task_funcs: Iterable[FuncDef], ranges: dict[str, Interval]
) -> dict[str, Box]:
    """The boxes of all tensors that a definition and its later updates read, for ranges of its variables.

    Reads of the `task_funcs`, consumers first, are followed to the tensors that these funcs read.
    """

    def ranges_at(d: Definition, box: Box) -> dict[str, Interval]:
        return ranges if d is f.definitions[definition] else term_ranges(d, box, NO_FACTS)

    box = () if definition else tuple(ranges[name] for name in f.variables)
    run = f.definitions[definition : definition + 1] if definition else f.definitions
    boxes = reads_of_func(replace(f, definitions=run), box, ranges_at)
    return propagate(
        task_funcs,
        boxes,
        lambda g, needed: reads_of_func(g, needed, ranges_at),
        lambda g, needed: box_with_updates(g, needed, NO_FACTS),
    )


def _is_empty(i: Interval) -> bool:
    lo, hi = i
    return isinstance(lo, Const) and isinstance(hi, Const) and bool(lo.value > hi.value)


def dtypes_of(program: Program, name: str) -> tuple[DType, ...]:
    """The element types of a tensor or func."""
    return program.func(name).dtypes if program.has_func(name) else (program.input(name).dtype,)


def const_value(e: Expr | None) -> int:
    """The value of a constant end of an interval."""
    assert isinstance(e, Const), f"not a number: {e}"
    return int(e.value)


def int_box(box: Box) -> SpanBox:
    """A box of the region function, both ends inclusive, as half-open spans of integers."""
    return tuple((const_value(lo), const_value(hi) + 1) for lo, hi in box)


def intervals(ranges: Ranges) -> dict[str, Interval]:
    """Half-open spans of variables as inclusive intervals of the region function."""
    return {name: (const(lo), const(hi - 1)) for name, (lo, hi) in ranges.items()}
