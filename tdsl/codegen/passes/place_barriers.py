"""A pass that inserts barriers between conflicting accesses of the threads of a block."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from tdsl.codegen.analysis.facts import facts_where
from tdsl.codegen.analysis.launch_axes import covers_axis, launch_extents
from tdsl.codegen.analysis.thread_conflicts import Access, accesses
from tdsl.codegen.ir.loops import (
    AXES,
    HEAP,
    LANES,
    SHARED,
    THREADS,
    WARP,
    Alloc,
    Barrier,
    Block,
    BufferParam,
    For,
    If,
    InitBarriers,
    Kernel,
    Let,
    Shuffle,
    Stmt,
    WarpSpecialize,
)  # fmt: skip
from tdsl.codegen.ir.statements import (
    exprs_of,
    loads_of,
    map_parts,
    rebuilt,
    scalars_of,
    sequence,
    stored_in,
    walk,
)  # fmt: skip
from tdsl.codegen.transforms.guard_between_barriers import guard_between_barriers
from tdsl.core.node import frozen
from tdsl.errors import ScheduleError
from tdsl.lang.bounds import NO_FACTS, Facts, lower
from tdsl.lang.expr import ONE, ZERO, Binary, Expr, Var, const
from tdsl.lang.show import show_expr
from tdsl.lang.simplify import add, conjuncts, substitute, subtract

_MAX_BARRIERS = 15  # named barriers of a block, besides the one that __syncthreads uses


def place_barriers(kernel: Kernel) -> Kernel:
    """Insert a barrier between accesses of different threads of a block to one element, one of them a write.

    There is no barrier where the indices prove that each thread accesses only elements of its own. The memory
    must have the scopes of a GPU (`place_memory`). Raises ScheduleError where only some threads would arrive.

    >>> from tdsl.codegen.ir.loops import Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import Binary, Load, const
    >>> from tdsl.lang.types import i64
    >>> def threads(name, body):
    ...     return For(name, const(0), const(8), "threadIdx.x", body)
    >>> t, u, v = Var("t"), Var("u"), Var("v")
    >>> direct = threads("u", Store("s", (u,), Load("s", (u,), i64)))
    >>> other = threads("v", Store("a", (v,), Load("s", (Binary("sub", const(7), v),), i64)))
    >>> body = Block((threads("t", Store("s", (t,), t)), direct, other))
    >>> nest = For("b", const(0), const(2), "blockIdx.x", Alloc("s", i64, (const(8),), "shared", body))
    >>> print(show(place_barriers(Kernel("k", (), nest)).body))
    for b in range(0, 2):  # blockIdx.x
      s = alloc(i64, [8])  # shared
      for t in range(0, 8):  # threadIdx.x
        s[t] = t
      for u in range(0, 8):  # threadIdx.x
        s[u] = s[u]
      barrier()
      for v in range(0, 8):  # threadIdx.x
        a[v] = s[7 - v]
    """
    written = stored_in(kernel.body)
    read = {name for s in walk(kernel.body) for e in exprs_of(s) for name in loads_of(e)}
    arguments = {p.name for p in kernel.params if isinstance(p, BufferParam)}
    common = arguments & written & read
    return dataclasses.replace(kernel, body=_outermost(kernel.body, frozenset(common)))


def _outermost(s: Stmt, common: frozenset[str]) -> Stmt:
    """`s` with barriers in each kernel by itself, as the end of a kernel synchronises all threads."""
    match s:
        case Alloc(name, _, _, scope, body) if scope == HEAP:
            return rebuilt(s, body=_outermost(body, common | {name}))
        case Block() | Let() | If():
            return map_parts(s, lambda part: _outermost(part, common))
        case _:
            return _KernelBarriers(common, launch_extents(s)).visit(s, _Context()).code


@frozen
class _Context:
    """The loops, lets and conditions around a statement.

    `facts` are the ranges of loop counters that start at 0, `lets` the values of names in terms of these
    counters. `axes` are those that an enclosing loop is bound to, `bound` the variables of these loops, with
    axis and first value; `varying` are the names whose value may differ between threads of a block.
    """

    facts: Facts = NO_FACTS
    lets: dict[str, Expr] = field(default_factory=dict)
    axes: frozenset[str] = frozenset()
    varying: frozenset[str] = frozenset()
    uniform: frozenset[str] = frozenset()  # counters that have one value in all threads of a block
    warp_varying: frozenset[str] = frozenset()  # those of `varying` that differ along threadIdx.x
    bound: Mapping[str, tuple[str, Expr]] = field(default_factory=dict)

    def is_uniform(self, *es: Expr) -> bool:
        """True for expressions that have one value in all threads of a block."""
        return not any(loads_of(e) or scalars_of(e) & self.varying for e in es)

    def is_warp_uniform(self, *es: Expr) -> bool:
        """True for expressions that have one value in all threads of a warp."""
        return not any(loads_of(e) or scalars_of(e) & self.warp_varying for e in es)

    def binding(self, name: str, *of: Expr) -> _Context:
        """The place inside of a statement that binds `name` to a value computed from `of`."""
        varying = self.varying if self.is_uniform(*of) else self.varying | {name}
        in_warp = self.warp_varying if self.is_warp_uniform(*of) else self.warp_varying | {name}
        return dataclasses.replace(self, varying=varying, warp_varying=in_warp)


@frozen
class _Synced:
    """Code with its barriers, and its accesses before the first and after the last barrier.

    `syncs` is True if every path through the code has a barrier.
    """

    code: Stmt
    first: tuple[Access, ...] = ()
    last: tuple[Access, ...] = ()
    syncs: bool = False


@dataclass(slots=True)
class _KernelBarriers:
    """Inserts the barriers of one kernel; `shared` are the buffers that several of its threads can access."""

    shared: frozenset[str]
    extents: dict[str, int]
    recorded: list[Access] | None = None  # all accesses of the `WarpSpecialize` part being visited

    @property
    def threads(self) -> dict[str, int]:
        return {axis: self.extents[axis] for axis in THREADS}

    def conflict(self, a: tuple[Access, ...], b: tuple[Access, ...], same: frozenset[str]) -> bool:
        return any(x.conflicts(y, same, self.threads) for x in a for y in b)

    def visit(self, s: Stmt, ctx: _Context) -> _Synced:
        match s:
            case Block(body):
                return self.block(body, ctx)
            case For():
                return self.loop(s, ctx)
            case If():
                return self.branch(s, ctx)
            case Alloc(name, _, _, scope, body):
                if scope == SHARED:
                    self.shared |= {name}
                inner = self.visit(body, ctx)
                return dataclasses.replace(inner, code=rebuilt(s, body=inner.code))
            case Let():
                return self.let(s, ctx)
            case Barrier():
                return _Synced(s, syncs=True)
            case WarpSpecialize(parts):  # its parts synchronise by mbarriers
                result = [self.specialized_part(part, ctx) for part in parts]
                accesses = tuple(a for x in result for a in (*x.first, *x.last))
                return _Synced(rebuilt(s, parts=tuple(x.code for x in result)), accesses, accesses)
            case InitBarriers():  # all threads wait until the mbarriers are initialised
                inner = self.visit(s.body, ctx)
                return _Synced(rebuilt(s, body=inner.code), (), inner.last, syncs=True)
            case _:
                direct = self.direct_accesses(s, ctx)
                return _Synced(s, direct, direct)

    def direct_accesses(self, s: Stmt, ctx: _Context) -> tuple[Access, ...]:
        direct = tuple(accesses(s, self.shared, ctx.lets, ctx.axes, ctx.facts))
        if self.recorded is not None:
            self.recorded += direct
        return direct

    def specialized_part(self, s: Stmt, ctx: _Context) -> _Synced:
        """One part of a `WarpSpecialize`: its barriers synchronise a group of threads, not the block."""
        self.recorded = []
        result = self.visit(s, ctx)
        part_accesses, self.recorded = self.recorded, None
        if _has_barrier(result.code):
            pairs = product(part_accesses, repeat=2)
            conflicts = (a.conflicting_axes(b, ctx.uniform, self.threads) for a, b in pairs)
            if any(axes is not None and axes - {LANES} for axes in conflicts):
                raise _divergence_error(s)
        return result

    def barrier(self, s: Stmt) -> Barrier:
        """A barrier before `s`: of all threads of the block; in a `WarpSpecialize`, of a group of threads."""
        rows = self.extents["threadIdx.y"] * self.extents["threadIdx.z"]
        if self.recorded is not None and (self.extents[LANES] % WARP or rows > _MAX_BARRIERS):
            raise _divergence_error(s)
        return Barrier(group=self.recorded is not None)

    def block(self, body: tuple[Stmt, ...], ctx: _Context) -> _Synced:
        same = ctx.uniform
        code: list[Stmt] = []
        first: tuple[Access, ...] = ()
        unsynchronized: tuple[Access, ...] = ()
        syncs = False
        for s in body:
            result = self.visit(s, ctx)
            if self.conflict(unsynchronized, result.first, same):
                code.append(self.barrier(s))
                unsynchronized, syncs = (), True
            if not syncs:
                first += result.first
            code.append(result.code)
            unsynchronized = result.last if result.syncs else unsynchronized + result.last
            syncs = syncs or result.syncs
        return _Synced(sequence(code), first, unsynchronized, syncs)

    def let(self, s: Let, ctx: _Context) -> _Synced:
        direct = self.direct_accesses(s, ctx)
        lets = {**ctx.lets, s.name: substitute(s.value, ctx.lets)}
        if loads_of(s.value):
            lets.pop(s.name)
        inner = self.visit(s.body, dataclasses.replace(ctx.binding(s.name, s.value), lets=lets))
        if self.conflict(direct, inner.first, ctx.uniform):
            raise _divergence_error(s)
        first = (*direct, *inner.first)
        last = inner.last if inner.syncs else (*direct, *inner.last)
        return _Synced(rebuilt(s, body=inner.code), first, last, inner.syncs)

    def branch(self, s: If, ctx: _Context) -> _Synced:
        direct = self.direct_accesses(s, ctx)
        then = self.visit(s.then, _under_condition(s.cond, ctx))
        orelse = _Synced(Block(())) if s.orelse is None else self.visit(s.orelse, ctx)
        sides = (then, orelse)
        if self.diverges(s, ctx, then):
            code = guard_between_barriers(s.cond, then.code)
            if code is not None:
                return _Synced(code, then.first, then.last, then.syncs)
        self.check_uniform(s, ctx, s.cond, code=sides)
        if any(self.conflict(direct, x.first, ctx.uniform) for x in sides):
            raise _divergence_error(s)
        code = rebuilt(s, then=then.code, orelse=None if s.orelse is None else orelse.code)
        syncs = then.syncs and orelse.syncs
        last = then.last + orelse.last
        return _Synced(code, direct + then.first + orelse.first, last if syncs else direct + last, syncs)

    def diverges(self, s: If, ctx: _Context, then: _Synced) -> bool:
        """True if only some warps would reach a barrier in `then`, by a condition that reads no memory."""
        if s.orelse is not None or loads_of(s.cond) or self.recorded is not None:
            return False
        divergent = not ctx.is_uniform(s.cond) and _has_barrier(then.code, of_groups=False)
        return divergent and (ctx.is_warp_uniform(s.cond) or not _has_shuffle(then.code))

    def check_uniform(self, s: Stmt, ctx: _Context, *es: Expr, code: tuple[_Synced, ...]) -> None:
        """Raise ScheduleError if `es` let only some threads reach a barrier or shuffle in `code`."""
        if not ctx.is_uniform(*es) and any(_has_barrier(x.code, of_groups=False) for x in code):
            raise _divergence_error(s)
        if not ctx.is_warp_uniform(*es) and any(_has_shuffle(x.code) or _has_barrier(x.code) for x in code):
            raise _divergence_error(s)

    def loop(self, s: For, ctx: _Context) -> _Synced:
        if s.kind in AXES:
            return self.bound_loop(s, ctx)
        direct = self.direct_accesses(s, ctx)
        inner = _inside_loop(s, ctx, f"{s.name}#")
        if ctx.is_uniform(s.lo, s.extent):
            inner = dataclasses.replace(inner, uniform=ctx.uniform | {f"{s.name}#"})
        else:
            inner = inner.binding(s.name, s.lo, s.extent)
        body = self.visit(s.body, inner)
        # accesses of an iteration against those of a later one, with another value of the loop's variable
        if s.extent != ONE and self.conflict(body.last, body.first, ctx.uniform):
            code = sequence((body.code, self.barrier(s)))
            body = dataclasses.replace(body, code=code, last=(), syncs=True)
        self.check_uniform(s, ctx, s.lo, s.extent, code=(body,))
        runs = (lower(s.extent, ctx.facts) or 0) > 0
        syncs = body.syncs and runs
        return _Synced(rebuilt(s, body=body.code), direct + body.first, direct + body.last, syncs)

    def bound_loop(self, s: For, ctx: _Context) -> _Synced:
        """A loop bound to an axis; its variable minus its first value is the number of a block or thread."""
        inner = _inside_loop(s, ctx, s.kind)
        if s.kind in THREADS:
            inner = dataclasses.replace(inner, varying=ctx.varying | {s.name})
            if s.kind == THREADS[0]:
                inner = dataclasses.replace(inner, warp_varying=ctx.warp_varying | {s.name})
        else:
            inner = dataclasses.replace(inner, uniform=ctx.uniform | {s.kind})
        inner = dataclasses.replace(
            inner, axes=ctx.axes | {s.kind}, bound={**ctx.bound, s.name: (s.kind, s.lo)}
        )
        body = self.visit(s.body, inner)
        alone = s.kind == LANES or _has_barrier(body.code, of_groups=False)
        code: Stmt | None = rebuilt(s, body=body.code)
        if s.kind in THREADS and alone and not covers_axis(s, self.extents) and _has_barrier(body.code):
            code = self.on_all_threads(s, body.code)
        if code is None:
            raise _divergence_error(s)
        return dataclasses.replace(body, code=code)

    def on_all_threads(self, s: For, body: Stmt) -> Stmt | None:
        """The loop for all threads along its axis, of which those beyond its end execute only the barriers.

        None if its barriers are mbarriers or of a group of threads, or if what is around them reads memory.
        """
        inside = Binary("lt", Var(s.name), add(s.lo, s.extent))
        guarded = None if self.recorded is not None else guard_between_barriers(inside, body)
        return None if guarded is None else rebuilt(s, extent=const(self.extents[s.kind]), body=guarded)


def _inside_loop(s: For, ctx: _Context, name: str) -> _Context:
    """The place in a loop; its variable is expressed as its first value plus a counter called `name`."""
    lo, extent = substitute(s.lo, ctx.lets), substitute(s.extent, ctx.lets)
    facts = ctx.facts.with_range(name, ZERO, subtract(extent, ONE))
    return dataclasses.replace(ctx, facts=facts, lets={**ctx.lets, s.name: add(lo, Var(name))})


def _under_condition(cond: Expr, ctx: _Context) -> _Context:
    """The place where a condition holds; a test for the first thread of an axis leaves this thread only."""
    for c in conjuncts(cond):
        match c:
            case Binary("eq", Var(name), first) if ctx.bound.get(name, ("", None))[1] == first:
                axis, lo = ctx.bound[name]
                lets = {**ctx.lets, name: substitute(lo, ctx.lets)}
                ctx = dataclasses.replace(ctx, axes=ctx.axes - {axis}, lets=lets)
            case _:
                pass
    return dataclasses.replace(ctx, facts=facts_where(ctx.facts, substitute(cond, ctx.lets)))


def _has_barrier(s: Stmt, *, of_groups: bool = True) -> bool:
    return any(
        isinstance(x, InitBarriers) or (isinstance(x, Barrier) and (of_groups or not x.group))
        for x in walk(s)
    )


def _has_shuffle(s: Stmt) -> bool:
    return any(isinstance(x, Shuffle) for x in walk(s))


def _divergence_error(s: Stmt) -> ScheduleError:
    match s:
        case For(name, kind=kind):
            where = f": in loop {name!r}" + (f" on {kind}" if kind in THREADS else "")
        case If(cond):
            where = f": where {show_expr(cond)}"
        case _:
            where = ""
    return ScheduleError(
        f"only some threads of a block would reach a barrier{where}",
        loc=s.loc,
        label="here",
        hint="let loops over threads that pass on values run on all threads of the block",
    )
