"""Products of small numbers by instructions that sum several of them."""

import ml_dtypes
import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cpu.machine import host
from tdsl.schedule.dots import DOTS, declare

i, j, k = td.vars("i j k")
SHAPES = [(32, 64, 64), (7, 130, 33), (5, 17, 8), (1, 16, 3), (6, 64, 0)]


def product(dot, turned=False):
    """The default schedule's product of the types of a row of the table."""
    a, b = td.Tensor("a", ("M", "K"), dot.left), td.Tensor("b", ("K", "N"), dot.right)
    if turned:
        b = td.Tensor("b", ("N", "K"), dot.right)
    right = b[j, k] if turned else b[k, j]
    c = td.Func("c")
    terms = td.cast(a[i, k], dot.total) * td.cast(right, dot.total)
    c[i, j] = td.sum(terms, axis=k, dtype=dot.total)
    return c


def operands(rng, dot, m, n, terms):
    def one(t, shape):
        if t == td.bf16:
            return (rng.integers(-64, 65, shape) / 8).astype(ml_dtypes.bfloat16)
        ends = np.iinfo(t.numpy)
        return rng.integers(ends.min, ends.max, shape, dtype=t.numpy, endpoint=True)

    return one(dot.left, (m, terms)), one(dot.right, (terms, n))


def exact(dot, a, b):
    wide = np.float64 if dot.total.is_float else np.int64
    with np.errstate(over="ignore"):
        return (a.astype(wide) @ b.astype(wide)).astype(dot.total.numpy)


@pytest.mark.parametrize("turned", [False, True], ids=["upright", "turned"])
@pytest.mark.parametrize("dot", DOTS, ids=lambda d: d.name)
def test_products_are_right_for_any_shape(rng, dot, turned):
    f = td.compile(product(dot, turned))
    for shape in SHAPES:
        a, b = operands(rng, dot, *shape)
        got = f(a, np.ascontiguousarray(b.T) if turned else b)
        # small multiples of 1/64: every sum is exact
        np.testing.assert_array_equal(got, exact(dot, a, b), err_msg=str(shape))


@pytest.mark.parametrize("dot", DOTS, ids=lambda d: d.name)
def test_the_processors_instruction_is_used_where_it_has_it(dot):
    loops = str(td.compile(product(dot)).loops(M=64, N=64, K=64))
    assert (dot.name in loops) == (dot.feature in host().has)


@pytest.mark.parametrize("dot", DOTS, ids=lambda d: d.name)
def test_the_meaning_in_python_is_that_of_the_loops(rng, dot):
    c = product(dot)
    s = td.Schedule(c)
    _, one = s[c].split(j, dot.lanes, tail="peel")
    step, term = s[c].split(k, dot.terms, tail="peel")
    s[c].reorder(i, "j_o", step, one, term)
    s[c].tensorize(one, declare(dot))
    panel = s.cache_read("b", c, pack={0: dot.terms, 1: dot.lanes})
    panel.reorder_storage(1, 0, 3, 2)
    a, b = operands(rng, dot, 5, 2 * dot.lanes + 3, 3 * dot.terms + 1)
    np.testing.assert_array_equal(td.compile(s, target="python")(a, b), exact(dot, a, b))


def test_an_epilogue_is_fused(rng):
    dot = DOTS[0]
    c, out = product(dot), td.Func("out")
    out[i, j] = td.cast(td.maximum(c[i, j] * 0.5, 0), td.bf16)
    a, b = operands(rng, dot, 33, 70, 40)
    got = td.compile(out)(a, b)
    want = np.maximum(exact(dot, a, b) * np.float32(0.5), 0).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(got, want)
