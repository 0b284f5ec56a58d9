"""A pass that inserts barriers between conflicting accesses of the threads of a block."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

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
from tdsl.lang.bounds import NOTHING, Facts, lower
from tdsl.lang.expr import ONE, ZERO, Binary, Expr, Var
from tdsl.lang.show import show_expr
from tdsl.lang.simplify import add, conjuncts, substitute, subtract

_MOST_BARRIERS = 15  # named barriers of a block, besides that of __syncthreads


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
    >>> own = threads("u", Store("s", (u,), Load("s", (u,), i64)))
    >>> other = threads("v", Store("a", (v,), Load("s", (Binary("sub", const(7), v),), i64)))
    >>> body = Block((threads("t", Store("s", (t,), t)), own, other))
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
    return dataclasses.replace(kernel, body=_at_root(kernel.body, frozenset(common)))


def _at_root(s: Stmt, common: frozenset[str]) -> Stmt:
    """`s` with barriers in each kernel by itself, as the end of a kernel synchronises all threads."""
    match s:
        case Alloc(name, _, _, scope, body) if scope == HEAP:
            return rebuilt(s, body=_at_root(body, common | {name}))
        case Block() | Let() | If():
            return map_parts(s, lambda part: _at_root(part, common))
        case _:
            return _Kernel(common, launch_extents(s)).visit(s, _Place()).code


@frozen
class _Place:
    """The loops, lets and conditions around a statement.

    `facts` are the ranges of loop counters that start at 0, `lets` the values of names in terms of these
    counters. `axes` are those that an enclosing loop is bound to, `bound` the variables of these loops, with
    axis and first value; `differing` are the names whose value may differ between threads of a block.
    """

    facts: Facts = NOTHING
    lets: dict[str, Expr] = field(default_factory=dict)
    axes: frozenset[str] = frozenset()
    differing: frozenset[str] = frozenset()
    alike: frozenset[str] = frozenset()  # counters that have one value in all threads of a block
    in_warp: frozenset[str] = (
        frozenset()
    )  # of the differing ones, those that differ along threadIdx.x
    bound: Mapping[str, tuple[str, Expr]] = field(default_factory=dict)

    def is_alike(self, *es: Expr) -> bool:
        """True for expressions that have one value in all threads of a block."""
        return not any(loads_of(e) or scalars_of(e) & self.differing for e in es)

    def is_alike_in_a_warp(self, *es: Expr) -> bool:
        """True for expressions that have one value in all threads of a warp."""
        return not any(loads_of(e) or scalars_of(e) & self.in_warp for e in es)

    def naming(self, name: str, *of: Expr) -> _Place:
        """The place inside of a statement that binds `name` to a value computed from `of`."""
        differing = self.differing if self.is_alike(*of) else self.differing | {name}
        in_warp = self.in_warp if self.is_alike_in_a_warp(*of) else self.in_warp | {name}
        return dataclasses.replace(self, differing=differing, in_warp=in_warp)


@frozen
class _Done:
    """Code with its barriers, and its accesses before the first and after the last barrier.

    `parted` is True if every path through the code has a barrier.
    """

    code: Stmt
    first: tuple[Access, ...] = ()
    last: tuple[Access, ...] = ()
    parted: bool = False


@dataclass(slots=True)
class _Kernel:
    """Inserts the barriers of one kernel; `shared` are the buffers that several of its threads can access."""

    shared: frozenset[str]
    extents: dict[str, int]
    beside: list[Access] | None = (
        None  # all accesses of the part of a `WarpSpecialize` being visited
    )

    @property
    def threads(self) -> dict[str, int]:
        return {axis: self.extents[axis] for axis in THREADS}

    def conflict(self, a: tuple[Access, ...], b: tuple[Access, ...], same: frozenset[str]) -> bool:
        return any(x.conflicts(y, same, self.threads) for x in a for y in b)

    def visit(self, s: Stmt, at: _Place) -> _Done:
        match s:
            case Block(body):
                return self.block(body, at)
            case For():
                return self.loop(s, at)
            case If():
                return self.branch(s, at)
            case Alloc(name, _, _, scope, body):
                if scope == SHARED:
                    self.shared |= {name}
                inner = self.visit(body, at)
                return dataclasses.replace(inner, code=rebuilt(s, body=inner.code))
            case Let():
                return self.let(s, at)
            case Barrier():
                return _Done(s, parted=True)
            case WarpSpecialize(parts):  # its parts synchronise by mbarriers
                done = [self.part(part, at) for part in parts]
                accesses = tuple(a for x in done for a in (*x.first, *x.last))
                return _Done(rebuilt(s, parts=tuple(x.code for x in done)), accesses, accesses)
            case InitBarriers():  # all threads wait until the mbarriers are initialised
                inner = self.visit(s.body, at)
                return _Done(rebuilt(s, body=inner.code), (), inner.last, parted=True)
            case _:
                own = self.own(s, at)
                return _Done(s, own, own)

    def own(self, s: Stmt, at: _Place) -> tuple[Access, ...]:
        found = tuple(accesses(s, self.shared, at.lets, at.axes, at.facts))
        if self.beside is not None:
            self.beside += found
        return found

    def part(self, s: Stmt, at: _Place) -> _Done:
        """One part of a `WarpSpecialize`: its barriers are those of a group of threads, not of the block."""
        self.beside = []
        done = self.visit(s, at)
        found, self.beside = self.beside, None
        if _has_barrier(done.code):
            met = (a.conflicting_axes(b, at.alike, self.threads) for a in found for b in found)
            if any(axes is not None and axes - {LANES} for axes in met):
                raise _no_place(s)
        return done

    def barrier(self, s: Stmt) -> Barrier:
        """A barrier before `s`: of all threads of the block; in a `WarpSpecialize`, of a group of threads."""
        rows = self.extents["threadIdx.y"] * self.extents["threadIdx.z"]
        if self.beside is not None and (self.extents[LANES] % WARP or rows > _MOST_BARRIERS):
            raise _no_place(s)
        return Barrier(group=self.beside is not None)

    def block(self, body: tuple[Stmt, ...], at: _Place) -> _Done:
        same = at.alike
        code: list[Stmt] = []
        first: tuple[Access, ...] = ()
        waiting: tuple[Access, ...] = ()
        parted = False
        for s in body:
            done = self.visit(s, at)
            if self.conflict(waiting, done.first, same):
                code.append(self.barrier(s))
                waiting, parted = (), True
            if not parted:
                first += done.first
            code.append(done.code)
            waiting = done.last if done.parted else waiting + done.last
            parted = parted or done.parted
        return _Done(sequence(code), first, waiting, parted)

    def let(self, s: Let, at: _Place) -> _Done:
        own = self.own(s, at)
        lets = {**at.lets, s.name: substitute(s.value, at.lets)}
        if loads_of(s.value):
            lets.pop(s.name)
        inner = self.visit(s.body, dataclasses.replace(at.naming(s.name, s.value), lets=lets))
        if self.conflict(own, inner.first, at.alike):
            raise _no_place(s)
        first = (*own, *inner.first)
        last = inner.last if inner.parted else (*own, *inner.last)
        return _Done(rebuilt(s, body=inner.code), first, last, inner.parted)

    def branch(self, s: If, at: _Place) -> _Done:
        own = self.own(s, at)
        then = self.visit(s.then, _where(s.cond, at))
        orelse = _Done(Block(())) if s.orelse is None else self.visit(s.orelse, at)
        sides = (then, orelse)
        if self.waits_apart(s, at, then):
            code = guard_between_barriers(s.cond, then.code)
            if code is not None:
                return _Done(code, then.first, then.last, then.parted)
        self.check_alike(s, at, s.cond, code=sides)
        if any(self.conflict(own, x.first, at.alike) for x in sides):
            raise _no_place(s)
        code = rebuilt(s, then=then.code, orelse=None if s.orelse is None else orelse.code)
        parted = then.parted and orelse.parted
        last = then.last + orelse.last
        return _Done(code, own + then.first + orelse.first, last if parted else own + last, parted)

    def waits_apart(self, s: If, at: _Place, then: _Done) -> bool:
        """True if only some warps would reach a barrier in `then`, by a condition that reads no memory."""
        if s.orelse is not None or loads_of(s.cond) or self.beside is not None:
            return False
        apart = not at.is_alike(s.cond) and _has_barrier(then.code, of_groups=False)
        return apart and (at.is_alike_in_a_warp(s.cond) or not _has_shuffle(then.code))

    def check_alike(self, s: Stmt, at: _Place, *es: Expr, code: tuple[_Done, ...]) -> None:
        """Raise ScheduleError if `es` let only some threads reach a barrier or shuffle in `code`."""
        if not at.is_alike(*es) and any(_has_barrier(x.code, of_groups=False) for x in code):
            raise _no_place(s)
        if not at.is_alike_in_a_warp(*es) and any(
            _has_shuffle(x.code) or _has_barrier(x.code) for x in code
        ):
            raise _no_place(s)

    def loop(self, s: For, at: _Place) -> _Done:
        if s.kind in AXES:
            return self.bound(s, at)
        own = self.own(s, at)
        inner = _counted(s, at, f"{s.name}#")
        if at.is_alike(s.lo, s.extent):
            inner = dataclasses.replace(inner, alike=at.alike | {f"{s.name}#"})
        else:
            inner = inner.naming(s.name, s.lo, s.extent)
        done = self.visit(s.body, inner)
        # accesses of an iteration against those of a later one, with another value of the loop's variable
        if self.conflict(done.last, done.first, at.alike):
            code = sequence((done.code, self.barrier(s)))
            done = dataclasses.replace(done, code=code, last=(), parted=True)
        self.check_alike(s, at, s.lo, s.extent, code=(done,))
        runs = (lower(s.extent, at.facts) or 0) > 0
        parted = done.parted and runs
        return _Done(rebuilt(s, body=done.code), own + done.first, own + done.last, parted)

    def bound(self, s: For, at: _Place) -> _Done:
        """A loop bound to an axis; its variable minus its first value is the number of a block or thread."""
        inner = _counted(s, at, s.kind)
        if s.kind in THREADS:
            inner = dataclasses.replace(inner, differing=at.differing | {s.name})
            if s.kind == THREADS[0]:
                inner = dataclasses.replace(inner, in_warp=at.in_warp | {s.name})
        else:
            inner = dataclasses.replace(inner, alike=at.alike | {s.kind})
        inner = dataclasses.replace(
            inner, axes=at.axes | {s.kind}, bound={**at.bound, s.name: (s.kind, s.lo)}
        )
        done = self.visit(s.body, inner)
        alone = s.kind == LANES or _has_barrier(done.code, of_groups=False)
        if alone and not covers_axis(s, self.extents) and _has_barrier(done.code):
            raise _no_place(s)
        return dataclasses.replace(done, code=rebuilt(s, body=done.code))


def _counted(s: For, at: _Place, name: str) -> _Place:
    """The place in a loop; its variable is expressed as its first value plus a counter called `name`."""
    lo, extent = substitute(s.lo, at.lets), substitute(s.extent, at.lets)
    facts = at.facts.knowing(name, ZERO, subtract(extent, ONE))
    return dataclasses.replace(at, facts=facts, lets={**at.lets, s.name: add(lo, Var(name))})


def _where(cond: Expr, at: _Place) -> _Place:
    """The place where a condition holds; a test for the first thread of an axis leaves this thread only."""
    for c in conjuncts(cond):
        match c:
            case Binary("eq", Var(name), first) if at.bound.get(name, ("", None))[1] == first:
                axis, lo = at.bound[name]
                lets = {**at.lets, name: substitute(lo, at.lets)}
                at = dataclasses.replace(at, axes=at.axes - {axis}, lets=lets)
            case _:
                pass
    return dataclasses.replace(at, facts=facts_where(at.facts, substitute(cond, at.lets)))


def _has_barrier(s: Stmt, *, of_groups: bool = True) -> bool:
    return any(
        isinstance(x, InitBarriers) or (isinstance(x, Barrier) and (of_groups or not x.group))
        for x in walk(s)
    )


def _has_shuffle(s: Stmt) -> bool:
    return any(isinstance(x, Shuffle) for x in walk(s))


def _no_place(s: Stmt) -> ScheduleError:
    match s:
        case For(name, kind=kind):
            where = f": in loop {name!r}" + (f" on {kind}" if kind in THREADS else "")
        case If(cond):
            where = f": where {show_expr(cond)}"
        case _:
            where = ""
    return ScheduleError(
        f"threads of a block wait for each other where only some of them come{where}",
        loc=s.loc,
        label="here",
        hint="let loops over threads that pass on values run on all threads of the block",
    )
