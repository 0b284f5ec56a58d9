"""Functions of graphs that write to arrays, as NumPy lets them: results and changed arguments are NumPy's."""

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import DefinitionError, IndexBoundError, RequireError, ShapeError, TypeMismatch

GLOBAL = np.zeros(3)


def assign(x, index, value):
    x[index] = value
    return x


def rows(x):
    out = np.zeros((x.shape[0], 2), x.dtype)
    for i in range(x.shape[0]):
        out[i] = x[i, :2] * i
    return out, x


def numbers(x):
    total, first = np.zeros(3, np.float64), x[0, 0]
    x[0, 0] = 7  # `first` is a number: it keeps its value
    if total[0] == 0:  # known
        total[0] = first
    total[1] += x.sum()
    return total


def chained(x):
    view = x.T[1:]
    x[1] = view[:2, 0].sum()
    view[0, ::2] *= 2
    copy = x.copy()
    x[:] = 0
    return view, copy


def with_out(x):
    y = np.empty_like(x)
    np.multiply(x, 2, out=y)
    np.add(y, x, out=y)
    np.sum(x, axis=0, out=y[1])
    np.copyto(y[2:], x[:1])
    x.fill(3)
    return y


def by_mask(x):
    chosen = x[x > 0]
    x[x < 0] = 9
    x[x == 2] += 1
    x[:, 0][x[:, 0] > 3] = x[0, 1]
    x[x[:, 1] > 1] = x[1]
    x[x > 4] = x[x > 4] * 2 - 1  # two masks of the same calls
    x[np.arange(3) > 1] = x[:1] + 1  # a mask that is known
    return chosen.sum(), chosen.max(), (chosen * 2 - 1).mean(), np.std(chosen), x[x[:, 2] > 1].sum(axis=0)


def by_numbers(x):
    x[[0, 0, 2], [1, 1, 3]] = np.array([5.0, 6.0, 7.0])
    x[:, [0, -1]] += 1
    np.fill_diagonal(x, x[0, 1])
    np.diagonal(x).copy()
    x.reshape(-1)[3:7] = x[2]
    return x.sum()


def swapped(x):
    x[[0, 1]] = x[[1, 0]]
    x[1:, ::-2] = x[:2, :2]
    x[...], x[2, 1:2] = x * 2, 1


def created(x):
    weights = np.linspace(0, 1, x.shape[1]) * 2
    weights[1] = weights[0] + 3
    table = np.array([[x[0, 0], 1.0], [2.0, x[1, 1]]])
    grid, _ = np.meshgrid(np.arange(3), np.arange(2))
    if isinstance(x, np.ndarray) and issubclass(type(x), np.ndarray):
        column = np.ndarray((2, 1), dtype=x.dtype)
        column[...] = x[:2, :1]
        grid = grid + column
    values, vectors = np.linalg.eigh(np.array([[2.0, 0.0], [0.0, 1.0]]))
    vectors[0] = values * x[0, 0]
    shift = np.asarray(GLOBAL)[:1] + 1
    return x @ weights + shift, table, grid, np.asarray(x).shape, isinstance(weights.tolist(), list), vectors


