"""Bounds of sums whose variables have symbolic ends."""

from tdsl.lang.bounds import NO_FACTS, at_most
from tdsl.lang.expr import Binary, Var, const


def test_the_end_of_a_range_cancels_what_it_shares_with_a_sum() -> None:
    i, d = Var("i"), Var("d")
    whole = Binary("floordiv", i, const(2))
    last = Binary("add", Binary("mul", whole, const(2)), const(1))
    facts = NO_FACTS.with_range("i", const(0), const(31)).with_range("d", const(0), last)
    left = Binary("sub", Binary("mul", whole, const(4)), Binary("mul", d, const(2)))
    assert at_most(const(-2), left, facts)
    assert not at_most(const(-1), left, facts)
