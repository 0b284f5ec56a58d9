"""Chains of operators of networks, in sizes that are given."""

from __future__ import annotations

from collections.abc import Callable

import tdsl as td

b, h, i, j, k, n, t, d, e, y, x, c, f, r, s = td.vars("b h i j k n t d e y x c f r s")

Chain = tuple[td.Func, ...]


def masked_softmax(size: int) -> Chain:
    """Scores of attention, scaled and masked, and their softmax."""
    q, w = td.Tensor("q", (2, 3, size, 8), td.f32), td.Tensor("w", (2, 3, 8, size), td.f32)
    mask = td.Tensor("mask", (2, size), td.f32)
    score, top, p, total, out = (td.Func(g) for g in ("score", "top", "p", "total", "out"))
    score[b, h, i, j] = td.sum(q[b, h, i, k] * w[b, h, k, j], axis=k) / 3 + mask[b, j]
    top[b, h, i] = td.max(score[b, h, i, j], axis=j)
    p[b, h, i, j] = td.exp(score[b, h, i, j] - top[b, h, i])
    total[b, h, i] = td.sum(p[b, h, i, j], axis=j)
    out[b, h, i, j] = p[b, h, i, j] / total[b, h, i]
    return (out,)


def gated_block(size: int) -> Chain:
    """A norm over channels, a pointwise convolution, a gate, another one, and a residual."""
    a = td.Tensor("a", (2, 8, size, size), td.f32)
    w, u, gamma = (td.Tensor(m, z, td.f32) for m, z in (("w", (16, 8)), ("u", (8, 8)), ("gamma", (8,))))
    mean, var, normed, wide, out = (td.Func(m) for m in ("mean", "var", "normed", "wide", "out"))
    mean[b, y, x] = td.mean(a[b, c, y, x], axis=c)
    var[b, y, x] = td.mean((a[b, c, y, x] - mean[b, y, x]) ** 2, axis=c)
    normed[b, c, y, x] = (a[b, c, y, x] - mean[b, y, x]) * td.rsqrt(var[b, y, x] + 1e-5)
    wide[b, f, y, x] = td.sum(w[f, c] * normed[b, c, y, x], axis=c)
    gate = td.Func("gate", shape=(2, 8, size, size))
    gate[b, f, y, x] = wide[b, f, y, x] * wide[b, f + 8, y, x]
    out[b, f, y, x] = td.sum(u[f, c] * gate[b, c, y, x], axis=c) * gamma[f] + a[b, f, y, x]
    return (out,)


def inverted_residual(size: int) -> Chain:
    """Pointwise, depthwise and pointwise convolutions, with relu6 between."""
    a, w = td.Tensor("a", (1, size, size, 8), td.f32), td.Tensor("w", (8, 24), td.f32)
    dw, u = td.Tensor("dw", (3, 3, 24), td.f32), td.Tensor("u", (24, 8), td.f32)
    wide, out = td.Func("wide"), td.Func("out")
    wide[b, y, x, f] = td.clip(td.sum(a[b, y, x, c] * w[c, f], axis=c), 0, 6)
    depthwise = td.Func("depthwise", shape=(1, size - 2, size - 2, 24))
    depthwise[b, y, x, f] = td.clip(td.sum(wide[b, y + r, x + s, f] * dw[r, s, f], axis=(r, s)), 0, 6)
    out[b, y, x, f] = td.sum(depthwise[b, y, x, c] * u[c, f], axis=c) + a[b, y + 1, x + 1, f]
    return (out,)


def gated_convolutions(size: int, *, whole: bool = True) -> Chain:
    """A pointwise convolution, one by channel beyond the edges; if `whole`, a gate, a pointwise one."""
    a, w = td.Tensor("a", (1, 6, size, size), td.f32), td.Tensor("w", (16, 6), td.f32)
    dw, u = td.Tensor("dw", (16, 3, 3), td.f32), td.Tensor("u", (6, 8), td.f32)
    wide, out = td.Func("wide"), td.Func("out")
    wide[b, f, y, x] = td.sum(w[f, c] * a[b, c, y, x], axis=c)
    depthwise, around = (
        td.Func("depthwise", shape=(1, 16, size, size)),
        td.pad(wide, shape=(1, 16, size, size)),
    )
    depthwise[b, c, y, x] = td.sum(around[b, c, y + r - 1, x + s - 1] * dw[c, r, s], axis=(r, s))
    if not whole:
        return (depthwise,)
    gate = td.Func("gate", shape=(1, 8, size, size))
    gate[b, c, y, x] = td.exp(depthwise[b, c, y, x]) * depthwise[b, c + 8, y, x]
    out[b, f, y, x] = td.sum(u[f, c] * gate[b, c, y, x], axis=c)
    return (out,)


