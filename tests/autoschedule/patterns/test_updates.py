"""Default schedules of updates over ranges: triangles, ordered loops, scatters, and interiors."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cpu.runtime import set_num_threads
from tdsl.machine.threads import num_threads

i, j = td.vars("i j")
Program = tuple[td.Func, dict[str, np.ndarray], np.ndarray]
rng = np.random.default_rng(0)


def matrix(name: str, *shape: int) -> td.Tensor:
    return td.Tensor(name, shape, td.f64)


def factors(a: np.ndarray) -> np.ndarray:
    """The factors L, with a unit diagonal, and U of a matrix, in one matrix."""
    w = a.copy()
    for k in range(len(a) - 1):
        w[k + 1 :, k] /= w[k, k]
        w[k + 1 :, k + 1 :] -= np.outer(w[k + 1 :, k], w[k, k + 1 :])
    return w


def lu(n: int, order: str = "rows") -> Program:
    a, w, o = matrix("a", n, n), td.Func("w"), td.Func("o")
    k = td.range("k", 0, n)
    y, x = td.range("y", k + 1, n), td.range("x", k + 1, n)
    w[i, j] = a[i, j]
    if order == "rows":
        w[y, x] -= w[y, k] / w[k, k] * w[k, x]
    else:
        w[y, x] = w[y, x] - w[k, x] * (w[y, k] / w[k, k])
    o[i, j] = td.where(i > j, w[i, j] / w[j, j], w[i, j])
    values = rng.random((n, n)) + n * np.eye(n)
    return o, {"a": values}, factors(values)


def lu_by_columns(n: int) -> Program:
    return lu(n, "columns")


def lu_in_place(n: int) -> Program:
    """The column is divided by the pivot in the update itself."""
    a, w = matrix("a", n, n), td.Func("w")
    k = td.range("k", 0, n)
    y, x = td.range("y", k + 1, n), td.range("x", k, n)
    w[i, j] = a[i, j]
    w[y, x] = td.where(x == k, w[y, k] / w[k, k], w[y, x] - w[y, k] * w[k, x])
    values = rng.random((n, n)) + n * np.eye(n)
    return w, {"a": values}, factors(values)


def cholesky(n: int) -> Program:
    a, w, o = matrix("a", n, n), td.Func("w"), td.Func("o")
    y = td.range("y", 0, n)
    x = td.range("x", 0, y + 1)
    k = td.range("k", 0, x)
    w[i, j] = a[i, j]
    w[y, x] -= w[y, k] * w[x, k] / w[k, k]
    o[i, j] = td.where(i >= j, w[i, j] / td.sqrt(w[j, j]), 0.0)
    values = rng.random((n, n))
    values = values @ values.T + n * np.eye(n)
    return o, {"a": values}, np.linalg.cholesky(values)


def trisolv(n: int) -> Program:
    a, b, w = matrix("a", n, n), matrix("b", n), td.Func("w")
    y = td.range("y", 1, n)
    k = td.range("k", 0, y)
    w[i] = b[i]
    w[y] -= a[y, k] * w[k]
    left = np.tril(rng.random((n, n)), -1) / n
    right = rng.random(n)
    return w, {"a": left, "b": right}, np.linalg.solve(left + np.eye(n), right)


def backward(n: int) -> Program:
    """An upper triangle, from the last row to the first."""
    a, b, w = matrix("a", n, n), matrix("b", n), td.Func("w")
    y = td.range("y", 1, n)
    k = td.range("k", n - y, n)
    w[i] = b[i]
    w[n - 1 - y] -= a[n - 1 - y, k] * w[k]
    right_of = np.triu(rng.random((n, n)), 1) / n
    right = rng.random(n)
    return w, {"a": right_of, "b": right}, np.linalg.solve(right_of + np.eye(n), right)


def syrk(n: int) -> Program:
    a, c, w = matrix("a", n, 40), matrix("c", n, n), td.Func("w")
    y, k = td.range("y", 0, n), td.range("k", 0, 40)
    x = td.range("x", 0, y + 1)
    w[i, j] = c[i, j]
    w[y, x] = w[y, x] * 1.5
    w[y, x] += 2.5 * a[y, k] * a[x, k]
    left, start = rng.random((n, 40)), rng.random((n, n))
    full = 1.5 * start + 2.5 * left @ left.T
    return w, {"a": left, "c": start}, np.where(np.tril(np.ones((n, n))) > 0, full, start)


def interior(n: int) -> Program:
    a, b, o = matrix("a", n, n), matrix("b", n, n), td.Func("o")
    y, x = td.range("y", 1, n - 1), td.range("x", 1, n - 1)
    o[i, j] = b[i, j]
    o[y, x] = 0.2 * (a[y, x] + a[y, x - 1] + a[y, x + 1] + a[y + 1, x] + a[y - 1, x])
    left, right = rng.random((n, n)), rng.random((n, n))
    inner = left[1:-1, 1:-1] + left[1:-1, :-2] + left[1:-1, 2:] + left[2:, 1:-1] + left[:-2, 1:-1]
    want = right.copy()
    want[1:-1, 1:-1] = 0.2 * inner
    return o, {"a": left, "b": right}, want


def shifted(n: int) -> Program:
    """Two updates of most points: some columns in reverse order, then all rows but two."""
    a, o = matrix("a", n, n), td.Func("o")
    x, y = td.range("x", 0, n - 1), td.range("y", 1, n - 1)
    o[i, j] = a[i, j] * 2
    o[i, n - 1 - x] += a[i, x]
    o[y, j] = o[y, j] * 3 + a[y + 1, j]
    values = rng.random((n, n))
    want = values * 2
    want[:, 1:] += values[:, :-1][:, ::-1]
    want[1:-1] = want[1:-1] * 3 + values[2:]
    return o, {"a": values}, want


def pairs(n: int) -> Program:
    """An update of a func of two values."""
    a, f, o = matrix("a", n, n), td.Func("f"), td.Func("o")
    y = td.range("y", 1, n)
    f[i, j] = (a[i, j], a[i, j] * 2)
    f[y, j] = (f[y, j][1], a[y - 1, j] - f[y, j][0])
    o[i, j] = f[i, j][0] - f[i, j][1]
    values = rng.random((n, n))
    want = -values
    want[1:] = 3 * values[1:] - values[:-1]
    return o, {"a": values}, want


def averages(n: int) -> Program:
    """The mean of the values in each bin, by two histograms."""
    w, at = td.Tensor("w", (n * n,), td.f64), td.Tensor("at", (n * n,), td.i32)
    total, count, o = td.Func("total"), td.Func("count"), td.Func("o", shape=(50,))
    place = td.clip(at[i], 0, 49)
    total[j] = td.cast(0, td.f64)
    total[place] += w[i]
    count[j] = td.cast(0, td.i64)
    count[place] += 1
    o[j] = total[j] / td.maximum(count[j], 1)
    values, places = rng.random(n * n), rng.integers(0, 50, n * n, dtype=np.int32)
    sums, counts = np.bincount(places, values, 50), np.bincount(places, minlength=50)
    return o, {"w": values, "at": places}, sums / np.maximum(counts, 1)


def floyd(n: int) -> Program:
    a, w, k = matrix("a", n, n), td.Func("w"), td.range("k", 0, n)
    w[i, j] = a[i, j]
    w[i, j] = td.minimum(w[i, j], w[i, k] + w[k, j])
    values = rng.random((n, n))
    want = values.copy()
    for m in range(n):
        want = np.minimum(want, want[:, m, None] + want[None, m])
    return w, {"a": values}, want


PROGRAMS = [
    lu,
    lu_by_columns,
    lu_in_place,
    cholesky,
    trisolv,
    backward,
    syrk,
    interior,
    shifted,
    pairs,
    averages,
    floyd,
]


VECTORS = [lu, lu_by_columns, lu_in_place, cholesky, trisolv, backward, syrk, interior, floyd]


@pytest.fixture
def restored() -> Iterator[None]:
    before = num_threads()
    yield
    set_num_threads(before)


@pytest.mark.parametrize("n", [1, 2, 5, 37, 130])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_updates_give_the_values_of_numpy_with_any_number_of_threads(
    program: Callable[[int], Program], n: int, restored: None
) -> None:
    if n < 3:
        n += 2
    f, values, want = program(n)
    compiled, results = td.compile(f), []
    for count in (1, 2, 3, 8):
        set_num_threads(count)
        results.append(compiled(**values))
    np.testing.assert_allclose(results[0], want, 1e-9, 1e-9)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize("program", VECTORS)
def test_updates_have_vectors(program: Callable[[int], Program]) -> None:
    f, values, _ = program(130)
    compiled = td.compile(f)
    compiled(**values)
    decided = compiled.explain().splitlines()[1]
    assert all("vectorized" in loops for loops in decided.split(";")[-1:])
    lanes = program in (cholesky, trisolv, backward, syrk)
    assert ("w_lanes" in compiled.loops("final")) == lanes


def test_an_interior_is_computed_with_its_edges() -> None:
    f, values, _ = interior(130)
    compiled = td.compile(f)
    compiled(**values)
    assert compiled.loops().count("# parallel") == 1


def test_threads_share_rows_of_a_triangle() -> None:
    f, values, _ = syrk(300)
    compiled = td.compile(f)
    compiled(**values)
    assert "loops y (parallel) > x > k_o > k_v (vectorized)" in compiled.explain()


def test_a_stage_with_directives_keeps_the_order_of_its_terms() -> None:
    f, values, want = trisolv(130)
    s = td.Schedule(f)
    s[f].update(0).serial("k")
    compiled = td.compile(s)
    np.testing.assert_allclose(compiled(**values), want, 1e-12)
    assert "lanes" not in compiled.loops("final")
