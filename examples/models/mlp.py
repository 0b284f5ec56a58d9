"""A multilayer perceptron in f16 with sums in f32: products for tensor cores, each with its epilogue."""

import numpy as np

import tdsl as td

ROWS, WIDTHS = 64, (96, 128, 128, 40)


@td.op
def linear(x: td.f16["T", "K"], w: td.f16["K", "N"], bias: td.f32["N"]):
    t, k, n = td.vars("t k n")
    y = td.Func("y")
    y[t, n] = td.sum(td.cast(x[t, k], td.f32) * td.cast(w[k, n], td.f32), axis=k) + bias[n]
    return y


def network(x, layers):
    *hidden, last = layers
    for w, bias in hidden:
        x = np.maximum(linear(x, w, bias), 0).astype(np.float16)
    return linear(x, *last)


def expected(x, layers):
    for n, (w, bias) in enumerate(layers):
        x = x.astype(np.float32) @ w.astype(np.float32) + bias
        x = x if n == len(layers) - 1 else np.maximum(x, 0).astype(np.float16)
    return x


rng = np.random.default_rng(0)
layers = [
    (rng.standard_normal((k, n)).astype(np.float16) / 8, rng.standard_normal(n, dtype=np.float32))
    for k, n in zip(WIDTHS, WIDTHS[1:], strict=False)
]
x = rng.standard_normal((ROWS, WIDTHS[0])).astype(np.float16)
for run in (network, td.Graph(network), td.Graph(network, target="cuda").emulate):
    np.testing.assert_allclose(run(x, layers), expected(x, layers), rtol=1e-2, atol=1e-2)
