"""Reductions over threads: by shuffles, at every size, in registers wherever threads share nothing."""

from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.emulation.run import EmulatedExecutable
from tdsl.codegen.ir.loops import Alloc, Block, If, Kernel, Shuffle
from tdsl.codegen.ir.statements import walk
from tdsl.lang.expr import ZERO, Binary, Var
from tdsl.lang.interp import interpret
from tests.codegen.cuda import programs

i, j, k = td.vars("i j k")


def sums(threads: int, kind=td.sum, dtype=td.i32) -> td.Schedule:
    """A block for each row, whose threads reduce it."""
    a, f = td.Tensor("a", ("M", "N"), dtype), td.Func("f")
    f[i] = kind(a[i, k], axis=k)
    s = td.Schedule(f)
    stage = next(s[x.name] for x in s.program.funcs if x.definitions[0].ranges)  # of argmax, a pair
    _, thread = stage.split(k, threads)
    stage.bind(i, "blockIdx.x").bind(thread, "threadIdx.x")
    return s


def centred(threads: int, rows: int = 1) -> td.Schedule:
    """Each row less its sum: what all threads have reduced is read by all of them."""
    a, total, f = td.Tensor("a", ("M", "N"), td.i32), td.Func("total"), td.Func("f")
    total[i] = td.sum(a[i, k], axis=k)
    f[i, j] = a[i, j] * 2 - total[i]
    s = td.Schedule(f)
    _, thread = s[f].split(j, threads)
    block, row = s[f].split(i, rows)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    if rows > 1:
        s[f].bind(row, "threadIdx.y")
    _, part = s[total].split(k, threads)
    parts = s[total].rfactor(part)
    s[total].compute_at(s[f], row).bind(part.name, "threadIdx.x")
    parts.reorder(part.name, "k_o").bind(part.name, "threadIdx.x")
    parts.compute_at(s[f], row)
    return s


def numbers(*shape: int, dtype=np.int32):
    return (np.arange(np.prod(shape)) * 7 % 11 - 3).reshape(shape).astype(dtype)


def agrees(s: td.Schedule, **arrays) -> None:
    got = td.emulate(td.compile(s, target="cuda"))(**arrays)
    (want,) = interpret(s.program, arrays)
    np.testing.assert_array_equal(got, want, strict=True)


def shuffles(kernel: Kernel) -> int:
    return sum(isinstance(s, Shuffle) for s in walk(kernel.body))


def scopes(kernel: Kernel) -> set[str]:
    return {s.scope for s in walk(kernel.body) if isinstance(s, Alloc)}


@pytest.mark.parametrize("n", [1, 2, 31, 32, 100, 1000])
@pytest.mark.parametrize("threads", [2, 8, 32, 64, 256, 1024])
def test_sums_of_threads_at_any_size(threads, n):
    agrees(sums(threads), a=numbers(3, n))


@pytest.mark.parametrize("n", [1, 33, 100])
@pytest.mark.parametrize("threads, rows", [(32, 1), (32, 4), (8, 5), (128, 1), (64, 2)])
def test_all_threads_get_the_result(threads, rows, n):
    agrees(centred(threads, rows), a=numbers(7, n))  # the last block has some of its rows


@pytest.mark.parametrize("kind", [td.sum, td.prod, td.min, td.max, td.argmax, td.argmin])
@pytest.mark.parametrize("dtype", [td.i8, td.i64, td.f32, td.f64], ids=str)
def test_every_reduction_of_every_size_of_element(kind, dtype):
    agrees(sums(64, kind, dtype), a=numbers(2, 70, dtype=dtype.numpy) % 3)


def test_a_warp_needs_no_barrier_and_several_need_one():
    for threads, steps, count in ((32, 5, 0), (8, 3, 0), (256, 8, 1)):
        kernel = programs.kernel_of(sums(threads), M=4, N=1000)
        assert (shuffles(kernel), programs.barriers(kernel)) == (steps, count)


