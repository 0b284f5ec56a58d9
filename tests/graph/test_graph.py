"""A graph gives what its function gives, called with arrays one operator after the other."""

import threading

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import DefinitionError, RequireError, ShapeError, TypeMismatch

VECTOR = np.zeros(3)


@td.op
def linear(x: td.f32["M", "K"], w: td.f32["K", "N"]):
    i, j, k = td.vars("i j k")
    out = td.Func("out")
    out[i, j] = td.sum(x[i, k] * w[k, j], axis=k)
    return out


@td.op
def relu(x: td.f32["M", "N"]):
    i, j = td.vars("i j")
    out = td.Func("out")
    out[i, j] = td.maximum(x[i, j], 0)
    return out


@td.op
def scale(x: td.f32["M", "N"], factor: td.f32):
    i, j = td.vars("i j")
    out = td.Func("out")
    out[i, j] = x[i, j] * factor
    return out


@td.op
def moments(x: td.f32["M", "N"]):
    i, j = td.vars("i j")
    mean, square = td.Func("mean"), td.Func("square")
    mean[i] = td.mean(x[i, j], axis=j)
    square[i] = td.mean(x[i, j] * x[i, j], axis=j)
    return mean, square


@td.op
def inner(x: td.f32["N"]):
    """Without the first and the last element: its output begins at 1."""
    i = td.vars("i")
    out = td.Func("out")
    out[i] = x[i + 1] + x[i - 1]
    return out


@pytest.fixture
def x(rng):
    """Whole numbers: sums of their products are exact in any order."""
    return rng.integers(-9, 10, (5, 7)).astype(np.float32)


@pytest.fixture
def w(rng):
    return rng.integers(-9, 10, (7, 6)).astype(np.float32)


def graph(function, **options):
    return td.Graph(function, target="python", **options)


def test_a_chain_equals_its_operators(x, w):
    def f(x, w):
        return relu(linear(x, w))

    g = graph(f)
    np.testing.assert_array_equal(g(x, w), f(x, w))
    np.testing.assert_array_equal(g(x, w), f(x, w))
    np.testing.assert_array_equal(g(w=w, x=x), f(x, w))


@pytest.mark.parametrize("fuse", [True, False])
def test_results_on_the_cpu_are_the_same(x, w, fuse):
    def f(x, w):
        h = relu(linear(x, w)) + 1
        return scale(h, 0.5) - h, linear(h.T, x[:, :6])

    g = td.Graph(f, fuse=fuse)
    for _ in range(3):
        for result, expected in zip(g(x, w), f(x, w), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
    assert [len(group) for group in g.plan(x, w).groups] == ([3, 2, 1] if fuse else [1] * 6)


def test_repeated_operators_are_compiled_once(x):
    square = np.ascontiguousarray(x[:, :5])

    def f(x, *weights):
        for w in weights:
            x = linear(x, w)
        return x

    g = graph(f)
    plan = g.plan(square, square, square, square)
    assert len(plan.steps) == 3
    assert len({id(step.kernel) for step in plan.steps}) == 1
    again = g.plan(square, square)
    assert again.steps[0].kernel is plan.steps[0].kernel
    np.testing.assert_array_equal(g(square, square, square), f(square, square, square))


def test_one_operator_may_read_one_array_twice(x):
    square = np.ascontiguousarray(x[:, :5])
    g = graph(lambda x: linear(x, x))
    np.testing.assert_array_equal(g(square), linear(square, square))


def test_a_result_that_other_calls_read_may_be_an_output(x, w):
    def f(x, w):
        h = linear(x, w)
        return h, relu(h), h

    result = graph(f)(x, w)
    for a, b in zip(result, f(x, w), strict=True):
        np.testing.assert_array_equal(a, b)
    assert result[0] is not result[2]


def test_an_argument_that_is_returned_is_copied(x):
    g = graph(lambda x: (x, relu(x), x.T))
    same, _, turned = g(x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(turned, x.T)
    assert not np.shares_memory(same, x) and not np.shares_memory(turned, x)


def test_results_of_a_call_are_not_changed_by_the_next(x, w):
    g = graph(lambda x, w: relu(linear(x, w)))
    first = g(x, w)
    before = first.copy()
    g(-x, w)
    np.testing.assert_array_equal(first, before)


def test_an_output_that_is_a_view_of_a_result(x, w):
    def f(x, w):
        h = linear(x, w)
        return h.reshape(3, 10), relu(h).T, scale(h, 2)[1:, ::2], scale(h, 3).reshape(-1)

    for a, b in zip(graph(f)(x, w), f(x, w), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.flags.c_contiguous


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[1:4],
        lambda x: x[::-1, None, 2],
        lambda x: x.T.reshape(7, 5),
        lambda x: x.T.reshape(5, 7),
        lambda x: x.swapaxes(0, 1)[..., 1:],
        lambda x: x.reshape(1, 35).transpose(1, 0)[3:30:2],
        lambda x: x[:, 2:2],
    ],
)
def test_views_are_those_of_numpy(x, view):
    def f(x):
        return relu(scale(view(relu(x)).reshape(-1, 1), 2))

    np.testing.assert_array_equal(graph(f)(x), f(x))


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, y: x + y,
        lambda x, y: 2 - x * y,
        lambda x, y: x / np.float32(3) + y[0],
        lambda x, y: np.maximum(x, y.T[:5, :1]) ** 2,
        lambda x, y: -x + abs(y),
        lambda x, y: np.sqrt(np.square(x)) + (x > y),
        lambda x, y: x + np.arange(7, dtype=np.float32),
        lambda x, y: x // 2 + y % 2,
        lambda x, y: x @ y.T + x[0] @ y[1],
        lambda x, y: (x @ y[2])[:, None] * (x.T[1] @ y),
        lambda x, y: x.reshape(5, 1, 7) @ y.reshape(1, 5, 7, 1),
        lambda x, y: x.T @ np.arange(5, dtype=np.float32),
        lambda x, y: 2 ** (y == x) + (x != y),
    ],
)
def test_element_wise_functions_are_those_of_numpy(x, operation):
    y = x[::-1].copy()
    result, expected = graph(operation)(x, y), operation(x, y)
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_several_outputs_of_an_operator(x):
    def f(x):
        mean, square = moments(x)
        return {"spread": square - mean * mean, "mean": mean}

    result, expected = graph(f)(x), f(x)
    assert list(result) == list(expected)
    for name in result:
        np.testing.assert_allclose(result[name], expected[name], rtol=1e-5)


