"""Reads of elements that data select, which are fetched by an all-to-all of which data decide the sizes.

y[t, d] = x[at[t], d]      the rows of x that a rank's part of `at` names, instead of all that it may name

Such reads are renamed: they have a name of their own (an alias of the tensor), which the stage reads as a
source with a box of its own, one row for each index. A func is added that computes the indices. Reads of a
tensor with equal indices are one. Where the rows expected cost less than the box of all, or where
`communicate(..., routed=True)` says so, a read is routed; with `routed=False` never.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tdsl.communication.collective import Layout, outer_spans
from tdsl.communication.expected_rows import distinct_rows
from tdsl.communication.separate_reads import program_names, samples_of, unused_name
from tdsl.communication.stages import RoutedRead, Spans, Stage, intervals, required_boxes
from tdsl.communication.steps import Route
from tdsl.core.node import Node, transform
from tdsl.core.source import Loc
from tdsl.errors import ScheduleError
from tdsl.lang.access_boxes import data_axes
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import TRUE, Binary, Const, Expr, Read, Select, Var, const, dtype_of
from tdsl.lang.program import FuncDef, map_expressions
from tdsl.lang.regions import interval_of
from tdsl.lang.simplify import add, conjunction, multiply, subtract
from tdsl.lang.types import i64
from tdsl.placement.grid import Coordinates, Grid
from tdsl.placement.notation import Copies, Placement
from tdsl.placement.ownership import SpanBox, contains, element_count, intersection, is_contiguous, is_empty
from tdsl.schedule.state import State, fresh_plan

WORTH_ROUTING = 1.5  # the box of all elements costs more than so many times the rows
LATENCY_BYTES = 1 << 15  # that two more messages must save: about what a link carries meanwhile
INDEX_BYTES = 8

# tensor, func, definition, dimensions and their indices
Site = tuple[str, str, int, tuple[int, ...], tuple[Expr, ...]]


def with_routed_reads(
    stages: tuple[Stage, ...], layout: Layout, sizes: Mapping[str, int]
) -> tuple[tuple[Stage, ...], Layout]:
    """The stages with reads that are routed as reads of other names, and the layout with these names.

    `sizes` has the bytes of an element of each tensor. ScheduleError if a read cannot be routed as a
    directive says.
    """
    wholes, placements = dict(layout.wholes), dict(layout.placements)
    aliases: dict[str, str] = {}
    result = []
    for stage in stages:
        directives, tensors, done = dict(stage.state.plan(stage.name).routed), list[str](), set[Site]()
        for tensor in () if is_empty(tuple(stage.bounds.values())) else stage.sources:
            if directives.get(tensor):
                _check_routed(stage, layout, tensor)
            if directives.get(tensor) or (tensor not in directives and _may_route(stage, layout, tensor)):
                tensors.append(tensor)
        while left := [site for site in _sites(stage, tensors) if site not in done]:
            done.add(left[0])
            tensor = left[0][0]
            name, said = unused_name(f"{tensor}_at", {*wholes, *program_names(stage)}), directives.get(tensor)
            new = _routed(stage, layout, left[0], name)
            if new is None or not (
                _has_indices(new, said) and (said or _is_cheaper(stage, new, layout, tensor, sizes))
            ):
                continue
            stage, route = new, new.routes[-1]
            box = stage.box_of_ranges(name, stage.bounds)
            assert box is not None, "it is read"
            aliases[name], wholes[name], wholes[route.key.name] = tensor, box, route.key.whole
            placements[name] = _copies(layout.grid, len(box))
            placements[route.key.name] = _copies(layout.grid, len(route.key.whole))
        result.append(stage)
    return tuple(result), Layout(layout.grid, placements, wholes, {**layout.aliases, **aliases})


def _copies(grid: Grid, dims: int) -> Placement:
    """The placement of which each rank has a copy of the whole."""
    return Placement("abcdefghijklmnopqrstuvwxyz"[:dims], (Copies(),) * len(grid.shape))


def _check_routed(stage: Stage, layout: Layout, tensor: str) -> None:
    """ScheduleError unless reads of a tensor can be routed."""
    why, hint = "", "fetch its box: communicate without routed"
    if layout.placements[tensor].partial:
        why = "of which ranks have partial results"
    elif tensor in dict(stage.state.overwrites).values():
        why = "which is overwritten"
    if why:
        plan = stage.state.plan(stage.name)
        raise ScheduleError(
            f"{stage.name!r} cannot route {tensor!r}, {why}", loc=plan.loc, label="scheduled here", hint=hint
        )


def _may_route(stage: Stage, layout: Layout, tensor: str) -> bool:
    """True if the price may decide to route a tensor: it is distributed, and what is read has bounds."""
    placement, plan = layout.placements[tensor], stage.state.plan(stage.name)
    kept = tensor in dict(stage.state.overwrites).values() or stage.ahead.get(tensor)
    if placement.partial or kept or tensor in plan.overlapped:
        return False
    if all(isinstance(e, Copies) for e in placement.entries) or not _sites(stage, [tensor]):
        return False
    bounds = intervals(stage.bounds)
    box = required_boxes(stage.func, stage.definition_index, stage.box_funcs, bounds).get(tensor)
    return box is not None and not any(None in ends for ends in box)


def _has_indices(stage: Stage, said: bool | None) -> bool:
    """True if ranks have the sources of the last route's indices before they fetch its rows.

    ScheduleError otherwise if a directive, `said`, asks for the route.
    """
    route, plan = stage.routes[-1], stage.state.plan(stage.name)
    for source in route.key.sources:
        why = ""
        if stage.levels[source] > stage.levels[route.name]:
            why = "is communicated further in"
        elif stage.tensor_of(source) in plan.overlapped:
            why = "is received while the func is computed"
        if why and said:
            raise ScheduleError(
                f"{stage.name!r} cannot route {route.tensor!r}: {source!r}, which selects its rows, {why}",
                loc=plan.loc, label="scheduled here",
                hint=f"communicate {source!r} at the same loop, or further out, without overlap",
            )  # fmt: skip
        if why:
            return False
    return True


def _reading(stage: Stage) -> Iterator[tuple[FuncDef, int, Definition]]:
    """The definitions that tasks compute: of the func itself, then of the task funcs."""
    first = stage.definition_index
    for f in (stage.func, *stage.task_funcs):
        for n, d in enumerate(f.definitions):
            if f is not stage.func or n == first or not first:
                yield f, n, d


def _sites(stage: Stage, tensors: Sequence[str]) -> list[Site]:
    """The places that read tensors at indices which depend on data; one comes after those in its indices."""
    sites: dict[Site, None] = {}
    for f, n, d in reversed(list(_reading(stage))):  # producers first
        for r in (r for r in d.reads if r.name in tensors):  # inner reads first
            axes = data_axes(r.index)
            if axes:
                sites[r.name, f.name, n, axes, tuple(r.index[a] for a in axes)] = None
    return list(sites)


def _routed(stage: Stage, layout: Layout, site: Site, name: str) -> Stage | None:
    """The stage with the reads of a site renamed, and their route; None if nothing is read."""
    tensor, func, number, axes, index = site
    f, d = next((f, d) for f, n, d in _reading(stage) if (f.name, n) == (func, number))
    free = frozenset[str]().union(*map(variables, index))
    names = tuple(v for v in d.variables if v in free)
    reads = [r for r in d.reads if r.name == tensor and _is_at(r, axes, index)]
    loc = next((r.loc for r in reads if r.loc is not None), d.loc)
    key_name = unused_name(f"{name}_index", {*layout.wholes, *program_names(stage)})
    whole = tuple(layout.wholes[tensor][a] for a in axes)
    point = tuple(map(Var, names))
    key = _func(key_name, names, (), row_major(index, whole), loc)
    rest = tuple(f"{name} {n}" for n in range(len(layout.wholes[tensor]) - len(axes)))
    at_key = Read(key_name, point, 0, i64)
    rows = _func(name, names, rest, at_key, loc)

    def renamed(g: FuncDef) -> FuncDef:
        def visit(n: Node) -> Node:
            if isinstance(n, Read) and n.name == tensor and _is_at(n, axes, index):
                others = (e for a, e in enumerate(n.index) if a not in axes)
                return replace(n, name=name, index=(*point, *others))
            return n

        if g.name != func:
            return g
        new = map_expressions(g.definitions[number], lambda e: transform(e, visit))
        return replace(g, definitions=(*g.definitions[:number], new, *g.definitions[number + 1 :]))

    at = 0 if f is stage.func else 1 + next(n for n, g in enumerate(stage.box_funcs) if g.name == func)
    box_funcs = tuple(map(renamed, stage.box_funcs))
    definition = renamed(stage.func)
    tasks = _reachable(definition, tuple(map(renamed, stage.task_funcs)))
    trial = replace(
        stage, func=definition, task_funcs=tasks, sources=(*stage.sources, name),
        routed_funcs=(*box_funcs[:at], rows, key, *box_funcs[at:]),
        levels=stage.levels | {name: stage.levels[tensor]}, aliases={**stage.aliases, name: tensor},
        _boxes={}, _dependencies={}, _spans={}, _indices={}, _reads={},
    )  # fmt: skip
    boxes = required_boxes(definition, stage.definition_index, trial.box_funcs, intervals(stage.bounds))
    if key_name not in boxes:
        return None
    computed = tuple((_number(lo), _number(hi) + 1) for lo, hi in boxes[key_name])
    keys = _key_stage(stage, key, box_funcs, computed)
    route = RoutedRead(name, tensor, axes, index, keys, loc)
    routes = (*stage.routes, route)
    computed_funcs = (definition, *tasks, *(g for r in routes for g in (r.key.func, *r.key.task_funcs)))
    read = {x for g in computed_funcs for d in g.definitions for x in d.sources}
    return replace(trial, routes=routes, sources=tuple(s for s in trial.sources if s in read))


def _is_at(r: Read, axes: tuple[int, ...], index: tuple[Expr, ...]) -> bool:
    return data_axes(r.index) == axes and tuple(r.index[a] for a in axes) == index


def _number(e: Expr | None) -> int:
    assert isinstance(e, Const), "sizes are numbers"
    return int(e.value)


def row_major(index: tuple[Expr, ...], whole: SpanBox) -> Expr:
    """The offset of an index in a box, row-major; outside of the box it is not that of an element.

    >>> from tdsl.lang.show import show_expr
    >>> show_expr(row_major((Var("i"),), ((2, 9),)))
    'i - 2'
    >>> show_expr(row_major((Var("i"), Var("j")), ((0, 4), (0, 3))))
    'where((i >= 0) & (i < 4) & (j >= 0) & (j < 3), i * 3 + j, -1)'
    """
    flat: Expr = const(0)
    inside: list[Expr] = []
    for e, (lo, hi) in zip(index, whole, strict=True):
        assert dtype_of(e) == i64, "indices are 64-bit integers"
        flat = add(multiply(flat, const(hi - lo)), subtract(e, const(lo)))
        inside += [Binary("ge", e, const(lo)), Binary("lt", e, const(hi))]
    return flat if len(index) == 1 else Select(conjunction(inside), flat, const(-1))


def _func(name: str, dims: tuple[str, ...], rest: tuple[str, ...], value: Expr, loc: Loc | None) -> FuncDef:
    """A func of one value of 64-bit integers."""
    names = (*dims, *rest)
    index = tuple(map(Var, names))
    d = Definition(index, names, (), TRUE, (value,), None, None, loc)
    unknown = ((None, None),) * len(names)
    return FuncDef(name, (i64,), (d,), unknown, unknown)


def _reachable(f: FuncDef, funcs: tuple[FuncDef, ...]) -> tuple[FuncDef, ...]:
    """Those of some funcs, consumers first, that a func reads directly or through others of them."""
    read = {name for d in f.definitions for name in d.mentions}
    reached = []
    for g in funcs:
        if g.name in read:
            reached.append(g)
            read |= {name for d in g.definitions for name in d.mentions}
    return tuple(reached)


def _key_stage(stage: Stage, key: FuncDef, funcs: tuple[FuncDef, ...], whole: SpanBox) -> Stage:
    """The stage by which a rank computes indices, from sources that it has fetched before."""
    state = stage.state
    routed = {name for r in stage.routes for name in (r.name, r.key.name)}
    inside = _reachable(key, tuple(g for g in funcs if g.name not in routed))
    computed = {g.name for g in inside}
    read = dict.fromkeys(name for g in (key, *inside) for d in g.definitions for name in d.sources)
    sources = tuple(name for name in stage.sources if name in read and name not in computed)
    assert state.grid is not None
    placed = (*state.placed, (key.name, _copies(state.grid, len(whole))))
    plans = tuple((g.name, fresh_plan(g)) for g in (*inside, key))
    local = State(state.program, plans, state.grid, placed)
    bounds = dict(zip(key.variables, whole, strict=True))
    return Stage(
        local, key, 0, whole, (), 0, (), {}, {}, inside, sources, bounds, (), {}, (), stage.aliases
    )  # fmt: skip


def selected_spans(route: RoutedRead, layout: Layout, box: SpanBox) -> SpanBox:
    """The spans of the indexed dimensions in which the indices for a box of a route may be."""
    ranges = intervals(dict(zip(route.key.func.variables, box, strict=False)))
    spans = []
    for a, e in zip(route.axes, route.index, strict=True):
        first, end = layout.wholes[route.tensor][a]
        lo, hi = interval_of(e, ranges)
        lowest = max(int(lo.value), first) if isinstance(lo, Const) else first
        highest = min(int(hi.value) + 1, end) if isinstance(hi, Const) else end
        spans.append((lowest, max(lowest, highest)))
    return tuple(spans)


def route_of(
    stage: Stage, layout: Layout, route: RoutedRead, at: Coordinates, inner: Spans, tag: int
) -> Route:
    """The step by which the rank at `at` and the others of its group receive a route, without buffers.

    The group differs along the axes of the grid along which ranks own different elements of the tensor.
    """
    placement = layout.placements[route.tensor]
    axes = [n for n, e in enumerate(placement.entries) if not isinstance(e, Copies)]
    members = sorted(layout.line(at, axes), key=layout.grid.rank)
    boxes = tuple(stage.read_box(route.name, outer_spans(other, inner)) for other in members)
    whole = tuple(layout.wholes[route.tensor][a] for a in route.axes)
    spans = tuple(whole if box is None else selected_spans(route, layout, box) for box in boxes)
    return Route(
        stage.name, route.name, route.key.name, route.tensor, tuple(map(layout.grid.rank, members)), tag,
        len(route.key.whole), route.axes, whole,
        tuple(layout.owned(route.tensor, other) for other in members), boxes, spans,
    )  # fmt: skip


# -- prices


def _is_cheaper(stage: Stage, new: Stage, layout: Layout, tensor: str, sizes: Mapping[str, int]) -> bool:
    """True if a route saves bytes that ranks receive and store, and the latency of its messages."""
    route, before, after = new.routes[-1], 0.0, 0.0
    ranks = 0
    for ranges, block in samples_of(stage, layout, tensor):
        ranks += 1
        before += _box_bytes(stage, tensor, ranges, block, sizes[tensor])
        if tensor in new.sources:
            after += _box_bytes(new, tensor, ranges, block, sizes[tensor])
        box = new.box_of_ranges(route.name, ranges)
        if box is not None:
            after += _route_bytes(route, layout, box, block, sizes[tensor])
    return before > WORTH_ROUTING * after and before - after > LATENCY_BYTES * ranks


def _box_bytes(
    stage: Stage, tensor: str, ranges: Mapping[str, tuple[int, int]], block: SpanBox | None, size: int
) -> int:
    """The bytes of a box of a tensor that a rank receives and stores in an iteration."""
    box = stage.box_of_ranges(tensor, ranges)
    if box is None or (block is not None and is_contiguous(block) and contains(block, box)):
        return 0
    local = None if block is None else intersection(block, box)
    return size * (2 * element_count(box) - (0 if local is None else element_count(local)))


def _route_bytes(route: RoutedRead, layout: Layout, box: SpanBox, block: SpanBox | None, size: int) -> float:
    """The bytes of a route that a rank is expected to receive and store in an iteration."""
    dims = len(route.key.whole)
    spans, indices, row = (
        selected_spans(route, layout, box),
        element_count(box[:dims]),
        element_count(box[dims:]),
    )
    count, owned = element_count(spans), 0
    if block is not None:
        shared = intersection(tuple(block[a] for a in route.axes), spans)
        owned = 0 if shared is None else element_count(shared)
    received = distinct_rows(count, indices) * (1 - owned / max(count, 1))
    return (
        received * (row * size + INDEX_BYTES) + INDEX_BYTES * layout.grid.size
        + indices * (row * size + INDEX_BYTES)
    )  # fmt: skip
