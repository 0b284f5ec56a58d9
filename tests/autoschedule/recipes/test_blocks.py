"""Recipes for a GPU, and the default schedule there: right for every size, whatever they choose."""

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.block_tree.tree import BlockTree
from tdsl.autoschedule.block_tree.write_groups import BlockRows
from tdsl.autoschedule.recipes.blocks import on_blocks
from tdsl.autoschedule.recipes.elements import Elements
from tdsl.codegen.gpu.launches import launches_of
from tdsl.lang.interp import interpret
from tests.codegen.cuda.programs import kernel_of

i, j, k, t = td.vars("i j k t")


def agrees(s: td.Schedule, expected: tuple[np.ndarray, ...] | None = None, **arrays) -> None:
    """A schedule gives what is wanted, or else what its program means."""
    got = td.emulate(td.compile(s, target="cuda"))(**arrays)
    for mine, want in zip(
        got if isinstance(got, tuple) else (got,),
        interpret(s.program, arrays) if expected is None else expected,
        strict=True,
    ):
        np.testing.assert_array_equal(mine, want, strict=True)


def whole(rng, *shape, dtype=np.float32):
    """Small whole numbers: their sums are exact in any order."""
    return rng.integers(-3, 4, shape).astype(dtype)


def scaled(shape=("M", "N")):
    a, f = td.Tensor("a", shape, td.f32), td.Func("f")
    f[i, j] = a[i, j] * 2
    return f


def product(dtype=td.f32, batch=False):
    at = (t,) if batch else ()
    sizes = ("T",) if batch else ()
    a, b = td.Tensor("a", (*sizes, "M", "K"), dtype), td.Tensor("b", (*sizes, "K", "N"), dtype)
    c = td.Func("c")
    c[(*at, i, j)] = td.sum(a[(*at, i, k)] * b[(*at, k, j)], axis=k)
    return c


@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (20, 64), (3, 1000)])
@pytest.mark.parametrize("vector", [None, 1, 8])
def test_elements_at_any_size(rng, shape, vector):
    f = scaled()
    s = td.Schedule(f)
    td.recipes.elements(s[f], threads=64, vector=vector)
    agrees(s, a=whole(rng, *shape))


@pytest.mark.parametrize("m, n, vector", [(7, 64, 4), (7, 66, 2), (7, 67, 1), (8, 67, 4), (4, 3, 4)])
def test_elements_are_as_wide_as_the_extents_allow(m, n, vector):
    f = scaled((m, n))
    assert td.recipes.elements(td.Schedule(f)[f]) == Elements(256, vector)


def layered(shape):
    """What all points are made of, beside that of a row and that of a column."""
    a, rows, columns = (
        td.Tensor(n, s, td.f16) for n, s in (("a", shape), ("rows", shape[:1]), ("columns", shape[-1:]))
    )
    f = td.Func("f")
    at = (i, j, k)[: len(shape)]
    f[at] = td.maximum(a[at] * columns[at[-1]] + rows[i], 0)
    return f


@pytest.mark.parametrize("shape", [(16, 3), (40, 33), (6, 8, 5), (70, 8, 3), (3, 4, 66), (5, 40, 1)])
def test_rows_that_follow_each_other_are_read_as_one(rng, shape):
    f = layered(shape)
    s = td.Schedule(f)
    assert td.recipes.elements(s[f]) == Elements(256, 8)
    sizes = {"a": shape, "rows": shape[:1], "columns": shape[-1:]}
    agrees(s, **{name: whole(rng, *n, dtype=np.float16) for name, n in sizes.items()})


def test_strided_rows_are_read_element_by_element(rng):
    """Rows with gaps between them, those of a window, those of columns, and what conditions choose."""
    a, other = td.Tensor("a", (25, 23), td.f32), td.Tensor("b", (25, 23), td.f32)
    part, window, turned, chosen = map(td.Func, ("part", "window", "turned", "chosen"))
    around = td.pad(a)
    part[i, j] = a[i, j + 2] * 2
    window[i, j] = around[i - 1, j] + around[i, j]
    turned[j, i] = a[i, j] + 1
    chosen[i, j] = td.where(j < 2, a[i, j], other[i, j])
    shapes = {part: (24, 21), window: (24, 23), turned: (23, 25), chosen: (24, 23)}
    for f, shape in shapes.items():
        s = td.Schedule(f.with_shape(*shape))
        assert td.recipes.elements(s[f.name]) == Elements(256, 1)
        known = {"a": whole(rng, 25, 23), "b": whole(rng, 25, 23)}
        agrees(s, **{t.name: known[t.name] for t in s.program.inputs})


def test_updates_are_shared_out_one_by_one(rng):
    a, f = td.Tensor("a", ("M", "N"), td.f32), td.Func("f")
    f[i, j] = a[i, j]
    f[i, 0] += 5
    f[0, j] *= 2
    s = td.Schedule(f)
    td.recipes.elements(s[f], threads=32)
    agrees(s, a=whole(rng, 9, 21))


