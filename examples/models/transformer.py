"""A block of a transformer: attention over heads and a two-layer perceptron, each behind a layer norm."""

import math

import numpy as np

import tdsl as td

T, D, HEADS = 48, 64, 4


@td.op
def layer_norm(x: td.f32["T", "D"], gain: td.f32["D"], shift: td.f32["D"]):
    t, d = td.vars("t d")
    mean, var, y = td.Func("mean"), td.Func("var"), td.Func("y")
    mean[t] = td.mean(x[t, d], axis=d)
    var[t] = td.mean((x[t, d] - mean[t]) ** 2, axis=d)
    y[t, d] = (x[t, d] - mean[t]) * td.rsqrt(var[t] + 1e-5) * gain[d] + shift[d]
    return y


@td.op
def linear(x: td.f32["T", "K"], w: td.f32["K", "N"], bias: td.f32["N"]):
    t, k, n = td.vars("t k n")
    y = td.Func("y")
    y[t, n] = td.sum(x[t, k] * w[k, n], axis=k) + bias[n]
    return y


@td.op
def attention(q: td.f32["T", "H", "E"], k: td.f32["S", "H", "E"], v: td.f32["S", "H", "E"]):
    h, t, s, e = td.vars("h t s e")
    score, top, p, total, y = (td.Func(n) for n in ("score", "top", "p", "total", "y"))
    scale = 1 / td.sqrt(td.cast(q.shape[2], td.f32))
    past = td.sum(q[t, h, e] * k[s, h, e], axis=e) * scale
    score[h, t, s] = td.where(s <= t, past, -math.inf)
    top[h, t] = td.max(score[h, t, s], axis=s)
    p[h, t, s] = td.exp(score[h, t, s] - top[h, t])
    total[h, t] = td.sum(p[h, t, s], axis=s)
    y[t, h, e] = td.sum(p[h, t, s] * v[s, h, e], axis=s) / total[h, t]
    return y


@td.op
def gelu(x: td.f32["T", "D"]):
    t, d = td.vars("t d")
    y = td.Func("y")
    y[t, d] = 0.5 * x[t, d] * (1 + td.erf(x[t, d] / math.sqrt(2)))
    return y


def block(x, w):
    rows, width = x.shape
    h = layer_norm(x, w["gain1"], w["shift1"])
    qkv = linear(h, w["qkv"], w["qkv_bias"]).reshape(rows, 3, HEADS, width // HEADS)
    heads = attention(qkv[:, 0], qkv[:, 1], qkv[:, 2]).reshape(rows, width)
    x = x + linear(heads, w["out"], w["out_bias"])
    h = layer_norm(x, w["gain2"], w["shift2"])
    h = gelu(linear(h, w["up"], w["up_bias"]))
    return x + linear(h, w["down"], w["down_bias"])


erf = np.vectorize(math.erf, otypes=[np.float32])


def expected(x, w):
    def norm(x, gain, shift):
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(var + 1e-5) * gain + shift

    h = norm(x, w["gain1"], w["shift1"]) @ w["qkv"] + w["qkv_bias"]
    q, k, v = h.reshape(T, 3, HEADS, D // HEADS).transpose(1, 2, 0, 3)
    score = np.where(np.tri(T, dtype=bool), q @ k.transpose(0, 2, 1) / math.sqrt(D // HEADS), -np.inf)
    p = np.exp(score - score.max(-1, keepdims=True))
    heads = (p / p.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(T, D)
    x = x + heads @ w["out"] + w["out_bias"]
    h = norm(x, w["gain2"], w["shift2"]) @ w["up"] + w["up_bias"]
    return x + h * (1 + erf(h / math.sqrt(2))) / 2 @ w["down"] + w["down_bias"]


rng = np.random.default_rng(0)
shapes = {
    "gain1": (D,), "shift1": (D,), "qkv": (D, 3 * D), "qkv_bias": (3 * D,), "out": (D, D), "out_bias": (D,),
    "gain2": (D,), "shift2": (D,), "up": (D, 4 * D), "up_bias": (4 * D,), "down": (4 * D, D), "down_bias": (D,),
}  # fmt: skip
w = {name: rng.standard_normal(shape, dtype=np.float32) / 8 for name, shape in shapes.items()}
x = rng.standard_normal((T, D), dtype=np.float32)
for run in (block, td.Graph(block), td.Graph(block, target="cuda").emulate):  # by operator, as a whole, on a GPU
    np.testing.assert_allclose(run(x, w), expected(x, w), rtol=1e-3, atol=1e-3)
