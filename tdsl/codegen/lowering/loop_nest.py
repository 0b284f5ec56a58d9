"""Lowers the loop nest of one definition, outermost loop first, with the funcs computed inside each loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tdsl.codegen.ir.loops import (
    CONCURRENT,
    COOPERATIVE,
    FRAGMENT,
    PARALLEL,
    PIPELINED,
    SERIAL,
    SHARED,
    THREADS,
    UNROLLED,
    VECTORIZED,
    For,
    If,
    Stmt,
    as_stmt,
)  # fmt: skip
from tdsl.codegen.lowering.context import LoopContext
from tdsl.codegen.lowering.definition_nest import DefinitionNest
from tdsl.codegen.lowering.fragment_values import (
    initialise_tile,
    is_thread_reduction,
    reduce_over_threads,
)
from tdsl.codegen.lowering.guards import (
    deferred_guards,
    guards_of,
    has_guards,
    ready_guards,
    with_new_guards,
)
from tdsl.codegen.lowering.position import FULL, INIT, LOCAL, SHUFFLE, UPDATE, Guard, NestPosition
from tdsl.codegen.lowering.prefetch import prefetch_box
from tdsl.codegen.lowering.reduction_ranges import (
    contributing_iterations,
    is_unreachable,
    narrow_reductions,
)
from tdsl.codegen.lowering.tensorize import (
    emit_invoke,
    extents_match,
    fragment_tile,
    may_overcompute,
)
from tdsl.codegen.lowering.values import ValueWriter
from tdsl.errors import ScheduleError
from tdsl.lang.affine import variables
from tdsl.lang.bounds import Facts, upper
from tdsl.lang.expr import ONE, TRUE, Binary, Const, Expr, Read, Var, const
from tdsl.lang.regions import Box, intersection_box, reads_in
from tdsl.lang.simplify import add, conjuncts, simplify, subtract
from tdsl.schedule.bounds_inference import (
    OpenNest,
    ThreadLoops,
    bounds_of,
    read_by_block,
    required_boxes,
)  # fmt: skip
from tdsl.schedule.full_tiles import total_stages
from tdsl.schedule.loop_relations import is_inside, relate
from tdsl.schedule.narrow import NarrowedComponents
from tdsl.schedule.state import Level, Nest, Tensorization, is_ordered, is_reduction, roots_of

SharedLoops = list[tuple[str, Expr, Expr]]  # (variable, first value, extent)


class NestBuilder(DefinitionNest):
    """Lowers the loop nest of one definition of a func on a box to statements."""

    def build(self, box: Box, ctx: LoopContext) -> list[Stmt]:
        """The nest; with specializations, the nest of each under its condition."""
        nest: list[Stmt] = self._lower_nest(self.plan_nest, box, ctx, {})
        for special in reversed(self.plan.specializations):
            if special.definition == self.n:
                body = self._lower_nest(special.nest, box, ctx, {})
                nest = [If(special.cond, as_stmt(body), as_stmt(nest))]
        return nest

    def lower_shared(self, box: Box, ctx: LoopContext, shared: SharedLoops) -> list[Stmt]:
        """The nest inside the `shared` loops of another nest (compute_with).

        If it reduces over one of them, `lower_init` has initialised the reduction in front of that loop.
        """
        opened = self._shared_values(box, ctx, shared)
        nest = self.plan.nests[self.n]
        started = any(is_reduction(self.f, self.n, nest, x) for x in opened)
        return self._lower_nest(nest, box, ctx, opened, UPDATE if started else FULL)

    def lower_init(self, box: Box, ctx: LoopContext, shared: SharedLoops) -> list[Stmt]:
        """The initialisation of a reduction in front of a loop of another nest that it reduces over."""
        opened = self._shared_values(box, ctx, shared)
        return self._lower_nest(self.plan.nests[self.n], box, ctx, opened, INIT)

    def _shared_values(self, box: Box, ctx: LoopContext, shared: SharedLoops) -> dict[str, Expr]:
        """The value of each loop shared with another nest; ScheduleError if the extents differ."""
        nest = self.plan.nests[self.n]
        bounds = bounds_of(self.f, self.d, box)
        related = relate(nest, bounds, ctx.facts)
        opened: dict[str, Expr] = {}
        for loop, (variable, first, extent) in zip(nest.names(), shared, strict=False):
            initial = bounds[loop][0] if loop in bounds else const(0)
            if simplify(subtract(related.extents[loop], extent), ctx.facts) != const(0):
                raise ScheduleError(
                    f"compute_with of {self.f.name!r}: loop {loop!r} has another number of iterations than "
                    f"{variable!r}",
                    loc=self.plan.loc,
                    label="scheduled here",
                    hint="share only loops over equal ranges",
                )
            opened[loop] = add(subtract(Var(variable), first), initial)
        return opened

    def _lower_nest(
        self, nest: Nest, box: Box, ctx: LoopContext, opened: dict[str, Expr], mode: str = FULL
    ) -> list[Stmt]:
        self.select_nest(nest)
        bounds = bounds_of(self.f, self.d, box)
        related = relate(nest, bounds, ctx.facts)
        if self.plan.scope in COOPERATIVE or self.f.name in ctx.copied:
            ctx = replace(ctx, pending_guards=())
        # first, as predicates may read what is computed only where these guards hold
        enclosing = (Guard(c, frozenset(), predicate=False, enclosing=True) for c in ctx.pending_guards)
        guards = (*enclosing, *guards_of(self, related, bounds))
        return self._lower(NestPosition(len(opened), mode, opened, guards, bounds, related), ctx)

    def _lower(self, pos: NestPosition, ctx: LoopContext) -> list[Stmt]:
        """The statements from the loop at `pos.depth` inwards."""
        loops = self.nest.loops
        while pos.mode == INIT and pos.depth < len(loops) and loops[pos.depth].name in self.reduced:
            pos = replace(pos, depth=pos.depth + 1)
        if self.invariant and pos.depth == self.invariant.depth and pos.components is None:
            return self._lower_components(pos, ctx, self.invariant)
        if pos.depth == len(loops):
            if pos.mode == FULL and self.d.init is not None:  # a sum over no variables
                start = self._lower(replace(pos, mode=INIT), ctx)
                return [*start, *self._lower(replace(pos, mode=UPDATE), ctx)]
            tests, _ = ready_guards(self, pos)
            return self._guarded(tests, self.lower_point(pos, ctx), ctx.facts)
        loop = loops[pos.depth]
        if self._is_invariant(pos, loop.name):
            first = self.active(pos).first_of(loop.name)
            opened = {**pos.opened, loop.name: first}
            return self._lower(replace(pos, depth=pos.depth + 1, opened=opened), ctx)
        instruction = self._instruction(loop.name)
        if instruction is not None and self._is_invoked(instruction, pos, ctx):
            guarded = has_guards(self, pos, ctx.facts) and not self._may_overcompute(pos)
            call = emit_invoke(self.low, self.active(pos), instruction, ctx.facts, guarded=guarded)
            if pos.mode == FULL and self.d.init is not None:
                return [*self._lower(replace(pos, mode=INIT), ctx), call]
            return [call]
        if instruction is not None and pos.mode == INIT:
            tile = fragment_tile(self.active(pos), instruction)
            if tile is not None:
                return initialise_tile(self, pos, ctx, *tile, self.lower_point)
        if pos.mode == FULL and is_thread_reduction(self, loop.name):
            return self._next_loop(replace(pos, mode=SHUFFLE), ctx)
        if pos.mode == SHUFFLE and loop.name in self.reduced:
            return reduce_over_threads(self, pos, ctx, self.lower_local)
        if pos.mode == FULL and self.d.init is not None and loop.name in self.reduced:
            start = self._lower(replace(pos, mode=INIT), ctx)
            return [*start, *self._lower(replace(pos, mode=UPDATE), ctx)]
        return [*self._joined_inits(pos, ctx), *self._next_loop(pos, ctx)]

    def _lower_components(
        self, pos: NestPosition, ctx: LoopContext, narrow: NarrowedComponents
    ) -> list[Stmt]:
        """The components that vary along all variables, then those computed once, which the former read."""
        every = range(len(self.d.values))
        others = tuple(n for n in every if n not in narrow.components)
        parts = (replace(pos, components=x) for x in (others, narrow.components))
        return [s for part in parts for s in self._lower(part, ctx)]

    def _is_invariant(self, pos: NestPosition, loop: str) -> bool:
        """True for a loop along which the computed components do not vary: one iteration is enough."""
        if self.invariant is None or pos.components != self.invariant.components:
            return False
        return roots_of(self.nest, loop) <= self.invariant.along

    def lower_local(self, pos: NestPosition, ctx: LoopContext) -> list[Stmt]:
        """The part of one thread in a reduction over threads."""
        return self._lower(replace(pos, mode=LOCAL), ctx)

    def _next_loop(self, pos: NestPosition, ctx: LoopContext) -> list[Stmt]:
        """The next loop; two loops, full iterations and tail, if its split is peeled."""
        loop = self.nest.loops[pos.depth]
        pos = narrow_reductions(self, pos, ctx)
        first = pos.first_of(loop.name)
        extent = simplify(pos.related.extents[loop.name], ctx.facts)
        first, extent = contributing_iterations(self, pos, ctx, loop.name, (first, extent))
        if loop.name in pos.related.peels:
            full = simplify(pos.related.peels[loop.name], ctx.facts)
            rest = simplify(subtract(extent, full), ctx.facts)
            tail, begin = self._tail_position(pos, loop.name, ctx), simplify(add(first, full))
            if loop.kind == PARALLEL and const(0) not in (full, rest):
                return self._fuse_tail(pos, tail, ctx, first, begin, extent)
            main = self._emit(pos, ctx, first, full)
            return [*main, *self._emit(tail, ctx, begin, rest)]
        return self._emit(pos, ctx, first, extent)

    def _joined_inits(self, pos: NestPosition, ctx: LoopContext) -> Iterator[Stmt]:
        """The initialisations of joined reductions for which the next loop is the first reduction loop."""
        for level in self._levels_from(pos.depth) if pos.mode != INIT else ():
            for name in self.low.tree.joined.get(level, ()):
                f, nest = self.low.program.func(name), self.low.state.plan(name).nests[0]
                shared = nest.names()[: self.nest.position(level.loop) + 1]
                reduced = [n for n, x in enumerate(shared) if is_reduction(f, 0, nest, x)]
                if name in self.low.boxes and reduced[:1] == [pos.depth]:
                    outer = self._loops(pos)
                    yield from NestBuilder(self.low, f, 0).lower_init(self.low.boxes[name], ctx, outer)

    def _fuse_tail(
        self,
        pos: NestPosition,
        tail: NestPosition,
        ctx: LoopContext,
        first: Expr,
        begin: Expr,
        extent: Expr,
    ) -> list[Stmt]:
        """One parallel loop over the full iterations of a peeled split and the tail, from `begin` on."""
        loop = self.nest.loops[pos.depth]
        variable = self.low.names.fresh(f"{self.f.name}_{loop.name}")
        end = simplify(add(first, extent))
        main = self._iteration(pos, ctx, variable, first, begin)
        rest = self._iteration(tail, ctx, variable, begin, end)
        if not (main and rest):
            start = _for(variable, first, subtract(begin, first), loop.kind, main)
            return start or _for(variable, begin, subtract(end, begin), loop.kind, rest)
        chosen = If(Binary("lt", Var(variable), begin), as_stmt(main), as_stmt(rest))
        return _for(variable, first, extent, loop.kind, [chosen])

    def _tail_position(self, pos: NestPosition, outer: str, ctx: LoopContext) -> NestPosition:
        """The position in the partial iteration of a peeled split."""
        if not is_inside(self.nest, outer):
            return pos
        return with_new_guards(self, replace(pos, tails=pos.tails | {outer}), ctx.facts)

    def _instruction(self, loop: str) -> Tensorization | None:
        for t in self.plan.tensorizations:
            if t.definition == self.n and t.loop == loop:
                return t
        return None

    def _is_invoked(self, t: Tensorization, pos: NestPosition, ctx: LoopContext) -> bool:
        """False for the initialisation of a sum, and in a tail that is too short for the instruction."""
        if pos.mode == INIT or not pos.tails:
            return pos.mode != INIT
        guarded = has_guards(self, pos, ctx.facts)
        return not guarded and extents_match(self.active(pos), t, ctx.facts)

    def _may_overcompute(self, pos: NestPosition) -> bool:
        """True if an instruction may also compute points outside of the definition's ranges and predicate.

        Such results are in registers and not used; such terms of a sum are 0.
        """
        if self.plan.scope != FRAGMENT:
            return False
        tails = (g for g in pos.guards if not g.predicate)
        tail_variables = {v for g in tails for x in g.loops for v in roots_of(self.nest, x)}
        ranges = [(name, hi) for name, _, hi in self.d.ranges if name in tail_variables]
        return may_overcompute(self.low.state, self.d, ranges)

    def _emit(self, pos: NestPosition, ctx: LoopContext, first: Expr, extent: Expr) -> list[Stmt]:
        loop = self.nest.loops[pos.depth]
        variable = self.low.names.fresh(f"{self.f.name}_{loop.name}")
        kind, limit = loop.kind, None
        if kind == PIPELINED and pos.mode == INIT:
            kind = SERIAL  # no func is computed in the loops that initialise a sum
        if kind in (VECTORIZED, UNROLLED) and not isinstance(extent, Const):
            bound = upper(extent, ctx.facts)
            if bound is None:
                directive = "vectorize" if kind == VECTORIZED else "unroll"
                raise ScheduleError(
                    f"loop {loop.name!r} of {self.f.name!r} is {kind}, but its number of iterations has "
                    "no constant bound",
                    loc=self.plan.loc,
                    label="scheduled here",
                    hint=f"give a factor: {directive}({loop.name!r}, 8)",
                )
            limit = Binary("lt", Var(variable), add(first, extent))
            extent = const(bound)
        if isinstance(extent, Const) and extent.value <= 0:
            self.low.check_joined_empty(self.f.name)
            return []
        body = self._iteration(pos, ctx, variable, first, add(first, extent))
        if limit is not None:
            body = self._guarded([limit], body, ctx.facts)
        loops = _for(variable, first, extent, kind, body)
        merges = self._merges(loop.name)
        stages = loop.stages if kind == PIPELINED else 0
        producer_warps = loop.producer_warps and stages > 0
        overlap_mma = loop.overlap_mma and stages > 0
        return [
            replace(
                x,
                merges=merges,
                stages=stages,
                producer_warps=producer_warps,
                overlap_mma=overlap_mma,
                loc=self.plan.loc,
            )
            for x in loops
            if isinstance(x, For)
        ]

    def _merges(self, loop: str) -> tuple[tuple[str, str], ...]:
        """The (result, lanes) buffers that a reduction over vector lanes or threads combines, else ()."""
        if self.nest.kind(loop) not in (VECTORIZED, *THREADS) or loop not in self.reduced:
            return ()
        reads = [v for v in self.d.values if isinstance(v, Read) and v.index[-1:] == (Var(loop),)]
        lanes = {r.name for r in reads} & self.low.buffers.keys()
        if len(lanes) != 1 or is_ordered(self.f, self.n):
            return ()
        written = {v for e in self.d.index for v in variables(e)}
        if not roots_of(self.nest, loop).isdisjoint(written):  # iterations write different elements
            return ()
        if [r.component for r in reads] != [*range(len(self.d.values))]:
            return ()
        into, of = (self.low.buffers[name].names for name in (self.f.name, *lanes))
        return tuple(zip(into, of, strict=True))

    def _iteration(
        self, pos: NestPosition, ctx: LoopContext, variable: str, first: Expr, end: Expr
    ) -> list[Stmt]:
        """The body of the next loop, for any of its iterations from `first` up to `end`."""
        loop = self.nest.loops[pos.depth]
        last = subtract(end, ONE, ctx.facts)
        facts = ctx.facts.with_range(variable, first, last)
        is_single = first == last and pos.depth >= self.shared_depth
        opened = {**pos.opened, loop.name: first if is_single else Var(variable)}
        tests, inner = ready_guards(self, replace(pos, depth=pos.depth + 1, opened=opened))
        in_order = loop.kind == SERIAL and not conjuncts(self.d.where)
        within = replace(ctx, facts=facts, loop=variable, first=first, in_order=in_order)
        others = {name for _, name, _ in ctx.threads}
        if loop.kind in THREADS or others & (variables(first) | variables(last)):
            # the range of the loop differs from thread to thread: all threads need what all iterations need
            interval = (loop.kind, variable, (first, last))
            within = replace(within, threads=(*ctx.threads, interval))
        return self._loop_body(loop.name, tests, inner, within)

    def _guarded(self, conditions: list[Expr], body: list[Stmt], facts: Facts) -> list[Stmt]:
        if not body:
            return []
        writer = ValueWriter(self.low, self.f, {}, facts)
        guarded: Stmt | None = None
        for c in reversed(conditions):
            cond = simplify(writer.convert(c), facts)
            if cond == TRUE:
                continue
            guarded = If(cond, guarded if guarded is not None else as_stmt(body))
        return body if guarded is None else [guarded]

    def _loop_body(self, loop: str, tests: list[Expr], pos: NestPosition, ctx: LoopContext) -> list[Stmt]:
        """The body of a loop under its guards, with the funcs that the schedule computes or stores there."""
        level = Level(self.f.name, self.n, loop)
        tree = self.low.tree
        prefetches = [p for p in self.plan.prefetches if p.definition == self.n and p.loop == loop]
        invariant = self.invariant is not None and pos.components == self.invariant.components
        if pos.mode == INIT or invariant or not (tree.has_funcs_at(level) or prefetches):
            return self._guarded(tests, self._lower(pos, ctx), ctx.facts)
        joined = [n for n in tree.joined.get(level, ()) if n in self.low.boxes]
        # joined nests and shared memory have points of their own and are outside of the guards
        guards_inside = bool(joined) or pos.depth <= self.common_depth
        levels = self._levels_from(pos.depth - 1)
        # funcs that a predicate reads may be computed here, after others
        testable = (
            c
            for c in tests
            if guards_inside and not any(self.low.program.has_func(r.name) for r in reads_in((c,)))
        )
        pending = dict.fromkeys((*ctx.pending_guards, *testable, *deferred_guards(self, pos)))
        copied = read_by_block(tree, self.low.state, level) if pending else frozenset()
        ctx = replace(ctx, pending_guards=tuple(pending), copied=copied)
        narrow = ctx.narrowed()
        actives = [self.active(pos), *self._joined_actives(pos, ctx)]
        total = total_stages(self.low.state)
        all_boxes = {n: b for n, b in self.low.boxes.items() if n not in total}
        inner_boxes = {n: b for n, b in self.low.level_boxes.items() if n not in total}
        ranges = {name: run for _, name, run in narrow.threads}
        threads = ThreadLoops(ranges, all_boxes, inner_boxes, copied)
        boxes = required_boxes(
            tree, self.low.state, levels, {}, actives, narrow.facts, threads, limits=self.low.limits
        )
        func = self.f.name
        if func in tree.stored.get(level, ()):
            boxes[func] = actives[0].written_box(ctx.facts)
            if self.plan.scope == SHARED:
                boxes[func] = threads.box_of_all(func, boxes[func], ctx.facts)

        def body() -> Iterator[Stmt]:
            inner = self._lower(pos, ctx)
            yield from self._guarded(tests, inner, ctx.facts) if guards_inside else inner
            for name in tree.after.get(level, ()):
                if name in boxes:
                    f = self.low.program.func(name)
                    # a producer that rounds up computes more than is needed
                    needed = self.low.stored_boxes.get(name, boxes[name])
                    box = intersection_box(boxes[name], needed, ctx.facts)
                    yield from NestBuilder(self.low, f, 0).build(box, replace(ctx, in_order=False))
            for name in joined:
                f = self.low.program.func(name)
                shared = self._loops(pos)
                yield from NestBuilder(self.low, f, 0).lower_shared(self.low.boxes[name], ctx, shared)

        ahead = [s for p in prefetches for s in prefetch_box(self.low, self.active(pos), p, ctx)]
        statements = [*ahead, *self.low.lower_level(level, boxes, ctx, lambda: list(body()))]
        return statements if guards_inside else self._guarded(tests, statements, ctx.facts)

    def _levels_from(self, depth: int) -> tuple[Level, ...]:
        return tuple(Level(self.f.name, self.n, x) for x in self.nest.names()[depth:])

    def _loops(self, pos: NestPosition) -> SharedLoops:
        loops = []
        for x in self.nest.names()[: pos.depth]:
            variable = pos.opened[x]
            assert isinstance(variable, Var)
            loops.append((variable.name, pos.first_of(x), pos.related.extents[x]))
        return loops

    def _joined_actives(self, pos: NestPosition, ctx: LoopContext) -> list[OpenNest]:
        """The nests that share the open loops (compute_with), whose reads count as needed in these loops."""
        actives = []
        for level in self._levels_from(pos.depth - 1):
            for name in self.low.tree.joined.get(level, ()):
                if name not in self.low.boxes:
                    continue
                f = self.low.program.func(name)
                nest = self.low.state.plan(name).nests[0]
                bounds = bounds_of(f, f.definitions[0], self.low.boxes[name])
                related = relate(nest, bounds, ctx.facts)
                opened: dict[str, Expr] = {}
                for x, (variable, first, _) in zip(nest.names(), self._loops(pos), strict=False):
                    initial = bounds[x][0] if x in bounds else const(0)
                    opened[x] = add(subtract(Var(variable), first), initial)
                actives.append(OpenNest(f, 0, nest, related.roots, related.extents, bounds, opened))
        return actives

    def lower_point(self, pos: NestPosition, ctx: LoopContext) -> list[Stmt]:
        """The statements at one point of the definition; none if its guards are never true."""
        if pos.mode != INIT and is_unreachable(self, pos):
            return []
        values = self.free_values(pos) if pos.mode == INIT else self.active(pos).values()
        writer = ValueWriter(self.low, self.f, values, ctx.facts)
        if pos.mode == LOCAL:
            return writer.accumulate(self.d, self.partial_results, tuple(map(writer.convert, self.d.values)))
        if pos.mode == INIT:
            assert self.d.init is not None
            return writer.store(self.d, self.d.init, combine=False, components=pos.components)
        return writer.store(
            self.d,
            self.d.values,
            combine=True,
            atomic=self._is_atomic(),
            streaming=self.plan.stream,
            components=pos.components,
        )

    def _is_atomic(self) -> bool:
        return self.n in self.plan.atomic and any(
            x.kind in CONCURRENT and x.name in self.reduced for x in self.nest.loops
        )


def _for(variable: str, first: Expr, extent: Expr, kind: str, body: list[Stmt]) -> list[Stmt]:
    return [For(variable, first, extent, kind, as_stmt(body))] if body else []
