"""Padded copies: a stage that stores a tensor with its padding, so that it is read without bounds tests."""

from __future__ import annotations

from collections.abc import Iterator

from tdsl.core.node import Node, frozen, map_children, outermost
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Binary, Call, Const, Expr, Read, Select, Var
from tdsl.lang.simplify import conjuncts


@frozen
class LiftedExpr:
    """An expression that a new stage can store: `value` over the variables d0, d1, ..., read at `index`.

    >>> from tdsl.lang.expr import ONE, const
    >>> from tdsl.lang.types import f32, i64
    >>> at = Binary("add", Var("i"), Var("k"))
    >>> edge = Read("a", (Call("pad_edge", (at, const(9)), i64),), 0, f32)
    >>> lifted = padded_read(edge)
    >>> from tdsl.lang.show import show_expr
    >>> [show_expr(e) for e in lifted.index], show_expr(lifted.value)
    (['i + k'], 'a[pad_edge(d0, 9)]')
    """

    index: tuple[Expr, ...]
    value: Expr


def padded_reads(d: Definition, source: str) -> dict[Expr, LiftedExpr]:
    """The reads of a tensor or func with padding in a definition that pad it in the same way as the first."""
    lifted: dict[Expr, LiftedExpr] = {}
    for e in d.expressions():
        for part in reads_or_padding(e, source):
            read = padded_read(part)
            if read is not None and all(read.value == other.value for other in lifted.values()):
                lifted[part] = read
    return lifted


def reads_or_padding(e: Node, source: str) -> Iterator[Expr]:
    """The reads of a tensor or func in an expression, and the selects between such a read and a constant."""

    def reads_source(n: Node) -> bool:
        match n:
            case Select(_, Read(name), Const()) | Read(name):
                return name == source
            case _:
                return False

    yield from outermost(e, reads_source)  # type: ignore[misc]  # Exprs


def padded_read(e: Expr) -> LiftedExpr | None:
    """The padded read of an expression, whose indices are clipped or tested; None for other expressions."""
    match e:
        case Select(cond, Read(_, index), Const()):
            tested = [o for test in conjuncts(cond) for o in _tested_index(test)]
        case Read(_, index):
            tested = []
            if not any(isinstance(x, Call) for x in index):
                return None
        case _:
            return None
    inside = [x for x in map(_without_clip, index) if variables(x)]
    outer = [o for o in dict.fromkeys(tested) if o not in inside]
    offsets = tuple(dict.fromkeys((*outer, *inside)))
    names = {o: f"d{n}" for n, o in enumerate(offsets)}

    def renamed(n: Node) -> Node:
        if n in names:
            return Var(names[n])  # type: ignore[index]  # only expressions are in there
        return map_children(n, renamed)

    value = renamed(e)
    assert isinstance(value, Expr)
    return LiftedExpr(offsets, value) if variables(value) <= set(names.values()) else None


def _tested_index(test: Expr) -> list[Expr]:
    match test:
        case Binary("le", Const(), x) | Binary("lt", x, _) if variables(x):
            return [x]
    return []


def _without_clip(e: Expr) -> Expr:
    match e:
        case Call("pad_edge" | "pad_reflect" | "pad_symmetric" | "pad_wrap", (x, _)):
            return x
        case Binary("max", Binary("min", x, _), Const()) | Binary("max", x, Const()):
            return x
        case Binary("min", x, Const()):
            return x
        case Binary("add", Call() as inner, low) if not variables(low):
            return _without_clip(inner)
    return e