def test_unread_outputs_are_removed(x):
    g = graph(lambda x: moments(x)[1])
    np.testing.assert_array_equal(g(x), moments(x)[1])
    (step,) = g.plan(x).steps
    assert len(step.outputs) == 1


def test_unread_calls_are_removed(x):
    def f(x):
        relu(x)
        return scale(x, 2)

    assert len(graph(f).plan(x).steps) == 1


def test_a_check_runs_although_nothing_reads_it(x):
    @td.op
    def checked(x: td.f32["M", "N"]):
        i, j = td.vars("i j")
        out = td.Func("out")
        out[i, j] = td.require(x[i, j] >= 0, x[i, j], "{} is negative", x[i, j])
        return out

    def f(x):
        checked(x)
        return relu(x)

    g = graph(f)
    np.testing.assert_array_equal(g(abs(x)), abs(x))
    with pytest.raises(RequireError, match="is negative"):
        g(x)
    np.testing.assert_array_equal(g(abs(x)), abs(x))


def test_outputs_with_other_lower_bounds_are_read_from_there():
    data = np.arange(9, dtype=np.float32) ** 2

    def f(x):
        return inner(inner(inner(x) + 1))

    for fuse in (True, False):
        np.testing.assert_array_equal(graph(f, fuse=fuse)(data), f(data))


def test_numbers_are_part_of_the_plan(x):
    g = graph(scale)
    for factor in (2, 2.0, 0.0, -0.0, np.float32(3)):
        result = g(x, factor)
        np.testing.assert_array_equal(result, scale(x, factor))
        np.testing.assert_array_equal(np.signbit(result), np.signbit(scale(x, factor)))


def test_an_array_without_dimensions_is_a_number(x):
    def f(x, factor):
        return scale(relu(x), factor * 2)

    factor = np.array(1.5, np.float32)
    for fuse in (True, False):
        np.testing.assert_array_equal(graph(f, fuse=fuse)(x, factor), f(x, factor))


def test_an_output_without_dimensions_is_a_scalar_of_numpy():
    @td.op
    def total(x: td.f32["N"]):
        i = td.vars("i")
        out = td.Func("out")
        out[()] = td.sum(x[i], axis=i)
        return out

    g, data = graph(lambda x: total(x) + 1), np.arange(4, dtype=np.float32)
    for _ in range(2):
        result = g(data)
        assert isinstance(result, np.float32)
        assert result == 7


