"""Programs rewritten by merge_products, add_first and clone_in compute what they did before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret

b, i, j, k, l, n = td.vars("b i j k l n")
SIZES = [(0, 3, 4), (1, 1, 1), (3, 0, 2), (4, 5, 0), (5, 7, 3)]
Size = tuple[int, int, int]


def products(size: Size, t: td.DType) -> td.Schedule:
    """Two products of x, whose other operands lie in two orders, and whose results are multiplied."""
    rows, terms, columns = size
    x, W = td.Tensor("x", (rows, terms), t), td.Tensor("W", (terms, columns), t)
    V, y, z, out = td.Tensor("V", (columns, terms), t), td.Func("y"), td.Func("z"), td.Func("out")
    y[i, j] = td.sum(x[i, k] * W[k, j], axis=k, dtype=t)
    z[n, i] = td.sum(V[n, j] * x[i, j], axis=j, dtype=t)
    out[i, j] = y[i, j] * z[j, i]
    return td.Schedule(out)


def heads(size: Size, t: td.DType) -> td.Schedule:
    """Projections of an input to queries, keys and values of heads, of which two are outputs."""
    rows, terms, columns = size
    x = td.Tensor("x", (2, rows, terms), t)
    funcs = [td.Func(name) for name in ("q", "key", "v")]
    for f in funcs:
        W = td.Tensor(f"W_{f.name}", (terms, 2, columns), t)
        f[b, i, l, j] = td.sum(x[b, i, k] * W[k, l, j], axis=k, dtype=t)
    return td.Schedule(*funcs)


def stencils(size: Size, t: td.DType) -> td.Schedule:
    """Correlations of a padded row with two filters, one of an expression."""
    rows, terms, _ = size
    x = td.pad(td.Tensor("x", (rows,), t), mode="constant")
    W, V = td.Tensor("W", (terms,), t), td.Tensor("V", (terms,), t)
    y, z, out = td.Func("y", shape=(rows,)), td.Func("z", shape=(rows,)), td.Func("out")
    y[i] = td.sum(x[i + k] * (W[k] + 1), axis=k, dtype=t)
    z[j] = td.sum(V[n] * x[j + n], axis=n, dtype=t)
    out[i] = y[i] - z[i]
    return td.Schedule(out)


def residual(size: Size, t: td.DType) -> td.Schedule:
    """Row sums that are added to other values inside a maximum."""
    rows, terms, _ = size
    x, p, q, out = td.Tensor("x", (rows, terms), t), td.Func("p"), td.Func("q"), td.Func("out")
    p[i] = td.sum(x[i, k], axis=k, dtype=t)
    q[i] = td.sum(x[i, k] * x[i, k], axis=k, dtype=t)
    out[i, j] = td.maximum(x[i, j] - p[i] + 1 - 2 * q[i], 0) * x[i, j]
    return td.Schedule(out)


def shares(size: Size, t: td.DType) -> td.Schedule:
    """Values that are summed and read again."""
    rows, terms, _ = size
    x, g, total, out = td.Tensor("x", (rows, terms), t), td.Func("g"), td.Func("total"), td.Func("out")
    g[i, k] = x[i, k] * x[i, k] + i
    total[i] = td.sum(g[i, k], axis=k, dtype=t)
    out[i, k] = g[i, k] * total[i]
    return td.Schedule(out)


def scans(size: Size, t: td.DType) -> td.Schedule:
    """A func with an update that reads itself."""
    rows, terms, _ = size
    x, r = td.Tensor("x", (rows + 1, terms), t), td.range("r", 1, rows + 1)
    run, last, out = td.Func("run", shape=(rows + 1, terms)), td.Func("last"), td.Func("out")
    run[i, k] = x[i, k]
    run[r, k] += run[r - 1, k]
    last[k] = run[rows, k]
    out[i, k] = run[i, k] - last[k]
    return td.Schedule(out)


CASES: dict[str, tuple[Callable[[Size, td.DType], td.Schedule], Callable[[td.Schedule], object]]] = {
    "products": (products, lambda s: s["y"].merge_products("z")),
    "from the other": (products, lambda s: s["z"].merge_products(["y"])),
    "heads": (heads, lambda s: s["q"].merge_products(("key", "v"))),
    "stencils": (stencils, lambda s: s["y"].merge_products("z")),
    "residual": (residual, lambda s: s["out"].add_first(("p", "q"))),
    "shares": (shares, lambda s: s["g"].clone_in("out")),
    "all readers": (shares, lambda s: s["g"].clone_in(("total", "out"))),
    "scans": (scans, lambda s: s["run"].clone_in("out")),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", SIZES)
def test_results_are_those_of_the_interpreter(case, size):
    program, rewrite = CASES[case]
    s = program(size, td.i32)
    rewrite(s)
    rng = np.random.default_rng(0)
    arrays = {
        t.name: rng.integers(-9, 9, [e.value for e in t.shape]).astype(np.int32) for t in s.program.inputs
    }
    compiled = td.compile(s, target="cpu" if size == SIZES[-1] else "python")(**arrays)
    compiled = compiled if isinstance(compiled, tuple) else (compiled,)
    for got, wanted in zip(compiled, interpret(s.program, arrays), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("case", CASES)
def test_printed_rewrites_replay(case):
    program, rewrite = CASES[case]
    s = program((5, 7, 3), td.f32)
    rewrite(s)
    again = program((5, 7, 3), td.f32)
    exec(str(s), {"s": again, "td": td})
    assert again.state.program == s.state.program


def test_narrow_operands_are_stacked_as_they_are_stored():
    x, W, V = (td.Tensor(name, (4, 4), td.f16) for name in "xWV")
    y, z = td.Func("y"), td.Func("z")
    for f, operand in ((y, W), (z, V)):
        f[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(operand[k, j], td.f32), axis=k)
    s = td.Schedule(y, z)
    s["y"].merge_products("z", name="both")
    assert s.state.program.func("W_stack").dtypes == (td.f16,)
    assert s.state.program.func("both").variables == ("i", "n", "j")


def test_terms_have_only_the_dimensions_that_they_depend_on():
    s = residual((5, 7, 3), td.f32)
    assert s["out"].add_first(("p", "q")).func == "out_terms"
    assert s.state.program.func("out_terms").variables == ("i",)
