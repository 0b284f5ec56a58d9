"""Lowers a scheduled program to a kernel of the loop IR.

    state (every func placed, none inlined)  ->  Kernel

1. `tree.py` gives the loop at which each func is computed and the one at which it is stored.
2. Bounds inference: from the boxes of the outputs, `bounds_inference.py` computes those of funcs and inputs.
3. At each level, `Lowering.lower_level` allocates the funcs stored there, emits the nests of those computed
   there, then the body. `loop_nest.py` opens the loops of a definition one by one and calls it in each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tdsl.codegen.ir.kernel_names import KernelNames
from tdsl.codegen.ir.loops import (
    LARGEST_FRAME,
    Alloc,
    Argument,
    CopyTile,
    For,
    If,
    Kernel,
    Let,
    Stmt,
    as_stmt,
)  # fmt: skip
from tdsl.codegen.ir.statements import map_parts, rebuilt, walk
from tdsl.codegen.lowering.bounds_checks import Condition, KernelTables, check_boxes
from tdsl.codegen.lowering.buffers import (
    Buffer,
    Ring,
    check_extents,
    fits_in_ring,
    fold_sizes,
    make_buffer,
    max_elements,
)  # fmt: skip
from tdsl.codegen.lowering.context import LoopContext, Lowering
from tdsl.codegen.lowering.loop_nest import NestBuilder
from tdsl.codegen.lowering.merge_axes import merge_axes
from tdsl.codegen.lowering.planes import find_planes, fold_planes, lower_planes
from tdsl.codegen.lowering.tensorize import check_strides
from tdsl.codegen.lowering.values import ValueWriter
from tdsl.core.node import Node, post_order, transform
from tdsl.core.text import in_bytes
from tdsl.errors import ScheduleError
from tdsl.lang.affine import constant_difference, known_divisor, variables
from tdsl.lang.bounds import NO_FACTS, Facts, at_most
from tdsl.lang.expr import ONE, TRUE, ZERO, Binary, Const, Expr, Load, Read, Select, Var, const
from tdsl.lang.program import Axis, FuncDef
from tdsl.lang.regions import Box, intersection_box, is_empty
from tdsl.lang.simplify import (
    add,
    conjunction,
    floordiv,
    maximum,
    multiply,
    simplify,
    substitute,
    subtract,
)  # fmt: skip
from tdsl.machine.instructions.instruction import INSTRUCTIONS
from tdsl.schedule.bounds_inference import required_boxes
from tdsl.schedule.fragment_layouts import layout_of_fragment
from tdsl.schedule.narrow import find_narrowed
from tdsl.schedule.pipelines import copied_read
from tdsl.schedule.sliding import ring_size, window_axis
from tdsl.schedule.state import (
    COOPERATIVE,
    FRAGMENT,
    REGISTER,
    SHARED,
    STACK,
    THREADS,
    AfterProducer,
    At,
    Level,
    Root,
    State,
    WithStage,
)
from tdsl.schedule.tree import ROOT, build_tree


class _ProgramLowering(Lowering):
    """Emits the statements of each level: allocations, the nests of the funcs computed there, and a body."""

    def lower_level(
        self,
        level: Level,
        boxes: dict[str, Box],
        ctx: LoopContext,
        body: Callable[[], Sequence[Stmt]],
    ) -> list[Stmt]:
        """Allocate and compute the funcs of a level, then its body; `boxes` are the boxes needed inside."""
        stored = [
            self.program.func(name)
            for name in self.tree.stored.get(level, ())
            if name in boxes and name not in self.program.outputs
        ]
        starts, ctx = self._name_box_origins(level, boxes, ctx)
        for f in stored:
            components = self.names.components(f)
            plan = self.state.plan(f.name)
            self.buffers[f.name] = make_buffer(
                f, plan, components, boxes[f.name], ctx.facts, find_narrowed(self.state, f)
            )
            self.stored_at[f.name] = level
            layout = layout_of_fragment(self.state, f.name) if plan.scope == FRAGMENT else None
            if layout is not None:
                self.layouts[f.name] = layout
            self.stored_boxes[f.name] = boxes[f.name]
            planes = find_planes(self, f, boxes[f.name], ctx.facts)
            if planes is not None:
                self.planes[f.name] = planes
                fold_planes(self, f, planes)
            elif plan.fold and (level == self.tree.parent[f.name] or level.func == f.name):
                self._fold_buffer(f, boxes[f.name], None, ctx.facts)
        saved_boxes, self.level_boxes = self.level_boxes, {**self.level_boxes, **boxes}
        statements: list[Stmt] = []
        for name in self.tree.computed.get(level, ()):
            if name in boxes and self._has_memory(name):
                statements += self.lower_func(name, boxes[name], ctx)
            else:
                self.check_joined_empty(name)
        statements += body()
        self.level_boxes = saved_boxes
        for f in reversed(stored):
            buffer, plan = self.buffers[f.name], self.state.plan(f.name)
            scope, swizzle = plan.scope, plan.swizzle
            self.sizes |= {r.name: r.size() for r in self.rings.pop(f.name, {}).values()}
            self._check_scope(f, ctx.facts)
            layout = self.layouts.get(f.name)
            for n, (component, t) in enumerate(zip(buffer.names, f.dtypes, strict=True)):
                inner, loc = as_stmt(statements), self.state.plan(f.name).loc
                extents = buffer.memory_extents(n)
                statements = [
                    Alloc(
                        component, t, extents, scope, inner, swizzle=swizzle, loc=loc,
                        layout=None if layout is None else buffer.layout(layout, n),
                    )
                ]  # fmt: skip
            del self.buffers[f.name], self.stored_boxes[f.name], self.stored_at[f.name]
        for start, name in reversed(starts.items()):
            statements = [Let(name, start, as_stmt(statements))]
        return statements

    def _name_box_origins(
        self, level: Level, boxes: dict[str, Box], ctx: LoopContext
    ) -> tuple[dict[Expr, str], LoopContext]:
        """Bind the clamped origins of boxes of fixed extents (bound_extent) to names, used in `boxes`.

        An origin is a constant times its name, so that vector loads see its alignment. An origin that differs
        between threads gets no name, which would hide the box that all threads together need, nor does one
        that moves with the innermost loop if the func is stored outside of it (sliding window).
        """
        origins: dict[Expr, str] = {}
        varying, facts, limits = {name for _, name, _ in ctx.threads}, ctx.facts, self.limits
        for name in boxes:
            plan = self.state.plan(name) if self.program.has_func(name) else None
            if plan is None or not plan.extents or level == ROOT or level != self._compute_level(name):
                continue
            if name not in self.boxes:  # the program needs no point of it
                continue
            moving = {ctx.loop} if self.stored_at.get(name, level) != level else set()
            f = self.program.func(name)
            check_extents(f, plan, boxes[name], self.boxes[name], ctx.facts)
            for axis, _ in plan.extents:
                (lo, hi), (first, last) = boxes[name][axis], limits[name][axis]
                extent = max_elements(boxes[name], axis, facts)
                if lo is None or hi is None or first is None or last is None or extent is None:
                    continue
                if constant_difference(hi, lo) != extent - 1 or (varying | moving) & variables(lo):
                    continue
                end, clamps = subtract(last, const(extent - 1)), map(_is_min_or_max, post_order(lo))
                if not any(clamps) or not at_most(first, end, facts):
                    continue
                step = known_divisor(lo)
                value = simplify(floordiv(lo, const(step)), facts)
                if value not in origins:
                    origins[value] = self.names.fresh(f"{name}_{f.variables[axis]}_first")
                    ends = (simplify(floordiv(e, const(step))) for e in (first, end))
                    facts = facts.with_range(origins[value], *ends)
                origin = multiply(Var(origins[value]), const(step))
                interval = origin, add(origin, const(extent - 1))
                boxes[name] = (*boxes[name][:axis], interval, *boxes[name][axis + 1 :])
        return origins, replace(ctx, facts=facts)

    def _has_memory(self, name: str) -> bool:
        """False for a func stored at an outer level that did not allocate it, as nothing there needs it."""
        store = self.state.plan(name).store
        return name in self.buffers or store is None or store.func == name

    def _compute_level(self, name: str) -> Level:
        """The level where a func is computed; for a func placed after a producer, the producer's level."""
        match self.state.plan(name).place:
            case AfterProducer(level):
                return self._compute_level(level.func)
            case _:
                return self.tree.parent[name]

    def _check_scope(self, f: FuncDef, facts: Facts) -> None:
        """ScheduleError if a func in stack, register or block memory is too large or of no constant size."""
        plan = self.state.plan(f.name)
        if plan.scope not in (STACK, REGISTER, *COOPERATIVE):
            return
        count = sum(t.bytes for t in f.dtypes)
        for e in self.buffers[f.name].memory_extents():
            extent = simplify(substitute(e, self.sizes), facts)
            if not isinstance(extent, Const):
                raise ScheduleError(
                    f"{f.name!r} is in {plan.scope} memory, but its size is known at a call only",
                    loc=plan.loc,
                    label="scheduled here",
                    hint="split the loops by constants around it"
                    if plan.scope in COOPERATIVE
                    else 'leave the scope to the compiler, or take "heap"',
                )
            count *= max(int(extent.value), 0)
        if plan.scope in (STACK, REGISTER) and count > LARGEST_FRAME:
            raise ScheduleError(
                f"{f.name!r} takes {in_bytes(count)} of {plan.scope} memory, "
                f"and {in_bytes(LARGEST_FRAME)} is the most",
                loc=plan.loc,
                label="scheduled here",
                hint='set_scope("heap"), or compute it in a loop that needs less of it',
            )

    def lower_func(self, name: str, box: Box, ctx: LoopContext) -> list[Stmt]:
        """The nests that compute a func on a box, one for each definition in order."""
        f = self.program.func(name)
        if any(is_empty(i, ctx.facts) for i in box):
            self.check_joined_empty(name)
            return []
        home = self.tree.parent[name]
        if self.stored_at.get(name, home) != home:
            # bounds inferred at an inner level may be looser than the bounds of the allocation
            box = intersection_box(box, self.stored_boxes[name], ctx.facts)
            box = self._sliding_window(f, box, ctx)
        if name in self.planes:
            return lower_planes(self, f, box, ctx, self.planes[name])
        if self.state.plan(name).bulk:
            return self._guard_nest(f, 0, ctx, [self._tma_copy(f, box, ctx)])
        new, start, box, facts = self._name_window(f, box, ctx.facts)
        statements: list[Stmt] = []
        for n in range(len(f.definitions)):
            nest = NestBuilder(self, f, n).build(box, replace(ctx, facts=facts))
            statements += self._guard_nest(f, n, ctx, nest)
        return [Let(new, start, as_stmt(statements))] if new and statements else statements

    def _shares_root_nest(self, f: FuncDef, value: Expr) -> bool:
        """True if `value` reads a func that is computed in the same root nest as `f`."""
        match value:
            case Read(name) if self.state.program.has_func(name):
                return self._root_func(name) == self._root_func(f.name)
            case _:
                return False

    def _root_func(self, name: str) -> str:
        """The func at the root whose nest a func is computed in; the func itself if it is at the root."""
        match self.state.plan(name).place:
            case At(level) | AfterProducer(level) | WithStage(level):
                return self._root_func(level.func)
            case _:
                return name

    def _tma_copy(self, f: FuncDef, box: Box, ctx: LoopContext) -> Stmt:
        """A TMA copy of a box, which may extend beyond the needed points and the edges of its source."""
        buffer = self.buffers[f.name]
        start = {v: lo for v, (lo, _) in zip(f.variables, box, strict=True) if lo is not None}
        value = copied_read(self.state, f)
        # no Load if a func with other values has been inlined into it
        load = value and ValueWriter(self, f, start, ctx.facts).convert(value)
        loc = self.state.plan(f.name).loc
        if value is None or not isinstance(load, Load) or self._shares_root_nest(f, value):
            raise ScheduleError(
                f"{f.name!r} is copied by TMA, but what it copies is computed in the same kernel",
                loc=loc,
                label="scheduled here",
                hint="compute_root() what is copied, or copy by threads: cooperate()",
            )
        extents = tuple(int(e.value) for e in buffer.extents if isinstance(e, Const))
        assert len(extents) == len(start), "the size of shared memory is a number"
        index = buffer.index(tuple(start.values()))
        return CopyTile(buffer.names[0], index, load.buffer, load.index, extents, loc=loc)

    def _guard_nest(self, f: FuncDef, n: int, ctx: LoopContext, nest: list[Stmt]) -> list[Stmt]:
        """The nest of a func that a block computes, guarded: run if some thread has points, and in shared
        memory only by the first thread on each axis that no loop of the nest is bound to."""
        plan = self.state.plan(f.name)
        if (plan.scope != SHARED and f.name not in ctx.copied) or not nest:
            return nest
        writer = ValueWriter(self, f, {}, ctx.facts)
        for condition in reversed(ctx.some_thread_has_points()):
            points = simplify(writer.convert(condition), ctx.facts)
            nest = nest if points == TRUE else [If(points, as_stmt(nest))]
        if plan.scope != SHARED:
            return nest
        bound_axes = {x.kind for x in plan.nests[n].loops}
        tests: dict[str, Expr] = {
            axis: Binary("eq", Var(name), first)
            for axis, name, (first, _) in ctx.threads
            if axis in THREADS and axis not in bound_axes and first is not None
        }
        return [_run_by_first_thread(as_stmt(nest), tests)] if tests else nest

    def check_joined_empty(self, name: str) -> None:
        """ScheduleError for an empty func whose loops are shared by one with points (compute_with)."""
        for level, joined in self.tree.joined.items():
            for other in joined if level.func == name else ():
                if other in self.boxes and not any(is_empty(i) for i in self.boxes[other]):
                    raise ScheduleError(
                        f"compute_with of {other!r}: {name!r} has no iterations to share",
                        loc=self.state.plan(other).loc,
                        label="scheduled here",
                        hint="share only loops over equal ranges",
                    )

    def _name_window(self, f: FuncDef, box: Box, facts: Facts) -> tuple[str, Expr, Box, Facts]:
        """Bind the first index of a sliding window, used in many bounds, to a name; "" without a window."""
        for axis, (lo, hi) in enumerate(box):
            if isinstance(lo, Select) and hi is not None:
                name = self.names.fresh(f"{f.name}_{f.variables[axis]}_new")
                named = (*box[:axis], (Var(name), hi), *box[axis + 1 :])
                return name, lo, named, facts.with_range(name, lo.yes, add(hi, ONE))
        return "", ZERO, box, facts

    def _sliding_window(self, f: FuncDef, box: Box, ctx: LoopContext) -> Box:
        """The part of a box that earlier iterations of the loop have not stored yet (sliding window)."""
        t = ctx.loop if ctx.in_order else None
        axis = None if t is None else window_axis(f, box, t)
        self._fold_buffer(f, box, axis, ctx.facts)
        if axis is None or t is None:
            return box
        lo, hi = box[axis]
        assert lo is not None and hi is not None
        before = simplify(substitute(hi, {t: subtract(Var(t), ONE)}), ctx.facts)
        new = maximum(lo, add(before, ONE), ctx.facts)
        start = Select(Binary("eq", Var(t), ctx.first), lo, new)
        return (*box[:axis], (start, hi), *box[axis + 1 :])

    def _fold_buffer(self, f: FuncDef, box: Box, axis: int | None, facts: Facts) -> None:
        """Fold dimensions of which only a part is in use at a time (fold_storage).

        Several nests may compute one func: peeled tails and specializations have nests of their own. The
        first nest decides which dimensions are folded; the ring size is the largest that any of them needs.
        """
        buffer = self.buffers[f.name]
        folds: dict[int, Expr] = {
            a: const(n) for a, n in fold_sizes(f, self.state.plan(f.name), box, facts).items()
        }
        rings = self.rings.setdefault(f.name, {})
        if buffer.folds is None:
            needed = None if axis is None else max_elements(box, axis, facts)
            if axis is not None and needed is not None and axis not in folds:
                extent = buffer.extents[axis]
                if not fits_in_ring(extent, ring_size(needed)):
                    rings[axis] = Ring(self.names.fresh(f"{f.name}_ring"), extent)
                    folds[axis] = Var(rings[axis].name)
            extents = tuple(folds.get(a, e) for a, e in enumerate(buffer.extents))
            chosen = tuple(folds.get(a) for a in range(len(box)))
            self.buffers[f.name] = replace(buffer, folds=chosen, extents=extents)
        for a, ring in rings.items():
            ring.require(max_elements(box, a, facts))