@pytest.mark.parametrize("shape", [(0, 7), (5, 0), (0, 0)])
def test_arrays_without_elements(shape, rng):
    def f(x, w):
        return relu(linear(x, w)) + 1, x

    x, w = np.empty(shape, np.float32), np.ones((shape[1], 3), np.float32)
    for result, expected in zip(td.Graph(f)(x, w), f(x, w), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_other_shapes_and_structures_make_other_plans(x, w):
    def f(x, weights):
        for w in weights.values():
            x = linear(x, w)
        return relu(x)

    g = graph(f)
    for given in (x, x[:3], x[:0], x):
        for weights in ({"a": w}, {"a": w, "b": w.T}, {"b": w}):
            np.testing.assert_array_equal(g(given, weights), f(given, weights))


def test_arguments_may_have_any_strides(x, w):
    g = td.Graph(lambda x, w: relu(linear(x, w)))
    for given in (x, x[::-1], np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2], x):
        np.testing.assert_allclose(g(given, w), relu(linear(given, w)), rtol=1e-6)


def test_results_are_written_to_out(x, w):
    g = td.Graph(lambda x, w: (linear(x, w), relu(linear(x, w)).reshape(10, 3)))
    expected = g(x, w)
    one, other = np.empty((6, 5), np.float32).T, np.empty((10, 6), np.float32)[:, ::2]
    result = g(x, w, out=(one, other))
    assert result[0] is one and result[1] is other
    np.testing.assert_array_equal(one, expected[0])
    np.testing.assert_array_equal(other, expected[1])
    result = g(x, w, out=(None, other))
    np.testing.assert_array_equal(result[0], expected[0])


def test_out_may_be_an_argument(rng):
    x = rng.integers(-9, 10, (4, 4)).astype(np.float32)
    g = graph(lambda x: linear(relu(x), x))
    expected = g(x)
    assert g(x, out=x) is x
    np.testing.assert_array_equal(x, expected)


def test_captured_arrays_are_constants(x, w):
    g = graph(lambda x: linear(x, w) + w[0])
    np.testing.assert_allclose(g(x), linear(x, w) + w[0])


def test_a_user_schedule_is_kept(x, w):
    s = linear.schedule(M=5, K=7, N=6)
    s["out"].reorder("j", "i", "k")
    scheduled = td.compile(s, target="python")
    g = graph(lambda x, w: relu(scheduled(x, w)))
    np.testing.assert_array_equal(g(x, w), relu(linear(x, w)))
    steps = g.plan(x, w).steps
    assert steps[0].kernel.per_call is scheduled
    assert len(steps) == 2


def test_several_threads_may_call(x, w):
    g = td.Graph(lambda x, w: linear(relu(linear(x, w)), w.T))
    inputs = [x * n for n in range(8)]
    expected = [g(given, w) for given in inputs]
    right = []

    def work(n):
        right.extend(np.array_equal(g(inputs[n], w), expected[n]) for _ in range(50))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == 8 * 50 and all(right)


def test_a_graph_called_by_a_graph_is_inlined(x, w):
    inner_graph = graph(lambda x, weights: {"h": relu(linear(x, weights["w"]))})

    def f(x, w):
        return inner_graph(x, {"w": w})["h"] + 1

    g = graph(f)
    np.testing.assert_array_equal(g(x, w), relu(linear(x, w)) + 1)
    assert len(g.plan(x, w).steps) == 1


def test_control_flow_may_depend_on_shapes(x, w):
    def f(x, w):
        assert x.ndim == 2 and x.size == 35 and len(x) == 5 and x.nbytes == 140
        rows = [scale(row.reshape(1, -1), n) for n, row in enumerate(x)]
        return linear(rows[1], w) + linear(rows[4], w) if x.shape[0] > 4 else x

    np.testing.assert_allclose(graph(f)(x, w), f(x, w), rtol=1e-6)


def broken(x, w):
    return linear(x, w.T)


def test_wrong_shapes_are_refused_at_the_operator(x, w):
    with pytest.raises(ShapeError, match=r"w has shape \(6, 7\)") as caught:
        graph(broken)(x, w)
    assert "return linear(x, w.T)" in str(caught.value)


