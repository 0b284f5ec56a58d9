"""The schedule of what is left open: it changes no result, and puts loops where they should be."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.by_recipes import Machine
from tdsl.autoschedule.patterns.contraction import tile_shape
from tdsl.schedule.bind import bind_state
from tdsl.schedule.state import At, Root, State
from tdsl.tilegraph.default import complete

WIDE = Machine(vector_bytes=64, threads=2, registers=32)


def completed(func: td.Func, machine: Machine = WIDE, **sizes: int) -> State:
    return complete(bind_state(td.Schedule(func).state, sizes), machine)


def blur(each: Callable[[Any], Any] = lambda v: v) -> td.Func:
    y, x = td.vars("y x")
    edge = td.pad(td.Tensor("image", ("H", "W"), td.f32), mode="edge")
    rows, out = td.Func("rows"), td.Func("blur")
    rows[y, x] = each(edge[y, x - 1] + edge[y, x] + edge[y, x + 1])
    out[y, x] = rows[y - 1, x] + rows[y, x] + rows[y + 1, x]
    return out


def product(names: str = "ij") -> td.Func:
    i, j, k = td.vars("i j k")
    a, b = td.Tensor("a", ("M", "K"), td.f32), td.Tensor("b", ("K", "N"), td.f32)
    c = td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    return c


def rows() -> td.Func:
    i, j = td.vars("i j")
    x = td.Tensor("x", ("R", "C"), td.f32)
    top, e, total, y = (td.Func(n) for n in ("top", "e", "total", "y"))
    top[i] = td.max(x[i, j], axis=j)
    e[i, j] = td.exp(x[i, j] - top[i])
    total[i] = td.sum(e[i, j], axis=j)
    y[i, j] = e[i, j] / total[i]
    return y


def kinds(state: State, func: str, definition: int = 0) -> dict[str, str]:
    return {x.name: x.kind for x in state.plan(func).nests[definition].loops}


def test_a_stencil_of_little_work_keeps_nothing_for_the_next_lines():
    state = completed(blur(), H=1000, W=600)
    place = state.plan("rows").place
    assert isinstance(place, At)
    assert (place.level.func, state.plan("rows").store) == ("blur", None)
    assert {"parallel", "unrolled", "vectorized"} <= set(kinds(state, "blur").values())


def test_an_expensive_stencil_slides_inside_strips():
    state = completed(blur(lambda v: td.exp(td.sin(v) / td.cos(v))), H=1000, W=600)
    place = state.plan("rows").place
    assert isinstance(place, At)
    assert place.level.func == "blur"
    assert state.plan("rows").store is not None
    assert "parallel" in kinds(state, "blur").values()
    assert "vectorized" in kinds(state, "rows").values()


def test_few_values_that_data_chooses_are_computed_where_they_are_read(rng):
    k, y, x = td.vars("k y x")
    a, level = td.Tensor("a", (9, 20, 30), td.f32), td.Tensor("level", (20, 30), td.i32)
    band, out = td.Func("band"), td.Func("out")
    band[k, y, x] = a[k, y, x] * 2 - a[k + 1, y, x]
    at = td.clip(level[y, x], 0, 6)
    out[y, x] = band[at, y, x] + band[at + 1, y, x] * 3
    assert [name for name, _ in completed(out).plans] == ["out"]
    planes = rng.integers(0, 9, (9, 20, 30)).astype(np.float32)
    levels = rng.integers(-2, 9, (20, 30)).astype(np.int32)
    bands = planes[:-1] * 2 - planes[1:]
    low, high = (np.take_along_axis(bands, np.clip(levels, 0, 6)[None] + n, 0)[0] for n in (0, 1))
    np.testing.assert_array_equal(td.compile(out)(a=planes, level=levels), low + high * 3)


def test_what_is_read_within_two_vectors_is_read_by_vectors(rng):
    y, x = td.vars("y x")
    a, twice, other = td.Tensor("a", (40, 52), td.f32), td.Func("twice"), td.Func("other")
    twice[y, x] = a[y // 2, x // 2] * 3 + a[y // 2, x // 2 + x % 2]
    twice, other[y, x] = twice.with_shape(80, 100), a[x % 40, y % 52]
    assert "vectorized" in kinds(completed(twice), "twice").values()
    assert "vectorized" not in kinds(completed(other.with_shape(80, 100)), "other").values()
    image = rng.integers(0, 9, (40, 52)).astype(np.float32)
    rows, column = np.arange(80)[:, None] // 2, np.arange(100)
    expected = image[rows, column // 2] * 3 + image[rows, column // 2 + column % 2]
    np.testing.assert_array_equal(td.compile(twice)(image), expected)


def test_levels_far_down_a_pyramid_are_computed_first():
    y, x = td.vars("y x")
    a = td.Tensor("a", (400, 400), td.f32)
    fine, lines, coarse, out = (td.Func(n) for n in ("fine", "lines", "coarse", "out"))
    fine[y, x] = a[y, x] * a[y, x] + a[y, x]
    lines[y, x] = fine[4 * y, x] + fine[4 * y + 1, x] + fine[4 * y + 2, x]
    coarse[y, x] = lines[y, 4 * x] + lines[y, 4 * x + 1] * 2
    far = coarse[y // 4, x // 4] + coarse[y // 4 + 1, x // 4]
    out[y, x] = far - fine[y, x] - fine[y + 1, x]
    state = completed(out.with_shape(390, 390))
    assert isinstance(state.plan("coarse").place, Root)
    assert isinstance(state.plan("lines").place, At)


def test_rows_are_finished_one_after_the_other():
    state = completed(rows(), R=512, C=1000)
    for name in ("top", "e", "total"):
        place = state.plan(name).place
        assert isinstance(place, At), name
        assert place.level.func == "y"


def test_reductions_along_memory_have_lanes():
    state = completed(rows(), R=512, C=1000)
    names = [f.name for f in state.program.funcs]
    assert any(n.startswith("total_lanes") for n in names)
    assert any(n.startswith("top_lanes") for n in names)


def test_an_update_keeps_its_order():
    i, j = td.vars("i j")
    x, s = td.Tensor("x", ("R", "C"), td.f32), td.Func("s")
    s[i] += x[i, j]
    state = completed(s, R=64, C=1000)
    assert [f.name for f in state.program.funcs] == ["s"]


def test_a_product_accumulates_in_registers():
    state = completed(product(), M=512, N=512, K=512)
    assert [kinds(state, "c")[n] for n in ("i_i", "j_i_v")] == ["unrolled", "vectorized"]
    assert state.plan("c").store is not None


def test_no_vectors_and_no_threads_where_the_target_has_none():
    for func, sizes in ((blur(), {"H": 100, "W": 100}), (product(), {"M": 64, "N": 64, "K": 64})):
        state = completed(func, Machine(), **sizes)
        for name, plan in state.plans:
            assert isinstance(plan.place, Root), name
            assert all(x.kind == "serial" for n in plan.nests for x in n.loops)


def test_mentioned_stages_are_left_alone():
    func = blur()
    s = td.Schedule(func)
    s["rows"].pin()
    state = complete(bind_state(s.state, {"H": 500, "W": 500}), WIDE)
    assert isinstance(state.plan("rows").place, Root)
    assert all(x.kind == "serial" for x in state.plan("rows").nests[0].loops)


def test_cheap_funcs_and_funcs_read_once_are_inlined():
    i = td.vars("i")
    a = td.Tensor("a", ("N",), td.f32)
    cheap, once, out = td.Func("cheap"), td.Func("once"), td.Func("out")
    cheap[i] = a[i] + 1
    once[i] = td.exp(a[i])
    out[i] = cheap[i] * cheap[i + 1] + once[i]
    assert [f.name for f in completed(out, N=100).program.funcs] == ["out"]


def test_a_table_is_not_computed_for_each_look_at_it():
    i, j = td.vars("i j")
    a = td.Tensor("a", ("N",), td.u8)
    table, out = td.Func("table"), td.Func("out")
    table[j] = td.sqrt(td.cast(j, td.f32))
    out[i] = table[td.cast(a[i], td.i64)]
    assert [f.name for f in completed(out, N=1000).program.funcs] == ["table", "out"]
    assert [f.name for f in completed(out, N=100).program.funcs] == ["out"]


def test_what_is_broadcast_is_not_inlined():
    i, j = td.vars("i j")
    a = td.Tensor("a", ("M", "N"), td.f32)
    v = td.Tensor("v", ("M",), td.f32)
    scale, out = td.Func("scale"), td.Func("out")
    scale[i] = td.exp(v[i])
    out[i, j] = a[i, j] * scale[i]
    assert "scale" in [f.name for f in completed(out, M=50, N=60).program.funcs]


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("rows, columns", [(1, 1), (2, 5), (7, 64), (28, 28), (513, 1000)])
def test_tiles_fit_the_registers(rows: int, columns: int, registers: int):
    r, v = tile_shape(rows, columns, 8, registers)
    assert 1 <= r <= max(rows, 1)
    assert r * v + v + 1 <= registers


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 17, 64, 131])
def test_results_do_not_depend_on_the_default(n: int):
    rng = np.random.default_rng(n)
    a, b = rng.random((n, 7), dtype=np.float32), rng.random((7, n), dtype=np.float32)
    c = td.compile(product())
    np.testing.assert_allclose(c(a, b), a.astype(np.float64) @ b, rtol=7 * 2**-23)
    x = rng.random((n, n), dtype=np.float32)
    if n:
        p = np.pad(x, 1, mode="edge").astype(np.float64)
        h = p[:, :-2] + p[:, 1:-1] + p[:, 2:]
        np.testing.assert_allclose(td.compile(blur())(x), h[:-2] + h[1:-1] + h[2:], rtol=9 * 2**-23)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True, initial=-np.inf))
    np.testing.assert_allclose(td.compile(rows())(x), e / e.sum(1, keepdims=True), rtol=(n + 8) * 2**-22)
