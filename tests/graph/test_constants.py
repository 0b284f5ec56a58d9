"""What a graph makes of arrays that never change: once, in the order in which kernels read it."""

import numpy as np
import pytest

import tdsl as td
from tdsl.folded_kernel import FoldedKernel


@td.op
def product(x: td.f32["M", "K"], w: td.f32["K", "N"]):
    i, j, k = td.vars("i j k")
    out = td.Func("out")
    out[i, j] = td.sum(x[i, k] * w[k, j], axis=k)
    return out


@td.op
def scaled(x: td.f32["M", "K"], w: td.f32["K", "N"]):
    """A product with columns of length 1."""
    i, j, k = td.vars("i j k")
    norm, out = td.Func("norm"), td.Func("out")
    norm[j] = td.sqrt(td.sum(w[k, j] * w[k, j], axis=k))
    out[i, j] = td.sum(x[i, k] * w[k, j], axis=k) / norm[j]
    return out


@td.op
def shifted(x: td.f32["N"], w: td.f32["P"]):
    """What is made of the weights is needed from 3 on."""
    i = td.vars("i")
    squares, out = td.Func("squares"), td.Func("out", shape=x.shape)
    squares[i] = w[i] * w[i] + td.exp(w[i])
    out[i] = x[i] * squares[i + 3] + squares[i + 4]
    return out


def integers(rng, *shape):
    """Whole numbers: sums of their products are exact in any order."""
    return rng.integers(-9, 10, shape).astype(np.float32)


def kernel_of(graph, *arrays) -> FoldedKernel:
    (step,) = graph.plan(*arrays).steps
    return step.kernel


@pytest.mark.parametrize("shape", [(8, 64, 192), (7, 100, 90), (2, 9, 33), (70, 130, 65)])
def test_weights_are_packed_once_into_the_panels_of_register_tiles(rng, shape):
    m, k, n = shape
    x, w = integers(rng, m, k), integers(rng, k, n)
    graph = td.Graph(lambda x: product(x, w))
    kernel = kernel_of(graph, x)
    assert [t.name for once in kernel.once for t in once.state.program.inputs] == ["w"]
    assert [t.name for t in kernel.per_call.state.program.inputs] == ["x", "w_cache"]
    for _ in range(2):
        np.testing.assert_array_equal(graph(x), x @ w)
    np.testing.assert_array_equal(graph(x, out=np.empty((m, n), np.float32)), x @ w)


def narrow(left, right, total, transposed):
    """A product of narrow numbers, of a matrix as it is or turned."""

    @td.op
    def narrow_product(x: left["M", "K"], w: right["K", "N"]):
        i, j, k = td.vars("i j k")
        out = td.Func("out")
        term = td.cast(x[i, k], total) * td.cast(w[(j, k) if transposed else (k, j)], total)
        out[i, j] = td.sum(term, axis=k, dtype=total)
        return out

    return narrow_product


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "left, right, total",
    [
        (td.bf16, td.bf16, td.f32),
        (td.u8, td.i8, td.i32),
        (td.i8, td.i8, td.i32),
        (td.i16, td.i16, td.i32),
    ],
)
def test_panels_of_dot_product_instructions_are_packed_once(rng, left, right, total, transposed):
    x, w = (rng.integers(0, 5, (32, 32)).astype(t.numpy) for t in (left, right))
    op = narrow(left, right, total, transposed)
    graph = td.Graph(lambda x: op(x, w))
    expected = x.astype(np.float64) @ (w.T if transposed else w).astype(np.float64)
    np.testing.assert_array_equal(graph(x).astype(np.float64), expected)
    assert kernel_of(graph, x).once


def test_an_argument_is_never_packed_before_a_call(rng):
    x, w = integers(rng, 8, 64), integers(rng, 64, 192)
    assert not kernel_of(td.Graph(product), x, w).once


def test_weights_are_prepared_for_the_first_call_only(rng, monkeypatch):
    x, w = integers(rng, 8, 64), integers(rng, 64, 192)
    calls = []
    folded_arrays = FoldedKernel.folded_arrays
    monkeypatch.setattr(FoldedKernel, "folded_arrays", lambda *a: calls.append(a) or folded_arrays(*a))
    graph = td.Graph(lambda x: product(x, w))
    for _ in range(3):
        graph(x)
    assert len(calls) == 1


def test_a_plan_and_an_explained_schedule_show_what_is_computed_once(rng):
    x, w = integers(rng, 8, 64), integers(rng, 64, 192)
    graph = td.Graph(lambda x: product(x, w))
    assert "once: 49,152 bytes for 1 group, of constants" in str(graph.plan(x))
    (step,) = graph.plan(x).steps
    text = td.Schedule.of_program(step.program).explain()
    assert "w -> w_cache: once, before any call, 49.15 kB" in text
    assert "w_cache -> out_sum: from memory, 49.15 kB" in text or "w_cache -> out" in text


