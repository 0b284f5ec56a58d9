"""A bottleneck of ResNet: convolutions of 1x1, 3x3 with stride 2, and 1x1, beside a shortcut."""

import numpy as np

import tdsl as td

N, C, MID, OUT, SIZE = 2, 32, 16, 64, 14


def convolution(size, stride):
    """An operator for windows of one size and stride: what does not change from call to call is Python."""

    @td.op
    def conv(x: td.f32["N", "C", "H", "W"], w: td.f32["F", "C", size, size]):
        n, c, f, r, s, y, q = td.vars("n c f r s y q")
        zero = td.pad(x)
        near = zero[n, c, stride * y + r - size // 2, stride * q + s - size // 2]
        height, width = ((x.shape[axis] - 1) // stride + 1 for axis in (2, 3))
        out = td.Func("out", shape=("N", "F", height, width))
        out[n, f, y, q] = td.sum(near * w[f, c, r, s], axis=(c, r, s))
        return out

    return conv


@td.op
def batch_norm(x: td.f32["N", "C", "H", "W"], p: td.f32[4, "C"]):
    """`p` has the mean, the variance, the gain and the shift of each channel."""
    n, c, y, q = td.vars("n c y q")
    out = td.Func("out")
    out[n, c, y, q] = (x[n, c, y, q] - p[0, c]) * td.rsqrt(p[1, c] + 1e-5) * p[2, c] + p[3, c]
    return out


@td.op
def relu(x: td.f32["N", "C", "H", "W"]):
    n, c, y, q = td.vars("n c y q")
    out = td.Func("out")
    out[n, c, y, q] = td.maximum(x[n, c, y, q], 0)
    return out


same, strided, shortcut = convolution(1, 1), convolution(3, 2), convolution(1, 2)


def block(x, w):
    h = relu(batch_norm(same(x, w["conv1"]), w["norm1"]))
    h = relu(batch_norm(strided(h, w["conv2"]), w["norm2"]))
    h = batch_norm(same(h, w["conv3"]), w["norm3"])
    return relu(h + batch_norm(shortcut(x, w["conv4"]), w["norm4"]))


def expected(x, w):
    def conv(x, w, stride=1):
        k = w.shape[2]
        x = np.pad(x, ((0, 0), (0, 0), (k // 2,) * 2, (k // 2,) * 2))
        near = np.lib.stride_tricks.sliding_window_view(x, (k, k), (2, 3))[:, :, ::stride, ::stride]
        return np.einsum("ncyqrs,fcrs->nfyq", near, w)

    def norm(x, p):
        mean, var, gain, shift = p[:, None, :, None, None]
        return (x - mean) / np.sqrt(var + 1e-5) * gain + shift

    h = np.maximum(norm(conv(x, w["conv1"]), w["norm1"]), 0)
    h = np.maximum(norm(conv(h, w["conv2"], 2), w["norm2"]), 0)
    h = norm(conv(h, w["conv3"]), w["norm3"])
    return np.maximum(h + norm(conv(x, w["conv4"], 2), w["norm4"]), 0)


rng = np.random.default_rng(0)
shapes = {
    "conv1": (MID, C, 1, 1), "conv2": (MID, MID, 3, 3), "conv3": (OUT, MID, 1, 1), "conv4": (OUT, C, 1, 1),
    "norm1": (4, MID), "norm2": (4, MID), "norm3": (4, OUT), "norm4": (4, OUT),
}  # fmt: skip
w = {name: rng.uniform(0.1, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
x = rng.standard_normal((N, C, SIZE, SIZE), dtype=np.float32)
for run in (block, td.Graph(block), td.Graph(block, target="cuda").emulate):  # by operator, as a whole, on a GPU
    np.testing.assert_allclose(run(x, w), expected(x, w), rtol=1e-3, atol=1e-3)
