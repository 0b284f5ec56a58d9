"""A block of MobileNetV2: channels are widened, filtered one by one, and narrowed again."""

import numpy as np

import tdsl as td

N, C, WIDE, SIZE = 1, 24, 144, 14


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
def relu6(x: td.f32["N", "C", "H", "W"]):
    n, c, y, q = td.vars("n c y q")
    out = td.Func("out")
    out[n, c, y, q] = td.clip(x[n, c, y, q], 0, 6)
    return out


def block(x, w):
    h = relu6(pointwise(x, w["up"], w["up_bias"]))
    h = relu6(depthwise(h, w["filter"], w["filter_bias"]))
    return x + pointwise(h, w["down"], w["down_bias"])


def expected(x, w):
    def bias(name):
        return w[name][:, None, None]

    h = np.clip(np.einsum("ncyq,fc->nfyq", x, w["up"]) + bias("up_bias"), 0, 6)
    h = np.pad(h, ((0, 0), (0, 0), (1, 1), (1, 1)))
    h = np.lib.stride_tricks.sliding_window_view(h, (3, 3), (2, 3))
    h = np.clip(np.einsum("ncyqrs,crs->ncyq", h, w["filter"]) + bias("filter_bias"), 0, 6)
    return x + np.einsum("ncyq,fc->nfyq", h, w["down"]) + bias("down_bias")


rng = np.random.default_rng(0)
shapes = {
    "up": (WIDE, C), "up_bias": (WIDE,), "filter": (WIDE, 3, 3), "filter_bias": (WIDE,),
    "down": (C, WIDE), "down_bias": (C,),
}  # fmt: skip
w = {name: rng.standard_normal(shape, dtype=np.float32) / 4 for name, shape in shapes.items()}
x = rng.standard_normal((N, C, SIZE, SIZE), dtype=np.float32)
for run in (block, td.Graph(block)):  # operator by operator, and as a whole
    np.testing.assert_allclose(run(x, w), expected(x, w), rtol=1e-3, atol=1e-3)
