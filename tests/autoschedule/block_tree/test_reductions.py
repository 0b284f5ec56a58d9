"""Reductions by lanes on a GPU: right at every size, contiguous, in parts where results are few."""

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.block_tree.reductions import best_lanes
from tdsl.autoschedule.block_tree.tree import BlockTree
from tdsl.autoschedule.problem import Problem
from tdsl.autoschedule.recipes.blocks import on_blocks
from tdsl.cost.predict import Prediction
from tdsl.lang.interp import interpret
from tdsl.tilegraph.default import decide
from tests.codegen.cuda.conflicts import conflicts, strides
from tests.codegen.cuda.programs import kernel_of

i, j, k = td.vars("i j k")


def columns(rows: int, length: int, kind=td.sum):
    a, f = td.Tensor("a", (rows, length), td.f32), td.Func("f")
    f[j] = kind(a[k, j], axis=k)
    return f


def layers(rows: int, length: int):
    """Of several matrices."""
    a, f = td.Tensor("a", (3, rows, length), td.f32), td.Func("f")
    f[i, j] = td.max(a[i, k, j] * 2, axis=k)
    return f


PROGRAMS = {"sums": columns, "largest": lambda m, n: columns(m, n, td.max), "layers": layers}


def agrees(s: td.Schedule, rng) -> None:
    (source,) = s.program.inputs
    a = rng.integers(-3, 4, [e.value for e in source.shape]).astype(np.float32)
    got = td.emulate(td.compile(s, target="cuda"))(a)
    (want,) = interpret(s.program, {"a": a})
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("m, n", [(64, 1), (65, 33), (131, 64), (300, 3), (70, 8), (1, 17)])
def test_columns_at_any_size(rng, name, parts, m, n):
    f = PROGRAMS[name](m, n)
    s = td.Schedule(f)
    assert td.recipes.block_sums(s[f], parts=parts).parts == parts
    agrees(s, rng)


@pytest.mark.parametrize("n", [8, 64])
def test_neighbours_are_read_by_neighbours_and_parts_keep_a_gpu_busy(n):
    """Of few columns, a warp reads several rows: most of 32 threads along a row would have none."""
    f = columns(1_000_000, n)
    s = td.Schedule(f)
    tree = td.recipes.block_sums(s[f])
    assert tree.parts >= td.Target("cuda").machine().threads and tree.vector == 4
    kernel = kernel_of(s)
    assert strides(kernel, "a") == [4]
    assert set(conflicts(kernel)) == {1}


@pytest.mark.parametrize("m, n, lanes", [(4096, 64, True), (10, 64, False), (100, 1_000_000, False)])
def test_the_price_chooses_between_lanes_and_a_thread_for_each_result(m, n, lanes):
    f = columns(m, n)
    plan = on_blocks(td.Schedule(f)[f])
    assert (isinstance(plan, BlockTree) and bool(plan.lanes)) == lanes


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("n", [1 << 14, 100_000_000])
def test_blocks_of_one_result_occupy_the_machine(arch, n):
    machine = td.Target("cuda", arch=arch).machine()
    a, f = td.Tensor("a", (n,), td.f32), td.Func("f")
    f[()] = td.sum(a[k], axis=k)
    tree, cost = best_lanes(Problem.of(td.Schedule(f)[f], reduction=True), machine)
    assert tree.lanes[0].each == 4
    assert cost.blocks >= machine.threads or n < 1 << 20


def times_a_vector(rows: int, length: int, dtype=td.f32):
    """x^T a: what all columns read lies along the terms."""
    a, x, f = td.Tensor("a", (rows, length), dtype), td.Tensor("x", (rows,), dtype), td.Func("f")
    f[j] = td.sum(td.cast(a[k, j], td.f32) * td.cast(x[k], td.f32), axis=k)
    return f


@pytest.mark.parametrize("m, n", [(64, 1), (67, 37)])
def test_columns_times_a_vector_at_any_size(rng, m, n):
    s = td.Schedule(times_a_vector(m, n))
    td.recipes.block_sums(s["f"])
    a, x = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, n), (m,)))
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda"))(a, x), x @ a)


