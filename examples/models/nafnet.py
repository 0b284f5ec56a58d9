"""A block of NAFNet: no activations but the product of two halves of the channels, and attention to channels."""

import numpy as np

import tdsl as td

N, C, SIZE = 1, 16, 24


@td.op
def layer_norm(x: td.f32["N", "C", "H", "W"], gain: td.f32["C"], shift: td.f32["C"]):
    """Over the channels of each pixel."""
    n, c, y, q = td.vars("n c y q")
    mean, var, out = td.Func("mean"), td.Func("var"), td.Func("out")
    mean[n, y, q] = td.mean(x[n, c, y, q], axis=c)
    var[n, y, q] = td.mean((x[n, c, y, q] - mean[n, y, q]) ** 2, axis=c)
    centred = (x[n, c, y, q] - mean[n, y, q]) * td.rsqrt(var[n, y, q] + 1e-6)
    out[n, c, y, q] = centred * gain[c] + shift[c]
    return out


@td.op
def pointwise(x: td.f32["N", "C", "H", "W"], w: td.f32["F", "C"], bias: td.f32["F"]):
    n, c, f, y, q = td.vars("n c f y q")
    out = td.Func("out")
    out[n, f, y, q] = td.sum(w[f, c] * x[n, c, y, q], axis=c) + bias[f]
    return out


@td.op
def depthwise(x: td.f32["N", "C", "H", "W"], w: td.f32["C", 3, 3], bias: td.f32["C"]):
    n, c, r, s, y, q = td.vars("n c r s y q")
    zero, out = td.pad(x), td.Func("out", shape=x.shape)
    out[n, c, y, q] = td.sum(zero[n, c, y + r - 1, q + s - 1] * w[c, r, s], axis=(r, s)) + bias[c]
    return out


@td.op
def gate(x: td.f32["N", "C", "H", "W"]):
    n, c, y, q = td.vars("n c y q")
    half = x.shape[1] // 2
    out = td.Func("out", shape=("N", half, "H", "W"))
    out[n, c, y, q] = x[n, c, y, q] * x[n, c + half, y, q]
    return out


@td.op
def attend(x: td.f32["N", "C", "H", "W"], w: td.f32["C", "C"], bias: td.f32["C"]):
    """Each channel by a weight that follows from the means of all."""
    n, c, k, y, q = td.vars("n c k y q")
    mean, weight, out = td.Func("mean"), td.Func("weight"), td.Func("out")
    mean[n, c] = td.mean(x[n, c, y, q], axis=(y, q))
    weight[n, c] = td.sum(w[c, k] * mean[n, k], axis=k) + bias[c]
    out[n, c, y, q] = x[n, c, y, q] * weight[n, c]
    return out


@td.op
def scaled_sum(x: td.f32["N", "C", "H", "W"], scale: td.f32["C"], h: td.f32["N", "C", "H", "W"]):
    n, c, y, q = td.vars("n c y q")
    out = td.Func("out")
    out[n, c, y, q] = x[n, c, y, q] + scale[c] * h[n, c, y, q]
    return out


def block(x, w):
    h = pointwise(layer_norm(x, *w["norm1"]), *w["up1"])
    h = attend(gate(depthwise(h, *w["filter"])), *w["attend"])
    x = scaled_sum(x, w["beta"], pointwise(h, *w["down1"]))
    h = gate(pointwise(layer_norm(x, *w["norm2"]), *w["up2"]))
    return scaled_sum(x, w["gamma"], pointwise(h, *w["down2"]))


def expected(x, w):
    def wide(v):
        return v[:, None, None]

    def norm(x, gain, shift):
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-6)
        return x * wide(gain) + wide(shift)

    def pointwise(x, w, bias):
        return np.einsum("ncyq,fc->nfyq", x, w) + wide(bias)

    def gate(x):
        return x[:, : x.shape[1] // 2] * x[:, x.shape[1] // 2 :]

    h = np.pad(pointwise(norm(x, *w["norm1"]), *w["up1"]), ((0, 0), (0, 0), (1, 1), (1, 1)))
    h = np.lib.stride_tricks.sliding_window_view(h, (3, 3), (2, 3))
    h = gate(np.einsum("ncyqrs,crs->ncyq", h, w["filter"][0]) + wide(w["filter"][1]))
    h = h * pointwise(h.mean((2, 3), keepdims=True), *w["attend"])
    x = x + wide(w["beta"]) * pointwise(h, *w["down1"])
    h = gate(pointwise(norm(x, *w["norm2"]), *w["up2"]))
    return x + wide(w["gamma"]) * pointwise(h, *w["down2"])


rng = np.random.default_rng(0)


def weights(*shapes):
    return tuple(rng.standard_normal(s, dtype=np.float32) / 4 for s in shapes)


w = {name: weights((C,), (C,)) for name in ("norm1", "norm2")}
w |= {name: weights((2 * C, C), (2 * C,)) for name in ("up1", "up2")}
w |= {name: weights((C, C), (C,)) for name in ("attend", "down1", "down2")}
w |= {"filter": weights((2 * C, 3, 3), (2 * C,)), "beta": weights((C,))[0], "gamma": weights((C,))[0]}
x = rng.standard_normal((N, C, SIZE, SIZE), dtype=np.float32)
for run in (block, td.Graph(block)):  # operator by operator, and as a whole
    np.testing.assert_allclose(run(x, w), expected(x, w), rtol=1e-3, atol=1e-3)
