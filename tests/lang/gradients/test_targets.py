"""Adjoints in graphs, on ranks and on GPUs: funcs as any others."""

import numpy as np
import pytest

import tdsl as td

i, j, k = td.vars("i j k")


@td.op
def linear(x: td.f32["M", "K"], w: td.f32["K", "N"]):
    y = td.Func("y")
    y[i, j] = td.sum(x[i, k] * w[k, j], axis=k)
    return y


@td.op
def softmax(z: td.f32["M", "N"]):
    top, e, h = td.Func("top"), td.Func("e"), td.Func("h")
    top[i] = td.max(z[i, j], axis=j)
    e[i, j] = td.exp(z[i, j] - top[i])
    h[i, j] = e[i, j] / td.sum(e[i, j], axis=j)
    return h


def expected(x, w, dy):
    z = x @ w
    h = np.exp(z - z.max(axis=1, keepdims=True))
    h /= h.sum(axis=1, keepdims=True)
    dz = h * (dy - (dy * h).sum(axis=1, keepdims=True))
    return h, dz @ w.T, x.T @ dz


def arrays(rng, rows=8):
    shapes = ((rows, 5), (5, 6), (rows, 6))
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)


@pytest.mark.parametrize("rows", [1, 7, 8])
def test_forward_and_backward_in_a_graph(rng, rows):
    linear_vjp, softmax_vjp = td.vjp(linear, ("x", "w")), td.vjp(softmax, "z")

    def step(x, w, dy):
        z = linear(x, w)
        h = softmax(z)
        dx, dw = linear_vjp(x, w, softmax_vjp(z, dy))
        return h, dx, dw

    given = arrays(rng, rows)
    for mine, right in zip(td.Graph(step)(*given), expected(*given), strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-5)


def program(rows=8):
    x, w = td.Tensor("x", (rows, 5), td.f32), td.Tensor("w", (5, 6), td.f32)
    z, top, e, h = (td.Func(n) for n in ("z", "top", "e", "h"))
    z[i, j] = td.sum(x[i, k] * w[k, j], axis=k)
    top[i] = td.max(z[i, j], axis=j)
    e[i, j] = td.exp(z[i, j] - top[i])
    h[i, j] = e[i, j] / td.sum(e[i, j], axis=j)
    return td.vjp(h, [x, w], td.Tensor("dy", (rows, 6), td.f32))


@pytest.mark.parametrize("rows", [1, 7, 33])
def test_on_an_emulated_gpu(rng, rows):
    x, w, dy = arrays(rng, rows)
    run = td.emulate(td.compile(program(rows), target="cuda:sm_90"))
    for mine, right in zip(run(x=x, w=w, dy=dy), expected(x, w, dy)[1:], strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-5)


def test_on_ranks_of_which_each_has_rows(rng):
    """Each rank has rows of x and dy; the adjoint of w is a sum over all ranks."""
    x, w, dy = arrays(rng)
    dx, dw = program()
    ranks = td.Grid(p=4)
    s = td.Schedule(dx, dw)
    for name in ("x", "dy", "d_x"):
        s.place(name, "ij -> i", ranks)
    for name in ("w", "d_w"):
        s.place(name, "kj -> *", ranks)
    s[dw].distribute(i, ranks)
    s[dx].distribute(i, ranks)
    compiled = td.compile(s)
    for mine, right in zip(compiled.simulate(x=x, w=w, dy=dy), expected(x, w, dy)[1:], strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-5)
    assert max(compiled.plan().received) > 0
