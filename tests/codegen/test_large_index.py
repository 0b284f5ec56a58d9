"""Index products beyond 2^31 elements and bytes: few pages of a sparse file are touched."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tdsl as td

SIDE = (1 << 16) + 1  # SIDE * SIDE > 2^32


@pytest.fixture
def sparse(tmp_path: Path) -> Iterator[np.memmap]:
    """A square byte matrix of 4 GiB on disk, nearly all of it holes."""
    path = tmp_path / "sparse"
    array = np.memmap(path, dtype=np.uint8, mode="w+", shape=(SIDE, SIDE))
    yield array
    del array
    path.unlink()


def test_a_far_element_is_read(sparse):
    sparse[SIDE - 1, SIDE - 1], sparse[0, SIDE - 1], sparse[SIDE - 1, 0] = 7, 3, 2
    i = td.vars("i")
    q, f = td.Tensor("q", ("N", "M"), td.u8), td.Func("f", shape=(2,))
    last = SIDE - 1
    f[i] = td.cast(q[i * last, last], td.i32) * 10 + q[last, i * last]
    np.testing.assert_array_equal(td.compile(f)(sparse), [32, 77])


def test_a_far_element_is_written(sparse):
    i, j = td.vars("i j")
    v, f = td.Tensor("v", ("N", 1), td.u8), td.Func("f")
    f[i, j] = v[i, j] + 1
    # a column of the matrix, from its end to its start: strides of 2^16 + 1, products beyond 2^32
    column = sparse[::-1, SIDE - 1 :]
    rows = 1 << 10
    stepped = column[:: SIDE // rows]
    values = np.arange(len(stepped), dtype=np.uint8).reshape(-1, 1)
    td.compile(f)(values, out=stepped)
    np.testing.assert_array_equal(stepped, values + 1)
    assert sparse[SIDE - 1, SIDE - 1] == 1


def test_a_gather_reaches_beyond_two_to_the_31(sparse):
    flat = sparse.reshape(-1)
    far = np.array([0, (1 << 31) + 5, flat.size - 1], np.int64)
    flat[far] = (1, 2, 3)
    i = td.vars("i")
    data, at = td.Tensor("data", ("N",), td.u8), td.Tensor("at", ("K",), td.i64)
    f = td.Func("f")
    f[i] = data[td.clip(at[i], 0, data.shape[0] - 1)]
    for lanes in (None, 8):
        s = td.Schedule(f)
        if lanes:
            s[f].vectorize(i, lanes)
        np.testing.assert_array_equal(td.compile(s)(flat, far), [1, 2, 3])
