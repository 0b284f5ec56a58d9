"""Lowers the loop nest of one definition, outermost loop first, with the funcs computed inside each loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tdsl.codegen.ir.loops import (
    CONCURRENT,
    FRAGMENT,
    PARALLEL,
    PIPELINED,
    SERIAL,
    SHARED,
    THREADS,
    TOGETHER,
    UNROLLED,
    VECTORIZED,
    For,
    If,
    Stmt,
    as_stmt,
)  # fmt: skip
from tdsl.codegen.lowering.context import Open
from tdsl.codegen.lowering.definition_nest import DefinitionNest
from tdsl.codegen.lowering.fragment_values import gather, initialise_tile, is_thread_reduction
from tdsl.codegen.lowering.guards import (
    deferred_guards,
    guards_of,
    has_guards,
    ready_guards,
    with_new_guards,
)
from tdsl.codegen.lowering.position import FULL, GATHER, INIT, PART, UPDATE, Guard, NestPosition
from tdsl.codegen.lowering.prefetch import prefetch_box
from tdsl.codegen.lowering.reduction_ranges import (
    contributing_iterations,
    is_unreachable,
    narrow_reductions,
)
from tdsl.codegen.lowering.tensorize import fits, fragment_tile, invoke, may_read_beyond
from tdsl.codegen.lowering.values import ValueWriter
from tdsl.errors import ScheduleError
from tdsl.lang.affine import variables
from tdsl.lang.bounds import Facts, upper
from tdsl.lang.expr import ONE, TRUE, Binary, Const, Expr, Read, Var, const
from tdsl.lang.regions import Box, common_box, reads_in
from tdsl.lang.simplify import add, conjuncts, simplify, subtract
from tdsl.schedule.bounds_inference import Active, Threads, bounds_of, required
from tdsl.schedule.loop_relations import is_inside, relate
from tdsl.schedule.narrow import Alike
from tdsl.schedule.state import Level, Nest, Tensorization, is_ordered, is_reduction, roots_of


class NestBuilder(DefinitionNest):
    """Lowers the loop nest of one definition of a func on a box to statements."""

    def build(self, box: Box, around: Open) -> list[Stmt]:
        """The nest; with specializations, the nest of each under its condition."""
        chosen: list[Stmt] = self._nest(self.first, box, around, {})
        for special in reversed(self.plan.specializations):
            if special.definition == self.n:
                made = self._nest(special.nest, box, around, {})
                chosen = [If(special.cond, as_stmt(made), as_stmt(chosen))]
        return chosen

    def join(self, box: Box, around: Open, shared: list[tuple[str, Expr, Expr]]) -> list[Stmt]:
        """The nest inside the `shared` loops, (variable, first, extent), of another nest (compute_with).

        If it reduces over one of them, `start` has initialised the reduction in front of that loop.
        """
        opened = self._opened(box, around, shared)
        nest = self.plan.nests[self.n]
        started = any(is_reduction(self.f, self.n, nest, x) for x in opened)
        return self._nest(nest, box, around, opened, UPDATE if started else FULL)

    def start(self, box: Box, around: Open, shared: list[tuple[str, Expr, Expr]]) -> list[Stmt]:
        """The initialisation of a reduction in front of a loop of another nest that it reduces over."""
        opened = self._opened(box, around, shared)
        return self._nest(self.plan.nests[self.n], box, around, opened, INIT)

    def _opened(
        self, box: Box, around: Open, shared: list[tuple[str, Expr, Expr]]
    ) -> dict[str, Expr]:
        """The value of each loop shared with another nest; ScheduleError if the extents differ."""
        nest = self.plan.nests[self.n]
        bounds = bounds_of(self.f, self.d, box)
        related = relate(nest, bounds, around.facts)
        opened: dict[str, Expr] = {}
        for loop, (variable, first, extent) in zip(nest.names(), shared, strict=False):
            own = bounds[loop][0] if loop in bounds else const(0)
            if simplify(subtract(related.extents[loop], extent), around.facts) != const(0):
                raise ScheduleError(
                    f"compute_with of {self.f.name!r}: loop {loop!r} has another number of iterations than "
                    f"{variable!r}",
                    loc=self.plan.loc,
                    label="scheduled here",
                    hint="share only loops over equal ranges",
                )
            opened[loop] = add(subtract(Var(variable), first), own)
        return opened

    def _nest(
        self, nest: Nest, box: Box, around: Open, opened: dict[str, Expr], mode: str = FULL
    ) -> list[Stmt]:
        self.select(nest)
        bounds = bounds_of(self.f, self.d, box)
        related = relate(nest, bounds, around.facts)
        guards = guards_of(self, related, bounds)
        if self.plan.scope in TOGETHER:
            around = replace(around, held=())
        guards += tuple(Guard(c, frozenset(), predicate=False) for c in around.held)
        return self._open(NestPosition(len(opened), mode, opened, guards, bounds, related), around)

    def _open(self, spot: NestPosition, around: Open) -> list[Stmt]:
        """The statements from the loop at `spot.depth` inwards."""
        loops = self.nest.loops
        while (
            spot.mode == INIT and spot.depth < len(loops) and loops[spot.depth].name in self.reduced
        ):
            spot = replace(spot, depth=spot.depth + 1)
        if self.alike and spot.depth == self.alike.depth and spot.components is None:
            return self._in_parts(spot, around, self.alike)
        if spot.depth == len(loops):
            if spot.mode == FULL and self.d.init is not None:  # a sum over no variables
                start = self._open(replace(spot, mode=INIT), around)
                return [*start, *self._open(replace(spot, mode=UPDATE), around)]
            ready, _ = ready_guards(self, spot)
            return self._guarded(ready, self.point(spot, around), around.facts)
        loop = loops[spot.depth]
        if self._is_once(spot, loop.name):
            first = self.active(spot).first_of(loop.name)
            opened = {**spot.opened, loop.name: first}
            return self._open(replace(spot, depth=spot.depth + 1, opened=opened), around)
        instruction = self._instruction(loop.name)
        if instruction is not None and self._is_invoked(instruction, spot, around):
            guarded = has_guards(self, spot, around.facts) and not self._makes_more(spot)
            made = invoke(self.low, self.active(spot), instruction, around.facts, guarded=guarded)
            if spot.mode == FULL and self.d.init is not None:
                return [*self._open(replace(spot, mode=INIT), around), made]
            return [made]
        if instruction is not None and spot.mode == INIT:
            kept = fragment_tile(self.active(spot), instruction)
            if kept is not None:
                return initialise_tile(self, spot, around, *kept, self.point)
        if spot.mode == FULL and is_thread_reduction(self, loop.name):
            return self._loops(replace(spot, mode=GATHER), around)
        if spot.mode == GATHER and loop.name in self.reduced:
            return gather(self, spot, around, self.part)
        if spot.mode == FULL and self.d.init is not None and loop.name in self.reduced:
            start = self._open(replace(spot, mode=INIT), around)
            return [*start, *self._open(replace(spot, mode=UPDATE), around)]
        return [*self._starts(spot, around), *self._loops(spot, around)]

    def _in_parts(self, spot: NestPosition, around: Open, alike: Alike) -> list[Stmt]:
        """The components that vary along all variables, then those computed once, which the former read."""
        every = range(len(self.d.values))
        others = tuple(n for n in every if n not in alike.components)
        parts = (replace(spot, components=x) for x in (others, alike.components))
        return [s for part in parts for s in self._open(part, around)]

    def _is_once(self, spot: NestPosition, loop: str) -> bool:
        """True for a loop along which the computed components do not vary: one iteration is enough."""
        if self.alike is None or spot.components != self.alike.components:
            return False
        return roots_of(self.nest, loop) <= self.alike.along

    def part(self, spot: NestPosition, around: Open) -> list[Stmt]:
        """The part of one thread in a reduction over threads."""
        return self._open(replace(spot, mode=PART), around)

    def _loops(self, spot: NestPosition, around: Open) -> list[Stmt]:
        """The next loop; two loops, full iterations and tail, if its split is peeled."""
        loop = self.nest.loops[spot.depth]
        spot = narrow_reductions(self, spot, around)
        first = spot.first_of(loop.name)
        extent = simplify(spot.related.extents[loop.name], around.facts)
        first, extent = contributing_iterations(self, spot, around, loop.name, (first, extent))
        if loop.name in spot.related.peels:
            full = simplify(spot.related.peels[loop.name], around.facts)
            rest = simplify(subtract(extent, full), around.facts)
            tail, begin = self._tail(spot, loop.name, around), simplify(add(first, full))
            if loop.kind == PARALLEL and const(0) not in (full, rest):
                return self._shared_out(spot, tail, around, first, begin, extent)
            main = self._loop(spot, around, first, full)
            return [*main, *self._loop(tail, around, begin, rest)]
        return self._loop(spot, around, first, extent)

    def _starts(self, spot: NestPosition, around: Open) -> Iterator[Stmt]:
        """The initialisations of joined reductions for which the next loop is the first reduction loop."""
        for level in self._levels_from(spot.depth) if spot.mode != INIT else ():
            for name in self.low.tree.joined.get(level, ()):
                f, nest = self.low.program.func(name), self.low.state.plan(name).nests[0]
                shared = nest.names()[: self.nest.position(level.loop) + 1]
                reduced = [n for n, x in enumerate(shared) if is_reduction(f, 0, nest, x)]
                if name in self.low.boxes and reduced[:1] == [spot.depth]:
                    outer = self._shared(spot)
                    yield from NestBuilder(self.low, f, 0).start(
                        self.low.boxes[name], around, outer
                    )

    def _shared_out(
        self,
        spot: NestPosition,
        tail: NestPosition,
        around: Open,
        first: Expr,
        begin: Expr,
        extent: Expr,
    ) -> list[Stmt]:
        """One parallel loop over the full iterations of a peeled split and the tail, from `begin` on."""
        loop = self.nest.loops[spot.depth]
        variable = self.low.names.fresh(f"{self.f.name}_{loop.name}")
        end = simplify(add(first, extent))
        main = self._iteration(spot, around, variable, first, begin)
        rest = self._iteration(tail, around, variable, begin, end)
        if not (main and rest):
            start = _for(variable, first, subtract(begin, first), loop.kind, main)
            return start or _for(variable, begin, subtract(end, begin), loop.kind, rest)
        chosen = If(Binary("lt", Var(variable), begin), as_stmt(main), as_stmt(rest))
        return _for(variable, first, extent, loop.kind, [chosen])

    def _tail(self, spot: NestPosition, outer: str, around: Open) -> NestPosition:
        """The spot in the partial iteration of a peeled split."""
        if not is_inside(self.nest, outer):
            return spot
        return with_new_guards(self, replace(spot, tails=spot.tails | {outer}), around.facts)

    def _instruction(self, loop: str) -> Tensorization | None:
        for t in self.plan.tensorizations:
            if t.definition == self.n and t.loop == loop:
                return t
        return None

    def _is_invoked(self, t: Tensorization, spot: NestPosition, around: Open) -> bool:
        """False for the initialisation of a sum, and in a tail that is too short for the instruction."""
        if spot.mode == INIT or not spot.tails:
            return spot.mode != INIT
        guarded = has_guards(self, spot, around.facts)
        return not guarded and fits(self.active(spot), t, around.facts)

    def _makes_more(self, spot: NestPosition) -> bool:
        """True if an instruction may also compute points outside of the definition's ranges and predicate.

        Such results are in registers and not used; such terms of a sum are 0.
        """
        if self.plan.scope != FRAGMENT:
            return False
        tails = (g for g in spot.guards if not g.predicate)
        own = {v for g in tails for x in g.loops for v in roots_of(self.nest, x)}
        ranges = [(name, hi) for name, _, hi in self.d.ranges if name in own]
        return may_read_beyond(self.low.state, self.d, ranges)

    def _loop(self, spot: NestPosition, around: Open, first: Expr, extent: Expr) -> list[Stmt]:
        loop = self.nest.loops[spot.depth]
        variable = self.low.names.fresh(f"{self.f.name}_{loop.name}")
        kind, limit = loop.kind, None
        if kind == PIPELINED and spot.mode == INIT:
            kind = SERIAL  # no func is computed in the loops that initialise a sum
        if kind in (VECTORIZED, UNROLLED) and not isinstance(extent, Const):
            most = upper(extent, around.facts)
            if most is None:
                directive = "vectorize" if kind == VECTORIZED else "unroll"
                raise ScheduleError(
                    f"loop {loop.name!r} of {self.f.name!r} is {kind}, but its number of iterations has "
                    "no constant bound",
                    loc=self.plan.loc,
                    label="scheduled here",
                    hint=f"give a factor: {directive}({loop.name!r}, 8)",
                )
            limit = Binary("lt", Var(variable), add(first, extent))
            extent = const(most)
        if isinstance(extent, Const) and extent.value <= 0:
            self.low.check_joined_empty(self.f.name)
            return []
        body = self._iteration(spot, around, variable, first, add(first, extent))
        if limit is not None:
            body = self._guarded([limit], body, around.facts)
        made = _for(variable, first, extent, kind, body)
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
            for x in made
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
        self, spot: NestPosition, around: Open, variable: str, first: Expr, end: Expr
    ) -> list[Stmt]:
        """The body of the next loop, for any of its iterations from `first` up to `end`."""
        loop = self.nest.loops[spot.depth]
        last = subtract(end, ONE, around.facts)
        facts = around.facts.knowing(variable, first, last)
        only = first == last and spot.depth >= self.shared_depth
        opened = {**spot.opened, loop.name: first if only else Var(variable)}
        ready, inner = ready_guards(self, replace(spot, depth=spot.depth + 1, opened=opened))
        steady = loop.kind == SERIAL and not conjuncts(self.d.where)
        within = replace(around, facts=facts, loop=variable, first=first, steady=steady)
        others = {name for _, name, _ in around.threads}
        if loop.kind in THREADS or others & (variables(first) | variables(last)):
            # the range of the loop differs from thread to thread: all threads need what all iterations need
            run = (loop.kind, variable, (first, last))
            within = replace(within, threads=(*around.threads, run))
        return self._inside(loop.name, ready, inner, within)

    def _guarded(self, conditions: list[Expr], body: list[Stmt], facts: Facts) -> list[Stmt]:
        if not body:
            return []
        writer = ValueWriter(self.low, self.f, {}, facts)
        made: Stmt | None = None
        for c in reversed(conditions):
            cond = simplify(writer.convert(c), facts)
            if cond == TRUE:
                continue
            made = If(cond, made if made is not None else as_stmt(body))
        return body if made is None else [made]

    def _inside(self, loop: str, ready: list[Expr], spot: NestPosition, around: Open) -> list[Stmt]:
        """The body of a loop under its guards, with the funcs that the schedule computes or stores there."""
        here = Level(self.f.name, self.n, loop)
        tree = self.low.tree
        prefetches = [p for p in self.plan.prefetches if p.definition == self.n and p.loop == loop]
        alike = self.alike is not None and spot.components == self.alike.components
        if spot.mode == INIT or alike or not (tree.at(here) or prefetches):
            return self._guarded(ready, self._open(spot, around), around.facts)
        joined = [n for n in tree.joined.get(here, ()) if n in self.low.boxes]
        # joined nests and shared memory have points of their own and are outside of the guards
        apart = bool(joined) or spot.depth <= self.common_depth
        levels = self._levels_from(spot.depth - 1)
        # funcs that a predicate reads may be computed here, after others
        early = (
            c
            for c in ready
            if apart and not any(self.low.program.has_func(r.name) for r in reads_in((c,)))
        )
        held = dict.fromkeys((*around.held, *early, *deferred_guards(self, spot)))
        around = replace(around, held=tuple(held))
        few = around.where_held()
        actives = [self.active(spot), *self._joined_actives(spot, around)]
        filled = {name for name, plan in self.low.state.plans if plan.filled}
        known = {n: b for n, b in self.low.boxes.items() if n not in filled}
        near = {n: b for n, b in self.low.around.items() if n not in filled}
        threads = Threads({name: run for _, name, run in few.threads}, known, near)
        boxes = required(
            tree, self.low.state, levels, {}, actives, few.facts, threads, limits=self.low.most
        )
        own = self.f.name
        if own in tree.stored.get(here, ()):
            boxes[own] = actives[0].written(around.facts)
            if self.plan.scope == SHARED:
                boxes[own] = threads.need(own, boxes[own], around.facts)

        def body() -> Iterator[Stmt]:
            own = self._open(spot, around)
            yield from self._guarded(ready, own, around.facts) if apart else own
            for name in tree.after.get(here, ()):
                if name in boxes:
                    f = self.low.program.func(name)
                    # a producer that rounds up computes more than is needed
                    needed = self.low.needed.get(name, boxes[name])
                    box = common_box(boxes[name], needed, around.facts)
                    yield from NestBuilder(self.low, f, 0).build(box, replace(around, steady=False))
            for name in joined:
                f = self.low.program.func(name)
                shared = self._shared(spot)
                yield from NestBuilder(self.low, f, 0).join(self.low.boxes[name], around, shared)

        ahead = [
            s for p in prefetches for s in prefetch_box(self.low, self.active(spot), p, around)
        ]
        made = [*ahead, *self.low.place(here, boxes, around, lambda: list(body()))]
        return made if apart else self._guarded(ready, made, around.facts)

    def _levels_from(self, depth: int) -> tuple[Level, ...]:
        return tuple(Level(self.f.name, self.n, x) for x in self.nest.names()[depth:])

    def _shared(self, spot: NestPosition) -> list[tuple[str, Expr, Expr]]:
        made = []
        for x in self.nest.names()[: spot.depth]:
            variable = spot.opened[x]
            assert isinstance(variable, Var)
            made.append((variable.name, spot.first_of(x), spot.related.extents[x]))
        return made

    def _joined_actives(self, spot: NestPosition, around: Open) -> list[Active]:
        """The nests that share the open loops (compute_with), whose reads count as needed in these loops."""
        made = []
        for level in self._levels_from(spot.depth - 1):
            for name in self.low.tree.joined.get(level, ()):
                if name not in self.low.boxes:
                    continue
                f = self.low.program.func(name)
                nest = self.low.state.plan(name).nests[0]
                bounds = bounds_of(f, f.definitions[0], self.low.boxes[name])
                related = relate(nest, bounds, around.facts)
                opened: dict[str, Expr] = {}
                for x, (variable, first, _) in zip(nest.names(), self._shared(spot), strict=False):
                    own = bounds[x][0] if x in bounds else const(0)
                    opened[x] = add(subtract(Var(variable), first), own)
                made.append(Active(f, 0, nest, related.roots, related.extents, bounds, opened))
        return made

    def point(self, spot: NestPosition, around: Open) -> list[Stmt]:
        """The statements at one point of the definition; none if its guards are never true."""
        if spot.mode != INIT and is_unreachable(self, spot):
            return []
        values = self.free_values(spot) if spot.mode == INIT else self.active(spot).values()
        writer = ValueWriter(self.low, self.f, values, around.facts)
        if spot.mode == PART:
            return writer.accumulate(self.d, self.own, tuple(map(writer.convert, self.d.values)))
        if spot.mode == INIT:
            assert self.d.init is not None
            return writer.store(self.d, self.d.init, combine=False, components=spot.components)
        return writer.store(
            self.d,
            self.d.values,
            combine=True,
            atomic=self._is_atomic(),
            streaming=self.plan.stream,
            components=spot.components,
        )

    def _is_atomic(self) -> bool:
        return self.n in self.plan.atomic and any(
            x.kind in CONCURRENT and x.name in self.reduced for x in self.nest.loops
        )


def _for(variable: str, first: Expr, extent: Expr, kind: str, body: list[Stmt]) -> list[Stmt]:
    return [For(variable, first, extent, kind, as_stmt(body))] if body else []
