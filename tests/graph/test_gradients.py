"""`td.grad`, `td.vjp` and `td.value_and_grad` of graphs, against central differences in f64."""

import math
import pickle
import re
import threading
from pathlib import Path

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import DefinitionError, ShapeError, TypeMismatch

MODELS = sorted((Path(__file__).parents[2] / "examples" / "models").glob("*.py"))
i, j = td.vars("i j")


def leaves_of(x):
    """The arrays in nested tuples, lists and dicts."""
    if isinstance(x, np.ndarray):
        return [x]
    return [leaf for part in (x.values() if isinstance(x, dict) else x) for leaf in leaves_of(part)]


def mapped(function, x):
    if isinstance(x, dict):
        return {n: mapped(function, part) for n, part in x.items()}
    return function(x) if isinstance(x, np.ndarray) else type(x)(mapped(function, part) for part in x)


def check_along_a_direction(function, arguments, adjoints, seed=None, tolerance=1e-6, step=1e-6):
    """The adjoints, times a random direction, equal the central difference of `function` along it."""
    rng = np.random.default_rng(1)
    wide = mapped(lambda a: a.astype(np.float64), arguments)
    direction = mapped(lambda a: rng.standard_normal(a.shape), wide)

    def value(sign):
        directions = iter(leaves_of(direction))
        result = function(*mapped(lambda a: a + sign * step * next(directions), wide))
        return np.sum(result * (1 if seed is None else seed))

    expected = (value(1) - value(-1)) / (2 * step)
    pairs = list(zip(leaves_of(list(adjoints)), leaves_of(direction), strict=True))
    result = sum(np.sum(a.astype(np.float64) * d) for a, d in pairs)
    size = math.sqrt(sum(np.sum((a.astype(np.float64) * d) ** 2) for a, d in pairs))
    assert abs(result - expected) <= tolerance * max(size, abs(expected), 1e-3)


