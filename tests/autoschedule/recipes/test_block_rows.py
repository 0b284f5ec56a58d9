"""Rows on a GPU: softmax, norms and others, right at every length, in registers where these hold a row."""

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.block_tree.tree import BlockTree
from tdsl.autoschedule.recipes.blocks import on_blocks
from tdsl.autoschedule.recipes.choices import if_suited
from tdsl.codegen.gpu.launches import launches_of
from tdsl.codegen.ir.loops import Alloc, Barrier, Kernel
from tdsl.codegen.ir.statements import walk
from tdsl.lang.interp import interpret
from tests.codegen.cuda.programs import kernel_of

b, i, j, k = td.vars("b i j k")


def softmax(dtype=td.f32, batch=False):
    at, sizes = ((b, i), ("B", "M")) if batch else ((i,), ("M",))
    x = td.Tensor("x", (*sizes, "N"), dtype)
    most, e, total, y = map(td.Func, ("most", "e", "total", "y"))
    most[at] = td.max(x[(*at, k)], axis=k)
    e[(*at, j)] = td.exp(td.cast(x[(*at, j)] - most[at], td.f32))
    total[at] = td.sum(e[(*at, k)], axis=k)
    y[(*at, j)] = td.cast(e[(*at, j)] / total[at], dtype)
    return y


def layer_norm():
    x, gain, bias = (
        td.Tensor("x", ("M", "N"), td.f32),
        *(td.Tensor(n, ("N",), td.f32) for n in ("g", "h")),
    )
    mean, variance, y = map(td.Func, ("mean", "variance", "y"))
    mean[i] = td.mean(x[i, k], axis=k)
    centred = td.Func("centred")
    centred[i, j] = x[i, j] - mean[i]
    variance[i] = td.mean(centred[i, k] * centred[i, k], axis=k)
    y[i, j] = centred[i, j] * td.rsqrt(variance[i] + 1e-5) * gain[j] + bias[j]
    return y


def rms_norm():
    x, y = td.Tensor("x", ("M", "N"), td.f32), td.Func("y")
    square = td.Func("square")
    square[i] = td.mean(x[i, k] * x[i, k], axis=k)
    y[i, j] = x[i, j] * td.rsqrt(square[i] + 1e-5)
    return y


def log_sum_exp():
    x = td.Tensor("x", ("M", "N"), td.f32)
    most, total, y = map(td.Func, ("most", "total", "y"))
    most[i] = td.max(x[i, k], axis=k)
    total[i] = td.sum(td.exp(x[i, k] - most[i]), axis=k)
    y[i] = most[i] + td.log(total[i])
    return y


def argmax():
    x, y = td.Tensor("x", ("M", "N"), td.f32), td.Func("y")
    y[i] = td.argmax(x[i, k], axis=k)
    return y


def sums():
    x, y = td.Tensor("x", ("M", "N"), td.f32), td.Func("y")
    y[i] = td.sum(x[i, k] * 2, axis=k)
    return y


def blocks_of_sums():
    x, y = td.Tensor("x", ("M", "P", "N"), td.f32), td.Func("y")
    y[i] = td.sum(x[i, j, k], axis=(j, k))
    return y


PROGRAMS = {
    "softmax": softmax,
    "half softmax": lambda: softmax(td.f16),
    "batched softmax": lambda: softmax(batch=True),
    "layer norm": layer_norm,
    "rms norm": rms_norm,
    "log-sum-exp": log_sum_exp,
    "argmax": argmax,
    "sums": sums,
    "sums over two axes": blocks_of_sums,
}
SIZES = [(1, 1), (5, 100), (3, 37), (2, 1031), (2, 1028), (70, 3), (67, 8), (9, 17)]


def arrays_of(program, rng, rows, length):
    """Whole numbers, so that only functions round."""
    sizes = {"M": rows, "N": length, "B": 2, "P": 3}
    arrays = {}
    for t in program.inputs:
        shape = tuple(sizes[e.name] for e in t.shape)
        arrays[t.name] = rng.integers(-3, 4, shape).astype(t.dtype.numpy)
    return arrays


def agrees(s: td.Schedule, arrays) -> None:
    got = td.emulate(td.compile(s, target="cuda"))(**arrays)
    (want,) = interpret(s.program, arrays)
    if want.dtype.kind in "iu":
        np.testing.assert_array_equal(got, want)
    else:
        terms = max(x.shape[-1] for x in arrays.values())  # of float sums, each rounded
        bound = 2.0**-9 if want.dtype == np.float16 else max(2.0**-18, terms * 2.0**-24)
        np.testing.assert_allclose(got, want, rtol=bound, atol=bound)


