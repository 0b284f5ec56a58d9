"""Copies that a tile tree writes: with padding in them, and of rows that begin anywhere."""

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.block_tree.tree import BlockTree, Cut, Shared
from tdsl.autoschedule.block_tree.write import write_tree
from tdsl.autoschedule.problem import Problem
from tdsl.core.node import post_order
from tdsl.lang.expr import Select
from tests.codegen.cuda.shim import text_of

i, j, k, b, c, y, x = td.vars("i j k b c y x")


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("step", [2, 13])
def test_a_copy_includes_padding_and_ends_where_other_dimensions_do(rng, mode, step):
    shape = (3, 13, 9, 11)
    image, w = td.Tensor("image", shape, td.f32), td.Tensor("w", (13, 3, 3), td.f32)
    ch, r, s, out = td.range("ch", 0, 13), td.range("r", 0, 3), td.range("s", 0, 3), td.Func("out")
    padded = td.pad(image, mode)
    out[b, y, x] = td.sum(padded[b, ch, y + r - 1, x + s - 1] * w[ch, r, s], axis=(ch, r, s))
    schedule = td.Schedule(out.with_shape(3, 9, 11), target="cuda:sm_80")
    cuts = Cut("b", 2), Cut("y", 4, 2), Cut("x", 8)
    copies = Shared("image", None, 1, (0, 1, 2, 3)), Shared("w", None, 1, (0, 1, 2))
    steps = ("ch", step), ("r", 3), ("s", 3)
    tree = BlockTree("out", cuts, (("x", 8), ("y", 4), ("b", 2)), steps, copies)
    write_tree(schedule[out], Problem.of(schedule[out]), tree)
    compiled = td.compile(schedule)
    values = rng.integers(-3, 4, shape).astype(np.float32)
    filters = rng.integers(-3, 4, (13, 3, 3)).astype(np.float32)
    whole = np.pad(values, ((0, 0), (0, 0), (1, 1), (1, 1)), mode)
    want = np.einsum(
        "bcyxrs,crs->byx", np.lib.stride_tricks.sliding_window_view(whole, (3, 3), (2, 3)), filters
    )
    np.testing.assert_array_equal(td.emulate(compiled)(values, filters), want)
    terms = schedule.state.program.func("out").definitions[0].values
    assert mode != "constant" or not any(isinstance(n, Select) for n in post_order(*terms))


@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
@pytest.mark.parametrize("m, n, terms", [(77, 65, 63), (131, 129, 67), (33, 257, 31)])
def test_rows_that_begin_anywhere_are_copied_in_vectors(rng, arch, m, n, terms):
    left, right, out = (
        td.Tensor("left", (m, terms), td.f32),
        td.Tensor("right", (terms, n), td.f32),
        td.Func("out"),
    )
    out[i, j] = td.sum(left[i, k] * right[k, j], axis=k)
    s = td.Schedule(out, target=f"cuda:{arch}")
    copies = (
        Shared("left", None, 4, (0, 1), 20, shifted=True),
        Shared("right", None, 4, (0, 1), 36, 32, shifted=True),
    )
    cuts, order = (Cut("i", 16, 4), Cut("j", 16, 4)), (("j", 8), ("i", 16), ("j", 2))
    tree = BlockTree("out", cuts, order, (("k", 16),), copies, stages=2)
    write_tree(s[out], Problem.of(s[out]), tree)
    compiled = td.compile(s)
    values = [rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, terms), (terms, n))]
    np.testing.assert_array_equal(td.emulate(compiled)(*values), values[0] @ values[1])
    accesses = td.count_memory(compiled, *values).accesses
    loads = [a for a in accesses if a.site.kind == "load" and a.site.array in ("left", "right")]
    vectors = sum(a.useful for a in loads if a.site.width == 16)
    assert vectors > 0.9 * sum(a.useful for a in loads)


@pytest.mark.parametrize("m, n, terms, lanes, stages", [(77, 65, 63, 0, 2), (70, 36, 60, 8, 1)])
def test_tiles_that_are_transposed_in_shared_memory_are_loaded_in_vectors(rng, m, n, terms, lanes, stages):
    left, right = td.Tensor("left", (m, terms), td.f32), td.Tensor("right", (terms, n), td.f32)
    out = td.Func("out")
    out[i, j] = td.sum(left[i, k] * right[k, j], axis=k)
    s = td.Schedule(out, target="cuda:sm_80")
    shifted = terms % 4 > 0
    copies = (
        Shared("left", None, 4, (1, 0), 68, lanes=lanes, shifted=shifted),
        Shared("right", None, 4, (0, 1), 68, shifted=shifted),
    )
    cuts, order = (Cut("i", 16, 4), Cut("j", 16, 4)), (("j", 8), ("i", 16), ("j", 2))
    tree = BlockTree("out", cuts, order, (("k", 16),), copies, stages=stages)
    write_tree(s[out], Problem.of(s[out]), tree)
    compiled = td.compile(s)
    values = [rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, terms), (terms, n))]
    np.testing.assert_array_equal(td.emulate(compiled)(*values), values[0] @ values[1])
    np.testing.assert_array_equal(text_of(compiled)(*values), values[0] @ values[1])
    loads = [a for a in td.count_memory(compiled, *values).accesses if a.site.array == "left"]
    assert sum(a.useful for a in loads if a.site.width == 16) > 0.9 * sum(a.useful for a in loads)


@pytest.mark.parametrize("group", [2, 4])
def test_blocks_of_a_group_of_rows_follow_each_other(rng, group):
    left, right, out = (
        td.Tensor("left", (2, 64, 24), td.f32),
        td.Tensor("right", (24, 40), td.f32),
        td.Func("out"),
    )
    out[b, i, j] = td.sum(left[b, i, k] * right[k, j], axis=k)
    s = td.Schedule(out, target="cuda:sm_80")
    cuts, order = (Cut("b"), Cut("i", 8), Cut("j", 8, 2)), (("j", 8), ("i", 8))
    write_tree(s[out], Problem.of(s[out]), BlockTree("out", cuts, order, (("k", 8),), group=group))
    assert f"split('i_o', {group})" in str(s).replace('"', "'")
    x, y = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((2, 64, 24), (24, 40)))
    np.testing.assert_array_equal(td.emulate(td.compile(s))(x, y), x @ y)
