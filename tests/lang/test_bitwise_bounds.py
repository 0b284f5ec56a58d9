"""Bounds of operations on bits are exact: those of all values between the operands' bounds."""

import operator

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.bitwise_bounds import and_bounds, or_bounds, xor_bounds
from tdsl.lang.bounds import NO_FACTS, value_range
from tdsl.lang.expr import Binary, Unary, Var, const

SMALL = [(a, b) for a in range(9) for b in range(a, 9)] + [(a, b) for a in (5, 17, 31) for b in (33, 63)]


@pytest.mark.parametrize(
    "bounds, of", [(and_bounds, operator.and_), (or_bounds, operator.or_), (xor_bounds, operator.xor)]
)
def test_the_bounds_are_those_of_all_pairs_of_values(bounds, of):
    for a, b in SMALL:
        for c, d in SMALL:
            values = [of(x, y) for x in range(a, b + 1) for y in range(c, d + 1)]
            assert bounds((a, b), (c, d)) == (min(values), max(values)), (a, b, c, d)


@pytest.mark.parametrize(
    "e, expected",
    [
        (Binary("xor", Var("i"), const(8)), (24, 31)),
        (Binary("or", Var("i"), const(8)), (24, 31)),
        (Binary("and", Var("i"), const(4)), (0, 4)),
        (Binary("and", Unary("neg", Var("i")), const(15)), (0, 15)),
        (Binary("and", const(15), Unary("neg", Var("i"))), (0, 15)),
        (Binary("and", Var("j"), const(15)), (0, 15)),
        (Binary("and", const(15), Var("j")), (0, 15)),
        (Binary("and", Var("n"), const(15)), (0, 15)),
        (Binary("and", Var("n"), Var("i")), (0, 23)),
        (Binary("shl", Var("i"), const(2)), (64, 92)),
        (Binary("shl", Var("i"), const(62)), (None, None)),  # may exceed 64 bits
        (Binary("shr", Var("i"), const(3)), (2, 2)),
        (Unary("not", Var("i")), (-24, -17)),
        (Binary("xor", Unary("neg", Var("i")), Var("i")), (None, None)),  # of a negative value: not known
    ],
)
def test_the_bounds_of_an_index_with_bits(e, expected):
    facts = NO_FACTS.with_range("i", const(16), const(23)).with_range("n", const(0), Var("m"))
    assert value_range(e, facts) == expected


def test_a_butterfly_is_right():
    i = td.vars("i")
    x, f = td.Tensor("x", (64,), td.f64), td.Func("f")
    f[i] = x[i] - x[i ^ 8]
    a = td.compile(f)(np.arange(64.0))
    np.testing.assert_array_equal(a, [n - (n ^ 8) for n in range(64)])