@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (2, 1000), (4, 65)])
def test_sums_of_a_block_at_any_size(rng, shape):
    a, f = td.Tensor("a", ("M", "N"), td.f32), td.Func("f")
    f[i] = td.sum(a[i, k], axis=k)
    s = td.Schedule(f)
    assert td.recipes.block_sums(s[f]).lanes[0].axis == "k"
    agrees(s, a=whole(rng, *shape))


def test_sums_with_several_rows_or_over_two_axes(rng):
    a, best, total = td.Tensor("a", ("M", "N", "P"), td.f32), td.Func("best"), td.Func("total")
    best[i, j] = td.max(a[i, j, k], axis=k)
    total[i] = td.sum(a[i, j, k], axis=(j, k))
    s = td.Schedule(best, total)
    for f in (best, total):
        assert td.recipes.block_sums(s[f]).lanes
    agrees(s, a=whole(rng, 3, 4, 50))


@pytest.mark.parametrize("m, n", [(1, 1), (3, 7), (5, 4000), (40, 1000)])
def test_one_sum_of_everything_takes_many_blocks(rng, m, n):
    a, f = td.Tensor("a", ("M", "N"), td.f32), td.Func("f")
    f[()] = td.sum(a[i, k], axis=(i, k))
    s = td.Schedule(f)
    assert td.recipes.block_sums(s[f]).parts == 0  # as many as a call needs
    given = whole(rng, m, n)
    agrees(s, (np.asarray(given.sum()),), a=given)


