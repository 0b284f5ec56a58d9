"""The loops of a schedule as nested tiles, a line for each nest."""

from __future__ import annotations

import tdsl as td

i, j, k = td.vars("i j k")


def product() -> td.Func:
    a, b, c = td.Tensor("a", (64, 64), td.f32), td.Tensor("b", (64, 64), td.f32), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    return c


def test_what_is_computed_in_a_loop_is_below_it():
    c = product()
    s = td.Schedule(c)
    s[c].split(i, 16)
    s.cache_write(c, "i_o")
    s[c].parallel("i_o").pin()
    first, second = str(s.tree()).splitlines()
    assert first.startswith("c: i:16* ")
    assert second.startswith("  in i:16*: c_out: ")


def test_updates_have_lines_of_their_own():
    a, f, r = td.Tensor("a", (64, 64), td.f32), td.Func("f", shape=(64, 64)), td.range("r", 1, 64)
    f[i, j] = a[i, j]
    f[r, j] = f[r - 1, j] * 0.5 + a[r, j]
    s = td.Schedule(f)
    s[f].serial(i).serial(j)
    s[f].update(0).serial(r).serial(j)
    assert str(s.tree()).splitlines() == ["f: i j", "f.update(0): j r"]


def test_axes_of_a_launch_are_named():
    c = product()
    s = td.Schedule(c, target="cuda")
    io, jo, ii, ji = s[c].tile((i, j), (8, 8))
    s[c].bind(io, "blockIdx.y").bind(jo, "blockIdx.x").bind(ii, "threadIdx.y").bind(ji, "threadIdx.x")
    names = "i:8@blockIdx.y j:8@blockIdx.x i@threadIdx.y j@threadIdx.x k"
    assert str(s.tree()) == f"c: {names}"


def test_the_tree_of_a_default_is_that_of_its_directives():
    x, t = td.Tensor("x", (2048, 2048), td.f32), td.Func("t")
    t[j, i] = x[i, j]
    s = td.Schedule(t)
    assert s.tree() == s.completed().tree()
