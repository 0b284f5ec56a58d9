"""Products of small numbers by instructions that sum several of them."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tdsl as td
from tdsl.machine.cpu import host
from tdsl.machine.instructions.dots import DOTS as ALL
from tdsl.machine.instructions.dots import Dot, declare

i, j, k = td.vars("i j k")
SHAPES = [(32, 64, 64), (7, 130, 33), (70, 7, 13), (5, 17, 8), (1, 16, 3), (6, 64, 0), (0, 16, 8)]
DOTS = [d for d in ALL if d.rows == 1]
SIGNED = replace(next(d for d in DOTS if d.name == "dot_i8_u8"), right=td.i8)
TURNED = ("nn", "nt", "tn", "tt")


def product(dot, turned="nn"):
    """The default schedule's product of the types of an instruction; operands marked "t" are transposed."""
    a = td.Tensor("a", ("M", "K") if turned[0] == "n" else ("K", "M"), dot.left)
    b = td.Tensor("b", ("K", "N") if turned[1] == "n" else ("N", "K"), dot.right)
    left = a[i, k] if turned[0] == "n" else a[k, i]
    right = b[k, j] if turned[1] == "n" else b[j, k]
    c = td.Func("c")
    c[i, j] = td.sum(td.cast(left, dot.total) * td.cast(right, dot.total), axis=k, dtype=dot.total)
    return c


def operands(rng, dot, m, n, terms):
    def one(t, shape):
        if t == td.bf16:
            return (rng.integers(-64, 65, shape) / 8).astype(ml_dtypes.bfloat16)
        ends = np.iinfo(t.numpy)
        return rng.integers(ends.min, ends.max, shape, dtype=t.numpy, endpoint=True)

    return one(dot.left, (m, terms)), one(dot.right, (terms, n))


def given(turned, a, b):
    """The operands as the program takes them."""
    return tuple(np.ascontiguousarray(x.T) if t == "t" else x for t, x in zip(turned, (a, b), strict=True))


def exact(dot, a, b):
    wide = np.float64 if dot.total.is_float else np.int64
    with np.errstate(over="ignore"):
        return (a.astype(wide) @ b.astype(wide)).astype(dot.total.numpy)


@pytest.mark.in_part(8)
@pytest.mark.parametrize("turned", TURNED)
@pytest.mark.parametrize("dot", [*DOTS, SIGNED], ids=lambda d: f"{d.left}-{d.right}")
def test_products_are_right_for_any_shape(rng, dot, turned):
    f = td.compile(product(dot, turned))
    for shape in SHAPES if turned == "nn" else SHAPES[1:3]:
        a, b = operands(rng, dot, *shape)
        got = f(*given(turned, a, b))
        # small multiples of 1/64: every sum is exact
        np.testing.assert_array_equal(got, exact(dot, a, b), err_msg=str(shape))


@pytest.mark.parametrize("ends", [(-128, -128), (-128, 127), (127, -128), (127, 127)])
def test_the_ends_of_signed_bytes_are_multiplied_exactly(ends):
    f = td.compile(product(SIGNED))
    a, b = np.full((9, 37), ends[0], np.int8), np.full((37, 70), ends[1], np.int8)
    np.testing.assert_array_equal(f(a, b), np.full((9, 70), 37 * ends[0] * ends[1], np.int32))


def test_sums_of_integers_wrap_around(rng):
    # shares of 2**31 in each sum: 1024 products of about 2**30
    dot: Dot = next(d for d in DOTS if d.name == "dot_i16")
    a = np.full((7, 1024), -32768, np.int16)
    b = rng.integers(-32768, -32700, (1024, 33), dtype=np.int16)
    np.testing.assert_array_equal(td.compile(product(dot))(a, b), exact(dot, a, b))


@pytest.mark.parametrize("batched", [False, True], ids=["plain", "batched"])
def test_signed_bytes_have_an_epilogue_and_batches(rng, batched):
    n = td.vars("n")
    more, at = (("B",), (n,)) if batched else ((), ())
    a, b = td.Tensor("a", (*more, "M", "K"), td.i8), td.Tensor("b", (*more, "K", "N"), td.i8)
    c, out = td.Func("c"), td.Func("out")
    terms = td.cast(a[(*at, i, k)], td.i32) * td.cast(b[(*at, k, j)], td.i32)
    c[(*at, i, j)] = td.sum(terms, axis=k, dtype=td.i32)
    out[(*at, i, j)] = td.maximum(c[(*at, i, j)], 0) * 3 + c[(*at, i, j)]
    f = td.compile(out)
    for m, columns, terms_ in ((33, 70, 41), (9, 16, 130), (64, 128, 64)):
        shape = (3,) if batched else ()
        x = rng.integers(-128, 128, (*shape, m, terms_), dtype=np.int8)
        y = rng.integers(-128, 128, (*shape, terms_, columns), dtype=np.int8)
        want = x.astype(np.int32) @ y.astype(np.int32)
        np.testing.assert_array_equal(f(x, y), np.maximum(want, 0) * 3 + want)


@pytest.mark.parametrize("turned", TURNED)
@pytest.mark.parametrize("dot", [*DOTS, SIGNED], ids=lambda d: f"{d.left}-{d.right}")
def test_all_transpositions_use_the_instruction(dot, turned):
    # sides that AMX's tiles of 16 rows do not divide, where the processor has them
    loops = str(td.compile(product(dot, turned)).loops(M=24, N=24, K=64))
    mirrored = next((d for d in DOTS if (d.left, d.right) == (dot.right, dot.left)), dot)
    used = dot.name if turned != "tt" else mirrored.name  # tt: the vectors are those of a
    assert (used in loops) == (dot.feature in host().has)


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
