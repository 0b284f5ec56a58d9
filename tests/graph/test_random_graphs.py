"""Random graphs of operators: whatever is fused, shared or viewed, results are those of the calls."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import tdsl as td
from tdsl.graph.merged_program import merge_graph
from tdsl.lang.interp import interpret

N = 3
Matrix = td.i32[N, N]


@td.op
def product(x: Matrix, y: Matrix):
    i, j, k = td.vars("i j k")
    out = td.Func("out")
    out[i, j] = td.sum(x[i, k] * y[k, j], axis=k, dtype=td.i32)
    return out


@td.op
def low_bits(x: Matrix):
    i, j = td.vars("i j")
    out = td.Func("out")
    out[i, j] = x[i, j] & 15
    return out


@td.op
def blend(x: Matrix, y: Matrix, factor: td.i32):
    i, j = td.vars("i j")
    half, out = td.Func("half"), td.Func("out")
    half[i, j] = x[i, j] * factor
    out[i, j] = half[i, j] - y[i, j]
    return out


@td.op
def split(x: Matrix):
    i, j, k = td.vars("i j k")
    total, rest = td.Func("total"), td.Func("rest")
    total[i] = td.sum(x[i, k], axis=k, dtype=td.i32)
    rest[i, j] = x[i, j] - total[i]
    return rest, total


@td.op
def transposed(x: Matrix):
    i, j = td.vars("i j")
    out = td.Func("out")
    out[i, j] = x[j, i] * 2
    return out


@td.op
def prefix_sums(x: Matrix):
    i, j = td.vars("i j")
    out, step = td.Func("out", shape=(N, N)), td.range("step", 1, N)
    out[i, j] = x[i, j]
    out[step, j] += out[step - 1, j]
    return out


@td.op
def weighted(x: Matrix, w: Matrix):
    """With columns of the weights in other orders than in memory, and sums of them."""
    i, j, k = td.vars("i j k")
    total, out = td.Func("total"), td.Func("out")
    total[j] = td.sum(w[k, j], axis=k, dtype=td.i32)
    out[i, j] = td.sum(x[i, k] * w[k, j], axis=k, dtype=td.i32) & total[j]
    return out


@td.op
def pair(x: Matrix):
    """Two values of one func."""
    i, j = td.vars("i j")
    both = td.Func("both")
    both[i, j] = (x[i, j] + 1, x[i, j] - 1)
    return both


WEIGHTS = np.arange(N * N, dtype=np.int32).reshape(N, N) % 4

STEPS = {
    "constant": lambda x, y: weighted(low_bits(x), WEIGHTS),
    "view of a constant": lambda x, y: weighted(low_bits(x), WEIGHTS.T),
    "product": lambda x, y: product(low_bits(x), low_bits(y)),
    "low": lambda x, y: low_bits(x),
    "blend": lambda x, y: blend(x, y, 3),
    "blend itself": lambda x, y: blend(x, x, -1),
    "rest": lambda x, y: split(x)[0],
    "total": lambda x, y: y - split(x)[1],
    "both": lambda x, y: split(x)[0] + split(y)[1][:, None],
    "turned": lambda x, y: transposed(x),
    "running": lambda x, y: prefix_sums(x),
    "pair": lambda x, y: blend(*pair(x), 2),
    "one of a pair": lambda x, y: pair(x)[1],
    "view": lambda x, y: low_bits(x.T) + y[::-1],
    "copy": lambda x, y: low_bits(x.T.reshape(9).reshape(N, N)),
    "other rows": lambda x, y: transposed(low_bits(x).reshape(9)[::-1].reshape(N, N)),
    "diagonal": lambda x, y: product(x, y.reshape(9)[:: N + 1][:, None] * y),
    "add": lambda x, y: x + y,
    "column": lambda x, y: x - y[:, 1:2],
    "sums": lambda x, y: x - y.sum(axis=1, keepdims=True, dtype=np.int32),
    "largest": lambda x, y: np.minimum(x, y.max(axis=0)) + np.amin(y),
    "chosen": lambda x, y: x[low_bits(y)[0] % N] + y[:, np.argmax(x, axis=1)],
    "running sums": lambda x, y: np.cumsum(low_bits(x), axis=1, dtype=np.int32) - y,
    "traces": lambda x, y: x + np.einsum("ij,ij->i", low_bits(x), low_bits(y)),
}

programs = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=8,
)


outputs = st.lists(st.integers(0, 9), min_size=1, max_size=3)
X, Y = np.arange(9, dtype=np.int32).reshape(N, N), np.eye(N, dtype=np.int32)


def function_of(program, outputs):
    def f(x, y):
        values = [x, y]
        for name, a, b in program:
            values.append(STEPS[name](values[a % len(values)], values[b % len(values)]))
        return tuple(values[-1 - n % len(values)] for n in outputs)

    return f


def assert_same(results, expected):
    for result, expected_result in zip(results, expected, strict=True):
        assert result.dtype == expected_result.dtype
        np.testing.assert_array_equal(result, expected_result)


@given(programs, outputs, st.booleans())
def test_a_graph_equals_its_calls_in_order(program, outputs, fuse):
    f = function_of(program, outputs)
    graph, expected = td.Graph(f, target="python", fuse=fuse), f(X, Y)
    for _ in range(2):
        assert_same(graph(X, Y), expected)


@given(programs, outputs)
def test_a_merged_graph_equals_its_calls(program, outputs):
    f = function_of(program, outputs)
    merged = merge_graph(td.Graph(f).plan(X, Y), (X, Y))
    assert_same(interpret(merged.program, merged.values), f(X, Y))
