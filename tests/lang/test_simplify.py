"""Simplified expressions and proved bounds, against every value of small ranges."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tdsl.core.node import transform
from tdsl.lang.affine import as_expr, as_sum, constant_difference
from tdsl.lang.bounds import NO_FACTS, Facts, at_most, clear_facts, lower, upper, value_range
from tdsl.lang.expr import Binary, Expr, Size, Var, const
from tdsl.lang.simplify import simplify
from tests.lang.index_expressions import (
    conditions,
    expressions,
    nested_facts,
    points_of_facts,
    values,
)

NAMES = ("i", "j", "k")
EXPRESSIONS = expressions(NAMES)


@given(EXPRESSIONS, nested_facts(NAMES))
def test_a_simplified_expression_has_the_same_values(e: Expr, facts: Facts) -> None:
    points = points_of_facts(facts)
    np.testing.assert_array_equal(values(simplify(e, facts), points), values(e, points))


@given(conditions(EXPRESSIONS), nested_facts(NAMES))
def test_a_simplified_condition_has_the_same_values(e: Expr, facts: Facts) -> None:
    points = points_of_facts(facts)
    np.testing.assert_array_equal(values(simplify(e, facts), points), values(e, points))


@given(EXPRESSIONS, nested_facts(NAMES))
def test_simplifying_twice_changes_nothing_more(e: Expr, facts: Facts) -> None:
    once = simplify(e, facts)
    points = points_of_facts(facts)
    np.testing.assert_array_equal(values(simplify(once, facts), points), values(e, points))


@given(EXPRESSIONS, nested_facts(NAMES))
def test_no_value_is_beyond_its_bounds(e: Expr, facts: Facts) -> None:
    results = values(e, points_of_facts(facts))
    for low, high in ((lower(e, facts), upper(e, facts)), value_range(e, facts)):
        assert low is None or np.all(results >= low)
        assert high is None or np.all(results <= high)


@given(EXPRESSIONS, EXPRESSIONS, nested_facts(NAMES))
def test_what_is_certain_holds_everywhere(a: Expr, b: Expr, facts: Facts) -> None:
    points = points_of_facts(facts)
    if at_most(a, b, facts):
        assert np.all(values(a, points) <= values(b, points))
    distance = constant_difference(a, b)
    if distance is not None:
        assert np.all(values(a, points) - values(b, points) == distance)


@given(EXPRESSIONS)
def test_a_sum_has_the_values_of_its_expression(e: Expr) -> None:
    points = {n: np.arange(-3, 4) + offset for offset, n in enumerate(NAMES)}
    np.testing.assert_array_equal(values(as_expr(as_sum(e)), points), values(e, points))


def sized(e: Expr) -> Expr:
    """`e` with the variable n as a named extent."""
    return transform(e, lambda x: Size("n") if x == Var("n") else x)


def unsized(e: Expr) -> Expr:
    return transform(e, lambda x: Var("n") if isinstance(x, Size) else x)


@given(expressions(("n", "i", "j")), nested_facts(("i", "j"), outer=("n",)), st.integers(0, 6))
def test_named_extents_are_never_negative_and_otherwise_unknown(e: Expr, facts: Facts, n: int) -> None:
    known = NO_FACTS
    for name, (lo, hi) in facts.ranges.items():
        known = known.with_range(name, sized(lo), sized(hi))
    points = points_of_facts(facts, n=n)
    want = values(e, points)
    np.testing.assert_array_equal(values(unsized(simplify(sized(e), known)), points), want)
    low, high = lower(sized(e), known), upper(sized(e), known)
    assert low is None or np.all(want >= low)
    assert high is None or np.all(want <= high)


def test_blocks_of_a_size_begin_at_zero_or_later_and_inside_of_it():
    start = Binary("mul", Binary("floordiv", Size("n"), const(64)), const(64))
    assert at_most(const(0), start)
    assert at_most(start, Size("n"))
    assert at_most(Binary("sub", Size("n"), start), const(63))
    vectors = Binary("floordiv", Binary("add", Size("n"), const(15)), const(16))
    blocks = Binary("floordiv", Size("n"), const(64))
    assert upper(Binary("sub", vectors, Binary("mul", const(4), blocks))) == 4


def test_equal_ranges_are_one_object_until_forgotten() -> None:
    i, j = Var("i"), Var("j")
    first, other = (NO_FACTS.with_range("i", const(0), const(9)).with_range("j", const(0), i) for _ in "ab")
    assert first is other
    assert at_most(j, const(9), first)
    assert (j, const(9)) in other.proofs
    assert first is not NO_FACTS.with_range("j", const(0), i).with_range("i", const(0), const(9))
    clear_facts()
    again = NO_FACTS.with_range("i", const(0), const(9)).with_range("j", const(0), i)
    assert (again, again.proofs) == (first, {})