def sizes_of(program, rows, length):
    known = {"M": rows, "N": length, "B": 2, "P": 3}
    return {name: known[name] for name in program.sizes}


def scheduled(name, rows, length, **choices):
    f = PROGRAMS[name]()
    s = td.Schedule(f)
    s = td.Schedule(f, sizes=sizes_of(s.program, rows, length))
    reduces = [x.name for x in s.program.funcs if x.definitions[0].ranges]
    owner = reduces[0] if name == "argmax" else "y"
    return s, if_suited(td.recipes.block_rows, s[owner], **choices)


@pytest.mark.in_part(24)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("rows, length", SIZES)
def test_rows_at_any_size(rng, name, rows, length):
    s, plan = scheduled(name, rows, length)
    assert (plan is not None) == (length >= 2 or name == "sums over two axes")
    agrees(s, arrays_of(s.program, rng, rows, length))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("rows, length", [(0, 100), (3, 2), (4, 300)])
def test_the_default_schedule_of_rows(rng, name, rows, length):
    f = PROGRAMS[name]()
    s = td.Schedule(f)
    agrees(s, arrays_of(s.program, rng, rows, length))


def memory(kernel: Kernel) -> dict[str, int]:
    """Allocations by scope."""
    counts: dict[str, int] = {}
    for s in walk(kernel.body):
        if isinstance(s, Alloc):
            counts[s.scope] = counts.get(s.scope, 0) + 1
    return counts


def barriers(kernel: Kernel) -> int:
    return sum(isinstance(s, Barrier) for s in walk(kernel.body))


@pytest.mark.parametrize("name", ["softmax", "layer norm", "rms norm", "log-sum-exp"])
def test_short_rows_need_neither_shared_memory_nor_barriers(name):
    s, plan = scheduled(name, 4096, 256)
    kernel = kernel_of(s)
    assert plan.threads <= 32 and plan.threads * plan.together >= 64
    assert set(memory(kernel)) == {"register"} and barriers(kernel) == 0


@pytest.mark.parametrize("n, vector", [(2, 2), (3, 1), (8, 4), (17, 1)])
def test_rows_of_few_elements_are_one_kernel_of_neighbours(n, vector):
    """A block has many of them; each thread has an access of 16 bytes, or neighbours have one each."""
    f = softmax()
    s = td.Schedule(f, sizes={"M": 100_000, "N": n}, target="cuda")
    plan = on_blocks(s["y"])
    assert plan.threads * vector < 2 * n and plan.threads * plan.together >= 32 and plan.vector == vector
    kernel = kernel_of(s)
    assert set(memory(kernel)) == {"register"} and barriers(kernel) == 0
    assert s.traffic("global") == 2 * 4 * n * 100_000
    assert len(launches_of(kernel).launches) == 1


def test_short_sums_of_what_others_read_are_tiles():
    """Each row of both operands is read many times."""
    a, c, y = td.Tensor("a", (4096, 8), td.f32), td.Tensor("c", (40, 8), td.f32), td.Func("y")
    y[i, j] = td.sum(a[i, k] * c[j, k], axis=k)
    assert isinstance(on_blocks(td.Schedule(y)[y]), BlockTree)


@pytest.mark.parametrize("name, reductions", [("softmax", 2), ("layer norm", 2), ("rms norm", 1)])
def test_long_rows_need_a_barrier_for_each_reduction(name, reductions):
    s, plan = scheduled(name, 40, 4096)
    kernel = kernel_of(s)
    assert plan.held
    assert barriers(kernel) == memory(kernel)["shared"] == reductions


def test_rows_that_registers_cannot_hold_are_read_by_each_stage(rng):
    _, plan = scheduled("softmax", 2, 50_000, parts=1)
    assert not plan.held
    f = softmax()
    s = td.Schedule(f, sizes={"M": 2, "N": 300})
    td.recipes.block_rows(s[f], held=())
    assert "e" not in [x.name for x in walk(kernel_of(s).body) if isinstance(x, Alloc)]
    agrees(s, arrays_of(s.program, rng, 2, 300))


def test_choices_replace_what_is_chosen(rng):
    f = softmax()
    s = td.Schedule(f, sizes={"M": 6, "N": 96})
    plan = td.recipes.block_rows(s[f], threads=8, together=3, vector=2)
    assert (plan.threads, plan.together, plan.vector) == (8, 3, 2)
    agrees(s, arrays_of(s.program, rng, 6, 96))


