"""Products of rows, columns or matrices that data choose, on tensor cores."""

import numpy as np
import pytest

import tdsl as td

b, i, j, k, t = td.vars("b i j k t")
SIZES = [(70, 72, 80), (64, 64, 64), (77, 65, 63), (1, 64, 64), (300, 264, 136)]


def wide(*factors):
    one, other = (td.cast(x, td.f32) for x in factors)
    return one * other


def of_rows(m, n, terms):
    """Rows of `x` at places that are data."""
    x, w, at = arrays(x=(50, terms), w=(terms, n), at=(m,))
    f = td.Func("f")
    f[i, j] = td.sum(wide(x[td.clip(at[i], 0, 49), k], w[k, j]), axis=k)
    return f, lambda x, w, at: x[at] @ w


def of_columns(m, n, terms):
    """The same with `x` transposed: neighbours in memory are chosen."""
    x, w, at = arrays(x=(terms, 50), w=(n, terms), at=(m,))
    f = td.Func("f")
    f[i, j] = td.sum(wide(x[k, td.clip(at[i], 0, 49)], w[j, k]), axis=k)
    return f, lambda x, w, at: x[:, at].T @ w.T


def of_terms(m, n, terms):
    """The terms of `x` at places that are data."""
    x, w, at = arrays(x=(m, 50), w=(terms, n), at=(terms,))
    f = td.Func("f")
    f[i, j] = td.sum(wide(x[i, td.clip(at[k], 0, 49)], w[k, j]), axis=k)
    return f, lambda x, w, at: x[:, at] @ w


def of_experts(m, n, terms):
    """A matrix for each batch, which data choose."""
    x, w, at = arrays(x=(3, m, terms), w=(5, terms, n), at=(3,))
    f = td.Func("f")
    f[b, i, j] = td.sum(wide(x[b, i, k], w[td.clip(at[b], 0, 4), k, j]), axis=k)
    return f, lambda x, w, at: x @ w[at % 5]


def of_neighbours(m, n, terms):
    """A sparse convolution: each point has 3 neighbours, which data choose."""
    x, w, at = arrays(x=(50, terms), w=(3, terms, n), at=(m, 3))
    f = td.Func("f")
    f[i, j] = td.sum(wide(x[td.clip(at[i, t], 0, 49), k], w[t, k, j]), axis=(t, k))
    return f, lambda x, w, at: np.einsum("itk,tkj->ij", x[at], w)


def of_one_array(m, n, terms):
    """Rows of an array that data choose, times all of its rows."""
    x, at = arrays(x=(n, terms), at=(m,))
    f = td.Func("f")
    f[i, j] = td.sum(wide(x[td.clip(at[i], 0, n - 1), k], x[j, k]), axis=k)
    return f, lambda x, at: x[at % n] @ x.T


def arrays(**shapes):
    return [td.Tensor(name, shape, td.i32 if name == "at" else td.f16) for name, shape in shapes.items()]


@pytest.mark.in_part(10)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    "write",
    [of_rows, of_columns, of_terms, of_experts, of_neighbours, of_one_array],
)
def test_gathered_operands_are_multiplied_by_tensor_cores(rng, write, sizes):
    f, expected = write(*sizes)
    compiled = td.compile(f, target="cuda:sm_80")
    shapes = [[e.value for e in a.shape] for a in compiled.signature.inputs]
    values = [
        rng.integers(0, min(50, sizes[1]) if a.dtype == td.i32 else 4, shape).astype(a.dtype.numpy)
        for a, shape in zip(compiled.signature.inputs, shapes, strict=True)
    ]
    if write is of_experts:
        values = [v % 5 if v.dtype == np.int32 else v for v in values]
    named = {a.name: v for a, v in zip(compiled.signature.inputs, values, strict=True)}
    want = expected(**{n: v if v.dtype == np.int32 else v.astype(np.float32) for n, v in named.items()})
    np.testing.assert_array_equal(td.emulate(compiled)(*values), want)
    assert "mma.sync" in compiled.source()


def test_rows_that_data_choose_are_loaded_16_bytes_at_a_time(rng):
    table, at, out = td.Tensor("table", (500, 1024), td.f16), td.Tensor("at", (64,), td.i32), td.Func("out")
    out[i, j] = table[td.clip(at[i], 0, 499), j]
    compiled = td.compile(out, target="cuda:sm_80")
    rows, places = rng.standard_normal((500, 1024)).astype(np.float16), rng.integers(0, 500, 64, np.int32)
    counts = td.count_memory(compiled, rows, places)
    assert {a.site.width for a in counts.accesses if a.site.array in ("table", "out")} == {16}
    assert "tdsl_load<16>" in compiled.source()
    np.testing.assert_array_equal(td.emulate(compiled)(rows, places), rows[places])


def test_factors_whose_elements_choose_others_are_none_of_tensor_cores(rng):
    a, w, f = td.Tensor("a", (32, 32), td.f16), td.Tensor("w", (32, 16), td.f16), td.Func("f")
    f[i, j] = td.sum(wide(a[i, k], w[td.clip(td.cast(a[k, 0], td.i32), 0, 31), j]), axis=k)
    s = td.Schedule(f)
    with pytest.raises(td.ScheduleError, match="elements of its factor 'a' choose which elements of 'w'"):
        td.recipes.tensor_core_matmul(s[f], block=(32, 32, 16), warp=(16, 16))
    one, two = (rng.integers(0, 4, n).astype(np.float16) for n in ((32, 32), (32, 16)))
    want = one.astype(np.float32) @ two[one[:, 0].astype(int)].astype(np.float32)
    np.testing.assert_array_equal(td.emulate(td.compile(f, target="cuda:sm_80"))(one, two), want)