def _move_to_root(state: State, boxes: Mapping[str, Box]) -> State:
    """The state with each func placed after a producer that does not run (empty box) moved to the root."""
    for name, plan in state.plans:
        if name in boxes and isinstance(plan.place, AfterProducer):
            host = boxes.get(plan.place.level.func)
            if host is None or any(is_empty(i) for i in host):
                state = state.with_plan(name, replace(plan, place=Root()))
    return state


def _is_min_or_max(n: Node) -> bool:
    return isinstance(n, Binary) and n.op in ("min", "max")


def lower(
    state: State, params: tuple[Argument, ...], declared: list[Condition], *, merged: bool = True
) -> Kernel:
    """The kernel of a complete state; `params` are its arguments, `declared` conditions for it to check.

    With `merged`, dense arrays that the schedule flattens have fewer dimensions in the kernel.

    Raises IndexBoundError if an access may be out of bounds, ScheduleError if a directive is impossible for
    these sizes.
    """
    program = state.program
    names = KernelNames(program)
    axes = {t.name: t.array for t in program.inputs if t.array}
    if merged:
        params, axes = merge_axes(program, names, params)
    tree = build_tree(state)
    output_boxes = {name: _output_box(program.func(name)) for name in program.outputs}
    boxes = required_boxes(tree, state, (ROOT,), output_boxes, [], NO_FACTS)
    while (moved := _move_to_root(state, boxes)) is not state:
        state, tree = moved, build_tree(moved)
        boxes = required_boxes(tree, state, (ROOT,), output_boxes, [], NO_FACTS)
    lowering = _ProgramLowering(state, tree, names, KernelTables(), boxes, input_axes=axes)
    for name in program.outputs:
        f = program.func(name)
        components = names.components(f)
        lowering.buffers[name] = _output_buffer(f, components, axes.get(components[0], f.axes()))
        lowering.stored_boxes[name] = output_boxes[name]
    exact = boxes
    if any(plan.scope == FRAGMENT for _, plan in state.plans):
        exact = required_boxes(tree, state, (ROOT,), output_boxes, [], NO_FACTS, exact=True)
    checks = check_boxes(lowering.tree, state, exact, lowering.tables, declared)
    body = as_stmt([*checks, *lowering.lower_level(ROOT, boxes, LoopContext(), lambda: ())])
    if lowering.sizes:
        body = transform(body, partial(_replace_size, lowering.sizes))
    kernel = Kernel(
        names.kernel, params, body,
        tuple(lowering.tables.sites), all(f.fast_math for f in program.funcs),
        tuple(INSTRUCTIONS[n] for n in lowering.tables.instructions),
        _resident_blocks(state, names), _cache_policies(state, names),
        tuple(b for f in program.funcs if state.plan(f.name).grid_sync for b in names.components(f)),
    )  # fmt: skip
    check_strides(kernel)
    return kernel


