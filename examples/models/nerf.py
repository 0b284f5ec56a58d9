"""The perceptron of a neural radiance field: many points, seven narrow layers, a colour for each."""

import numpy as np

import tdsl as td

POINTS, WAVES, WIDTH, LAYERS = 500, 10, 64, 7


@td.op
def encode(x: td.f32["P", 3], frequency: td.f32["W"]):
    """Each coordinate, and its sine and cosine at each frequency."""
    p, k = td.vars("p k")
    waves = frequency.shape[0]
    out = td.Func("out", shape=("P", 3 * (1 + 2 * waves)))
    angle = x[p, k % 3] * frequency[td.clip((k - 3) // 6, 0, waves - 1)]
    out[p, k] = td.where(k < 3, x[p, k % 3], td.where(k // 3 % 2 == 1, td.sin(angle), td.cos(angle)))
    return out


@td.op
def layer(x: td.f32["P", "K"], w: td.f32["K", "N"], bias: td.f32["N"]):
    p, k, n = td.vars("p k n")
    out = td.Func("out")
    out[p, n] = td.maximum(td.sum(x[p, k] * w[k, n], axis=k) + bias[n], 0)
    return out


@td.op
def colour(x: td.f32["P", "K"], w: td.f32["K", 3], bias: td.f32[3]):
    p, k, n = td.vars("p k n")
    out = td.Func("out")
    out[p, n] = td.sigmoid(td.sum(x[p, k] * w[k, n], axis=k) + bias[n])
    return out


def block(x, frequency, hidden, last):
    h = encode(x, frequency)
    for w, bias in hidden:
        h = layer(h, w, bias)
    return colour(h, *last)


def expected(x, frequency, hidden, last):
    angle = x[:, None, :] * frequency[:, None]
    waves = np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(len(x), -1)
    h = np.concatenate([x, waves], axis=1)
    for w, bias in hidden:
        h = np.maximum(h @ w + bias, 0)
    return 1 / (1 + np.exp(-(h @ last[0] + last[1])))


rng = np.random.default_rng(0)


def weights(rows, columns):
    w = rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(rows**0.5)
    return w, rng.standard_normal(columns, dtype=np.float32) / 4


widths = [3 * (1 + 2 * WAVES), *(WIDTH for _ in range(LAYERS))]
hidden = [weights(*pair) for pair in zip(widths, widths[1:])]
last = weights(WIDTH, 3)
x = rng.uniform(-1, 1, (POINTS, 3)).astype(np.float32)
frequency = np.float32(2.0 ** np.arange(WAVES))
for run in (block, td.Graph(block)):  # operator by operator, and as a whole
    made = run(x, frequency, hidden, last)
    np.testing.assert_allclose(made, expected(x, frequency, hidden, last), rtol=1e-3, atol=1e-4)
