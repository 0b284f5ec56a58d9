"""Attention in shifted windows (Swin): each window of a picture attends to itself, with a bias by distance."""

import math
from typing import TypeAlias

import numpy as np

import tdsl as td

SIZE, WINDOW, SHIFT, C, HEADS = 16, 8, 4, 32, 2
POINTS = WINDOW * WINDOW


@td.op
def windows(x: td.f32["H", "W", "C"]):
    """Windows of the picture, moved by the shift, as lists of points: [window, point, channel]."""
    b, t, c = td.vars("b t c")
    wrapped, across = td.pad(x, mode="wrap"), x.shape[1] // WINDOW
    out = td.Func("out", shape=(x.shape[0] // WINDOW * across, POINTS, "C"))
    y, q = b // across * WINDOW + t // WINDOW, b % across * WINDOW + t % WINDOW
    out[b, t, c] = wrapped[y + SHIFT, q + SHIFT, c]
    return out


@td.op
def picture(x: td.f32["B", "T", "C"], like: td.f32["H", "W", "C"]):
    """What `windows` took apart, in its place again, added to another picture."""
    i, j, c = td.vars("i j c")
    h, w = like.shape[0], like.shape[1]
    y, q = (i + h - SHIFT) % h, (j + w - SHIFT) % w
    out = td.Func("out")
    window, point = y // WINDOW * (w // WINDOW) + q // WINDOW, y % WINDOW * WINDOW + q % WINDOW
    out[i, j, c] = like[i, j, c] + x[td.clip(window, 0, x.shape[0] - 1), point, c]
    return out


@td.op
def linear(x: td.f32["B", "T", "K"], w: td.f32["K", "N"], bias: td.f32["N"]):
    b, t, k, n = td.vars("b t k n")
    out = td.Func("out")
    out[b, t, n] = td.sum(x[b, t, k] * w[k, n], axis=k) + bias[n]
    return out


Heads: TypeAlias = td.f32["B", POINTS, HEADS, "E"]


@td.op
def attention(q: Heads, k: Heads, v: Heads, bias: td.f32[2 * WINDOW - 1, 2 * WINDOW - 1, HEADS]):
    b, h, t, s, e = td.vars("b h t s e")
    score, top, p, total, out = (td.Func(n) for n in ("score", "top", "p", "total", "out"))
    down = t // WINDOW - s // WINDOW + WINDOW - 1
    right = t % WINDOW - s % WINDOW + WINDOW - 1
    alike = td.sum(q[b, t, h, e] * k[b, s, h, e], axis=e) / math.sqrt(C // HEADS)
    score[b, h, t, s] = alike + bias[down, right, h]
    top[b, h, t] = td.max(score[b, h, t, s], axis=s)
    p[b, h, t, s] = td.exp(score[b, h, t, s] - top[b, h, t])
    total[b, h, t] = td.sum(p[b, h, t, s], axis=s)
    out[b, t, h, e] = td.sum(p[b, h, t, s] * v[b, s, h, e], axis=s) / total[b, h, t]
    return out


def block(x, w):
    h = windows(x)
    qkv = linear(h, w["qkv"], w["qkv_bias"]).reshape(*h.shape[:2], 3, HEADS, C // HEADS)
    h = attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], w["bias"]).reshape(h.shape)
    return picture(linear(h, w["out"], w["out_bias"]), x)


def expected(x, w):
    n = SIZE // WINDOW
    h = np.roll(x, (-SHIFT, -SHIFT), (0, 1)).reshape(n, WINDOW, n, WINDOW, C)
    h = h.transpose(0, 2, 1, 3, 4).reshape(n * n, POINTS, C) @ w["qkv"] + w["qkv_bias"]
    q, k, v = h.reshape(n * n, POINTS, 3, HEADS, C // HEADS).transpose(2, 0, 3, 1, 4)
    at = np.stack(np.divmod(np.arange(POINTS), WINDOW))
    down, right = at[:, :, None] - at[:, None, :] + WINDOW - 1
    score = q @ k.swapaxes(-1, -2) / math.sqrt(C // HEADS) + w["bias"][down, right].transpose(2, 0, 1)
    p = np.exp(score - score.max(-1, keepdims=True))
    h = (p / p.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(n * n, POINTS, C)
    h = (h @ w["out"] + w["out_bias"]).reshape(n, n, WINDOW, WINDOW, C).transpose(0, 2, 1, 3, 4)
    return x + np.roll(h.reshape(SIZE, SIZE, C), (SHIFT, SHIFT), (0, 1))


rng = np.random.default_rng(0)
shapes = {
    "qkv": (C, 3 * C), "qkv_bias": (3 * C,), "bias": (2 * WINDOW - 1, 2 * WINDOW - 1, HEADS),
    "out": (C, C), "out_bias": (C,),
}  # fmt: skip
w = {name: rng.standard_normal(shape, dtype=np.float32) / 4 for name, shape in shapes.items()}
x = rng.standard_normal((SIZE, SIZE, C), dtype=np.float32)
for run in (block, td.Graph(block)):  # operator by operator, and as a whole
    np.testing.assert_allclose(run(x, w), expected(x, w), rtol=1e-3, atol=1e-3)
