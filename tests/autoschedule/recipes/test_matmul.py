"""The recipe for sums of products: every shape and layout gives what NumPy gives."""

from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.patterns.contraction import tile_shape
from tdsl.machine.model import Machine
from tdsl.tilegraph.default import complete

i, j, k, n = td.vars("i j k n")
WIDE = Machine(vector_bytes=64, threads=2, registers=32)


def product(dtype=td.f32, a_turned=False, b_turned=False):
    a = td.Tensor("a", ("K", "M") if a_turned else ("M", "K"), dtype)
    b = td.Tensor("b", ("N", "K") if b_turned else ("K", "N"), dtype)
    c = td.Func("c")
    left = a[k, i] if a_turned else a[i, k]
    right = b[j, k] if b_turned else b[k, j]
    c[i, j] = td.sum(left * right, axis=k)
    return c


def operands(rng, m, terms, columns, dtype=np.float32):
    """Small whole numbers, so that sums are exact in any order."""
    a = rng.integers(-4, 5, (m, terms)).astype(dtype)
    b = rng.integers(-4, 5, (terms, columns)).astype(dtype)
    return a, b


def compiled(func, **choices):
    s = td.Schedule(func)
    assert td.recipes.matmul(s[func.name], **choices) is not None
    return td.compile(s)


SHAPES = [
    (td.f32, 1, 8, 4), (td.f64, 2, 9, 5), (td.f32, 7, 1, 13), (td.f64, 6, 64, 64), (td.f32, 13, 40, 67),
    (td.f32, 97, 101, 89), (td.f64, 70, 65, 130), (td.f32, 65, 200, 33),
]  # fmt: skip


@pytest.mark.parametrize("dtype, m, terms, columns", SHAPES, ids=str)
def test_any_shape(rng, dtype, m, terms, columns):
    a, b = operands(rng, m, terms, columns, dtype.numpy)
    np.testing.assert_array_equal(compiled(product(dtype))(a, b), a @ b)


@pytest.mark.parametrize("a_turned", [False, True])
@pytest.mark.parametrize("b_turned", [False, True])
def test_transposed_operands(rng, a_turned, b_turned):
    a, b = operands(rng, 67, 71, 73)
    f = compiled(product(td.f32, a_turned, b_turned))
    given_a = np.ascontiguousarray(a.T) if a_turned else a
    given_b = np.ascontiguousarray(b.T) if b_turned else b
    np.testing.assert_array_equal(f(given_a, given_b), a @ b)


@pytest.mark.parametrize("panel, terms", [("no", 0), ("block", 0), ("block", 32), ("root", 32)])
@pytest.mark.parametrize("parallel", ["", "i", "j"])
def test_every_choice_computes_the_same(rng, panel, terms, parallel):
    a, b = operands(rng, 43, 50, 45)
    choices = {"panel": panel, "terms": terms, "parallel": parallel}
    f = compiled(product(), band=12 if parallel == "i" else 0, rows=2, vectors=2, lanes=16, **choices)
    np.testing.assert_array_equal(f(a, b), a @ b)


@pytest.mark.parametrize("terms", [0, 40])
def test_what_reads_the_sums_is_computed_tile_by_tile(rng, terms):
    c, out = product(), td.Func("out")
    bias = td.Tensor("bias", ("N",), td.f32)
    out[i, j] = td.maximum(c[i, j] + bias[j], 0) * 0.5
    s = td.Schedule(out)
    assert td.recipes.matmul(s["out"], terms=terms, panel="block", machine=WIDE)
    a, b = operands(rng, 75, 90, 83)
    by_column = rng.integers(-3, 4, 83).astype(np.float32)
    f = td.compile(s)
    np.testing.assert_array_equal(f(a, b, by_column), np.maximum(a @ b + by_column, 0) * 0.5)
    assert "alloc(f32, [75, 83])" not in str(f.loops())


def test_operands_that_are_computed(rng):
    a, b = td.Tensor("a", ("M", "K"), td.i8), td.Tensor("b", ("K", "N"), td.f32)
    wide, c = td.Func("wide"), td.Func("c")
    wide[i, k] = td.cast(a[i, k], td.f32) * 0.5 + 1
    c[i, j] = td.sum(wide[i, k] * b[k, j], axis=k)
    x, y = operands(rng, 70, 80, 90)
    np.testing.assert_array_equal(compiled(c)(x.astype(np.int8), y), (x * 0.5 + 1) @ y)