@pytest.mark.parametrize("terms", [1 << 18, 262_153])
def test_few_long_rows_take_many_blocks(rng, terms):
    """As many as a matrix of three rows times a vector needs, and the largest of each row and its place."""
    a, x = td.Tensor("a", (3, terms), td.f32), td.Tensor("x", (terms,), td.f32)
    f, g = td.Func("f"), td.Func("g")
    f[i] = td.sum(a[i, k] * x[k], axis=k)
    g[i] = td.argmax(a[i, k], axis=k)
    s = td.Schedule(f, g)
    trees = [on_blocks(s[name]) for name in ("f", "g_argmax")]
    assert all(tree.parts > 1 for tree in trees)
    grids = [launch.grid[0] for launch in launches_of(kernel_of(s)).launches]
    assert sum(n > 3 * min(tree.parts for tree in trees) // 2 for n in grids) == 2
    known_a, known_x = whole(rng, 3, terms), whole(rng, terms)
    agrees(s, (known_a @ known_x, known_a.argmax(axis=1)), a=known_a, x=known_x)


@pytest.mark.parametrize("rows, split", [(3, True), (1000, False)])
def test_long_rows_with_readers_are_split_where_they_are_few(rows, split):
    x, total, y = td.Tensor("x", (rows, 20_000), td.f32), td.Func("total"), td.Func("y")
    total[i] = td.sum(x[i, j], axis=j)
    y[i, j] = x[i, j] / total[i]
    assert (on_blocks(td.Schedule(y)[y]).parts > 1) == split


def test_what_is_no_sum_or_is_ordered_is_left_as_it_is():
    f, g = scaled(), td.Func("g", shape=(8,))
    r = td.range("r", 1, 8)
    g[i] = 1
    g[r] = g[r - 1] * 2
    for func in (f, g):
        s = td.Schedule(func)
        with pytest.raises(td.ScheduleError, match="block_sums is not for"):
            td.recipes.block_sums(s[func])
        with pytest.raises(td.ScheduleError, match="block_tiles is not for"):
            td.recipes.block_tiles(s[func])
        assert not s.directives


@pytest.mark.parametrize("m, n, p", [(1, 1, 1), (32, 16, 64), (33, 17, 65), (70, 40, 20)])
def test_tiles_at_any_size(rng, m, n, p):
    c = product()
    s = td.Schedule(c)
    td.recipes.block_tiles(s[c])
    agrees(s, a=whole(rng, m, n), b=whole(rng, n, p))


def test_tiles_of_batches(rng):
    c = product(td.i32, batch=True)
    s = td.Schedule(c)
    td.recipes.block_tiles(s[c])
    a, b = (whole(rng, *shape, dtype=np.int32) for shape in ((3, 20, 9), (3, 9, 18)))
    agrees(s, a=a, b=b)


def test_more_batches_than_an_axis_has_blocks():
    (a, b), c = (td.Tensor(n, (700_000, 8, 8), td.i8) for n in ("a", "b")), td.Func("c")
    c[t, i, j] = td.sum(a[t, i, k] * b[t, k, j], axis=k)
    s = td.Schedule(c)
    batches = td.recipes.block_tiles(s[c]).cut("t").size
    (launch,) = launches_of(kernel_of(s)).launches
    assert launch.grid[0] % -(-700_000 // batches) == 0 and launch.grid[0] > 65_535


def test_both_orders_of_operands_are_fetched(rng):
    a, b, c = td.Tensor("a", ("K", "M"), td.f32), td.Tensor("b", ("N", "K"), td.f32), td.Func("c")
    c[i, j] = td.sum(a[k, i] * b[j, k] + 1, axis=k)
    s = td.Schedule(c)
    td.recipes.block_tiles(s[c])
    assert {"a_cache", "b_cache"} <= {f.name for f in s.state.program.funcs}
    agrees(s, a=whole(rng, 10, 33), b=whole(rng, 18, 10))


def dense_layer(m="M", n="K", p="N"):
    """A product, and what is made of it alone."""
    a, b = td.Tensor("a", (m, n), td.f32), td.Tensor("b", (n, p), td.f32)
    bias, c, y = td.Tensor("bias", (p,), td.f32), td.Func("c"), td.Func("y")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    y[i, j] = td.maximum(c[i, j] + bias[j], 0)
    return c, y


@pytest.mark.parametrize("parts", [None, 1, 3])
@pytest.mark.parametrize("m, n, p", [(70, 21, 65), (64, 33, 96), (1, 3, 1)])
def test_tiles_with_an_epilogue(rng, parts, m, n, p):
    c, y = dense_layer(m, n, p)
    s = td.Schedule(y)
    plan = td.recipes.block_tiles(s[c], parts=parts)
    assert plan.epilogue == "y" and plan.parts == (parts or 1)
    agrees(s, a=whole(rng, m, n), b=whole(rng, n, p), bias=whole(rng, p))


def test_epilogues_are_computed_in_registers():
    for choices, memory in (({}, 0), ({"parts": 2}, 1)):
        c, y = dense_layer(128, 64, 128)
        s = td.Schedule(y)
        td.recipes.block_tiles(s[c], **choices)
        lines = launches_of(kernel_of(s))
        assert len(lines.temporaries) == memory


def test_terms_are_in_parts_where_tiles_are_few():
    for sizes, is_split in (((128, 16384, 128), True), ((4096, 4096, 4096), False), ((128, 256, 128), False)):
        c, y = dense_layer(*sizes)
        assert (td.recipes.block_tiles(td.Schedule(y)[c]).parts > 1) == is_split


def test_the_default_schedule_makes_a_layer_in_one_kernel(rng):
    _, y = dense_layer(128, 20, 72)
    s = td.Schedule(y)
    assert len(launches_of(kernel_of(s)).launches) == 1
    agrees(s, a=whole(rng, 128, 20), b=whole(rng, 20, 72), bias=whole(rng, 72))


SIZED = {
    "points": (lambda: scaled((30, 40)), Elements),
    "rows": (lambda: td_sum((20, 5000)), BlockRows),
    "many short rows": (lambda: td_sum((30000, 300)), BlockRows),
    "short rows": (lambda: td_sum((20, 30)), BlockRows),
    "rows of one": (lambda: td_sum((20, 1)), Elements),
    "product": (lambda: sized_product(256, 64, 256), BlockTree),
    "narrow product": (lambda: sized_product(256, 64, 8), BlockTree),
}


def td_sum(shape):
    a, f = td.Tensor("a", shape, td.f32), td.Func("f")
    f[i] = td.sum(a[i, k], axis=k)
    return f


def sized_product(m, n, p):
    a, b, c = td.Tensor("a", (m, n), td.f32), td.Tensor("b", (n, p), td.f32), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    return c


@pytest.mark.parametrize("name", SIZED)
def test_the_recipe_that_fits_is_chosen(name):
    program, plan = SIZED[name]
    f = program()
    assert isinstance(on_blocks(td.Schedule(f)[f]), plan)


def test_the_default_schedule_uses_block_recipes(rng):
    a, top, e, total, f = (
        td.Tensor("a", ("M", "N"), td.f32),
        *map(td.Func, ("top", "e", "total", "f")),
    )
    top[i] = td.max(a[i, k], axis=k)
    e[i, j] = (a[i, j] - top[i]) * 2
    total[i] = td.sum(e[i, k], axis=k)
    f[i, j] = e[i, j] - total[i]
    agrees(td.Schedule(f), a=whole(rng, 3, 500))


def test_a_sum_with_a_place_is_not_fused_into_its_reader():
    a, b = td.Tensor("a", (128, 64), td.f32), td.Tensor("b", (64, 128), td.f32)
    c, y = td.Func("c"), td.Func("y")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    y[i, j] = td.exp(c[i, j])
    s = td.Schedule(y)
    assert isinstance(on_blocks(s[y]), BlockTree)  # with the product's kernel
    s = td.Schedule(y)
    s[c].compute_root()
    assert isinstance(on_blocks(s[y]), Elements)
    assert isinstance(on_blocks(s[c]), BlockTree)