def test_columns_times_batches_of_vectors(rng):
    a, x, f = td.Tensor("a", (2, 67, 37), td.f32), td.Tensor("x", (2, 67), td.f32), td.Func("f")
    f[i, j] = td.sum(a[i, k, j] * x[i, k], axis=k)
    s = td.Schedule(f)
    td.recipes.block_sums(s[f])
    p, q = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((2, 67, 37), (2, 67)))
    got = td.emulate(td.compile(s, target="cuda"))(p, q)
    np.testing.assert_array_equal(got, np.einsum("ikj,ik->ij", p, q))


def test_a_turned_matrix_times_a_vector_is_read_once_by_neighbours():
    s = td.Schedule(times_a_vector(4096, 4096), target="cuda")
    assert on_blocks(td.Schedule(times_a_vector(4096, 4096))["f"]).lanes
    least = 4 * (4096 * 4096 + 2 * 4096)
    assert s.traffic("global") < 1.05 * least
    kernel = kernel_of(td.Schedule(times_a_vector(8192, 64)))
    assert set(strides(kernel, "a")) == {4} and set(strides(kernel, "x")) == {0}


def log_sum_exp(m, n):
    a, top, f = td.Tensor("a", (m, n), td.f32), td.Func("top"), td.Func("f")
    top[j] = td.max(a[k, j], axis=k)
    f[j] = top[j] + td.log(td.sum(td.exp(a[k, j] - top[j]), axis=k))
    return f


@pytest.mark.parametrize("m, n", [(64, 1), (67, 37), (300, 64), (1031, 8)])
@pytest.mark.parametrize("parts", [1, 3])
def test_sums_that_need_the_largest_of_their_column_take_one_pass(rng, m, n, parts):
    s = td.Schedule(log_sum_exp(m, n))
    td.recipes.block_sums(s["f_sum"], parts=parts)
    a = rng.standard_normal((m, n)).astype(np.float32)
    got = td.emulate(td.compile(s, target="cuda"))(a)
    np.testing.assert_allclose(got, np.log(np.exp(a.astype(np.float64)).sum(0)), rtol=1e-5, atol=1e-5)


def test_long_columns_are_read_once_by_default():
    """Lines of threads are counted in the price, which are in the loops of what a block computes first."""
    machine = td.Target("cuda", arch="sm_90a").machine()
    state, _ = decide(td.Schedule(log_sum_exp(16384, 4096), target="cuda:sm_90a").state, machine)
    prediction = Prediction.of(state, machine)
    assert sum(dict(t.moved)["global"].total for t in prediction.terms) < 1.05 * prediction.least


def test_columns_are_read_once_and_16_bytes_at_a_time_by_default():
    compiled = td.compile(log_sum_exp(4096, 1024), target=td.Target("cuda", arch="sm_80"))
    counts = td.count_memory(compiled, np.zeros((4096, 1024), np.float32), blocks=4)
    loads = [a for a in counts.accesses if a.site.array == "a" and a.sectors]
    assert {a.site.width for a in loads} == {16}
    assert sum(32 * a.fetched for a in loads) < 1.01 * 4 * 4096 * 1024


def test_mean_and_variance_of_columns_take_one_pass(rng):
    a, mean, var = td.Tensor("a", (200, 24), td.f32), td.Func("mean"), td.Func("var")
    mean[j] = td.mean(a[k, j], axis=k)
    var[j] = td.mean((a[k, j] - mean[j]) ** 2, axis=k)
    array = (100 + rng.standard_normal((200, 24))).astype(np.float32)
    got = td.emulate(td.compile(td.Schedule(mean, var), target="cuda"))(array)
    np.testing.assert_allclose(got[0], array.astype(np.float64).mean(0), rtol=1e-6)
    np.testing.assert_allclose(got[1], array.astype(np.float64).var(0), rtol=1e-4)


@pytest.mark.parametrize("shape", [(3, 50, 33), (2, 64, 64)])
def test_columns_over_several_variables(rng, shape):
    """The gradient of a bias, of sequences."""
    a, f = td.Tensor("a", shape, td.f16), td.Func("f")
    f[j] = td.sum(td.cast(a[i, k, j], td.f32), axis=(i, k))
    s = td.Schedule(f)
    assert isinstance(on_blocks(td.Schedule(f)[f]), BlockTree)
    td.recipes.block_sums(s[f], parts=3)
    array = rng.integers(-3, 4, shape).astype(np.float16)
    np.testing.assert_array_equal(
        td.emulate(td.compile(s, target="cuda"))(array), array.sum((0, 1), np.float32)
    )
