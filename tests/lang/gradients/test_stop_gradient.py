"""A stopped value is a constant to derivatives, and itself to all else."""

import numpy as np
import pytest

import tdsl as td

i, j = td.vars("i j")


def loss_of(term):
    x = td.Tensor("x", (3,), td.f64)
    loss = td.Func("loss")
    loss[()] = td.sum(term(x), axis=i)
    return x, loss


V = np.array([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    "term, value, slope",
    [
        (lambda x: td.stop_gradient(x[i]) * x[i] ** 2, V**3, 2 * V**2),
        (lambda x: td.stop_gradient(x[i] ** 2) + x[i], V**2 + V, np.ones(3)),
        (lambda x: td.exp(x[i] - td.stop_gradient(x[i])), np.ones(3), np.ones(3)),
        (lambda x: td.stop_gradient(td.stop_gradient(x[i]) * x[i]), V**2, 0 * V),
        (lambda x: td.where(x[i] > 1.5, td.stop_gradient(x[i]), x[i]), V, np.array([1.0, 0, 0])),
    ],
)
def test_the_value_stays_and_the_derivative_stops(term, value, slope):
    x, loss = loss_of(term)
    np.testing.assert_allclose(td.compile(loss)(x=V), value.sum())
    # a gradient of 0 everywhere reads no input
    dx = td.compile(td.grad(loss, x))
    np.testing.assert_allclose(dx(*[V] * len(dx.signature.inputs)), slope)


def test_it_stops_in_the_second_derivative_too():
    x, loss = loss_of(lambda x: td.stop_gradient(x[i]) * x[i] ** 2)
    dx, total = td.grad(loss, x), td.Func("total")
    total[()] = td.sum(dx[j], axis=j)
    np.testing.assert_allclose(td.compile(td.grad(total, x))(x=V), 2 * V)


def test_a_stopped_maximum_of_a_row():
    """Softmax subtracts a constant: its derivative is the same without that of the maximum."""
    x, dy = td.Tensor("x", (4, 5), td.f64), td.Tensor("dy", (4, 5), td.f64)

    def softmax(stop):
        m, e, y = td.Func("m"), td.Func("e"), td.Func("y")
        m[i] = td.max(x[i, j], axis=j)
        e[i, j] = td.exp(x[i, j] - stop(m[i]))
        y[i, j] = e[i, j] / td.sum(e[i, j], axis=j)
        return td.compile(td.vjp(y, x, dy))

    rng = np.random.default_rng(0)
    v = {n: rng.standard_normal((4, 5)) for n in ("x", "dy")}
    stopped, whole = softmax(td.stop_gradient), softmax(lambda m: m)
    assert "ties" in str(whole.loops())
    assert "ties" not in str(stopped.loops())
    np.testing.assert_allclose(stopped(**v), whole(**v), atol=1e-14)


def test_integers_and_numbers_are_constants_anyway():
    assert td.stop_gradient(i).dtype == i.dtype
    assert td.stop_gradient(2.0).weak
