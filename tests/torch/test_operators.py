"""Operators of torch: torch's own checks, gradients, dispatch, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td

torch = pytest.importorskip("torch", reason="torch is an optional package")

from tests.torch.programs import operators  # noqa: E402  # it imports torch

TYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
NAMES = sorted(operators(td.f64))
OPERATORS = {name: operators(getattr(td, name)) for name in TYPES}


def random(dtype, seed=0, requires_grad=False):
    generator = torch.Generator().manual_seed(seed)

    def tensor(*shape):
        values = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
        return values.requires_grad_(requires_grad)

    return tensor


def defined(name, kind):
    operator, arguments = OPERATORS[kind][name]
    return td.torch.op(operator, name=f"tests_{kind}::{name}"), operator, arguments


def as_arrays(arguments):
    return [
        np.asarray(x.detach().to(torch.float64) if x.is_floating_point() else x)
        if isinstance(x, torch.Tensor) else x
        for x in arguments
    ]  # fmt: skip


def listed(results):
    return results if isinstance(results, tuple) else (results,)


def test_there_are_enough_operators():
    assert len(NAMES) >= 24


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", NAMES)
def test_torch_checks_the_operator(name, kind):
    function, _, arguments = defined(name, kind)
    checks = torch.library.opcheck(function.overload, arguments(random(TYPES[kind], requires_grad=True)))
    assert len(checks) == 4 and set(checks.values()) == {"SUCCESS"}


def test_torch_checks_the_operator_with_tensors_that_are_computed():  # as all are since torch 2.14
    function, _, arguments = defined("rms_norm", "f32")
    computed = [x.clone() for x in arguments(random(torch.float32, requires_grad=True))]
    assert not computed[0].is_leaf
    checks = torch.library.opcheck(function.overload, tuple(computed))
    assert set(checks.values()) == {"SUCCESS"}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_the_operator(name, kind):
    function, _, arguments = defined(name, kind)
    args = arguments(random(TYPES[kind]))
    reference = OPERATORS["f64"][name][0](*as_arrays(args))
    tolerance = {"f32": 1e-5, "f64": 1e-12, "bf16": 0.05}[kind]
    for call in (function, function.overload):
        for result, expected in zip(listed(call(*args)), listed(reference), strict=True):
            assert type(result) is torch.Tensor
            assert tuple(result.shape) == np.shape(expected)
            if result.is_floating_point():
                assert result.dtype == TYPES[kind]
            scale = np.abs(expected).max() + 1
            assert np.abs(result.to(torch.float64).numpy() - expected).max() <= tolerance * scale


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_differences(name):
    function, _, arguments = defined(name, "f64")
    args = arguments(random(torch.float64, requires_grad=True))
    assert torch.autograd.gradcheck(lambda *x: _floats(function(*x)), args)


def _floats(results):
    return tuple(x for x in listed(results) if x.is_floating_point())


@pytest.mark.parametrize("name", ["rms_norm", "softmax", "tanh", "matmul"])
def test_second_derivatives_are_those_of_differences(name):
    function, _, arguments = defined(name, "f64")
    args = arguments(random(torch.float64, requires_grad=True))
    assert torch.autograd.gradgradcheck(function, args)


def test_second_derivatives_where_the_first_one_does_not_depend_on_its_input():
    function, _, arguments = defined("rms_norm", "f64")
    x, g = arguments(random(torch.float64))
    assert torch.autograd.gradgradcheck(lambda g: function(x, g) ** 2, g.requires_grad_())


def test_only_the_gradients_that_are_needed_are_computed():
    function, _, arguments = defined("matmul", "f64")
    a, b = arguments(random(torch.float64))
    b.requires_grad_()
    function(a, b).sum().backward()
    torch.testing.assert_close(b.grad, a.sum(0)[:, None].expand_as(b))
    assert a.grad is None
    assert "matmul_backward_b" in dir(torch.ops.tests_f64)


def test_parameters_of_modules_are_trained():
    function, _, _ = defined("linear", "f32")
    layer = torch.nn.Linear(6, 4)
    x = torch.randn(5, 6)
    function(x, layer.weight, layer.bias).pow(2).sum().backward()
    expected = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    layer(x).pow(2).sum().backward()
    for computed, parameter in zip(expected, layer.parameters(), strict=True):
        torch.testing.assert_close(computed, parameter.grad)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_functions_call_it_without_a_break(dynamic):
    function, _, _ = defined("rms_norm", "f32")
    compiled = torch.compile(
        lambda a, g: function(a, g) * 2, fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    for rows in (5, 6, 9):
        a = torch.randn(rows, 7, requires_grad=True)
        g = torch.randn(7, requires_grad=True)
        torch.testing.assert_close(compiled(a, g), function(a, g) * 2)
        for one, other in zip(
            torch.autograd.grad(compiled(a, g).sum(), (a, g)),
            torch.autograd.grad((function(a, g) * 2).sum(), (a, g)),
            strict=True,
        ):
            torch.testing.assert_close(one, other)


def test_vmap_calls_it_for_each_element():
    function, _, _ = defined("softmax", "f32")
    x = torch.randn(3, 5, 7)
    torch.testing.assert_close(torch.vmap(function)(x), torch.softmax(x, -1))


def test_layouts_of_all_kinds():
    function, _, _ = defined("add", "f32")
    a, b = torch.randn(7, 5).T, torch.randn(1, 7).expand(5, 7)
    torch.testing.assert_close(function(a, b), a + 2 * b)
    negative = torch._neg_view(torch.randn(5, 7))
    torch.testing.assert_close(function(negative, b), negative + 2 * b)
    empty = torch.empty(0, 7)
    assert function(empty, empty).shape == (0, 7)


def test_arguments_by_name_and_numbers():
    function, _, _ = defined("scale", "f32")
    x = torch.arange(3.0)
    assert function(x=x, factor=2).tolist() == function(x, factor=2.0).tolist() == [0, 2, 4]


def test_another_operator_of_the_same_name_replaces_the_first():
    for name in ("tanh", "transpose"):
        operator, _ = OPERATORS["f32"][name]
        function = td.torch.op(operator, name="tests_again::same")
    x = torch.randn(3, 5)
    torch.testing.assert_close(function(x), x.T.contiguous())
    torch.testing.assert_close(torch.ops.tests_again.same(x), x.T.contiguous())


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            lambda: (torch.randn(5, 7, dtype=torch.float64), torch.randn(7)),
            "a has dtype torch.float64, expected",
        ),
        (
            lambda: (torch.randn(5, 7), torch.randn(7).to(torch.bfloat16)),
            "g has dtype torch.bfloat16, expected",
        ),
        (lambda: (torch.randn(5, 7), torch.randn(6)), "g has shape"),
        (lambda: (torch.randn(5), torch.randn(6)), "a has shape"),
        (lambda: (torch.randn(5, 7, device="meta"), torch.randn(6, device="meta")), "g has shape"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    function, _, _ = defined("rms_norm", "f32")
    with pytest.raises(td.TdslError, match=message):
        function(*arguments())


def test_an_operator_without_a_derivative_says_so_when_it_is_needed():
    @td.op
    def last(a: td.f64[9], at: td.i64[9]):
        y, i, r = td.Func("y", shape=(9,)), td.vars("i"), td.range("r", 0, 9)
        y[i] = 0.0
        y[td.clip(at[r], 0, 8)] = a[r]
        return y

    function = td.torch.op(last, name="tests::last")
    a, at = torch.randn(9, dtype=torch.float64, requires_grad=True), torch.arange(9)
    assert function(a.detach(), at).tolist() == a.tolist()
    with pytest.raises(td.DefinitionError, match="may store a cell twice"):
        function(a, at).sum().backward()


@pytest.mark.parametrize("name", ["no_namespace", "a::b::c", "a::1", 3])
def test_names_without_a_namespace_are_refused(name):
    with pytest.raises(td.TypeMismatch, match="names no operator of torch"):
        td.torch.op(OPERATORS["f32"]["add"][0], name=name)


def test_what_is_no_operator_is_refused():
    with pytest.raises(td.TypeMismatch, match="takes an operator"):
        td.torch.op(lambda x: x, name="tests::f")


@pytest.mark.parametrize("kind", ["f32", "bf16", "f8e4m3"])
def test_arrays_of_all_types_are_taken_without_a_copy(kind):
    array = np.zeros(4, getattr(td, kind).numpy)
    tensor = td.torch.as_tensor(array)
    assert tensor.data_ptr() == array.ctypes.data
    with pytest.raises(td.TypeMismatch, match="is no array"):
        td.torch.as_tensor([1, 2])


def test_tensors_that_require_grad_are_refused_by_calls_unless_gradients_are_off():
    operator, _ = OPERATORS["f32"]["tanh"]
    x = torch.nn.Parameter(torch.randn(3, 4))
    with pytest.raises(td.TypeMismatch, match="require gradient") as caught:
        operator(x)
    assert "a.detach()" in caught.value.hint and "td.torch.op" in caught.value.hint
    with torch.no_grad():
        np.testing.assert_allclose(operator(x), torch.tanh(x).numpy(), rtol=1e-6)
        np.testing.assert_allclose(td.Graph(lambda x: operator(x))(x), torch.tanh(x).numpy(), rtol=1e-6)
    out = torch.empty(3, 4)
    assert operator(x.detach(), out=out) is out
    torch.testing.assert_close(out, torch.tanh(x.detach()))
