"""Either operand of a product may be the one that is loaded as vectors."""

import numpy as np
import pytest

import tdsl as td
from tdsl.machine.model import Machine
from tdsl.target import Target

i, j, k = td.vars("i j k")
WIDE = Machine(vector_bytes=64)


def product(
    m: int, n: int, terms: int, *, left: bool = False, right: bool = False, after: bool = False
) -> td.Func:
    """A product of matrices, either of which may be transposed, and perhaps something that reads it."""
    a = td.Tensor("a", (terms, m) if left else (m, terms), td.f32)
    b = td.Tensor("b", (n, terms) if right else (terms, n), td.f32)
    c, d = td.Func("c"), td.Func("d")
    c[i, j] = td.sum((a[k, i] if left else a[i, k]) * (b[j, k] if right else b[k, j]), axis=k)
    d[i, j] = td.maximum(c[i, j], 0) + 1
    return d if after else c


def check(s: td.Schedule, *, left: bool, right: bool, after: bool) -> None:
    rng = np.random.default_rng(0)
    given = [rng.standard_normal([e.value for e in t.shape], np.float32) for t in s.program.inputs]
    a, b = given
    want = (a.T if left else a).astype(np.float64) @ (b.T if right else b)
    want = np.maximum(want, 0) + 1 if after else want
    np.testing.assert_allclose(td.compile(s)(*given), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("along", ["i", "j"])
@pytest.mark.parametrize(
    "size, left, right, after",
    [
        ((13, 7, 11), False, False, False), ((67, 12, 31), False, False, True),
        ((5, 97, 64), False, True, True), ((33, 20, 8), True, False, False),
        ((29, 6, 1), True, True, True),
    ],
)  # fmt: skip
def test_vectors_along_rows_or_columns_give_the_product(
    size: tuple[int, int, int], left: bool, right: bool, after: bool, along: str
) -> None:
    f = product(*size, left=left, right=right, after=after)
    s = td.Schedule(f)
    if size[2] < 8:
        with pytest.raises(td.ScheduleError, match="fewer than 8 terms"):
            td.recipes.matmul(s["c"], along=along)
        return
    td.recipes.matmul(s[f], along=along)
    check(s, left=left, right=right, after=after)


def test_narrow_results_have_vectors_along_their_rows() -> None:
    def lanes(columns: int) -> int:
        s = td.Schedule(product(4096, columns, 64))
        return td.recipes.matmul(s["c"], machine=WIDE).lanes

    assert [lanes(n) for n in (5, 7, 8, 12, 16)] == [16, 16, 8, 8, 16]


def test_short_vectors_take_as_long_as_longer_ones() -> None:
    """Halves of vectors are as good as whole ones, quarters are not."""

    def seconds(lanes: int) -> float:
        x, f = td.Tensor("x", (64, 64), td.f32), td.Func("f")
        f[i, j] = td.sum(x[i, k] * x[k, j], axis=k)
        s = td.Schedule(f)
        s[f].reorder(i, k, j).vectorize(j, lanes)
        (nest,) = s.prediction().times
        return dict(nest.units)["vector"]

    full = Target("cpu").machine().vector_bytes // 4
    assert seconds(full) == seconds(full // 2)
    assert seconds(full // 4) == pytest.approx(2 * seconds(full))