def test_what_threads_do_not_share_is_in_registers():
    kernel = programs.kernel_of(centred(32, 4), M=9, N=100)
    assert scopes(kernel) == {"register"}
    assert programs.barriers(kernel) == 0


@pytest.mark.parametrize("threads", [24, 33])
def test_other_numbers_of_threads_are_combined_by_one(threads):
    kernel = programs.kernel_of(sums(threads), M=2, N=100)
    assert shuffles(kernel) == 0
    assert programs.barriers(kernel) == 1
    agrees(sums(threads), a=numbers(2, 100))


def test_loops_of_axes_that_are_no_warps_are_combined_by_one():
    a, f = td.Tensor("a", ("M", "N"), td.i32), td.Func("f")
    f[i] = td.sum(a[i, k], axis=k)
    s = td.Schedule(f)
    _, thread = s[f].split(k, 16)
    s[f].bind(i, "blockIdx.x").bind(thread, "threadIdx.y")
    assert shuffles(programs.kernel_of(s, M=2, N=50)) == 0
    agrees(s, a=numbers(2, 50))


def test_a_value_for_all_threads_is_computed_by_each():
    a, best, scale, f = td.Tensor("a", ("M", "N"), td.i32), *map(td.Func, ("best", "scale", "f"))
    best[i] = td.max(a[i, k], axis=k)
    scale[i] = best[i] * 3 + i
    f[i, j] = a[i, j] * scale[i]
    s = td.Schedule(f)
    _, thread = s[f].split(j, 64)
    s[f].bind(i, "blockIdx.x").bind(thread, "threadIdx.x")
    s[scale].compute_at(s[f], i)
    s[best].compute_at(s[f], i)
    _, part = s[best].split(k, 64)
    s[best].bind(part, "threadIdx.x")
    kernel = programs.kernel_of(s, M=3, N=200)
    shared = [x.name for x in walk(kernel.body) if isinstance(x, Alloc) and x.scope == "shared"]
    assert shared == ["best_lanes_warps"]
    agrees(s, a=numbers(3, 200))


def test_a_shuffle_that_some_threads_do_not_reach_is_a_hazard():
    kernel = programs.kernel_of(sums(32), M=2, N=100)
    thread = next(s for s in walk(kernel.body) if getattr(s, "name", "") == "f_k_i")

    def change(s):
        last = isinstance(s, Shuffle) and s.distance == 1
        return If(Binary("gt", Var(thread.name), ZERO), s) if last else s

    broken = replace(kernel, body=programs.map_statements(kernel.body, change))
    with pytest.raises(td.Hazard, match="31 of 32 threads from thread 0 of block 0 arrive at a shuffle"):
        EmulatedExecutable(broken).run((numbers(2, 100), np.zeros(2, np.int32)))


def test_a_missing_shuffle_is_a_hazard():
    kernel = programs.kernel_of(sums(32), M=2, N=100)

    def change(s):
        return Block(()) if isinstance(s, Shuffle) and s.distance == 16 else s

    broken = replace(kernel, body=programs.map_statements(kernel.body, change))
    with pytest.raises(td.Hazard, match="reads what nobody wrote: f_lanes_other"):
        EmulatedExecutable(broken).run((numbers(2, 100), np.zeros(2, np.int32)))


def test_partial_results_under_a_condition_of_each_thread_are_refused():
    a, total, f = td.Tensor("a", ("N",), td.i32), td.Func("total"), td.Func("f")
    total[i] = td.sum(a[k] * i, axis=k)
    f[i] = total[i] + 1
    s = td.Schedule(f)
    block, thread = s[f].split(i, 32)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    s[total].compute_at(s[f], thread)
    _, part = s[total].split(k, 32)
    s[total].bind(part, "threadIdx.x")
    with pytest.raises(td.ScheduleError, match="each thread around it has"):
        programs.kernel_of(s, N=50)