def convolution_by_channel(size: int) -> Chain:
    """The first two of them."""
    return gated_convolutions(size, whole=False)


def dense_and_norm(size: int) -> Chain:
    """Two dense layers with a gelu between, a residual and a norm."""
    a, w, u = (td.Tensor(m, z, td.f32) for m, z in (("a", (size, 16)), ("w", (16, 64)), ("u", (64, 16))))
    hidden, z, mean, var, out = (td.Func(m) for m in ("hidden", "z", "mean", "var", "out"))
    pre = td.Func("pre")
    pre[i, j] = td.sum(a[i, k] * w[k, j], axis=k)
    hidden[i, j] = pre[i, j] * 0.5 * (1 + td.erf(pre[i, j] * 0.7071067))
    z[i, j] = td.sum(hidden[i, k] * u[k, j], axis=k) + a[i, j]
    mean[i] = td.mean(z[i, j], axis=j)
    var[i] = td.mean((z[i, j] - mean[i]) ** 2, axis=j)
    out[i, j] = (z[i, j] - mean[i]) * td.rsqrt(var[i] + 1e-5)
    return (out,)


def two_products(size: int) -> Chain:
    """A product of matrices with the result of another one."""
    a, w, u = (
        td.Tensor(m, z, td.f32) for m, z in (("a", (3, size, 8)), ("w", (3, 8, size)), ("u", (3, size, 8)))
    )
    first, out = td.Func("first"), td.Func("out")
    first[b, i, j] = td.sum(a[b, i, k] * w[b, k, j], axis=k)
    out[b, i, e] = td.sum(first[b, i, j] * u[b, j, e], axis=j)
    return (out,)


def gated_mlp(size: int, inner: int = 40, width: int = 24) -> Chain:
    """silu(x w) * (x u), and a product with a third matrix."""
    a, w, u = (
        td.Tensor("a", (size, width), td.f32),
        *(td.Tensor(m, (width, inner), td.f32) for m in "wu"),
    )
    v = td.Tensor("v", (inner, width), td.f32)
    left, right, hidden, out = (td.Func(m) for m in ("left", "right", "hidden", "out"))
    left[i, j] = td.sum(a[i, k] * w[k, j], axis=k)
    right[i, j] = td.sum(a[i, k] * u[k, j], axis=k)
    hidden[i, j] = left[i, j] * td.sigmoid(left[i, j]) * right[i, j]
    out[i, j] = td.sum(hidden[i, k] * v[k, j], axis=k)
    return (out,)


def attention_with_column_sums(size: int) -> Chain:
    """Attention with soft-capped scores, and the sums of its weights by column."""
    q, w, v = (td.Tensor(m, (size, 8), td.f32) for m in ("q", "w", "v"))
    score, top, p, total, out, share = (td.Func(m) for m in ("score", "top", "p", "total", "out", "share"))
    score[i, j] = td.tanh(td.sum(q[i, d] * w[j, d], axis=d) / 50) * 50
    top[i] = td.max(score[i, j], axis=j)
    p[i, j] = td.exp(score[i, j] - top[i])
    total[i] = td.sum(p[i, j], axis=j)
    out[i, e] = td.sum(p[i, j] * v[j, e], axis=j) / total[i]
    share[j] = td.sum(p[i, j] / total[i], axis=i)
    return out, share