def _resident_blocks(state: State, names: KernelNames) -> tuple[tuple[str, int], ...]:
    """(buffer, n) for funcs whose directives ask for n resident blocks on a multiprocessor."""
    residents = ((f, state.plan(f.name).min_blocks) for f in state.program.funcs)
    return tuple((buffer, n) for f, n in residents if n for buffer in names.components(f))


def _cache_policies(state: State, names: KernelNames) -> tuple[tuple[str, str, str], ...]:
    """(buffer, source, policy) for funcs whose directives choose a cache policy for loads of a source."""
    components = {f.name: names.components(f) for f in state.program.funcs}
    return tuple(
        (buffer, read, policy)
        for f in state.program.funcs
        for source, policy in state.plan(f.name).policies
        for buffer in components[f.name]
        for read in components.get(source, (source,))
    )


def _replace_size(sizes: dict[str, Expr], n: Node) -> Node:
    return sizes.get(n.name, n) if isinstance(n, Var) else n


def _output_box(f: FuncDef) -> Box:
    """The box of a whole output; ShapeError if its range is not known."""
    f.output_box(None)
    return f.natural


def _output_buffer(f: FuncDef, names: tuple[str, ...], axes: tuple[Axis, ...]) -> Buffer:
    box = f.output_box(None)
    starts, extents = tuple(lo for lo, _ in box), tuple(e for _, e in box)
    return Buffer(f.name, names, starts, extents, tuple(range(len(box))), None, axes=axes)


def _run_by_first_thread(s: Stmt, tests: Mapping[str, Expr]) -> Stmt:
    """A statement run only by the first thread on each axis of `tests`, except loops bound to the axis."""
    loops = {x.kind for x in walk(s) if isinstance(x, For)}
    if loops.isdisjoint(tests):
        return If(conjunction(list(tests.values())), s)
    if isinstance(s, For) and s.kind in tests:
        others = {axis: test for axis, test in tests.items() if axis != s.kind}
        return rebuilt(s, body=_run_by_first_thread(s.body, others)) if others else s
    return map_parts(s, lambda part: _run_by_first_thread(part, tests))
