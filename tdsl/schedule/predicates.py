"""Predicates of ranges, and data-dependent bounds, which are predicates, too: the loop that tests each.

A predicate is tested in the innermost loop of its variables, around the whole body of that loop.
The funcs that it reads must be computed before:

for r in range(1, 8):                      s[f0].compute_at(f, r) is refused where
  if f0[r] > 0:                            r = td.range("r", 1, 8, where=lambda r: f0[r] > 0)
    f[r] = f[r - 1] + 10
"""

from __future__ import annotations

from tdsl.core.node import post_order
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import TRUE, Expr, Read
from tdsl.lang.simplify import conjuncts
from tdsl.schedule.inlining import inlined_into
from tdsl.schedule.state import AXES, SHARED, Illegal, Level, State, is_reduction, parts_of


def check_predicates(state: State, func: str, level: Level, *, final: bool) -> None:
    """Raise Illegal if a func is computed in a loop after the test of a predicate that reads it.

    A func in shared memory is computed before that test. Its scope may be set after its place, so nests
    with loops on axes of a GPU are checked in the `final` check only.
    """
    d = state.program.func(level.func).definitions[level.definition]
    nest = state.plan(level.func).nests[level.definition]
    shared = state.plan(func).scope == SHARED
    if d.where == TRUE or shared or not (final or {x.kind for x in nest.loops}.isdisjoint(AXES)):
        return
    names = nest.names()
    for cond in conjuncts(d.where):
        read = read_in_condition(state, d, cond, func)
        if read is None:
            continue
        tested = _test_position(state, level, cond)
        if tested > names.index(level.loop):
            continue
        around = f"at loop {names[tested - 1]!r}, or " if tested else ""
        raise Illegal(
            f"a predicate of {level.func!r} that reads {func!r} is tested at loop {names[tested]!r}, before "
            f"loop {level.loop!r} computes {func!r}",
            f"place it {around}outside of all loops",
            ((read.loc or d.loc, "this read"),),
        )


def read_in_condition(state: State, d: Definition, cond: Expr, func: str) -> Read | None:
    """The read by which a condition reads a func, directly or through inlined funcs; None if it does not."""
    for n in post_order(cond):
        if not isinstance(n, Read):
            continue
        if n.name == func:
            return n
        alone = Definition((), (), (), TRUE, (n,), None, None)
        if any(r.name == func for e in inlined_into(state, (alone,)) for r in e.reads):
            return n
    return None


def _test_position(state: State, level: Level, cond: Expr) -> int:
    """The position of the loop in whose body a condition is tested first."""
    f = state.program.func(level.func)
    d, nest = f.definitions[level.definition], state.plan(level.func).nests[level.definition]
    loops = {x for v in variables(cond) & {*d.variables} for x in parts_of(nest, v)}
    at = max(map(nest.position, loops), default=0)
    if d.init is None:
        return at
    # every element of a reduction is initialised, also one without terms
    reduced = (n for n, x in enumerate(nest.names()) if is_reduction(f, level.definition, nest, x))
    return max(at, next(reduced, at))