def test_the_moving_operand_is_computed_in_the_panel(rng):
    a, b = td.Tensor("a", ("M", "K"), td.f32), td.Tensor("b", ("K", "N"), td.i8)
    wide, c = td.Func("wide"), td.Func("c")
    wide[k, j] = td.cast(b[k, j], td.f32) * 0.5 + 1
    c[i, j] = td.sum(a[i, k] * wide[k, j], axis=k)
    x, y = operands(rng, 70, 80, 90)
    f = compiled(c, vectors=4, lanes=16, panel="block")
    np.testing.assert_array_equal(f(x, y.astype(np.int8)), x @ (y * 0.5 + 1))
    assert "wide = alloc(f32, [80, 64])" in str(f.loops())


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_batches(rng, shared):
    a = td.Tensor("a", ("B", "M", "K"), td.f32)
    b = td.Tensor("b", ("K", "N") if shared else ("B", "K", "N"), td.f32)
    c = td.Func("c")
    c[n, i, j] = td.sum(a[n, i, k] * (b[k, j] if shared else b[n, k, j]), axis=k)
    x = rng.integers(-4, 5, (3, 70, 65)).astype(np.float32)
    y = rng.integers(-4, 5, (65, 83) if shared else (3, 65, 83)).astype(np.float32)
    np.testing.assert_array_equal(compiled(c)(x, y), x @ y)


def test_sizes_that_are_not_known(rng):
    s = td.Schedule(product())
    td.recipes.matmul(s["c"], machine=WIDE)
    f = td.compile(s, dynamic=("M", "N", "K"))
    for shape in [(1, 1, 1), (6, 64, 64), (37, 41, 101), (0, 3, 4), (3, 0, 4)]:
        a, b = operands(rng, *shape)
        np.testing.assert_array_equal(f(a, b), a @ b)


def test_a_panel_of_many_terms_is_copied_in_parts(rng):
    s = td.Schedule(product(), sizes={"M": 128, "N": 64, "K": 9000})
    tiles = td.recipes.matmul(s["c"], machine=WIDE)
    assert tiles is not None
    assert 0 < tiles.terms < 9000
    a, b = operands(rng, 128, 9000, 64)
    np.testing.assert_array_equal(td.compile(s)(a, b), a @ b)


def test_threads_share_rows_where_there_are_few_columns():
    s = td.Schedule(product(), sizes={"M": 6000, "N": 64, "K": 512})
    tiles = td.recipes.matmul(s["c"], machine=Machine(vector_bytes=64, threads=8, registers=32))
    assert tiles is not None
    assert tiles.parallel == "i"
    assert tiles.band >= 6000 // 8


def test_a_small_product_runs_on_one_thread():
    s = td.Schedule(product(), sizes={"M": 64, "N": 64, "K": 64})
    tiles = td.recipes.matmul(s["c"], machine=WIDE)
    assert tiles is not None
    assert not tiles.parallel


def test_a_stage_of_another_kind_stays_as_it_is():
    x, f = td.Tensor("x", ("N",), td.f32), td.Func("f")
    f[i] = x[i] * 2
    s = td.Schedule(f)
    with pytest.raises(td.ScheduleError, match="matmul is not for"):
        td.recipes.matmul(s["f"])
    assert not s.directives


def test_a_schedule_by_the_recipe_can_be_stored():
    s = td.Schedule(product(), sizes={"M": 100, "N": 100, "K": 100})
    td.recipes.matmul(s["c"], machine=WIDE)
    again = td.Schedule(product(), sizes={"M": 100, "N": 100, "K": 100}).replay(s.to_json())
    assert again.state == s.state


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 97, 1000])
def test_a_tile_fits_the_registers(rows, registers):
    for columns in (1, 16, 33, 97, 1024):
        r, v = tile_shape(rows, columns, 16, registers)
        assert r * v + v + 1 <= registers
        assert r <= rows


@pytest.mark.parametrize("shape", [(2049, 3, 2111), (3001, 16, 3003)])
@pytest.mark.parametrize("doubled", [False, True])
def test_a_large_result_of_short_sums_is_written_past_the_caches(rng, shape, doubled):
    m, terms, columns = shape
    c = product()
    if doubled:
        c, products = td.Func("out"), c
        c[i, j] = products[i, j] * 2
    s = td.Schedule(c, sizes={"M": m, "K": terms, "N": columns})
    if terms < 8:
        with pytest.raises(td.ScheduleError, match="matmul is not for"):
            td.recipes.matmul(s[c], machine=WIDE)
    else:
        tiles = td.recipes.matmul(s[c], machine=WIDE)
        assert tiles.stream and tiles.parallel == "i"
    a, b = operands(rng, m, terms, columns)
    np.testing.assert_array_equal(td.compile(s)(a, b), (a @ b) * (1 + doubled))


def test_a_broadcast_operand_is_copied_where_it_does_not_lie_along_its_terms():
    c = td.Func("c")
    a, b = td.Tensor("a", (64, 64), td.i16), td.Tensor("b", (64, 64), td.i16)
    c[i, j] = td.sum(td.cast(a[i, k], td.i32) * td.cast(b[k, j], td.i32), axis=k, dtype=td.i32)
    able = replace(WIDE, features=frozenset({"avx512vnni"}))
    for scattered, packed in (((), False), (("a",), True), (("b",), False)):
        program = complete(replace(td.Schedule(c).state, strided_inputs=scattered), able).program
        product = next(f for f in program.funcs if f.definitions[0].ranges)
        assert ("a" in {r.name for r in product.definitions[0].reads}) != packed