CASES = {
    f.__name__: f
    for f in (rows, numbers, chained, with_out, by_mask, by_numbers, swapped, created)
} | {
    "element": lambda x: assign(x, (1, -1), 5),
    "row": lambda x: assign(x, 1, x[0] + 1),
    "column of a number": lambda x: assign(x, (slice(None), 2), x[0, 0]),
    "every second, reversed": lambda x: assign(x, (slice(None, None, -2), slice(1, None, 2)), x[:2, :2]),
    "all": lambda x: assign(x, ..., x[::-1]),
    "a list": lambda x: assign(x, 0, [1, x[1, 1], 3, 4]),
    "nothing": lambda x: assign(x, slice(2, 2), 8),
    "with a new axis": lambda x: assign(x, (0, None), x[1:2]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["f8", "i4"])
@pytest.mark.parametrize("name", CASES)
def test_writes_are_those_of_numpy(name, dtype):
    expected_x = np.array([[3, -1, 1, 5], [-4, 2, 2, -3], [1, 2, -2, 4]], dtype)
    x = expected_x.copy()
    with np.errstate(all="ignore"):
        expected = CASES[name](expected_x)
    result = td.Graph(CASES[name])(x)
    np.testing.assert_array_equal(x, expected_x)
    if expected is expected_x:
        assert result is x or name == "nothing"
        expected, result = expected_x, x
    if expected is None:
        assert result is None
        return
    for want, have in zip(*(r if isinstance(r, tuple) else (r,) for r in (expected, result)), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-12)
        assert getattr(have, "dtype", None) == getattr(want, "dtype", None)


def test_a_program_of_time_steps_compiles_each_kernel_once():
    def steps(a, b, count):
        for _ in range(count):
            b[1:-1] = (a[:-2] + a[1:-1] + a[2:]) / 3
            a[1:-1] = (b[:-2] + b[1:-1] + b[2:]) / 3

    a, b = np.arange(9.0) ** 2, np.ones(9)
    expected_a, expected_b = a.copy(), b.copy()
    graph = td.Graph(steps)
    assert graph(a, b, 5) is None
    steps(expected_a, expected_b, 5)
    np.testing.assert_allclose(a, expected_a)
    np.testing.assert_allclose(b, expected_b)
    kernels = {id(step.kernel) for step in graph.plan(a, b, 5).steps}
    assert len(kernels) == 2
    assert graph(a, b, 5) is None  # the plan, called again
    steps(expected_a, expected_b, 5)
    np.testing.assert_allclose(a, expected_a)


def test_writes_of_all_rows_are_one_kernel():
    def running(x):
        for i in range(1, len(x)):
            x[i] += x[i - 1]
        return x

    x = np.ones((6, 3))
    graph = td.Graph(running)
    np.testing.assert_array_equal(graph(x), np.cumsum(np.ones((6, 3)), 0))
    assert len({id(s.kernel) for s in graph.plan(x).steps if s.program.name == "write"}) == 1


def test_writes_to_created_arrays_have_gradients():
    def loss(x):
        y = np.zeros_like(x)
        y[0] = x[0]
        for i in range(1, len(x)):
            y[i] = y[i - 1] * x[i]
        return y.sum()

    x = np.array([2.0, 3.0, 5.0])
    np.testing.assert_allclose(td.grad(td.Graph(loss), "x")(x), [1 + 3 + 15, 2 + 10, 6])
    with pytest.raises(DefinitionError, match="writes to its arguments, and is not differentiated"):
        td.grad(td.Graph(lambda x: assign(x, 0, 1).sum()), "x")(x)


def test_an_extremum_of_no_elements_is_an_error_of_the_call():
    with pytest.raises(RequireError, match="maximum which has no identity"):
        td.Graph(lambda x: x[x > 5].max())(np.ones(4))


@pytest.mark.parametrize(
    "function, error, message",
    [
        (lambda x: assign(x, 9, 1), ShapeError, "no such view"),
        (lambda x: assign(x, 0, x), ShapeError, r"could not broadcast input array from shape \(3, 4\) into"),
        (lambda x: assign(x, x > 0, x[0, :2]), ShapeError, "elements at a mask are written as many"),
        (lambda x: assign(x, x > 0, x[x > 1]), ShapeError, "elements at a mask are written as many"),
        (lambda x: assign(x, x[:2] > 0, 1), IndexBoundError, "boolean index did not match"),
        (lambda x: assign(x, x[0].astype(int), 1), TypeMismatch, "indices that are the same in every call"),
        (lambda x: x.astype(int).__iadd__(0.5), TypeMismatch, "float64 is not written to an array of type"),
        (lambda x: assign(GLOBAL, 0, x[0, 0]), DefinitionError, "(?s)has no values.*created in the function"),
        (lambda x: x[: x[0, 0].astype(int)], DefinitionError, "has no values"),
        (lambda x: x[x > 0], TypeMismatch, "index of type bool"),
        (lambda x: x[x > 0] + x[0], TypeMismatch, "index of type bool"),
        (lambda x: x[x > 0].sum(axis=1), TypeMismatch, "index of type bool"),
    ],
)  # fmt: skip
def test_other_writes_are_refused_at_their_line(function, error, message):
    with pytest.raises(error, match=message) as caught:
        td.Graph(function)(np.ones((3, 4)))
    assert "test_writes.py" in str(caught.value)


def test_arguments_that_cannot_be_written_are_refused():
    graph, x = td.Graph(lambda x, y: assign(x, 0, y)), np.ones(3)
    frozen = x.copy()
    frozen.flags.writeable = False
    with pytest.raises(TypeMismatch, match="writes to x, which is read-only"):
        graph(frozen, np.ones(()))
    both = td.Graph(lambda x, y: assign(x, ..., y))
    with pytest.raises(TypeMismatch, match="writes to x, which shares memory with y"):
        both(x, x)
    with pytest.raises(TypeMismatch, match="its calls take no out="):
        both(x, x.copy(), out=x)
    with pytest.raises(td.TargetError, match="for a GPU writes to its argument x"):
        td.Graph(lambda x: assign(x, 0, 1), target="cuda").plan(td.f32[8])
