"""Values of one reduction that do not differ along a variable are kept once for all of it."""

import numpy as np
import pytest

import tdsl as td

i, j, e = td.vars("i j e")


def weighted(rows=6, terms=20, columns=5):
    """softmax(x) @ v in one pass: maximum, sum of weights and weighted sums, for each row and column."""
    x, v = td.Tensor("x", (rows, terms), td.f64), td.Tensor("v", (terms, columns), td.f64)
    top, p, total, out = (td.Func(n) for n in ("top", "p", "total", "out"))
    top[i] = td.max(x[i, j], axis=j)
    p[i, j] = td.exp(x[i, j] - top[i])
    total[i] = td.sum(p[i, j], axis=j)
    out[i, e] = td.sum(p[i, j] * v[j, e], axis=j) / total[i]
    s = td.Schedule(out)
    running = s["out_sum"].online(j, 8)
    s["out_sum"].inline()
    for name in ("p", "top_tile", "total_tile", "out_sum_tile"):
        s[name].compute_at(running, "j_o")
    return s, running


def check(s):
    rng = np.random.default_rng(0)
    x, v = rng.standard_normal((6, 20)), rng.standard_normal((20, 5))
    w = np.exp(x - x.max(1, keepdims=True))
    want = w @ v / w.sum(1, keepdims=True)
    np.testing.assert_allclose(td.compile(s, target="python")(x, v), want)
    return td.compile(s, target="python").loops()


def memory_of(loops, name):
    """The extents of the memory of a value."""
    line = next(x for x in loops.splitlines() if x.strip().startswith(f"{name} = alloc"))
    return line.partition("[")[2].partition("]")[0]


def test_values_constant_along_columns_are_stored_once():
    s, running = weighted()
    running.compute_at(s["out"], i).reorder("i", "j_o", "e")
    loops = check(s)
    assert [memory_of(loops, f"out_sum_online_{n}") for n in range(3)] == ["1, 1", "1, 5", "1, 1"]
    assert loops.count("out_sum_online_0[0, 0] = ") == 2  # the start, and once a tile


def test_columns_in_tiles_and_tails():
    s, running = weighted()
    running.compute_at(s["out"], i).reorder("i", "j_o", "e")
    running.split("e", 3)
    s["out_sum_tile"].compute_at(running, "e_o")
    assert memory_of(check(s), "out_sum_online_0") == "1, 1"


@pytest.mark.parametrize("order", [("e", "i", "j_o"), ("i", "e", "j_o")])
def test_columns_outside_of_the_terms_keep_all(order):
    s, running = weighted()
    running.reorder(*order)
    assert memory_of(check(s), "out_sum_online_0") == "6, 5"
