"""Chains of products by bands of rows: attention and dense layers of any size give what NumPy gives."""

import re

import numpy as np
import pytest

import tdsl as td
from tdsl.machine.model import Machine

h, i, j, k, e = td.vars("h i j k e")
WIDE = Machine(vector_bytes=64, threads=2)


def attention(causal=False):
    """softmax(q k^T / 8) v for each head."""
    q, key, v = (td.Tensor(n, ("H", "S", "D"), td.f32) for n in ("q", "key", "v"))
    scores, most, p, total, out = (td.Func(n) for n in ("scores", "most", "p", "total", "out"))
    scores[h, i, j] = td.sum(q[h, i, k] * key[h, j, k], axis=k) / 8
    seen = td.where(j <= i, scores[h, i, j], -np.inf) if causal else scores[h, i, j]
    most[h, i] = td.max(seen, axis=j)
    p[h, i, j] = td.exp(seen - most[h, i])
    total[h, i] = td.sum(p[h, i, j], axis=j)
    out[h, i, e] = td.sum(p[h, i, j] * v[h, j, e], axis=j) / total[h, i]
    return out


def expected_attention(q, key, v, causal=False):
    scores = q.astype(np.float64) @ key.transpose(0, 2, 1) / 8
    if causal:
        scores[:, ~np.tri(q.shape[1], dtype=bool)] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v


def layers():
    """Two dense layers, a residual, and a normalisation of rows."""
    x = td.Tensor("x", ("M", "D"), td.f32)
    w1, w2 = td.Tensor("w1", ("D", "F"), td.f32), td.Tensor("w2", ("F", "D"), td.f32)
    hidden, y, mean, out = (td.Func(n) for n in ("hidden", "y", "mean", "out"))
    hidden[i, j] = td.maximum(td.sum(x[i, k] * w1[k, j], axis=k), 0)
    y[i, j] = td.sum(hidden[i, k] * w2[k, j], axis=k) + x[i, j]
    mean[i] = td.mean(y[i, j], axis=j)
    out[i, j] = y[i, j] - mean[i]
    return out


def expected_layers(x, w1, w2):
    y = np.maximum(x.astype(np.float64) @ w1, 0) @ w2 + x
    return y - y.mean(1, keepdims=True)


def close(got, want, terms):
    scale = np.abs(want).max(initial=1.0)
    np.testing.assert_allclose(got, want, rtol=0, atol=terms * np.finfo(np.float32).eps * scale)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("shape", [(2, 64, 32), (3, 37, 19), (1, 8, 16), (2, 1, 1), (0, 16, 16)])
def test_attention(rng, shape, causal):
    q, key, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(3))
    got = td.compile(attention(causal))(q, key, v)
    close(got, expected_attention(q, key, v, causal), 4 * sum(shape))


def test_queries_keys_and_values_may_be_columns_of_one_array(rng):
    """Of all heads, as one product gives them: the digits of an index are no window."""
    t, u = td.range("t", 0, 40), td.range("u", 0, 16)
    qkv = td.Tensor("qkv", (40, 96), td.f32)
    scores, p, out = td.Func("scores"), td.Func("p"), td.Func("out", shape=(2, 40, 16))
    scores[h, i, j] = td.sum(qkv[i, 16 * h + u] * qkv[j, 16 * h + u + 32], axis=u)
    p[h, i, j] = td.exp(scores[h, i, j] - td.max(scores[h, i, t], axis=t))
    out[h, i, e] = td.sum(p[h, i, t] * qkv[t, 16 * h + e + 64], axis=t)
    s = td.Schedule(out)
    assert td.recipes.bands(s[out], machine=WIDE).row == "i"
    x = rng.standard_normal((40, 96), dtype=np.float32)
    q, key, v = x.reshape(40, 3, 2, 16).transpose(1, 2, 0, 3).astype(np.float64)
    scores = q @ key.transpose(0, 2, 1)
    expected = np.exp(scores - scores.max(-1, keepdims=True)) @ v
    close(td.compile(s)(x), expected, 100)


@pytest.mark.parametrize("shape", [(64, 48, 96), (33, 17, 70), (8, 130, 40), (1, 5, 3), (0, 8, 8)])
def test_layers(rng, shape):
    m, d, f = shape
    x, w1, w2 = (rng.standard_normal(s, dtype=np.float32) for s in ((m, d), (d, f), (f, d)))
    close(td.compile(layers())(x=x, w1=w1, w2=w2), expected_layers(x, w1, w2), 4 * sum(shape))


@pytest.mark.parametrize("rows", [1, 5, 16, 40, 64])
@pytest.mark.parametrize("parallel", ["", "i", "h"])
def test_choices_may_be_replaced(rng, rows, parallel):
    out = attention()
    s = td.Schedule(out, sizes={"H": 2, "S": 40, "D": 16})
    s["scores"].inline()
    plan = td.recipes.bands(s[out], machine=WIDE, rows=rows, parallel=parallel)
    assert (plan.row, plan.rows, plan.parallel) == ("i", rows, parallel)
    q, key, v = (rng.standard_normal((2, 40, 16), dtype=np.float32) for _ in range(3))
    close(td.compile(s)(q, key, v), expected_attention(q, key, v), 240)


