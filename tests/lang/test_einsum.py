"""Sums of products by subscripts mean what numpy.einsum computes."""

from math import prod

import ml_dtypes
import numpy as np
import pytest

import tdsl as td
from tdsl.lang.build_program import build_program
from tdsl.lang.contraction_order import contraction_order
from tdsl.lang.interp import interpret

SUBSCRIPTS = [
    "ij,jk->ik", "ij,jk", "ij,kj->ik", "ij->ji", "ij->", "ii", "ii->i", "iij->j", "i,i->i", "i,j->ij",
    "ijk,jr,kr->ir", "ijk,ir,kr->jr", "ijk,k->ij", "ijk,kl->ijl", "ij,jk,kl->il", "a,ab,bc,cd->d",
    "abc,cd,be,af->def", "ij,j->", "ik,j->j", ",ij->ij", "bij,bjk->bik", "ij,ij,ij->ij", "i,i,i->",
    "ijj,jk->ik", "ba,cb,dc,ed,fe->fa",
]  # fmt: skip
SIDES = dict(zip("abcdefijklr", (2, 3, 4, 2, 5, 3, 4, 3, 5, 2, 3), strict=True))


def arrays_for(rng, text, dtype=np.int64):
    """Small whole numbers, so that sums are exact in any order."""
    terms = text.partition("->")[0].split(",")
    shapes = [tuple(SIDES[x] for x in term) for term in terms]
    return [np.asarray(rng.integers(-3, 4, s)).astype(dtype) for s in shapes]


def tensors_for(text, arrays, named=False):
    """Tensors p, q, ... of the shapes of arrays; their extents are `named` by their letters."""
    terms = text.partition("->")[0].split(",")
    return [
        td.Tensor(name, tuple(term.upper()) if named else a.shape, a.dtype)
        for name, term, a in zip("pqrstuv", terms, arrays, strict=False)
    ]


def value_of(func, arrays):
    given = dict(zip("pqrstuv", arrays, strict=False))
    (out,) = interpret(build_program((func,)), given)
    return out


@pytest.mark.parametrize("text", SUBSCRIPTS)
@pytest.mark.parametrize("optimize", [False, True])
def test_known_subscripts(rng, text, optimize):
    arrays = arrays_for(rng, text)
    func = td.einsum(text, *tensors_for(text, arrays), optimize=optimize)
    np.testing.assert_array_equal(value_of(func, arrays), np.einsum(text, *arrays))


@pytest.mark.parametrize("seed", range(40))
def test_random_subscripts(seed):
    rng = np.random.default_rng(seed)
    letters = list("abcdefijkl")[: rng.integers(2, 7)]
    terms = ["".join(rng.choice(letters, rng.integers(0, 4))) for _ in range(rng.integers(1, 5))]
    there = sorted({*"".join(terms)})
    result = "".join(rng.permutation([x for x in there if rng.random() < 0.4]))
    text = ",".join(terms) + ("" if rng.random() < 0.3 else f"->{result}")
    arrays = arrays_for(rng, text)
    func = td.einsum(text, *tensors_for(text, arrays, named=bool(rng.random() < 0.5)))
    np.testing.assert_array_equal(value_of(func, arrays), np.einsum(text, *arrays))


DOTS = [
    ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)), ("...ij,...jk", (2, 3, 4), (4, 5)),
    ("...i->...", (2, 3, 4)), ("i...->...i", (2, 3, 4)), ("...,...", (3, 1), (2, 3, 4)),
    ("...i,i...->...", (1, 4, 3), (3, 2, 1)), ("...ii->...i", (2, 3, 3)), ("...,", (2, 3), ()),
    ("...,...->...", (1,), (1,)), ("i...,i...", (2,), (2,)),
]  # fmt: skip


@pytest.mark.parametrize("text, shapes", [(text, shapes) for text, *shapes in DOTS], ids=str)
def test_axes_without_letters(rng, text, shapes):
    arrays = [np.asarray(rng.integers(-3, 4, s)) for s in shapes]
    tensors = [td.Tensor(n, a.shape, a.dtype) for n, a in zip("pq", arrays, strict=False)]
    want = np.einsum(text, *arrays)
    np.testing.assert_array_equal(value_of(td.einsum(text, *tensors), arrays), want)