def adds_concat_pool(size: int, parts: int = 3) -> Chain:
    """Sums of pairs, side by side as channels of one picture, pooled by two, and two more sums."""
    pairs = [td.Tensor(f"a{m}", (4, size, size), td.f32) for m in range(2 * parts)]
    sums = [td.Func(f"sum{m}") for m in range(parts)]
    for m, g in enumerate(sums):
        g[c, y, x] = pairs[2 * m][c, y, x] + pairs[2 * m + 1][c, y, x]
    joined, out = td.Func("joined", shape=(4 * parts, size, size)), td.Func("out")
    value = sums[-1][td.clip(c - 4 * (parts - 1), 0, 3), y, x]
    for m in reversed(range(parts - 1)):
        value = td.where(c < 4 * (m + 1), sums[m][td.clip(c - 4 * m, 0, 3), y, x], value)
    joined[c, y, x] = value
    pool = td.Func("pool", shape=(4 * parts, size // 2, size // 2))
    pool[c, y, x] = td.maximum(
        td.maximum(joined[c, 2 * y, 2 * x], joined[c, 2 * y, 2 * x + 1]),
        td.maximum(joined[c, 2 * y + 1, 2 * x], joined[c, 2 * y + 1, 2 * x + 1]),
    )
    more = td.Tensor("more", (4 * parts, size // 2, size // 2), td.f32)
    out[c, y, x] = pool[c, y, x] + more[c, y, x] + 1
    return (out,)


def transformer_block(rows: int, heads: int = 2, depth: int = 8, inner: int = 32) -> Chain:
    """Norm, attention of some heads, residual, norm, dense layers with a gelu between, residual."""
    width = heads * depth
    a, wide, narrow = (
        td.Tensor(m, z, td.f32)
        for m, z in (("a", (rows, width)), ("wide", (width, inner)), ("narrow", (inner, width)))
    )
    wq, wk, wv = (td.Tensor(m, (heads, width, depth), td.f32) for m in ("wq", "wk", "wv"))
    wo = td.Tensor("wo", (heads, depth, width), td.f32)

    def normed(v: td.Func | td.Tensor, name: str) -> td.Func:
        mean, var, result = (td.Func(f"{name}_{m}") for m in ("mean", "var", "out"))
        mean[i] = td.mean(v[i, j], axis=j)
        var[i] = td.mean((v[i, j] - mean[i]) ** 2, axis=j)
        result[i, j] = (v[i, j] - mean[i]) * td.rsqrt(var[i] + 1e-5)
        return result

    before = normed(a, "norm1")
    q, key, v = td.Func("q"), td.Func("key"), td.Func("v")
    for projected, w in ((q, wq), (key, wk), (v, wv)):
        projected[h, i, d] = td.sum(before[i, j] * w[h, j, d], axis=j)
    score, top, p, total, mixed = (td.Func(m) for m in ("score", "top", "p", "total", "mixed"))
    score[h, i, k] = td.sum(q[h, i, d] * key[h, k, d], axis=d) / depth**0.5
    top[h, i] = td.max(score[h, i, k], axis=k)
    p[h, i, k] = td.exp(score[h, i, k] - top[h, i])
    total[h, i] = td.sum(p[h, i, k], axis=k)
    mixed[h, i, d] = td.sum(p[h, i, k] * v[h, k, d], axis=k) / total[h, i]
    x1, up, gelu, out = td.Func("x1"), td.Func("up"), td.Func("gelu"), td.Func("out")
    x1[i, j] = a[i, j] + td.sum(mixed[h, i, d] * wo[h, d, j], axis=(h, d))
    after = normed(x1, "norm2")
    up[i, f] = td.sum(after[i, j] * wide[j, f], axis=j)
    gelu[i, f] = up[i, f] * 0.5 * (1 + td.erf(up[i, f] * 0.7071067))
    out[i, j] = x1[i, j] + td.sum(gelu[i, f] * narrow[f, j], axis=f)
    return (out,)


CHAINS: dict[str, Callable[[int], Chain]] = {
    "masked softmax": masked_softmax, "gated block": gated_block, "dense and norm": dense_and_norm,
    "inverted residual": inverted_residual, "two products": two_products, "gated mlp": gated_mlp,
    "attention with column sums": attention_with_column_sums, "adds, concat, pool": adds_concat_pool,
    "gated convolutions": gated_convolutions, "convolution by channel": convolution_by_channel,
}  # fmt: skip