FUNCTIONS = {
    "views": lambda x: np.sum(x[1:, ::2] * x[:-1, 1::2]) + np.sum(x.T[2] * x[:, 0]),
    "reversed": lambda x: np.sum(np.flip(x, 1)[:, :2] * x[::-1, 1:3]),
    "all elements": lambda x: np.sum(x.reshape(2, 2, 6).transpose(2, 0, 1)[:3] ** 3),
    "broadcasts": lambda x: np.sum(np.broadcast_to(x[0], (5, 6)) * x[1, :, None, None]),
    "windows": lambda x: np.sum(np.lib.stride_tricks.sliding_window_view(x, 3, axis=1) ** 2),
    "reductions": lambda x: np.max(x, axis=0).sum() * np.mean(x) + np.var(x) + np.prod(x[0]),
    "products": lambda x: np.einsum("ij,kj->", x @ x.T, x[:, :4]) + np.sum(np.outer(x[0], x[1])),
    "moves": lambda x: np.sum(np.concatenate([x[:, :2], x, np.pad(x, 1)[1:-1]], axis=1) ** 2 * 0.5),
    "indices": lambda x: np.sum(np.take(x, [3, 0, 0], axis=0) * x[[1, 2, 2]]),
    "sums along": lambda x: np.sum(np.cumsum(x, axis=1) * x),
    "selects": lambda x: np.sum(np.where(x > 0, np.exp(x), x * x)) + np.sum(np.clip(x, -0.5, 0.5)),
    "norms": lambda x: np.linalg.norm(x) * np.std(x[0]),
    "an argument": lambda x: np.sum(x * 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_numpy(name):
    x = np.random.default_rng(0).standard_normal((4, 6))
    dx = td.grad(td.Graph(FUNCTIONS[name]), "x")(x)
    assert dx.shape == x.shape
    check_along_a_direction(FUNCTIONS[name], (x,), (dx,))


def loaded(path):
    """The function, the reference and the arguments of a model, with all floats in f64."""
    text, names = path.read_text().partition("\nfor run in")[0], {"__name__": path.stem}
    text = re.sub(r"\b(td\.f|np\.float)(16|32)\b", r"\g<1>64", text)
    exec(compile(text, str(path), "exec"), names)
    function, expected = names.get("block") or names["network"], names["expected"]
    code = expected.__code__
    return function, expected, [names[n] for n in code.co_varnames[: code.co_argcount]]


@pytest.mark.in_part(4)
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_models(path):
    function, expected, arguments = loaded(path)
    names = list(td.Graph(function).function.__code__.co_varnames[: len(arguments)])
    seed = np.random.default_rng(2).uniform(-1, 1, np.shape(expected(*arguments)))
    graph = td.vjp(td.Graph(function), names)
    adjoints = graph(*arguments, seed)
    shapes = [a.shape for a in leaves_of(list(adjoints))]
    assert shapes == [a.shape for a in leaves_of(arguments)]
    # a short step: models have kinks, where relu begins
    check_along_a_direction(expected, tuple(arguments), adjoints, seed, tolerance=1e-5, step=1e-8)


def test_the_structure_of_an_argument_is_kept():
    w = {"layers": [(np.ones((3, 3)), np.zeros(3))], "scale": np.array(2.0)}

    def loss(w, x):
        (a, b), *_ = w["layers"]
        return np.sum((x @ a + b) * w["scale"])

    x = np.arange(6.0).reshape(2, 3)
    value, dw = td.value_and_grad(td.Graph(loss), "w")(w, x)
    assert value == loss(w, x)
    assert list(dw) == ["layers", "scale"]
    np.testing.assert_allclose(dw["layers"][0][0], np.repeat(x.sum(0)[:, None] * 2, 3, 1))
    np.testing.assert_allclose(dw["layers"][0][1], [4, 4, 4])
    np.testing.assert_allclose(dw["scale"], x.sum() * 3)


def test_what_no_result_depends_on_has_zeros():
    dx, dy = td.grad(td.Graph(lambda x, y: np.sum(x)), ["x", "y"])(np.ones(3), np.ones((2, 2)))
    assert dx.tolist() == [1, 1, 1]
    assert dy.tolist() == [[0, 0], [0, 0]]


def test_one_array_as_two_arguments_has_two_adjoints():
    graph = td.grad(td.Graph(lambda x, y: np.sum(x * x * y)), ["x", "y"])
    x = np.array([1.0, 2.0])
    both = td.Graph(lambda a: graph(a, a))
    for dx, dy in (graph(x, x), both(x)):
        np.testing.assert_allclose(dx, 2 * x * x)
        np.testing.assert_allclose(dy, x * x)


def test_a_gradient_is_differentiated_again_and_called_in_a_graph():
    cube = td.Graph(lambda x: np.sum(x**3))
    first = td.grad(cube, "x")
    second = td.grad(td.Graph(lambda x: np.sum(first(x * 2))), "x")
    np.testing.assert_allclose(second(np.array([1.0, -2.0])), [24.0, -48.0])


def test_the_value_and_the_gradient_of_an_operator():
    @td.op
    def distance(x: td.f64["N"], y: td.f64["N"]):
        d = td.Func("d")
        d[()] = td.sum((x[i] - y[i]) ** 2, axis=i)
        return d

    d, dy = td.value_and_grad(distance, "y")(np.ones(2), np.array([2.0, 4.0]))
    assert (d, dy.tolist()) == (10.0, [2.0, 6.0])


def test_steps_of_descent():
    @td.op
    def predict(x: td.f64["T", "K"], w: td.f64["K"]):
        y = td.Func("y")
        y[i] = td.sigmoid(td.sum(x[i, j] * w[j], axis=j))
        return y

    step = td.value_and_grad(td.Graph(lambda w, x, y: np.mean((predict(x, w) - y) ** 2)), "w")
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((50, 4)), np.zeros(4)
    y = (x @ np.array([1.0, -2.0, 0.5, 0.0]) > 0).astype(np.float64)
    losses = []
    for _ in range(30):
        value, dw = step(w, x, y)
        losses.append(value)
        w = w - 2 * dw
    assert losses[-1] < 0.3 * losses[0]
    assert losses == sorted(losses, reverse=True)


def test_parameters_of_rank_0_stay_parameters_when_they_are_floats_of_numpy():
    x = np.arange(4.0)
    graph = td.Graph(lambda w, x: np.mean((w["scale"] * x + w["shift"] - 3 * x - 1) ** 2))
    step, w = td.value_and_grad(graph, "w"), {"scale": np.array(0.0), "shift": np.array(0.0)}
    for _ in range(300):
        _, dw = step(w, x)
        w = {name: w[name] - 0.1 * dw[name] for name in w}
    assert type(w["scale"]) is np.float64
    np.testing.assert_allclose([w["scale"], w["shift"]], [3, 1], 1e-3)
    assert len(step._plans) == 1


def test_threads_that_call_a_new_graph_at_once():
    x = np.arange(24.0).reshape(4, 6)
    for _ in range(3):
        graph, results = td.grad(td.Graph(lambda x: np.sum(x**3)), "x"), []
        threads = [threading.Thread(target=lambda: results.append(graph(x))) for _ in range(4)]  # noqa: B023
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [np.array_equal(r, 3 * x**2) for r in results] == [True] * 4


def test_stopped_gradients_of_operators():
    @td.op
    def half(x: td.f64["N"]):
        y = td.Func("y")
        y[i] = td.stop_gradient(x[i]) * x[i]
        return y

    x = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(td.grad(td.Graph(lambda x: np.sum(half(x))), "x")(x), x)


def test_operators_of_several_results():
    @td.op
    def both(x: td.f64["N"], n: td.i64["N"]):
        y, k, t = td.Func("y"), td.Func("k"), td.Func("t")
        y[i], k[i] = x[i] * x[i], n[i] + 1
        t[i] = (td.exp(x[i]), x[i] * 3)
        return y, k, t

    def loss(x, n):
        y, k, _, second = both(x, n)
        return np.sum(y * k + second)

    x, n = np.array([1.0, 2.0]), np.array([3, 4])
    np.testing.assert_allclose(td.grad(td.Graph(loss), "x")(x, n), 2 * x * (n + 1) + 3)


def test_scheduled_operators():
    a, f = td.Tensor("a", ("N",), td.f64), td.Func("f")
    f[i] = a[i] ** 2
    s = td.Schedule(f)
    s[f].split(i, 4)
    compiled = td.compile(s)
    np.testing.assert_allclose(
        td.grad(td.Graph(lambda a: np.sum(compiled(a))), "a")(np.arange(5.0)), [0, 2, 4, 6, 8]
    )


def test_emulated_on_a_gpu():
    graph = td.Graph(lambda x, w: np.mean(np.tanh(x @ w) ** 2), target="cuda")
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((8, 5), (5, 7)))
    dx, dw = td.grad(graph, ["x", "w"]).emulate(x, w)
    check_along_a_direction(graph.function, (x, w), (dx, dw), tolerance=1e-4)


@pytest.mark.parametrize("extent", [0, 1])
def test_small_extents(extent):
    x = np.ones((extent, 3))
    dx = td.grad(td.Graph(lambda x: np.sum(x[:, 1:] * 2)), "x")(x)
    assert dx.tolist() == [[0, 2, 2]] * extent


def test_the_graph_of_a_gradient_is_pickled():
    graph = pickle.loads(pickle.dumps(td.grad(td.Graph(squares), "x")))
    assert graph(np.arange(3.0)).tolist() == [0, 2, 4]


def squares(x):
    return np.sum(x * x)


def test_refused():
    matrix = np.ones((2, 2))
    graph = td.Graph(lambda x: x * 2)
    with pytest.raises(DefinitionError, match="no parameter 'y'"):
        td.grad(graph, "y")
    with pytest.raises(DefinitionError, match="no parameter None"):
        td.grad(graph, [])
    with pytest.raises(ShapeError, match=r"returns float64\[2, 2\]; td.grad takes a function of one number"):
        td.grad(graph, "x")(matrix)
    with pytest.raises(DefinitionError, match="no derivative by integers"):
        td.grad(td.Graph(lambda x: np.sum(x * 2.0)), "x")(np.ones(3, np.int64))
    with pytest.raises(DefinitionError, match=r"returns int64\[\], which has no derivative"):
        td.grad(td.Graph(lambda x: np.argmax(x)), "x")(matrix)
    with pytest.raises(ShapeError, match=r"result float64\[2, 2\] is float64\[2\]"):
        td.vjp(graph, "x")(matrix, np.ones(2))
    with pytest.raises(TypeMismatch, match="not nested as its results"):
        td.vjp(graph, "x")(matrix, (matrix, matrix))
    with pytest.raises(TypeMismatch, match=r"parameter 'w' of graph 'graph' has the number 0\.5"):
        td.grad(td.Graph(lambda w, x: np.sum(w["s"] * x)), "w")({"s": 0.5}, matrix)
    with pytest.raises(TypeMismatch, match="differentiated by arrays, and no argument is one"):
        td.grad(td.Graph(lambda x: x), "x")("text")
    with pytest.raises(TypeMismatch, match="a gradient is taken of a func, not of function") as caught:
        td.grad(lambda x: x, "x")
    assert "td.Graph(function)" in caught.value.hint
    with pytest.raises(TypeMismatch, match="takes no seed"):
        td.vjp(graph, "x", matrix)
    with pytest.raises(TypeMismatch, match="takes an operator or a graph"):
        td.value_and_grad(td.Func("f"), "x")