@pytest.mark.parametrize(
    "one, other", [("i1", "i1"), ("i1", "u1"), ("i4", "f4"), ("u1", "f4"), ("?", "?"), ("f2", "f8")]
)
def test_types_are_those_of_numpy(rng, one, other):
    a = rng.integers(0, 2, (3, 4)).astype(one)
    b = rng.integers(0, 2, (4, 2)).astype(other)
    p, q = td.Tensor("p", a.shape, a.dtype), td.Tensor("q", b.shape, b.dtype)
    func, want = td.einsum("ij,jk", p, q), np.einsum("ij,jk", a, b)
    got = value_of(func, [a, b])
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_sums_in_another_type():
    a = np.ones((3, 300), ml_dtypes.bfloat16)
    p = td.Tensor("p", a.shape, td.bf16)
    got = value_of(td.einsum("ij,kj->ik", p, p, dtype=td.f32), [a])
    assert got.dtype == np.float32
    assert (got == 300).all()


def test_operands_may_be_values_and_funcs(rng):
    a, b = rng.integers(-3, 4, (3, 4)), rng.integers(-3, 4, (4, 2))
    i, j, k = td.vars("i j k")
    p, q, g = td.Tensor("p", a.shape, td.i64), td.Tensor("q", b.shape, td.i64), td.Func("g")
    g[i, j] = abs(p[i, j])
    func = td.einsum(",ij,jk->ik", 2, g, td.maximum(q[j, k], 0))
    np.testing.assert_array_equal(value_of(func, [a, b]), 2 * np.abs(a) @ np.maximum(b, 0))
    upper = td.einsum("ij->i", td.where(i <= j, p[i, j], 0))
    np.testing.assert_array_equal(value_of(upper, [a]), np.triu(a).sum(1))


def test_sum_over_a_td_range():
    j, p = td.range("j", 1, 3), td.Tensor("p", ("N", 4), td.i64)
    i = td.vars("i")
    got = value_of(td.einsum("ij->i", p[i, j]), [np.arange(8).reshape(2, 4)])
    np.testing.assert_array_equal(got, [1 + 2, 5 + 6])


def test_result_is_a_func_like_any_other(rng):
    i, k = td.vars("i k")
    p, q, out = td.Tensor("p", (3, 4), td.i64), td.Tensor("q", (4, 2), td.i64), td.Func("out")
    product = td.einsum("ij,jk", p, q, name="product")
    assert product.name == "product"
    out[i, k] = td.maximum(product[i, k], 0)
    a, b = rng.integers(-3, 4, (3, 4)), rng.integers(-3, 4, (4, 2))
    np.testing.assert_array_equal(td.compile(out)(p=a, q=b), np.maximum(a @ b, 0))


@pytest.mark.parametrize("empty", "ijkr")
def test_empty_axes(empty):
    sides = {x: 0 if x == empty else 3 for x in "ijkr"}
    arrays = [np.ones([sides[x] for x in term], np.float32) for term in ("ijk", "jr", "kr")]
    text = "ijk,jr,kr->ir"
    got = td.compile(td.einsum(text, *tensors_for(text, arrays)))(**dict(zip("pqr", arrays, strict=True)))
    np.testing.assert_array_equal(got, np.einsum(text, *arrays))


def multiplications(terms, result, sizes, order):
    terms, total = [frozenset(t) for t in terms], 0
    for a, b in order:
        rest = frozenset(result).union(*(t for n, t in enumerate(terms) if n not in (a, b)))
        total += prod(sizes[x] for x in terms[a] | terms[b])
        terms[a] = (terms[a] | terms[b]) & rest
        del terms[b]
    assert len(terms) == 1
    return total


@pytest.mark.parametrize(
    "text, most",
    [
        ("ij,jk,kl->il", 10 * 100 * 100 + 10 * 100 * 100),
        ("ij,j,k->i", 1e4 + 1e4),
        ("ijk,jr,kr->ir", 1.1e7),
    ],
)
def test_cheap_order(text, most):
    sizes = {"i": 10 if "l" in text else 100, "j": 100, "k": 100, "l": 100, "r": 10}
    inputs, _, result = text.partition("->")
    terms = [frozenset(t) for t in inputs.split(",")]
    order = contraction_order(terms, frozenset(result), sizes)
    assert multiplications(terms, result, sizes, order) <= most


