"""Products of tensors by subscripts: a tensor times a vector, a matrix, and a Khatri-Rao product."""

import numpy as np

import tdsl as td

rng = np.random.default_rng(0)
x, b, c = (rng.standard_normal(s, dtype=np.float32) for s in ((40, 50, 60), (50, 16), (60, 16)))


@td.op
def mttkrp(x: td.f32["I", "J", "K"], b: td.f32["J", "R"], c: td.f32["K", "R"]):
    return td.einsum("ijk,jr,kr->ir", x, b, c)  # as pairs: first over k, then over j


np.testing.assert_allclose(
    mttkrp(x, b, c), np.einsum("ijk,jr,kr->ir", x, b, c), rtol=1e-3, atol=1e-3
)

X, B = td.Tensor("x", ("I", "J", "K"), td.f32), td.Tensor("b", ("J", "R"), td.f32)
v = td.Tensor("v", ("K",), td.f32)
ttv = td.compile(td.einsum("ijk,k->ij", X, v))
np.testing.assert_allclose(ttv(x, c[:, 0]), x @ c[:, 0], rtol=1e-3, atol=1e-3)

# What is done to each element stands where it is read, and is computed there.
i, j, k, r = td.vars("i j k r")
ttm = td.einsum("ijk,jr->irk", td.maximum(X[i, j, k], 0), B)
scaled = td.Func("scaled")
scaled[i, r, k] = td.tanh(ttm[i, r, k])
np.testing.assert_allclose(
    td.compile(scaled)(x, b), np.tanh(np.einsum("ijk,jr->irk", np.maximum(x, 0), b)),
    rtol=1e-3, atol=1e-3,
)  # fmt: skip
