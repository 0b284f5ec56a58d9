"""The recipe for strips: what it finds, what it chooses, and results at every size."""

import numpy as np
import pytest

import tdsl as td
from tdsl.machine.model import Machine

y, x = td.vars("y x")
WIDE = Machine(vector_bytes=64, threads=2)


def blur(*shape):
    edge = td.pad(td.Tensor("image", shape, td.f32), mode="edge")
    rows, out = td.Func("rows"), td.Func("out")
    rows[y, x] = edge[y, x - 1] + edge[y, x] + edge[y, x + 1]
    out[y, x] = rows[y - 1, x] + rows[y, x] + rows[y + 1, x]
    return out


def blurred(a):
    a = np.pad(a, 1, mode="edge")
    rows = a[:, :-2] + a[:, 1:-1] + a[:, 2:]
    return rows[:-2] + rows[1:-1] + rows[2:]


def planes(height, width, levels=11):
    """A picture whose pixels choose one of some levels, blurred lines of which are kept for cells."""
    z = td.vars("z")
    image = td.Tensor("image", (height, width), td.f32)
    table = td.Tensor("table", (levels, height + 2, width // 8 + 1), td.f32)
    line, out = td.Func("line"), td.Func("out")
    line[z, y, x] = table[z, y, x] + table[z, y + 1, x] + table[z, y + 2, x]
    level = td.clip(td.cast(image[y, x], td.i32), 0, levels - 1)
    out[y, x] = line[level, y, x // 8] * 2 + line[level, y, x // 8 + 1]
    return out.with_shape(height, width - 8)


@pytest.mark.parametrize("shape", [(17, 1), (31, 37), (97, 101)])
@pytest.mark.parametrize("height", [1, 16])
def test_any_height_gives_what_numpy_gives(rng, shape, height):
    s = td.Schedule(blur(*shape))
    assert td.recipes.strips(s["out"], machine=WIDE, height=height) is not None
    a = rng.integers(0, 9, shape).astype(np.float32)
    np.testing.assert_array_equal(td.compile(s)(a), blurred(a))


@pytest.mark.parametrize("shape", [(97, 200), (64, 128), (131, 257), (20, 1029)])
@pytest.mark.parametrize("lines", [4, 8])
def test_values_for_several_lines_stay_in_registers(rng, shape, lines):
    s = td.Schedule(blur(*shape))
    plan = td.recipes.strips(s["out"], machine=WIDE, lines=lines)
    assert (plan.lines, plan.vectors) == (lines, 2)
    assert s.state.plan("rows").store is None
    a = rng.integers(0, 9, shape).astype(np.float32)
    np.testing.assert_array_equal(td.compile(s)(a), blurred(a))


def test_expensive_or_wide_values_stay_in_memory():
    a = td.Tensor("a", (500, 500), td.f32)
    for value, reach in (
        (td.exp(td.sin(a[y, x]) / td.cos(a[y, x])), 0),
        (a[y, x] + a[y, x + 1], 1),
    ):
        rows, out = td.Func("rows"), td.Func("out")
        rows[y, x] = value
        out[y, x] = rows[y, x] + rows[y + 1, x] + rows[y + 2, x + reach]
        plan = td.recipes.strips(td.Schedule(out)["out"], machine=WIDE)
        assert plan.lines == 1


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (40, 2), (130, 67)])
def test_the_default_serves_every_size(rng, shape):
    a = rng.integers(0, 9, shape).astype(np.float32)
    f = td.compile(blur("H", "W"))
    np.testing.assert_array_equal(f(a), blurred(a) if a.size else a)


def test_nan_and_infinities_stay_where_they_are(rng):
    a = rng.random((40, 50), dtype=np.float32)
    a[11, 17], a[30, 3] = np.nan, np.inf
    np.testing.assert_allclose(td.compile(blur(40, 50))(a), blurred(a), rtol=1e-6)


def test_nothing_slides_where_lines_share_no_values():
    out, half = td.Func("out"), td.Func("half")
    a = td.Tensor("a", (100, 100), td.f32)
    half[y, x] = td.exp(a[y, x])
    out[y, x] = half[y, x] + half[y, x + 1]
    s = td.Schedule(out)
    with pytest.raises(td.ScheduleError, match="strips is not for"):
        td.recipes.strips(s[out], machine=WIDE)
    assert s.directives == ()


def test_few_lines_are_computed_twice_and_threads_share_evenly():
    plan = td.recipes.strips(td.Schedule(blur(4000, 1000))["out"], machine=WIDE)
    assert (plan.line, plan.inside, plan.height % 8) == ("y", ("rows",), 0)
    assert 1 + 2 / plan.height < 1.1
    small = td.recipes.strips(td.Schedule(blur(100, 1000))["out"], machine=Machine(64, 3))
    assert -(-100 // small.height) % 3 == 0


def test_lines_of_all_planes_share_what_does_not_depend_on_them(rng):
    c = td.vars("c")
    a = td.Tensor("a", (3, 70, 40), td.f32)
    gray, out = td.Func("gray"), td.Func("out")
    gray[y, x] = a[0, y, x] + a[1, y, x] * 2 + a[2, y, x]
    out[c, y, x] = (gray[y, x] + gray[y + 1, x] + gray[y + 2, x]) * a[c, y, x]
    s = td.Schedule(out)
    plan = td.recipes.strips(s[out], machine=WIDE)
    assert (plan.line, plan.outer) == ("y", ())
    image = rng.integers(0, 5, (3, 70, 40)).astype(np.float32)
    g = image[0] + image[1] * 2 + image[2]
    np.testing.assert_array_equal(td.compile(s)(image), (g[:-2] + g[1:-1] + g[2:]) * image[:, :-2])


def test_images_of_a_batch_are_separate(rng):
    n = td.vars("n")
    a = td.Tensor("a", (5, 300, 1001), td.f32)
    rows, out = td.Func("rows"), td.Func("out")
    rows[n, y, x] = a[n, y, x] + a[n, y, x + 1] * 2
    out[n, y, x] = rows[n, y, x] + rows[n, y + 1, x] + rows[n, y + 2, x]
    s = td.Schedule(out)
    plan = td.recipes.strips(s[out], machine=WIDE)
    assert (plan.line, plan.outer, plan.parallel) == ("y", ("n",), "n")
    image = rng.integers(0, 5, (5, 300, 1001)).astype(np.float32)
    r = image[:, :, :-1] + image[:, :, 1:] * 2
    np.testing.assert_array_equal(td.compile(s)(image), r[:, :-2] + r[:, 1:-1] + r[:, 2:])


def test_levels_that_data_chooses_lie_side_by_side(rng):
    func = planes(48, 72)
    s = td.Schedule(func)
    plan = td.recipes.strips(s["out"], machine=WIDE)
    assert plan.lookup_axes == (("line", "z"),)
    image = (rng.random((48, 72)) * 14 - 2).astype(np.float32)
    table = rng.integers(0, 9, (11, 50, 10)).astype(np.float32)
    line = table[:, :-2] + table[:, 1:-1] + table[:, 2:]
    row, column = np.mgrid[0:48, 0:64]
    level = np.clip(image[:, :64].astype(np.int32), 0, 10)
    expected = line[level, row, column // 8] * 2 + line[level, row, column // 8 + 1]
    np.testing.assert_array_equal(td.compile(s)(image=image, table=table), expected)
    np.testing.assert_array_equal(td.compile(func)(image=image, table=table), expected)


def test_only_large_results_of_little_work_are_streamed():
    large = td.recipes.strips(td.Schedule(blur(3000, 2000))["out"], machine=WIDE)
    small = td.recipes.strips(td.Schedule(blur(300, 2000))["out"], machine=WIDE)
    assert (large.stream, small.stream) == (True, False)


def test_updates_that_scatter_share_the_place(rng):
    c = td.vars("c")
    i, j = td.range("i", 0, 8), td.range("j", 0, 8)
    image = td.Tensor("image", (160, 80), td.f32)
    grid, out = td.Func("grid"), td.Func("out")
    z = td.vars("z")
    value = image[y * 8 + i, x * 8 + j]
    grid[c, z, y, x] = td.cast(0, td.f32)
    grid[c, td.clip(td.cast(value, td.i32), 0, 5), y, x] += td.where(c == 0, value, 1)
    out[y, x] = grid[0, 2, y, x] + grid[1, 3, y, x] + grid[1, 2, y + 1, x]
    s = td.Schedule(out)
    plan = td.recipes.strips(s[out], machine=WIDE)
    assert plan is not None
    kinds = [k.kind for k in s.state.plan("grid").nests[1].loops]
    assert kinds[-1] == "unrolled"
    a = rng.integers(0, 6, (160, 80)).astype(np.float32)
    cells = a.reshape(20, 8, 10, 8).transpose(0, 2, 1, 3).reshape(20, 10, 64)
    sums = (cells * (cells == 2)).sum(2)
    expected = sums[:-1] + (cells == 3).sum(2)[:-1] + (cells == 2).sum(2)[1:]
    np.testing.assert_array_equal(td.compile(s)(a), expected.astype(np.float32))


def test_lines_do_not_share_the_sets_of_a_cache():
    s = td.Schedule(blur(64, 1024))
    assert td.recipes.strips(s["out"], machine=WIDE, lines=1) is not None
    assert "alloc(f32, [4, 1040])" in td.compile(s).loops().replace("rows = ", "")


def test_the_part_of_a_long_chain_that_fits_caches_is_fused():
    image = td.Tensor("image", (400, 300), td.f32)
    last = image
    for n in range(40):
        edge = td.pad(last, mode="edge", **({"shape": (400, 300)} if n else {}))
        step = td.Func(f"step{n}")
        step[y, x] = (edge[y - 1, x] + edge[y + 1, x] + edge[y, x - 1] + edge[y, x + 1]) / 4
        last = step
    s = td.Schedule(last.with_shape(400, 300))
    plan = td.recipes.strips(s["step39"], machine=WIDE)
    assert 8 <= len(plan.inside) < 39
