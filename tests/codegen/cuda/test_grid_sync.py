"""Stages in one kernel whose blocks wait for each other (`grid_sync`): a cooperative launch."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cuda import module
from tdsl.codegen.cuda.driver import Driver
from tdsl.codegen.cuda.executable import CudaExecutable
from tdsl.codegen.emulation.run import EmulatedExecutable
from tdsl.codegen.gpu.launches import ARRIVED_BLOCKS, launches_of
from tdsl.codegen.ir.loops import Barrier, Block
from tdsl.codegen.ir.statements import map_parts
from tdsl.lang.interp import interpret
from tests.codegen.cuda import programs
from tests.codegen.cuda.fake_driver import FakeDriver
from tests.codegen.cuda.shim import HAS_COMPILER, text_of
from tests.codegen.cuda.test_executable import MODULE, RECORD

i, j, k = td.vars("i j k")


def steps(count: int = 3, size: int = 100, threads: int = 32, target: str = "cuda") -> td.Schedule:
    """Stencils one after the other in one kernel, each of which reads what neighbouring blocks wrote."""
    source = td.Tensor("a", (size,), td.i32)
    last = td.pad(source, mode="wrap")
    funcs = [td.Func(f"step{n}", shape=(size,)) for n in range(count)]
    for f in funcs:
        f[i] = last[i - 1] * 3 + last[i + 1]
        last = td.pad(f, mode="wrap")
    s = td.Schedule(funcs[-1], target=target)
    for n, f in enumerate(funcs):
        block, thread = s[f].split(i, threads)
        s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
        if f is not funcs[-1]:
            s[f].compute_root()
        if n:
            s[f].grid_sync()
    return s


def test_stages_run_in_one_kernel_with_barriers_between_them(rng):
    s = steps()
    compiled = td.compile(s, target="cuda")
    assert str(compiled.loops("final")).count("barrier(grid)") == 2
    x = rng.integers(-9, 9, 100).astype(np.int32)
    (want,) = interpret(s.program, {"a": x})
    np.testing.assert_array_equal(td.emulate(compiled)(x), want)


@pytest.mark.skipif(not HAS_COMPILER, reason="g++ makes the text run")
def test_text(rng):
    s = steps()
    x = rng.integers(-9, 9, 100).astype(np.int32)
    (want,) = interpret(s.program, {"a": x})
    np.testing.assert_array_equal(text_of(td.compile(s, target="cuda"))(x), want)


def test_without_the_barrier_blocks_race():
    kernel = programs.kernel_of(steps())

    def without(s):
        parts = s.body if isinstance(s, Block) else ()
        if any(isinstance(x, Barrier) for x in parts):
            s = replace(s, body=tuple(x for x in parts if not isinstance(x, Barrier)))
        return map_parts(s, without)

    arrays = [np.arange(100, dtype=np.int32), np.zeros(100, np.int32)]
    EmulatedExecutable(kernel).run(arrays)
    with pytest.raises(td.Hazard):
        EmulatedExecutable(replace(kernel, body=without(kernel.body))).run(arrays)


def test_a_stage_of_one_block_is_for_the_first_block(rng):
    a, top, f = td.Tensor("a", (500,), td.f32), td.Func("top"), td.Func("f")
    top[()] = td.max(a[k], axis=k)
    f[i] = a[i] - top[()]
    s = td.Schedule(f)
    _, lane = s[top].split(k, 64)
    s[top].compute_root().bind(lane, "threadIdx.x")
    block, thread = s[f].split(i, 64)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x").grid_sync()
    x = rng.standard_normal(500, dtype=np.float32)
    compiled = td.compile(s, target="cuda")
    assert "one_block" in str(compiled.loops("final"))
    np.testing.assert_array_equal(td.emulate(compiled)(x), x - x.max())
    if HAS_COMPILER:
        np.testing.assert_array_equal(text_of(compiled)(x), x - x.max())


def sums_of_sums(first, second):
    """Sums by blocks of `first` threads (x, y), of which sums by blocks of `second` threads are computed."""
    a, p, g, f = td.Tensor("a", (5, 300), td.i32), td.Func("p"), td.Func("g"), td.Func("f")
    p[i] = td.sum(a[i, k], axis=k)
    g[i, k] = p[i] + a[i, k]
    f[i] = td.sum(g[i, k], axis=k)
    s = td.Schedule(f, target="cuda:sm_80")
    for func, (x, y) in ((p, first), (f, second)):
        block, row = s[func].split(i, y)
        _, lane = s[func].split(k, x)
        s[func].bind(block, "blockIdx.x").bind(row, "threadIdx.y").bind(lane, "threadIdx.x")
    s[p].compute_root()
    s[f].grid_sync()
    return s


@pytest.mark.parametrize(
    "first, second",
    [((64, 1), (256, 1)), ((96, 1), (64, 1)), ((8, 2), (128, 1)), ((128, 1), (32, 4)), ((64, 4), (128, 2))],
)
def test_stages_have_blocks_of_unequal_numbers_of_threads(rng, first, second):
    compiled = td.compile(sums_of_sums(first, second))
    x = rng.integers(-9, 9, (5, 300)).astype(np.int32)
    want = (x.sum(axis=1, keepdims=True) + x).sum(axis=1)
    np.testing.assert_array_equal(td.emulate(compiled)(x), want)
    if HAS_COMPILER:
        np.testing.assert_array_equal(text_of(compiled)(x), want)


def test_threads_that_shuffle_are_whole_groups_of_the_joined_block():
    with pytest.raises(td.ScheduleError, match=r"48 threads on threadIdx\.x are no multiple of 32"):
        td.compile(sums_of_sums((32, 4), (48, 1))).loops("final")


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a", "sm_120"])
def test_machine_code(arch):
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    m = module.build(launches_of(programs.kernel_of(steps(size=1 << 15, threads=64))), arch)
    (k,) = m.kernels
    assert k.cooperative and not k.early and k.arguments[-1] == ARRIVED_BLOCKS
    assert ", cooperative" in str(k)
    blocks = {"sm_75": 13, "sm_90a": 4, "sm_120": 4}[arch]  # of 512, on each of 40, 132 or 170
    assert f"__launch_bounds__(64, {blocks})" in m.source
    assert m.occupancy(k).warps >= 2 * blocks


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc makes the driver")
def test_the_driver_is_told_that_blocks_wait_for_each_other(tmp_path):
    fake = FakeDriver(tmp_path)
    kernel = programs.kernel_of(programs.scaled(1), N=100)
    record = replace(RECORD, cooperative=True, arguments=(*RECORD.arguments, ARRIVED_BLOCKS))
    program = CudaExecutable(
        replace(MODULE, kernels=(record,), temporaries=((ARRIVED_BLOCKS, 4),)), kernel.params, lambda: kernel,
        lambda: Driver(fake.path).device(),
    )  # fmt: skip
    program.run([np.arange(100, dtype=np.float32), np.zeros(100, np.float32)])
    assert fake.log().splitlines() == ["f_kernel grid 1 1 1 block 64 1 1 shared 0 cooperative"]