@pytest.mark.parametrize(
    "function, error, message",
    [
        (lambda x: linear(x, x), ShapeError, "K is 7 by axis 1 of x, but 5 by axis 0 of w"),
        (lambda x: relu(x[0]), ShapeError, "x has shape"),
        (lambda x: relu(x > 0), TypeMismatch, "x has dtype bool, expected float32"),
        (lambda x: relu(x, x), TypeMismatch, "takes 1 argument"),
        (lambda x: np.add(x, 1, out=VECTOR), TypeMismatch, "out= takes an array of the graph"),
        (lambda x: np.add(x, 1, out=np.zeros_like(x, int)), TypeMismatch, "is not written to an array"),
        (lambda x: x @ x, ShapeError, "np.matmul of arrays"),
        (lambda x: x + x[:3], ShapeError, r"\(5, 7\), \(3, 7\)"),
        (lambda x: x.reshape(4, 4), ShapeError, "no such view"),
        (lambda x: x[9], ShapeError, "no such view"),
        (lambda x: x[x > 0], TypeMismatch, "index of type bool"),
        (lambda x: scale(x, x), TypeMismatch, "needs a number of type f32"),
        (lambda x: relu(x) if x[0, 0] > 0 else x, DefinitionError, "has no values"),
        (
            lambda x: np.concatenate([x, x[:, :2]]),
            ShapeError,
            "np.concatenate: all the input array",
        ),
        (lambda x: np.unique(x), TypeMismatch, "np.unique does not take arrays of a graph"),
        (lambda x: np.round(x, 2), TypeMismatch, "round"),
        (lambda x: x.astype("text"), TypeMismatch, "'text' is not an element type"),
        (lambda x: x.median(axis=0), td.UnknownAttribute, "no attribute 'median'"),
        (lambda x: np.hypot.reduce(x), TypeMismatch, "np.hypot.reduce"),
        (lambda x: 3, DefinitionError, "no array that depends on its arguments"),
    ],
)
def test_unsupported_operations_are_refused(x, function, error, message):
    g = graph(function)
    for _ in range(2):
        with pytest.raises(error, match=message) as caught:
            g(x)
        assert "test_graph.py" in str(caught.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.where(x > 0, x, 0),
        lambda x: np.where(x > 0, x[0], x[:, :1]),
        lambda x: np.clip(x, -0.5, 0.5),
        lambda x: np.clip(x, x[0], 2),
        lambda x: np.round(3 * x),
        lambda x: np.concatenate([x, x[:2] * 2]),
        lambda x: np.concatenate([x, x[:, :3], x[:, :0]], axis=-1),
        lambda x: np.concatenate((x, np.ones((5, 2))), 1),
        lambda x: np.transpose(x) + 1,
        lambda x: np.transpose(x[None], (2, 0, 1)) + 1,
        lambda x: np.reshape(x, (7, 5)) + 1,
        lambda x: np.ravel(x.T) + np.ravel(x),
        lambda x: np.swapaxes(x, 0, 1) + np.squeeze(np.expand_dims(x, 0)).T,
        lambda x: np.moveaxis(x[None], 0, 2) + 1,
        lambda x: x.ravel() + x.T.ravel(),
        lambda x: x.copy() + np.copy(x),
        lambda x: (3 * x).astype(np.int32),
        lambda x: (x > 0).astype("f8") / 2,
        lambda x: np.sqrt((10 * x).astype(np.int32).astype(np.uint8)),
        lambda x: np.exp((x > 0).astype(np.int16)),
        lambda x: np.sqrt(x > 0),
        lambda x: np.maximum(x, np.float64(0.5)),
    ],
)
def test_numpy_functions_return_the_same_as_for_arrays(x, function):
    result, expected = graph(function)(x), function(x)
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=2e-3 if expected.dtype == np.float16 else 1e-6)


def test_an_index_beyond_an_axis_says_what_an_index_may_be(x):
    with pytest.raises(ShapeError, match="below the extent of its axis"):
        graph(lambda x: x[9])(x)


def test_symbols_cannot_be_used_outside_their_graph(x):
    kept = []
    graph(lambda x: kept.append(x) or relu(x))(x)
    with pytest.raises(DefinitionError, match="outside of it"):
        graph(lambda x: relu(kept[0]) + x)(x)


def test_invalid_graphs_are_refused():
    with pytest.raises(TypeMismatch, match="defined by a function"):
        td.Graph(3)
    with pytest.raises(ShapeError, match="no plan"):
        _ = td.Graph(relu).memory
    with pytest.raises(ShapeError, match="known"):
        td.Graph(relu).plan(td.f32["N", 3])
    with pytest.raises(TypeMismatch, match="a set cannot be passed"):
        td.Graph(relu)({1, 2})


def test_wrong_memory_for_results_is_refused(x):
    g = graph(relu)
    with pytest.raises(ShapeError, match="out has shape"):
        g(x, out=np.empty((5, 6), np.float32))
    with pytest.raises(TypeMismatch, match="float64"):
        g(x, out=np.empty((5, 7)))
