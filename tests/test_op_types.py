"""Operators whose element types are decided by the arrays of a call, or in brackets."""

import pickle

import ml_dtypes
import numpy as np
import pytest

import tdsl as td
from tdsl.errors import DefinitionError, TypeMismatch


@td.op
def softmax(x: td.floating["R", "C"]) -> td.Func:
    i, j = td.vars("i j")
    top, e, out = td.Func("top"), td.Func("e"), td.Func("out")
    top[i] = td.max(x[i, j], axis=j)
    e[i, j] = td.exp(x[i, j] - top[i])
    out[i, j] = e[i, j] / td.sum(e[i, j], axis=j)
    return out


@td.op
def axpy(a: td.number, x: td.number["N"], n: td.integer["N"]) -> td.Func:
    i, y = td.vars("i"), td.Func("y")
    y[i] = a * x[i] + n[i]
    return y


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_one_text_computes_in_the_type_of_its_arrays(dtype: type) -> None:
    x = np.random.default_rng(0).standard_normal((3, 7)).astype(dtype)
    terms = np.exp(x.astype(np.float64))
    y = softmax(x)
    assert y.dtype == dtype
    error = np.abs(y.astype(np.float64) - terms / terms.sum(1, keepdims=True)).max()
    assert error < 4 * float(ml_dtypes.finfo(dtype).eps)


def test_types_in_brackets_give_an_ordinary_operator_each_time_the_same() -> None:
    typed = softmax[td.f32]
    assert typed is softmax["float32"]
    assert typed.program.inputs[0].dtype is td.f32
    assert softmax[td.f64].program.inputs[0].dtype is td.f64
    compiled = td.compile(typed.schedule(R=2, C=2))
    assert compiled(np.zeros((2, 2), np.float32)).tolist() == [[0.5, 0.5]] * 2


def test_each_abstract_type_is_decided_separately() -> None:
    y = axpy(2, np.ones(2, np.float32), np.arange(2, dtype=np.int8))
    assert y.dtype == np.float32
    assert y.tolist() == [2, 3]
    assert axpy(np.int16(3), np.ones(2, np.int16), np.arange(2, dtype=np.uint8)).dtype == np.int16
    inputs = {t.name: t.dtype for t in axpy[td.f64, td.i64].program.inputs}
    assert inputs == {"x": td.f64, "n": td.i64}


def test_arrays_without_elements_decide_as_well() -> None:
    assert softmax(np.zeros((0, 3))).dtype == np.float64


def test_buffers_that_are_no_arrays_decide() -> None:
    assert axpy(1, memoryview(np.ones(1)), memoryview(np.arange(1))).tolist() == [1.0]


def test_graphs_decide_by_their_arrays() -> None:
    graph = td.Graph(lambda x: softmax(x * 2))
    assert graph(np.ones((1, 2), np.float32)).dtype == np.float32
    assert graph(np.ones((1, 2))).dtype == np.float64


def test_derivatives_are_of_a_type() -> None:
    d = td.vjp(softmax[td.f64], "x")
    assert d(np.zeros((1, 2)), np.array([[1.0, 0.0]])).tolist() == [[0.25, -0.25]]
    with pytest.raises(TypeMismatch, match=r"say them: softmax\[td\.f32\]"):
        td.vjp(softmax, "x")


def test_pickled_operators_keep_their_type() -> None:
    for original in (softmax[td.f16], td.op(softmax.function)[td.f16]):
        assert pickle.loads(pickle.dumps(original)).program.inputs[0].dtype is td.f16


@pytest.mark.parametrize(
    "use, message",
    [
        (lambda: softmax(np.ones((2, 2), np.int32)), r"x has element type i32; .* td\.floating"),
        (lambda: softmax[td.i8], r"i8 is not a type of td\.floating"),
        (lambda: softmax[td.f32, td.f32], "takes 1 element type in brackets, not 2"),
        (lambda: softmax[td.f32][td.f32], "softmax is of certain types"),
        (lambda: softmax(1.0), "no array of this call has the element type"),
        (lambda: axpy(np.float32(1), np.ones(2), np.arange(2)), "a has element type f32, x has f64"),
        (lambda: softmax.schedule(R=2), "element types of operator 'softmax' are not decided"),
        (lambda: td.Tensor("x", ("N",), td.floating), "it annotates parameters of operators"),
    ],
)
def test_types_that_do_not_fit_are_refused(use: object, message: str) -> None:
    with pytest.raises(TypeMismatch, match=message):
        use()  # type: ignore[operator]


def test_missing_arguments_are_named() -> None:
    with pytest.raises(TypeMismatch, match="it takes 3 arguments: a, x, n"):
        axpy(1, np.ones(2))


def test_parameters_are_checked_when_the_operator_is_defined() -> None:
    with pytest.raises(DefinitionError, match="'y' of operator 'f' has no tensor type"):

        @td.op
        def f(x: td.floating["N"], y: int) -> td.Func: ...