def test_equal_layers_share_a_kernel_with_panels_for_each(rng):
    x, layers = integers(rng, 4, 64), [integers(rng, 64, 64) for _ in range(3)]

    def model(x):
        for w in layers:
            x = np.maximum(product(x, w), 0) % 8
        return x

    graph = td.Graph(model)
    assert str(graph.plan(x)).splitlines()[0].endswith("3 groups, 1 kernel")
    np.testing.assert_array_equal(graph(x), model(x))


def once_line(graph, *arrays):
    (line,) = [x for x in str(graph.plan(*arrays)).splitlines() if x.startswith("once: ")]
    return line


def test_the_same_weights_are_packed_once_for_all_calls(rng):
    x, w, v = integers(rng, 8, 64), integers(rng, 64, 64), integers(rng, 64, 64)

    def model(x):
        for weights in (w, w, v):
            x = product(x, weights) % 8
        return x + product(x % 4, w)

    graph = td.Graph(model)
    assert once_line(graph, x) == "once: 32,768 bytes for 4 groups, of constants"
    np.testing.assert_array_equal(graph(x), model(x))


def test_views_of_one_array_are_packed_once_where_they_are_the_same(rng):
    x, w = integers(rng, 8, 64), integers(rng, 64, 64)
    graph = td.Graph(lambda x: product(product(product(x, w.T) % 8, w.T) % 8, w))
    assert once_line(graph, x) == "once: 32,768 bytes for 3 groups, of constants"
    np.testing.assert_array_equal(graph(x), ((x @ w.T) % 8 @ w.T) % 8 @ w)


def test_calls_of_several_shapes_share_what_is_packed_in_the_same_order(rng):
    x, y, w = integers(rng, 8, 64), integers(rng, 16, 64), integers(rng, 64, 64)
    graph = td.Graph(lambda x, y: (product(x, w), scaled(y, w)))
    parts = [compiled.state for step in graph.plan(x, y).steps for compiled in step.kernel.once]
    assert len(parts) > len({*parts}) == 2
    for compiled, expected in zip(graph(x, y), (product(x, w), scaled(y, w)), strict=True):
        np.testing.assert_allclose(compiled, expected, rtol=1e-6)


def test_funcs_that_depend_on_constants_only_are_computed_once(rng):
    x, w = integers(rng, 8, 64), integers(rng, 64, 192)
    graph = td.Graph(lambda x: scaled(x, w))
    once = [compiled.state.program for compiled in kernel_of(graph, x).once]
    assert "norm_sum" in [f.name for program in once for f in program.funcs]
    np.testing.assert_allclose(graph(x), scaled(x, w), rtol=1e-6)


@pytest.mark.parametrize("target", ["cpu", "python"])
def test_the_box_computed_once_may_begin_anywhere(rng, target):
    x, w = integers(rng, 20), integers(rng, 30) / 8
    graph = td.Graph(lambda x: shifted(x, w[2:]), target=target)
    np.testing.assert_allclose(graph(x), shifted(x, w[2:]), rtol=1e-6)
    assert graph.plan(x).steps[0].kernel.once


def test_views_of_constants_are_packed_too(rng):
    x, w = integers(rng, 8, 64), integers(rng, 192, 64)
    graph = td.Graph(lambda x: product(x, w.T))
    assert kernel_of(graph, x).once
    np.testing.assert_array_equal(graph(x), x @ w.T)


def test_a_packed_copy_in_a_user_schedule_is_computed_once(rng):
    x, w = integers(rng, 8, 64), integers(rng, 64, 64)
    s = product.schedule(M=8, K=64, N=64)
    copy = s.cache_read("w", s["out"], pack={1: 16})
    copy.reorder_storage(1, 0, 2)
    compiled = td.compile(s)
    graph = td.Graph(lambda x: compiled(x, w))
    kernel = kernel_of(graph, x)
    assert [e.value for e in kernel.per_call.state.program.input("w_cache").shape] == [4, 64, 16]
    np.testing.assert_array_equal(graph(x), x @ w)


def test_a_copy_inside_of_loops_stays_there(rng):
    x, w = integers(rng, 8, 64), integers(rng, 64, 64)
    s = product.schedule(M=8, K=64, N=64)
    s.cache_read("w", s["out"], at="i")
    compiled = td.compile(s)
    graph = td.Graph(lambda x: compiled(x, w))
    assert kernel_of(graph, x).per_call is compiled
    np.testing.assert_array_equal(graph(x), x @ w)


def test_tuning_keeps_what_is_constant(rng):
    x, w, v = integers(rng, 8, 64), integers(rng, 64, 64), integers(rng, 64, 64)
    graph = td.Graph(lambda x: product(product(x, w) % 8, v))
    expected = graph(x)
    graph.tune(x, seconds=2)
    np.testing.assert_array_equal(graph(x), expected)
