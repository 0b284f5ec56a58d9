"""Kernels of a GPU, emulated: right for every size, and what is put in by hand is found."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.emulation.run import EmulatedExecutable
from tdsl.codegen.ir.loops import SHARED, Alloc, Barrier, Block, BufferParam, For, If, Kernel, Stmt, Store
from tdsl.lang.expr import ONE, ZERO, Binary, Const, Load, Var, const
from tdsl.lang.interp import interpret
from tdsl.lang.types import i64
from tests.codegen.cuda import programs

i, j, k = td.vars("i j k")


def numbers(*shape: int, dtype=np.int32):
    """Small whole numbers: their sums are exact in any order."""
    return (np.arange(np.prod(shape)) * 7 % 11 - 3).reshape(shape).astype(dtype)


def agrees(s: td.Schedule, **arrays) -> None:
    got = td.emulate(td.compile(s, target="cuda"))(**arrays)
    (want,) = interpret(s.program, arrays)
    np.testing.assert_array_equal(got, want, strict=True)


SIZES = ((16, 8, 32), (32, 16, 64), (17, 9, 33), (1, 1, 1), (15, 20, 5), (40, 3, 70))


@pytest.mark.parametrize("m, n, p", SIZES)
def test_a_matmul_through_shared_memory_is_right_at_every_size(m, n, p):
    agrees(programs.matmul(), a=numbers(m, n), b=numbers(n, p))


@pytest.mark.parametrize("n", [1, 255, 256, 257, 1000])
def test_vectors_are_right_at_every_size(n):
    agrees(programs.scaled(), a=numbers(n, dtype=np.float32))


@pytest.mark.parametrize("m, n", [(16, 16), (33, 18), (5, 40)])
def test_a_transpose_through_shared_memory(m, n):
    agrees(programs.transposed(), a=numbers(m, n))


@pytest.mark.parametrize("m, n", [(3, 64), (5, 33), (2, 7)])
def test_partial_sums_in_shared_memory(m, n):
    agrees(programs.row_sums(), a=numbers(m, n))


def test_funcs_at_the_root_are_separate_kernels():
    a, g, f = td.Tensor("a", ("N",), td.i32), td.Func("g"), td.Func("f")
    g[i] = a[i] * 2
    f[i] = g[i] + g[i + 1]
    s = td.Schedule(f)
    for stage in (s[g].compute_root(), s[f]):
        block, thread = stage.split(i, 8)
        stage.bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    agrees(s, a=numbers(30))


def test_unscheduled_funcs_run_in_one_thread():
    a, f = td.Tensor("a", ("N",), td.i32), td.Func("f")
    f[i] = a[i] + 1
    agrees(td.Schedule(f), a=numbers(9))


def test_atomic_updates_of_many_threads():
    a, f = td.Tensor("a", ("N",), td.i32), td.Func("f", shape=(5,))
    x = td.range("x", 0, a.shape[0])
    f[i] = 0
    f[td.clip(a[x], 0, 4)] += 1
    s = td.Schedule(f)
    block, thread = s[f].update().split("x", 32)
    s[f].update().atomic().bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    agrees(s, a=numbers(200))


def test_a_stage_of_one_point_runs_in_one_thread():
    a, g, f = td.Tensor("a", ("M", "N"), td.i32), td.Func("g"), td.Func("f")
    g[i] = 0
    r = td.range("r", 0, 4)
    g[i] += a[i, 0] + r
    f[i, j] = a[i, j] + g[i]
    s = td.Schedule(f)
    s[f].bind(i, "blockIdx.x").bind(j, "threadIdx.x")
    s[g].compute_at(s[f], j).set_scope("shared").bind(i, "threadIdx.x")
    agrees(s, a=numbers(3, 8))


@pytest.mark.parametrize("n", [1, 5, 8, 13])
def test_tails_of_peeled_splits_are_guarded_around_shared_memory(n):
    a, g, f = td.Tensor("a", ("M", 5), td.i32), td.Func("g"), td.Func("f")
    g[i] = i * 2
    f[i] = td.sum(a[i, k] * g[i], axis=k)
    s = td.Schedule(f)
    _, part = s[f].split(k, 4, tail="peel")
    block, thread = s[f].split(i, 8)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    s[g].compute_at(s[f], part).set_scope("shared").cooperate(2)
    agrees(s, a=numbers(n, 5))


def test_only_kernels_of_a_gpu_are_emulated():
    a, f = td.Tensor("a", ("N",), td.i32), td.Func("f")
    f[i] = a[i]
    with pytest.raises(td.TypeMismatch, match="only what is compiled for a GPU"):
        td.emulate(td.compile(f))


# Bugs put in by hand.


def emulated(kernel: Kernel, change: Callable[[Stmt], Stmt], *arrays) -> None:
    EmulatedExecutable(replace(kernel, body=programs.map_statements(kernel.body, change))).run(arrays)


def matmul_kernel() -> tuple[Kernel, tuple]:
    m, n, p = 32, 16, 64
    arrays = numbers(m, n), numbers(n, p), np.zeros((m, p), np.int32)
    return programs.kernel_of(programs.matmul(), M=m, K=n, N=p), arrays


def test_each_barrier_is_needed():
    kernel, arrays = matmul_kernel()
    assert programs.barriers(kernel) == 2
    for n in range(2):
        broken = replace(kernel, body=programs.without_barrier(kernel.body, n))
        with pytest.raises(td.Hazard, match="another thread"):
            EmulatedExecutable(broken).run(arrays)
    EmulatedExecutable(kernel).run(arrays)


def test_a_barrier_that_some_threads_do_not_reach_is_a_hazard():
    kernel, arrays = matmul_kernel()
    thread = next(s.name for s in _loops(kernel) if s.kind == "threadIdx.x")

    def change(s: Stmt) -> Stmt:
        alone = Binary("lt", Var(thread), const(3))
        return If(alone, s) if isinstance(s, Barrier) else s

    with pytest.raises(td.Hazard, match="24 of 64 threads of block 0 arrive at a barrier"):
        emulated(kernel, change, *arrays)


def test_an_index_out_of_bounds_is_a_hazard():
    kernel = programs.kernel_of(programs.scaled(1), N=100)

    def change(s: Stmt) -> Stmt:
        return s.then if isinstance(s, If) else s

    with pytest.raises(td.Hazard, match="uses index 100 on axis 0 of 'a', which has 100 elements"):
        emulated(kernel, change, numbers(100, dtype=np.float32), np.zeros(100, np.float32))


def test_a_copy_that_omits_elements_is_a_hazard():
    kernel, arrays = matmul_kernel()

    def change(s: Stmt) -> Stmt:
        if isinstance(s, For) and "a_cache" in s.name and isinstance(s.extent, Const):
            return replace(s, extent=const(s.extent.value - 1))
        return s

    with pytest.raises(td.Hazard, match=r"reads what nobody wrote: a_cache\["):
        emulated(kernel, change, *arrays)


def test_an_uninitialised_register_is_a_hazard():
    kernel, arrays = matmul_kernel()

    def change(s: Stmt) -> Stmt:
        start = isinstance(s, Store) and isinstance(s.value, Const)
        return Block(()) if start else s

    with pytest.raises(td.Hazard, match="reads what nobody wrote: c_1"):
        emulated(kernel, change, *arrays)


def test_threads_that_write_one_element_are_a_hazard():
    kernel = programs.kernel_of(programs.scaled(1), N=64)

    def change(s: Stmt) -> Stmt:
        return replace(s, index=(const(0),)) if isinstance(s, Store) else s

    with pytest.raises(td.Hazard, match="writes what another thread writes: f"):
        emulated(kernel, change, numbers(64, dtype=np.float32), np.zeros(64, np.float32))


def test_blocks_that_write_one_element_are_a_hazard():
    kernel = programs.kernel_of(programs.scaled(1), N=128)
    block = next(s.name for s in _loops(kernel) if s.kind == "blockIdx.x")

    def change(s: Stmt) -> Stmt:
        if isinstance(s, Store):
            return replace(s, index=(Binary("sub", s.index[0], Var(block)),))
        return s

    with pytest.raises(td.Hazard, match=r"thread \d+ of block 0 writes what another thread writes"):
        emulated(kernel, change, numbers(128, dtype=np.float32), np.zeros(128, np.float32))


def test_thread_private_memory_instead_of_shared_is_a_hazard():
    kernel, arrays = matmul_kernel()

    def change(s: Stmt) -> Stmt:
        return replace(s, scope="register") if isinstance(s, Alloc) and "b_" in s.name else s

    with pytest.raises(td.Hazard, match="reads what nobody wrote: b_cache"):
        emulated(kernel, change, *arrays)


def test_shared_memory_instead_of_registers_is_a_hazard():
    kernel, arrays = matmul_kernel()

    def change(s: Stmt) -> Stmt:
        return replace(s, scope="shared") if isinstance(s, Alloc) and s.name == "c_1" else s

    with pytest.raises(td.Hazard, match="another thread"):
        emulated(kernel, change, *arrays)


def test_a_wrong_index_of_a_tile_is_a_hazard():
    kernel, arrays = matmul_kernel()

    def change(s: Stmt) -> Stmt:
        if isinstance(s, Store) and s.buffer == "a_cache":
            return replace(s, index=(Binary("add", s.index[0], ONE), *s.index[1:]))
        return s

    with pytest.raises(td.Hazard, match="uses index 16 on axis 0 of 'a_cache'"):
        emulated(kernel, change, *arrays)


def test_a_sum_in_shared_memory_that_every_thread_adds_to_is_a_hazard():
    i_, total = Var("i"), ("total", (ZERO,))
    element = Load("a", (ZERO, i_), i64)
    add = Store(*total, Binary("add", Load(*total, i64), element))
    sums = Block((
        For("t", const(0), const(2), "threadIdx.x", For("i", const(0), const(64), "serial", add)),
        Barrier(),
        Store("f", (ZERO,), Load(*total, i64)),
    ))  # fmt: skip
    body = Alloc("total", i64, (const(1),), SHARED, Block((Store(*total, ZERO), Barrier(), sums)))
    a = BufferParam("a", i64, (const(1), const(64)), (64, 1), written=False)
    f = BufferParam("f", i64, (const(1),), (1,), written=True)
    every = EmulatedExecutable(Kernel("k", (a, f), body))
    with pytest.raises(td.Hazard):
        every.run((numbers(1, 64, dtype=np.int64), np.zeros(1, np.int64)))


def _loops(kernel: Kernel) -> list[For]:
    loops: list[For] = []

    def change(s: Stmt) -> Stmt:
        if isinstance(s, For):
            loops.append(s)
        return s

    programs.map_statements(kernel.body, change)
    return loops


def copied(shape: tuple[int, int], axes: tuple[str, ...], scope: str = "") -> td.Schedule:
    """An array copied by loops on some axes, through memory of a block where it has a scope."""
    a, f = td.Tensor("a", shape, td.f32), td.Func("f")
    f[i, j] = a[i, j]
    s = td.Schedule(f)
    for loop, axis in zip((i, j), axes, strict=False):
        s[f].bind(loop, axis)
    if scope:
        s.cache_read(a, f, at=i, scope=scope)
    return s


@pytest.mark.parametrize(
    "s, arch, message",
    [
        (copied((64, 32), ("threadIdx.y", "threadIdx.x")), "sm_90a", "2048 threads in a block"),
        (copied((128, 4), ("threadIdx.z", "threadIdx.x")), "sm_90a", "128 threads on threadIdx.z"),
        (copied((70_000, 2), ("blockIdx.y", "threadIdx.x")), "sm_90a", "70000 blocks on blockIdx.y"),
        (
            copied((2, 30_000), ("blockIdx.x",), "shared"),
            "sm_86",
            "120000 bytes of shared memory; sm_86 has 101376 at most",
        ),
    ],
)  # fmt: skip
def test_what_a_gpu_does_not_take_is_refused_as_by_its_compilation(s, arch, message):
    f = td.compile(s, target=f"cuda:{arch}")
    shape = s.program.inputs[0].shape
    with pytest.raises(td.ScheduleError, match=message):
        td.emulate(f)(np.zeros([e.value for e in shape], np.float32))
    with pytest.raises(td.ScheduleError, match=message):
        f.source("cuda")


def test_more_blocks_than_an_axis_has_are_refused_where_a_call_tells_them():
    a, f = td.Tensor("a", ("N",), td.f32), td.Func("f")
    f[i] = a[i]
    s = td.Schedule(f)
    s[f].bind(i, "blockIdx.y")
    called = td.emulate(td.compile(s, target="cuda", dynamic="N"))
    assert called(numbers(8, dtype=np.float32)).tolist() == numbers(8).tolist()
    with pytest.raises(td.TargetError, match=r"65536 blocks on .*, and a launch 65535"):
        called(np.zeros(65536, np.float32))


def test_serial_loops_of_one_thread_are_right():
    @td.op
    def eliminated(A: td.f64["N", "N"]):
        o, n = td.Func("o"), A.shape[0]
        o[i, j] = A[i, j]
        p = td.range("p", 0, n)
        r, c = td.range("r", p + 1, n), td.range("c", p + 1, n)
        o[r, c] = o[r, c] - o[r, p] * o[p, c] / o[p, p]
        return o

    x = np.random.default_rng(0).random((9, 9)) + 9 * np.eye(9)
    result = td.emulate(eliminated.compile(target="cuda"))(x)
    np.testing.assert_allclose(result, eliminated(x), rtol=1e-12)


def test_one_thread_that_exchanges_elements_has_what_it_read_before():
    a, f, t = td.Tensor("a", (6,), td.i32), td.Func("f"), td.range("t", 0, 5)
    f[i] = a[i]
    f[t] = f[t] + f[t + 1]
    agrees(td.Schedule(f), a=numbers(6))
