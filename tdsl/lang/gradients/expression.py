"""Reverse mode inside one expression: the adjoint of each element that it reads.

Adjoints of narrow floats are computed in f32, so that they are rounded once, when they are stored. A term
carries the conditions of each `td.where` to the end: where they fail the adjoint is 0, even if the derivative
of the branch not taken is infinite or NaN there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tdsl.core.node import children, memoised
from tdsl.errors import DefinitionError
from tdsl.lang.expr import (
    TRUE,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Param,
    Read,
    Require,
    Select,
    Show,
    Unary,
    dtype_of,
)  # fmt: skip
from tdsl.lang.functions import where
from tdsl.lang.gradients.partials import RULES, Term, Terms
from tdsl.lang.simplify import conjunction, conjuncts, simplify
from tdsl.lang.types import DType
from tdsl.lang.value import Value, convert

_MOST_TERMS = 4  # terms of an adjoint with conditions of their own, at most


def operands(e: Expr) -> tuple[Expr, ...]:
    """The operands through which a value depends continuously on what it reads; no index, no condition."""
    match e:
        case Read() | Param() | Const() | Call("stop_gradient"):
            return ()
        case Select(_, yes, no):
            return yes, no
        case Require(_, x) | Show(_, x):
            return (x,)
        case Binary() | Unary() | Cast() | Call():
            return tuple(children(e))  # type: ignore[arg-type]  # operands are expressions
        case _:
            return ()


def widened(e: Expr) -> Value:
    """The expression in the type in which its adjoint is computed."""
    return Value(convert(Value(e), dtype_of(e).summed, None))


def merged(terms: Iterable[Term], t: DType) -> Terms:
    """The terms with those of equal conditions added; all in one term if there are many."""
    by_condition: dict[Expr, Value] = {}
    for term in terms:
        if term.cond in by_condition:
            by_condition[term.cond] = by_condition[term.cond] + term.value
        else:
            by_condition[term.cond] = term.value
    result = tuple(Term(v, c) for c, v in by_condition.items())
    return result if len(result) <= _MOST_TERMS else (Term(total(result, t)),)


def total(terms: Iterable[Term], t: DType) -> Value:
    """The sum of the terms, each 0 where its condition fails."""
    result: Value | None = None
    for term in terms:
        value = term.value if term.cond == TRUE else where(Value(term.cond), term.value, 0.0)
        result = value if result is None else result + value
    return Value(convert(Value(Const(0.0, t)) if result is None else result, t, None))


def adjoints_of_reads(
    e: Expr, seed: Terms, is_active: Callable[[Expr], bool], results: dict[Expr, Expr]
) -> dict[Expr, Terms]:
    """The terms of the adjoint of each active read and scalar of `e`, given those of the adjoint of `e`.

    `results` has a cheaper expression for some nodes: the read of the func that stores their value.

    Raises DefinitionError for an operator without a derivative.
    """
    active: dict[Expr, bool] = {}  # children before parents
    memoised(active, e, lambda n: is_active(n) or any(active[x] for x in operands(n)), operands)
    adjoints: dict[Expr, list[Term]] = {e: list(seed)}
    of_reads: dict[Expr, Terms] = {}
    for n in reversed(active):
        if not active[n] or not adjoints.get(n) or not dtype_of(n).is_float:
            continue
        terms = merged(adjoints[n], dtype_of(n).summed)
        if isinstance(n, Read | Param):
            of_reads[n] = terms
            continue
        for term in terms:
            for x, more in zip(operands(n), _step(n, term, results), strict=True):
                if active[x] and dtype_of(x).is_float:
                    adjoints.setdefault(x, []).extend(more)
    return of_reads


def _step(e: Expr, term: Term, results: dict[Expr, Expr]) -> list[Terms]:
    """The terms that a term of the adjoint of `e` adds to the adjoint of each operand."""
    match e:
        case Select(cond):
            yes, no = (conjunction((term.cond, c)) for c in (cond, simplify(Unary("not", cond))))
            return [(Term(term.value, yes),), (Term(term.value, no),)]
        case Require() | Show():
            return [(term,)]
        case Cast(x):
            t = dtype_of(x)
            return [(Term(Value(convert(term.value, t.summed, None)), term.cond),) if t.is_float else ()]
        case Binary("mul", x, y) if x == y:
            return [(Term(term.value * (widened(x) * 2.0), term.cond),), ()]
        case Binary(op) | Unary(op) | Call(op) if op in RULES:
            values = [widened(x) for x in operands(e)]
            adjoints = RULES[op](term.value, widened(results.get(e, e)), *values)
            return [_with_condition(a, term.cond) for a in adjoints]
        case Binary(op) | Unary(op) | Call(op):
            raise DefinitionError(
                f"{op!r} has no derivative",
                loc=e.loc,
                label="differentiated here",
                hint="write the value with arithmetic and functions of floats",
            )
        case _:
            raise AssertionError(f"no operands in {type(e).__name__}")


def _with_condition(adjoint: Any, cond: Expr) -> Terms:
    if adjoint is None:
        return ()
    terms: Terms = (Term(adjoint),) if isinstance(adjoint, Value) else adjoint
    return tuple(Term(t.value, conjunction((cond, t.cond))) for t in terms)


def common_condition(terms: Terms) -> tuple[Expr, Terms]:
    """The conditions that all terms share, and the terms without them."""
    shared = [c for c in conjuncts(terms[0].cond) if all(c in conjuncts(t.cond) for t in terms[1:])]
    rest = (conjunction(c for c in conjuncts(t.cond) if c not in shared) for t in terms)
    return conjunction(shared), tuple(Term(t.value, c) for t, c in zip(terms, rest, strict=True))
