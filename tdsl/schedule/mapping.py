"""Mapped copies: a stage of an element-wise expression of a source, computed once and read instead of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from tdsl.core.node import Node, children, outermost, post_order, transform
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Cast, Expr, Read, Require, Show, Var
from tdsl.schedule.padding import LiftedExpr


def mapped_reads(d: Definition, source: str) -> dict[Expr, LiftedExpr]:
    """The largest expressions of a definition that depend on one element of a func or tensor only.

    If such an expression widens a value that was rounded to a narrower type, the rounded value instead.

    >>> from tdsl.lang.expr import TRUE, Binary, Const
    >>> from tdsl.lang.types import f32
    >>> element, other = Read("a", (Var("i"),), 0, f32), Read("b", (Var("i"), Var("j")), 0, f32)
    >>> value = Binary("mul", Binary("max", element, Const(0.0, f32)), other)
    >>> d = Definition((Var("i"), Var("j")), ("i", "j"), (), TRUE, (value,), None, None)
    >>> from tdsl.lang.show import show_expr
    >>> [show_expr(lifted.value) for lifted in mapped_reads(d, "a").values()]
    ['max(a[d0], 0.0)']
    """
    lifted: dict[Expr, LiftedExpr] = {}
    for e in d.expressions():
        for part, read in _parts(e, source):
            lifted[part] = _lifted(part, read)
    return lifted


def _parts(root: Node, source: str) -> Iterator[tuple[Expr, Read]]:
    """The largest subexpressions whose only leaf is a read of the source, each with that read."""
    leaves: dict[int, frozenset[Node]] = {}  # by id of a node, at most two of its leaves
    for n in post_order(root):
        below = [leaves[id(c)] for c in children(n)]
        leaves[id(n)] = (
            frozenset((n,))
            if isinstance(n, Read | Var | Require | Show)
            else frozenset(islice(frozenset().union(*below), 2))
        )

    def leaf_of(n: Node) -> Node | None:
        return next(iter(leaves[id(n)])) if len(leaves[id(n)]) == 1 else None

    def is_mapped(n: Node) -> bool:
        leaf = leaf_of(n)
        return isinstance(n, Expr) and isinstance(leaf, Read) and leaf.name == source

    for part in outermost(root, lambda n: isinstance(n, Read) or is_mapped(n)):
        leaf = leaf_of(part)
        if is_mapped(part) and isinstance(part, Expr) and isinstance(leaf, Read):
            yield narrow_operand(part), leaf


def narrow_operand(e: Expr) -> Expr:
    """The narrow operand if an expression widens a rounded float, as it takes less memory; else itself.

    >>> from tdsl.lang.types import f16, f32
    >>> half = Cast(Read("a", (Var("i"),), 0, f32), f16)
    >>> narrow_operand(Cast(half, f32)) == half
    True
    """
    match e:
        case Cast(Cast(_, narrow) as inner, wide) if narrow.is_float and narrow.bytes < wide.bytes:
            return inner
        case _:
            return e


def _lifted(e: Expr, read: Read) -> LiftedExpr:
    whole = tuple(Var(f"d{k}") for k in range(len(read.index)))
    moved = Read(read.name, whole, read.component, read.dtype, loc=read.loc)
    value = transform(e, lambda n: moved if n == read else n)
    assert isinstance(value, Expr)
    return LiftedExpr(read.index, value)
