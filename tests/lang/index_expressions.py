"""Random index expressions over variables with small ranges, and all of their values by brute force."""

import itertools
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tdsl.lang.bounds import NO_FACTS, Facts
from tdsl.lang.expr import Binary, Call, Cast, Const, Expr, Read, Select, Unary, Var, const
from tdsl.lang.interp import evaluate
from tdsl.lang.types import i8, i16, i32, i64, u8, u32

WIDE = np.array([2**63 - 1, -(2**63), 2**62, -3, 0, 5, 2**63 - 2, -(2**62) - 1])
DATA = np.random.default_rng(7).integers(0, 256, 50).astype(np.uint8)
SMALL = st.integers(-6, 6)
POSITIVE = st.integers(1, 7)
PADS = ("pad_edge", "pad_reflect", "pad_symmetric", "pad_wrap")


@st.composite
def affine(draw: Any, names: tuple[str, ...]) -> Expr:
    """A sum of variables times numbers."""
    e: Expr = const(draw(SMALL))
    for name in draw(st.lists(st.sampled_from(names), max_size=3)):
        term = Binary("mul", Var(name), const(draw(SMALL)))
        e = Binary(draw(st.sampled_from(("add", "sub"))), e, term)
    return e


def conditions(x: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    comparisons = st.builds(
        Binary, st.sampled_from(("lt", "le", "gt", "ge", "eq", "ne")), x, x
    )  # fmt: skip
    joined = st.builds(Binary, st.sampled_from(("and", "or")), comparisons, comparisons)
    return comparisons | joined | st.builds(Unary, st.just("not"), comparisons)


def narrow(x: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    """Integers by way of a type that may wrap or saturate, as i64."""

    @st.composite
    def make(draw: Any) -> Expr:
        t = draw(st.sampled_from((u8, i8, i16, i32, u32)))
        e: Expr = Cast(draw(x), t, draw(st.booleans()))
        match draw(st.integers(0, 5)):
            case 0:
                e = Binary(draw(st.sampled_from(("add", "sub", "mul"))), e, Cast(draw(x), t))
            case 1:
                e = Binary(draw(st.sampled_from(("min", "max"))), e, Const(draw(POSITIVE), t))
            case 2:
                e = Binary("and", e, Const(draw(POSITIVE), t))
            case 3:
                e = Binary("shr", e, Const(draw(st.integers(0, 9)), t))
            case 4:
                e = Unary("abs", e) if t.kind == "i" else Call("popcount", (e,), t)
            case _:
                pass
        return Cast(e, i64)

    return make()


def gathered(x: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    """Data of type u8, and extreme data of type i64, at an index that is made safe."""

    def at(i: Expr, n: int) -> tuple[Expr, ...]:
        return (Call("pad_wrap", (i, const(n)), i64),)

    return st.builds(lambda i: Cast(Read("data", at(i, len(DATA)), 0, u8), i64), x) | st.builds(
        lambda i: Read("wide", at(i, len(WIDE)), 0, i64), x
    )


def expressions(names: tuple[str, ...], data: bool = True) -> st.SearchStrategy[Expr]:
    """Index expressions: sums, divisions, min and max, choices, padding, casts, data."""

    def larger(x: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        by = POSITIVE.map(const)
        return st.one_of(
            st.builds(Binary, st.sampled_from(("add", "sub", "min", "max")), x, x),
            st.builds(Binary, st.sampled_from(("floordiv", "mod")), x, by),
            st.builds(Binary, st.sampled_from(("floordiv", "mod", "mul")), x, SMALL.map(const)),
            st.builds(Binary, st.sampled_from(("floordiv", "mod", "mul")), x, x),
            st.builds(Select, conditions(x), x, x),
            st.builds(lambda f, i, n: Call(f, (i, n), i64), st.sampled_from(PADS), x, by),
            st.builds(Unary, st.sampled_from(("neg", "abs", "not")), x),
            narrow(x),
            *([gathered(x)] if data else []),
        )

    return st.recursive(affine(names), larger, max_leaves=5)


@st.composite
def constant_ranges(draw: Any, names: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Inclusive ranges of up to six values."""
    starts = {n: draw(st.integers(-7, 7)) for n in names}
    return {n: (lo, lo + draw(st.integers(0, 5))) for n, lo in starts.items()}


@st.composite
def nested_facts(draw: Any, names: tuple[str, ...], outer: tuple[str, ...] = ()) -> Facts:
    """Ranges whose ends are sums of the variables before them and `outer`, or the lesser of two."""
    facts, seen = NO_FACTS, outer
    for name in names:
        inner = affine(seen) if seen else SMALL.map(const)
        lo = draw(inner)
        hi: Expr = Binary("add", lo, const(draw(st.integers(0, 5))))
        if draw(st.booleans()):
            hi = Binary("min", hi, draw(inner))
        facts, seen = facts.with_range(name, lo, hi), (*seen, name)
    return facts


def points_of(ranges: dict[str, tuple[int, int]]) -> dict[str, np.ndarray]:
    """Every point of constant ranges, as one array a variable."""
    spans = [range(lo, hi + 1) for lo, hi in ranges.values()]
    points = np.array(list(itertools.product(*spans)), dtype=np.int64).reshape(-1, len(spans))
    return {n: points[:, axis] for axis, n in enumerate(ranges)}


def points_of_facts(facts: Facts, **outer: int) -> dict[str, np.ndarray]:
    """Every point of nested ranges, where what is outside of them is known."""
    points: list[dict[str, int]] = [outer]
    for name, (lo, hi) in facts.ranges.items():
        grown = []
        for p in points:
            env = {n: np.asarray(v) for n, v in p.items()}
            first, last = int(evaluate(lo, env)), int(evaluate(hi, env))
            grown += [{**p, name: v} for v in range(first, last + 1)]
        points = grown
    names = (*outer, *facts.ranges)
    return {n: np.array([p[n] for p in points], dtype=np.int64) for n in names}


def values(e: Expr, points: dict[str, np.ndarray]) -> np.ndarray:
    """The values of an expression at points, one each."""
    count = next(iter(points.values())).shape
    return np.broadcast_to(evaluate(e, points, {"data": DATA, "wide": WIDE}), count)
