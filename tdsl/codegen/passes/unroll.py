"""A pass that replaces unrolled loops by copies of their body."""

from __future__ import annotations

import dataclasses
from collections.abc import Set as AbstractSet

from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.ir.fresh_names import FreshNames, bind_loaded_bounds
from tdsl.codegen.ir.loops import SERIAL, UNROLLED, For, Kernel, Stmt
from tdsl.codegen.ir.statements import conditional, map_parts, parts_of, rebuilt, sequence, walk
from tdsl.errors import ScheduleError
from tdsl.lang.bounds import NO_FACTS, Facts, at_most, upper
from tdsl.lang.expr import Binary, Const, Expr, const
from tdsl.lang.simplify import add

_MAX_COPIES = 4096  # statements in all copies, beyond which a loop is left serial


def unroll(kernel: Kernel) -> Kernel:
    """Replace each unrolled loop by a copy of its body for each value of its variable.

    An extent must be constant, or have a constant bound: then copies that may not run are guarded. Loops with
    too many copies become serial. The indices of the copies are left for `simplify_loops`.

    >>> from tdsl.codegen.ir.loops import Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import ZERO, Size, Var
    >>> i, extent = Var("i"), Binary("min", Size("n"), const(3))
    >>> print(show(unroll(Kernel("k", (), For("i", ZERO, extent, UNROLLED, Store("a", (i,), i)))).body))
    if 0 < min(n, 3):
      a[0] = 0
    if 1 < min(n, 3):
      a[1] = 1
    if 2 < min(n, 3):
      a[2] = 2

    Raises ScheduleError for an extent without a constant bound.
    """
    loops = {s.name for s in walk(kernel.body) if isinstance(s, For) and s.kind == UNROLLED}
    return unroll_some(kernel, loops)


def unroll_some(kernel: Kernel, loops: AbstractSet[str]) -> Kernel:
    """As `unroll`, for the loops with these names alone."""
    if not loops:
        return kernel
    return dataclasses.replace(kernel, body=_unroll(kernel.body, loops, NO_FACTS, FreshNames(kernel)))


def _unroll(s: Stmt, loops: AbstractSet[str], facts: Facts, fresh: FreshNames) -> Stmt:
    new = map_parts(s, lambda part: _unroll(part, loops, facts_inside(facts, s), fresh))
    if isinstance(new, For) and new.name in loops:
        return _unroll_loop(new, _max_iterations(new, facts), facts, fresh)
    return new


def _max_iterations(loop: For, facts: Facts) -> int:
    count = upper(loop.extent, facts)
    if count is None:
        raise ScheduleError(
            f"cannot unroll loop {loop.name!r}: its extent is not known when the kernel is compiled",
            loc=loop.loc,
            label="scheduled here",
            hint="split it by a constant factor, and unroll the inner loop",
        )
    return count


def _unroll_loop(loop: For, count: int, facts: Facts, fresh: FreshNames) -> Stmt:
    if count * _count_statements(loop.body) > _MAX_COPIES:
        return rebuilt(loop, kind=SERIAL)
    return bind_loaded_bounds(loop, fresh, lambda whole: _copies(whole, count, facts, fresh))


def _copies(loop: For, count: int, facts: Facts, fresh: FreshNames) -> Stmt:
    copies = []
    for k in range(count):
        value: Expr = add(loop.lo, const(k))
        body = fresh.copy(loop.body, {loop.name: value})
        if not isinstance(loop.extent, Const) and not at_most(const(k + 1), loop.extent, facts):
            body = conditional(Binary("lt", const(k), loop.extent), body)
        copies.append(body)
    return sequence(copies)


def _count_statements(s: Stmt) -> int:
    return sum(not parts_of(inner) for inner in walk(s))
