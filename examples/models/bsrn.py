"""Blueprint separable convolutions (BSRN): features are distilled, joined, and put in finer pixels."""

import math

import numpy as np

import tdsl as td

C, MID, SIZE, SCALE = 16, 8, 24, 2


@td.op
def pointwise(x: td.f32["C", "H", "W"], w: td.f32["F", "C"], bias: td.f32["F"]):
    c, f, y, q = td.vars("c f y q")
    out = td.Func("out")
    out[f, y, q] = td.sum(w[f, c] * x[c, y, q], axis=c) + bias[f]
    return out


@td.op
def depthwise(x: td.f32["C", "H", "W"], w: td.f32["C", 3, 3], bias: td.f32["C"]):
    c, y, q, r, s = td.vars("c y q r s")
    zero, out = td.pad(x), td.Func("out", shape=x.shape)
    out[c, y, q] = td.sum(zero[c, y + r - 1, q + s - 1] * w[c, r, s], axis=(r, s)) + bias[c]
    return out


@td.op
def gelu(x: td.f32["C", "H", "W"]):
    c, y, q = td.vars("c y q")
    out = td.Func("out")
    out[c, y, q] = 0.5 * x[c, y, q] * (1 + td.erf(x[c, y, q] / math.sqrt(2)))
    return out


@td.op
def join(
    x: td.f32["A", "H", "W"], y: td.f32["B", "H", "W"], z: td.f32["D", "H", "W"]
):
    """The channels of three pictures, one after the other."""
    c, i, j = td.vars("c i j")
    a, b, d = x.shape[0], y.shape[0], z.shape[0]
    out = td.Func("out", shape=(a + b + d, "H", "W"))
    first, second, third = td.pad(x), td.pad(y), td.pad(z)
    out[c, i, j] = td.where(
        c < a, first[c, i, j], td.where(c < a + b, second[c - a, i, j], third[c - a - b, i, j])
    )
    return out


@td.op
def shuffle(x: td.f32["C", "H", "W"]):
    """A pixel of many channels becomes a square of pixels."""
    y, q = td.vars("y q")
    out = td.Func("out", shape=(x.shape[1] * SCALE, x.shape[2] * SCALE))
    out[y, q] = x[y % SCALE * SCALE + q % SCALE, y // SCALE, q // SCALE]
    return out


def separable(x, w):
    point, bias, filter, filter_bias = w
    return depthwise(pointwise(x, point, bias), filter, filter_bias)


def block(x, w):
    kept = []
    h = x
    for step in range(2):
        kept.append(gelu(pointwise(h, *w["distil", step])))
        h = gelu(separable(h, w["refine", step]) + h)
    joined = join(*kept, gelu(separable(h, w["last"])))
    return shuffle(separable(pointwise(joined, *w["fuse"]) + x, w["up"]))


def expected(x, w):
    def pointwise(x, w, bias):
        return np.einsum("chw,fc->fhw", x, w) + bias[:, None, None]

    def separable(x, w):
        x = np.pad(pointwise(x, *w[:2]), ((0, 0), (1, 1), (1, 1)))
        x = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))
        return np.einsum("chwrs,crs->chw", x, w[2]) + w[3][:, None, None]

    def gelu(x):
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2

    kept, h = [], x
    for step in range(2):
        kept.append(gelu(pointwise(h, *w["distil", step])))
        h = gelu(separable(h, w["refine", step]) + h)
    h = np.concatenate([*kept, gelu(separable(h, w["last"]))])
    h = separable(pointwise(h, *w["fuse"]) + x, w["up"]).reshape(SCALE, SCALE, SIZE, SIZE)
    return h.transpose(2, 0, 3, 1).reshape(SIZE * SCALE, SIZE * SCALE)


rng = np.random.default_rng(0)


def weights(*shapes):
    return tuple(rng.standard_normal(s, dtype=np.float32) / 3 for s in shapes)


def point(into, out):
    return weights((out, into), (out,))


def blueprint(into, out):
    return weights((out, into), (out,), (out, 3, 3), (out,))


w: dict[object, tuple[np.ndarray, ...]] = {("distil", step): point(C, MID) for step in range(2)}
w |= {("refine", step): blueprint(C, C) for step in range(2)}
w |= {"last": blueprint(C, MID), "fuse": point(3 * MID, C), "up": blueprint(C, SCALE**2)}
x = rng.standard_normal((C, SIZE, SIZE), dtype=np.float32)
for run in (block, td.Graph(block)):  # operator by operator, and as a whole
    np.testing.assert_allclose(run(x, w), expected(x, w), rtol=1e-3, atol=1e-2)