def test_contraction_order_of_many_operands_is_fast():
    terms = [frozenset(x) for x in zip("abcdefghijklmnop", "bcdefghijklmnopq", strict=True)]
    order = contraction_order(terms, frozenset("aq"), dict.fromkeys("abcdefghijklmnopq", 10))
    assert multiplications(terms, "aq", dict.fromkeys("abcdefghijklmnopq", 10), order) == 15_000


ONES = (
    ("ij,jk->ik", (3, 1), (4, 5)),
    ("ij,jk->ik", (3, 4), (1, 5)),
    ("ij,jk->ik", (3, 1), (1, 5)),
    ("ij,jk->ik", (3, 1), (0, 5)),
    ("ij,ij->ij", (3, 1), (1, 5)),
    ("ij,ij->", (1, 4), (3, 1)),
    ("ii,i->i", (1, 1), (4,)),
    ("i,i->i", (1,), (4,)),
    ("ij,jk,kl->il", (3, 1), (4, 5), (1, 2)),
    ("...ij,jk->...ik", (2, 1, 3, 1), (4, 5)),
)


@pytest.mark.parametrize("text, shapes", [(text, shapes) for text, *shapes in ONES])
@pytest.mark.parametrize("of_funcs", [False, True])
def test_an_extent_of_1_is_repeated_along_a_longer_axis_of_its_letter(rng, text, shapes, of_funcs):
    arrays = [np.asarray(rng.integers(-3, 4, s)) for s in shapes]
    operands = [td.Tensor(n, a.shape, a.dtype) for n, a in zip("pqr", arrays, strict=False)]
    for n, t in enumerate(operands if of_funcs else ()):
        index = td.vars("w x y z")[: t.ndim]
        between, operands[n] = td.Func("between"), td.Func("twice")
        between[index] = t[index] * 2
        operands[n][index] = between[index] + t[index] * -1
    expected = np.einsum(text, *arrays)
    np.testing.assert_array_equal(value_of(td.einsum(text, *operands), arrays), expected)


def test_an_extent_of_1_is_repeated_along_one_that_has_a_name(rng):
    a, b = rng.integers(-3, 4, (3, 1)), rng.integers(-3, 4, (4, 5))
    func = td.einsum("ij,jk->ik", td.Tensor("p", (3, 1), td.i64), td.Tensor("q", ("K", 5), td.i64))
    np.testing.assert_array_equal(value_of(func, [a, b]), np.einsum("ij,jk->ik", a, b))


@pytest.mark.parametrize("shapes", [((3, 2), (4, 5)), ((2, 1), (1, 4, 4))])
def test_other_extents_of_a_letter_are_one(shapes):
    p, q = (td.Tensor(n, s, td.f32) for n, s in zip("pq", shapes, strict=True))
    text = "ij,jk->ik" if len(shapes[1]) == 2 else "ij,jjk->ik"
    with pytest.raises(td.ShapeError):
        build_program((td.einsum(text, p, q),))


@pytest.mark.parametrize("spec", ["ab,bc,cd->ad", "bc,cd,ab->ad", "ab,bc,ad->cd", "ab,ca,bc->a"])
@pytest.mark.parametrize("sides", [(6, 6, 6, 6), (4, 400, 40, 4), (400, 4, 40, 8)])
def test_a_call_takes_the_operands_in_the_order_given_whatever_the_pairs(rng, spec, sides):
    shapes = [tuple(dict(zip("abcd", sides, strict=True))[x] for x in t) for t in spec[:8].split(",")]
    operands = {n: td.Tensor(n, s, td.f64) for n, s in reversed([*zip("pqr", shapes, strict=True)])}
    func = td.einsum(spec, *(operands[n] for n in "pqr"))
    assert build_program((func,)).parameters == ("p", "q", "r")
    if sides[0] == sides[1]:
        arrays = [rng.random(s) for s in shapes]
        expected = np.einsum(spec, *arrays)
        np.testing.assert_allclose(td.compile(func, target="python")(*arrays), expected)
