"""Replaces a reduction component that only counts points, as in a mean, by the product of the extents."""

from __future__ import annotations

from dataclasses import replace

from tdsl.core.node import Node, post_order, transform
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, TRUE, ZERO, Binary, Cast, Const, Expr, Param, Read
from tdsl.lang.program import FuncDef, Program
from tdsl.lang.reduction import Combine, builtin_combiner
from tdsl.lang.regions import reads_in
from tdsl.lang.simplify import maximum, multiply, subtract


def fold_counts(program: Program) -> Program:
    """The program with each reduction component that sums 1 replaced by the product of its ranges' extents.

    >>> from tdsl.lang.build_program import build_program
    >>> from tdsl.lang.reduction import mean
    >>> from tdsl.lang.tensor import Func, Tensor
    >>> from tdsl.lang.value import vars
    >>> i, k = vars("i k")
    >>> a, f, m = Tensor("a", (3, 4), "f32"), Func("f"), Func("m")
    >>> f[i, k] = a[i, k] * 2
    >>> m[i] = mean(f[i, k], axis=k)
    >>> print(build_program((m,)))
    m(a: f32[3, 4]) -> m
    f: f32 on 0 <= i < 3, 0 <= k < 4
      f[i, k] = a[i, k] * 2.0
    m_custom: f32 on 0 <= i < 3
      m_custom[i] = sum(f[i, k], axis=k) for k in range(0, 4)
    m: f32 on 0 <= i < 3
      m[i] = m_custom[i] / cast(4, f32)
    """
    counts: dict[tuple[str, int], Expr] = {}  # by func and component
    kept: dict[str, tuple[int, ...]] = {}
    for f in program.funcs:
        folded = {} if f.name in program.outputs else _component_counts(f)
        if folded and len(folded) < len(f.dtypes):
            counts |= {(f.name, n): e for n, e in folded.items()}
            kept[f.name] = tuple(n for n in range(len(f.dtypes)) if n not in folded)
    if not counts:
        return program

    def visit(n: Node) -> Node:
        if not isinstance(n, Read) or n.name not in kept:
            return n
        if (n.name, n.component) in counts:
            count = counts[n.name, n.component]
            return count if n.dtype == ONE.dtype else Cast(count, n.dtype)
        return replace(n, component=kept[n.name].index(n.component))

    funcs = (_keep_components(f, kept[f.name]) if f.name in kept else f for f in program.funcs)
    return replace(
        program,
        funcs=tuple(f.map_expressions(lambda e: transform(e, visit)) for f in funcs),
    )


def _component_counts(f: FuncDef) -> dict[int, Expr]:
    """The counting components of a func, each with the expression of its count, equal at all points."""
    d = f.definitions[0]
    if len(f.definitions) > 1 or d.init is None or d.combine is None or d.where != TRUE:
        return {}
    count: Expr = ONE
    for _, lo, hi in d.ranges:
        if lo is None or hi is None or any(True for _ in reads_in((lo, hi))):
            return {}
        if variables(lo) | variables(hi):
            return {}
        count = multiply(count, maximum(subtract(hi, lo), ZERO))
    return {n: count for n, t in enumerate(f.dtypes) if not t.is_float and _is_count(d, n)}


def _is_count(d: Definition, n: int) -> bool:
    """True if a component starts at 0, adds 1 for each point, and no other component reads it."""
    assert d.combine is not None
    assert d.init is not None
    one, zero = d.values[n], d.init[n]
    if not (isinstance(one, Const) and isinstance(zero, Const) and (one.value, zero.value) == (1, 0)):
        return False
    operands = {f"a{n}", f"b{n}"}
    match d.combine.exprs[n]:
        case Binary("add", Param(a), Param(b)) if {a, b} == operands:
            others = (e for m, e in enumerate(d.combine.exprs) if m != n)
            return not any(isinstance(p, Param) and p.name in operands for p in post_order(*others))
        case _:
            return False


def _keep_components(f: FuncDef, kept: tuple[int, ...]) -> FuncDef:
    """A func of one definition, reduced to the components `kept`."""
    d = f.definitions[0]
    assert d.combine is not None
    assert d.init is not None
    dtypes = tuple(f.dtypes[n] for n in kept)
    new = {f"{side}{n}": f"{side}{m}" for m, n in enumerate(kept) for side in "ab"}

    def rename(n: Node) -> Node:
        return replace(n, name=new[n.name]) if isinstance(n, Param) and n.name in new else n

    exprs = tuple(transform(d.combine.exprs[n], rename) for n in kept)
    combine: Combine = replace(d.combine, exprs=exprs, init=tuple(d.combine.init[n] for n in kept))
    plain = builtin_combiner("sum", dtypes)
    if (combine.exprs, combine.init) == (plain.exprs, plain.init):
        combine = plain
    values, init = (tuple(of[n] for n in kept) for of in (d.values, d.init))
    return replace(f, dtypes=dtypes, definitions=(replace(d, values=values, init=init, combine=combine),))
