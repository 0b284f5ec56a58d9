"""A pass that unrolls loops whose variable decides, together with vector lanes, what is clipped."""

from __future__ import annotations

import dataclasses
from collections.abc import Set as AbstractSet

from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.ir.loops import SERIAL, UNROLLED, VECTORIZED, For, Kernel, Let, Stmt
from tdsl.codegen.ir.statements import exprs_of, map_parts, rebuilt, walk
from tdsl.codegen.passes.partition import is_clamp_or_test
from tdsl.codegen.passes.simplify_loops import simplify_loops
from tdsl.codegen.passes.unroll import unroll_some
from tdsl.core.node import post_order
from tdsl.lang.affine import variables
from tdsl.lang.bounds import NO_FACTS, Facts, upper
from tdsl.lang.expr import Binary, Call, Expr, dtype_of
from tdsl.lang.types import i64

_MAX_VECTORS = 16  # iterations up to which a vectorized loop around another one is unrolled


def unroll_clipped(kernel: Kernel) -> Kernel:
    """Unroll the loops whose variable decides, together with a vector lane, what is clipped or masked.

    In a copy the clipping is often the same for all lanes, so its vectors are whole. All other unrolled loops
    are left to `unroll`, which copies vector code, so that each body is vectorized once.

    >>> from tdsl.codegen.ir.loops import If, Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import ZERO, Var, const
    >>> x = Binary("add", Binary("mul", Var("u"), const(8)), Var("v"))
    >>> store = If(Binary("lt", x, const(12)), Store("b", (Var("w"), x), x))
    >>> lanes = For("v", ZERO, const(8), VECTORIZED, store)
    >>> nest = For("w", ZERO, const(2), UNROLLED, For("u", ZERO, const(2), UNROLLED, lanes))
    >>> print(show(unroll_clipped(Kernel("k", (), nest)).body))
    for w in range(0, 2):  # unrolled
      for v_1 in range(0, 8):  # vectorized
        b[w, v_1] = v_1
      for v_2 in range(0, 8):  # vectorized
        if v_2 + 8 < 12:
          b[w, v_2 + 8] = v_2 + 8
    """
    body = _keep_innermost_vectors(kernel.body, NO_FACTS)
    loops = {s.name for s in walk(body) if isinstance(s, For) and s.kind == UNROLLED}
    if body is not kernel.body:
        kernel = dataclasses.replace(kernel, body=body)
    clipped = loops and loops & _clipping_variables(body)
    return simplify_loops(unroll_some(kernel, clipped)) if clipped else kernel


def _keep_innermost_vectors(s: Stmt, facts: Facts) -> Stmt:
    """`s` with each vectorized loop that contains another one unrolled, or serial if it is long."""
    new = map_parts(s, lambda part: _keep_innermost_vectors(part, facts_inside(facts, s)))
    if isinstance(new, For) and new.kind == VECTORIZED and any(map(_is_vectorized, walk(new.body))):
        most = upper(new.extent, facts)
        few = most is not None and most <= _MAX_VECTORS
        return rebuilt(new, kind=UNROLLED if few else SERIAL)
    return new


def _is_vectorized(s: Stmt) -> bool:
    return isinstance(s, For) and s.kind == VECTORIZED


def _clipping_variables(s: Stmt) -> AbstractSet[str]:
    """The variables of the expressions that are not affine in a vector lane on which they depend."""
    lanes = {x.name for x in walk(s) if isinstance(x, For) and x.kind == VECTORIZED}
    if not lanes:
        return lanes
    let_uses: dict[str, frozenset[str]] = {}  # those that the value of a let depends on
    clipping: set[str] = set()

    def add_if_lane_dependent(used: frozenset[str]) -> None:
        used = used.union(*(let_uses[name] for name in used if name in let_uses))
        if not lanes.isdisjoint(used):
            clipping.update(used)

    for x in walk(s):
        for n in post_order(*exprs_of(x)):
            if isinstance(n, Binary | Call) and _is_nonaffine(n):
                add_if_lane_dependent(variables(n))
        match x:
            case For(name, lo, extent):
                add_if_lane_dependent(variables(lo) | variables(extent) | {name})
            case Let(name, value):
                used = variables(value)
                let_uses[name] = used.union(*(let_uses[v] for v in used if v in let_uses))
            case _:
                pass
    return clipping


def _is_nonaffine(e: Expr) -> bool:
    """True for an operation that is not affine in its operands: a quotient, min, max, test, padding."""
    match e:
        case Binary("floordiv" | "mod", x):
            return dtype_of(x) == i64
        case _:
            return is_clamp_or_test(e)
