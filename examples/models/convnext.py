"""A block of ConvNeXt: a wide filter of each channel, a layer norm, and a perceptron over channels."""

import math

import numpy as np

import tdsl as td

N, C, SIZE = 1, 32, 14


@td.op
def depthwise(x: td.f32["N", "H", "W", "C"], w: td.f32[7, 7, "C"], bias: td.f32["C"]):
    n, y, q, c, r, s = td.vars("n y q c r s")
    zero, out = td.pad(x), td.Func("out", shape=x.shape)
    out[n, y, q, c] = td.sum(zero[n, y + r - 3, q + s - 3, c] * w[r, s, c], axis=(r, s)) + bias[c]
    return out


@td.op
def layer_norm(x: td.f32["N", "H", "W", "C"], gain: td.f32["C"], shift: td.f32["C"]):
    n, y, q, c = td.vars("n y q c")
    mean, var, out = td.Func("mean"), td.Func("var"), td.Func("out")
    mean[n, y, q] = td.mean(x[n, y, q, c], axis=c)
    var[n, y, q] = td.mean((x[n, y, q, c] - mean[n, y, q]) ** 2, axis=c)
    centred = (x[n, y, q, c] - mean[n, y, q]) * td.rsqrt(var[n, y, q] + 1e-6)
    out[n, y, q, c] = centred * gain[c] + shift[c]
    return out


@td.op
def linear(x: td.f32["N", "H", "W", "K"], w: td.f32["K", "M"], bias: td.f32["M"]):
    n, y, q, k, m = td.vars("n y q k m")
    out = td.Func("out")
    out[n, y, q, m] = td.sum(x[n, y, q, k] * w[k, m], axis=k) + bias[m]
    return out


@td.op
def gelu(x: td.f32["N", "H", "W", "C"]):
    n, y, q, c = td.vars("n y q c")
    out = td.Func("out")
    out[n, y, q, c] = 0.5 * x[n, y, q, c] * (1 + td.erf(x[n, y, q, c] / math.sqrt(2)))
    return out


@td.op
def scaled_sum(x: td.f32["N", "H", "W", "C"], scale: td.f32["C"], h: td.f32["N", "H", "W", "C"]):
    n, y, q, c = td.vars("n y q c")
    out = td.Func("out")
    out[n, y, q, c] = x[n, y, q, c] + scale[c] * h[n, y, q, c]
    return out


def block(x, w):
    h = layer_norm(depthwise(x, w["filter"], w["filter_bias"]), w["gain"], w["shift"])
    h = gelu(linear(h, w["up"], w["up_bias"]))
    return scaled_sum(x, w["scale"], linear(h, w["down"], w["down_bias"]))


erf = np.vectorize(math.erf, otypes=[np.float32])


def expected(x, w):
    h = np.pad(x, ((0, 0), (3, 3), (3, 3), (0, 0)))
    h = np.lib.stride_tricks.sliding_window_view(h, (7, 7), (1, 2))
    h = np.einsum("nyqcrs,rsc->nyqc", h, w["filter"]) + w["filter_bias"]
    h = (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-6)
    h = (h * w["gain"] + w["shift"]) @ w["up"] + w["up_bias"]
    h = h * (1 + erf(h / math.sqrt(2))) / 2
    return x + w["scale"] * (h @ w["down"] + w["down_bias"])


rng = np.random.default_rng(0)
shapes = {
    "filter": (7, 7, C), "filter_bias": (C,), "gain": (C,), "shift": (C,), "scale": (C,),
    "up": (C, 4 * C), "up_bias": (4 * C,), "down": (4 * C, C), "down_bias": (C,),
}  # fmt: skip
w = {name: rng.standard_normal(shape, dtype=np.float32) / 4 for name, shape in shapes.items()}
x = rng.standard_normal((N, SIZE, SIZE, C), dtype=np.float32)
for run in (block, td.Graph(block)):  # operator by operator, and as a whole
    np.testing.assert_allclose(run(x, w), expected(x, w), rtol=1e-3, atol=1e-3)