def test_what_a_band_passes_on_is_as_large_as_the_band():
    text = str(td.compile(attention()).loops(H=2, S=512, D=64))
    rows = [int(n) for n in re.findall(r"alloc\(f32, \[1, (\d+), 512\]\)", text)]
    assert len(rows) == 2  # scores and p
    assert max(rows) < 140
    assert "[2, 512, 512]" not in text


def test_the_band_of_a_long_chain_shrinks_to_what_the_cache_holds():
    s = td.Schedule(attention(), sizes={"H": 1, "S": 4096, "D": 64})
    s["scores"].inline()
    plan = td.recipes.bands(s["out"], machine=WIDE)
    assert 8 <= plan.rows < 128


def test_a_product_alone_is_no_chain():
    x, w, y = td.Tensor("x", (64, 64), td.f32), td.Tensor("w", (64, 64), td.f32), td.Func("y")
    y[i, j] = td.maximum(td.sum(x[i, k] * w[k, j], axis=k), 0)
    s = td.Schedule(y)
    with pytest.raises(td.ScheduleError, match="bands is not for"):
        td.recipes.bands(s[y], machine=WIDE)
    assert str(s) == str(td.Schedule(y))


def test_rows_that_need_each_other_are_no_chain():
    x, w, y = td.Tensor("x", (64, 64), td.f32), td.Tensor("w", (64, 64), td.f32), td.Func("y")
    hidden = td.Func("hidden")
    hidden[i, j] = td.sum(x[i, k] * w[k, j], axis=k)
    y[i, j] = td.sum(hidden[k, j] * w[i, k], axis=k)
    with pytest.raises(td.ScheduleError, match="bands is not for"):
        td.recipes.bands(td.Schedule(y)[y], machine=WIDE)


def test_products_of_small_numbers_in_a_chain(rng):
    x, w1, w2 = (td.Tensor(n, (48, 48), td.i8) for n in ("x", "w1", "w2"))
    hidden, y = td.Func("hidden"), td.Func("y")
    sums = td.sum(td.cast(x[i, k], td.i32) * td.cast(w1[k, j], td.i32), axis=k, dtype=td.i32)
    hidden[i, j] = td.cast(sums // 64, td.i8)
    terms = td.cast(hidden[i, k], td.i32) * td.cast(w2[k, j], td.i32)
    y[i, j] = td.sum(terms, axis=k, dtype=td.i32) + 1
    a, b, c = (rng.integers(-128, 128, (48, 48), dtype=np.int8) for _ in range(3))
    s = td.Schedule(y)
    assert td.recipes.bands(s[y]) is not None
    want = (a.astype(np.int32) @ b // 64).astype(np.int8).astype(np.int32) @ c + 1
    np.testing.assert_array_equal(td.compile(s)(x=a, w1=b, w2=c), want)
    np.testing.assert_array_equal(td.compile(y)(x=a, w1=b, w2=c), want)


def test_a_product_with_what_differs_for_each_row(rng):
    x, w = td.Tensor("x", (16, 20, 12), td.i8), td.Tensor("w", (5, 12), td.i8)
    doubled, total, y = td.Func("doubled"), td.Func("total"), td.Func("y")
    doubled[i, k, e] = x[i, k, e] * 2
    terms = td.cast(w[j, k], td.i32) * td.cast(doubled[i, e, k], td.i32)
    total[i, j, e] = td.sum(terms, axis=k, dtype=td.i32)
    y[i, j, e] = total[i, j, e] + doubled[i, e, 0]
    a, b = (rng.integers(-60, 60, s, dtype=np.int8) for s in ((16, 20, 12), (5, 12)))
    twice = (a * 2).astype(np.int32)
    want = np.einsum("jk,iek->ije", b.astype(np.int32), twice) + twice[:, None, :, 0]
    np.testing.assert_array_equal(td.compile(y)(x=a, w=b), want)


def test_bands_across_the_vectors_of_a_product_use_no_packed_panel(rng):
    # both operands transposed: the vectors are rows of the result, which bands cut anywhere
    a, b = td.Tensor("a", ("K", "M"), td.bf16), td.Tensor("b", ("N", "K"), td.bf16)
    c, out = td.Func("c"), td.Func("out")
    c[i, j] = td.sum(td.cast(a[k, i], td.f32) * td.cast(b[j, k], td.f32), axis=k)
    out[i, j] = td.maximum(c[i, j], 0) * 3
    x, y = (rng.integers(-9, 9, shape).astype(td.bf16.numpy) for shape in ((45, 130), (37, 45)))
    want = np.maximum(x.T.astype(np.float32) @ y.T.astype(np.float32), 0) * 3
    np.testing.assert_array_equal(td.compile(out)(x, y), want)
