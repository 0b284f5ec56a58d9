"""Gradients of operators are operators with the same parameters."""

import numpy as np
import pytest

import tdsl as td

i, j, k = td.vars("i j k")


@td.op
def layer(x: td.f64["M", "K"], w: td.f64["K", "N"], scale: td.f64):
    y = td.Func("y")
    y[i, j] = td.tanh(td.sum(x[i, k] * w[k, j], axis=k)) * scale
    return y


@td.op
def loss(x: td.f64["N"], target: td.f64["N"], unused: td.f64["N"]):
    f = td.Func("f")
    f[()] = td.mean((x[i] - target[i]) ** 2, axis=i)
    return f


def test_vjp_of_an_operator_takes_the_adjoint_of_its_result():
    rng = np.random.default_rng(0)
    x, w, dy = rng.standard_normal((3, 4)), rng.standard_normal((4, 5)), rng.standard_normal((3, 5))
    backward = td.vjp(layer, ("x", "w", "scale"))
    dx, dw, ds = backward(x, w, 2.0, dy)
    inner = np.tanh(x @ w)
    dz = dy * 2 * (1 - inner**2)
    np.testing.assert_allclose(dx, dz @ w.T)
    np.testing.assert_allclose(dw, x.T @ dz)
    np.testing.assert_allclose(ds, np.sum(dy * inner))
    assert repr(backward) == "<operator d_layer(x, w, scale, d_y)>"
    assert backward.schedule(M=3, K=4, N=5).program.outputs == ("d_x", "d_w", "d_scale")


def test_grad_of_an_operator_takes_all_its_parameters():
    x, t = np.arange(4.0), np.ones(4)
    np.testing.assert_allclose(td.grad(loss, "x")(x, t, t), (x - t) / 2)


def test_a_wrong_name_is_told():
    with pytest.raises(td.DefinitionError, match="no parameter 'y'"):
        td.grad(loss, "y")


def test_an_operator_takes_no_seed():
    with pytest.raises(td.TypeMismatch, match="takes no seed"):
        td.vjp(loss, "x", 1.0)


def test_a_parameter_may_have_the_name_of_an_adjoint():
    @td.op
    def product(d_f: td.f64["N"], a: td.f64["N"]):
        f = td.Func("f")
        f[i] = a[i] * d_f[i]
        return f

    backward = td.vjp(product, "a")
    assert repr(backward) == "<operator d_product(d_f, a, d_f_1)>"
    np.testing.assert_array_equal(backward(np.array([2.0, 3]), np.ones(2), np.array([5.0, 7])), [10, 21])


def test_a_func_needs_an_adjoint():
    f = td.Func("f")
    f[i] = td.Tensor("a", (3,), td.f64)[i]
    with pytest.raises(td.TypeMismatch, match="needs the adjoint"):
        td.vjp(f, f)
    with pytest.raises(td.TypeMismatch, match="needs one output or more"):
        td.vjp([], [f], [])


@td.op
def moments(a: td.f64["N"]):
    first, second = td.Func("first"), td.Func("second")
    first[()] = td.sum(a[i], axis=i)
    second[()] = td.sum(a[i] ** 2, axis=i)
    return first, second


def test_grad_of_an_operator_with_several_outputs_points_to_vjp():
    with pytest.raises(td.ShapeError, match=r"'moments' has 2 outputs; td.grad takes one") as caught:
        td.grad(moments, "a")
    assert caught.value.hint == "give the adjoint of each output: td.vjp(moments, 'a')"


@pytest.mark.parametrize("function", [td.vjp, td.grad])
def test_an_operator_needs_the_name_of_a_parameter(function):
    with pytest.raises(td.TypeMismatch, match="needs the name of one parameter or more"):
        function(moments, ())