def test_columns_and_what_reduces_nothing_are_left_as_they_are():
    x, total, y = td.Tensor("x", (64, 128), td.f32), td.Func("total"), td.Func("y")
    total[j] = td.sum(x[k, j], axis=k)
    y[i, j] = x[i, j] / total[j]
    s = td.Schedule(y)
    with pytest.raises(td.ScheduleError, match="block_rows is not for"):
        td.recipes.block_rows(s[y])
    with pytest.raises(td.ScheduleError, match="block_rows is not for"):
        td.recipes.block_rows(s[total])
    twice = td.Func("twice")
    twice[i, j] = x[i, j] * 2
    s = td.Schedule(twice)
    with pytest.raises(td.ScheduleError, match="block_rows is not for"):
        td.recipes.block_rows(s[twice])
    assert not s.directives


def times_a_vector(rows, length, dtype=td.f32):
    a, x, y = td.Tensor("a", (rows, length), dtype), td.Tensor("x", (length,), dtype), td.Func("y")
    y[i] = td.sum(td.cast(a[i, k], td.f32) * td.cast(x[k], td.f32), axis=k)
    return y


@pytest.mark.parametrize("m, n", [(1, 1031), (13, 1028)])
def test_a_matrix_times_a_vector_by_warps_at_any_size(rng, m, n):
    y = times_a_vector(m, n)
    s = td.Schedule(y)
    assert td.recipes.block_rows(s[y], threads=32, together=8)
    a, x = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, n), (n,)))
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda"))(a, x), a @ x)


def test_rows_of_a_block_share_the_vector_that_all_of_them_read():
    """A part of a warp for each of many rows, several of them in a block; a block for each of few."""
    y = times_a_vector(4096, 4096)
    s = td.Schedule(y, target="cuda")
    plan = td.recipes.block_rows(s[y])
    assert plan.threads <= 32 and plan.together >= 8 and plan.vector == 4
    least = 4 * (4096 * 4096 + 2 * 4096)
    assert 1.1 * least < s.traffic("global") < 1.15 * least
    few = times_a_vector(512, 4096)
    assert td.recipes.block_rows(td.Schedule(few)[few]).together == 1


def test_short_rows_of_a_block_are_all_counted():
    x, y = td.Tensor("x", (10_000, 64), td.f32), td.Func("y")
    y[i] = td.sum(x[i, k], axis=k)
    s = td.Schedule(y, target="cuda")
    assert td.recipes.block_rows(s[y]).together == 8
    least = 4 * (10_000 * 64 + 10_000)
    assert least <= s.traffic("global") < 1.05 * least


def test_sorted_lists_are_one_piece_of_code_a_merge(rng):
    """The best two of each row and their places, by a merge of lists: long code, which is not unrolled."""

    def merge(a, b):
        first = a[0] > b[0]
        top, at = td.where(first, a[0], b[0]), td.where(first, a[2], b[2])
        one, two = td.where(first, a[1], a[0]), td.where(first, b[0], b[1])
        one_at, two_at = td.where(first, a[3], a[2]), td.where(first, b[2], b[3])
        more = (one > two) | ((one == two) & (one_at < two_at))
        return [top, td.where(more, one, two), at, td.where(more, one_at, two_at)]

    x, out, m = td.Tensor("x", (3, 4096), td.f32), td.Func("out"), td.vars("m")
    k = td.vars("k")
    none, nowhere = td.cast(-np.inf, td.f32), td.cast(2**62, td.i64)
    lists = [x[m, k], none, td.cast(k, td.i64), nowhere]
    out[m] = td.reduce(merge, (-np.inf, -np.inf, 2**62, 2**62), lists, axis=k)
    s = td.Schedule(out, target="cuda:sm_80")
    compiled = td.compile(s, target="cuda:sm_80")
    given = rng.permutation(3 * 4096).reshape(3, 4096).astype(np.float32)
    results = td.emulate(compiled)(given)
    places = np.argsort(-given, axis=1)[:, :2]
    for n in range(2):
        np.testing.assert_array_equal(results[n], np.take_along_axis(given, places, 1)[:, n])
        np.testing.assert_array_equal(results[2 + n], places[:, n])
    assert all(x.spills == 0 for x in compiled.launch.kernels)


def test_choices_for_whole_rows_leave_few_long_rows_whole():
    assert scheduled("softmax", 2, 50_000)[1].parts > 1
    assert scheduled("softmax", 2, 50_000, held=())[1].parts == 1
