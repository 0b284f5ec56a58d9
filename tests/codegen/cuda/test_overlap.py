"""Kernels of one program overlap by programmatic dependent launch where the GPU has it."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cuda import module
from tdsl.codegen.cuda.driver import Driver
from tdsl.codegen.cuda.executable import CudaExecutable
from tdsl.codegen.cuda.sass import disassemble
from tdsl.codegen.gpu.launches import launches_of
from tests.codegen.cuda import programs
from tests.codegen.cuda.fake_driver import FakeDriver
from tests.codegen.cuda.test_executable import MODULE, RECORD

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')

i, j, k = td.vars("i j k")


def two_kernels() -> td.Schedule:
    """Sums of rows in global memory, then quotients of them."""
    a, total, f = td.Tensor("a", ("M", "N"), td.f32), td.Func("total"), td.Func("f")
    total[i] = td.sum(a[i, k], axis=k)
    f[i, j] = a[i, j] / total[i]
    s = td.Schedule(f)
    s[total].compute_root().bind(i, "blockIdx.x")
    s[f].bind(i, "blockIdx.x").bind(j, "threadIdx.x")
    return s


def build(arch: str) -> module.Module:
    return module.build(launches_of(programs.kernel_of(two_kernels(), M=64, N=96)), arch)


@pytest.mark.parametrize("arch", ["sm_90", "sm_90a", "sm_100a", "sm_120"])
def test_the_second_kernel_waits_before_it_loads(arch):
    m = build(arch)
    assert [k.early for k in m.kernels] == [False, True]
    assert "launched before the previous kernel ends" in str(m.kernels[1])
    code = dict(
        re.findall(
            r"\.section\s+\.text\.(\w+),(.*?)(?=\.section\s+\.text|\Z)", disassemble(m.code), re.DOTALL
        )
    )
    first, second = (re.findall(r"\b(ACQBULK|PREEXIT|LDG\S*|STG\S*)", code[k.name]) for k in m.kernels)
    assert first[0] == "PREEXIT" and "ACQBULK" not in first
    assert second[0] == "ACQBULK" and "PREEXIT" not in second


def test_sums_of_the_first_kernel_are_not_loaded_through_a_cache_that_may_be_stale():
    text = build("sm_90a").source
    first, second = text.split('extern "C"')[1:]
    assert "float* __restrict__ total" in first
    assert "float* total)" in second
    assert "float* __restrict__ a," in second and "float* __restrict__ f," in second


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89"])
def test_kernels_run_one_after_another_on_earlier_gpus(arch):
    m = build(arch)
    assert not any(k.early for k in m.kernels)
    assert "griddepcontrol" not in m.source and "float* __restrict__ total" in m.source.split('extern "C"')[2]


def test_a_program_of_one_kernel_waits_for_none():
    m = module.build(launches_of(programs.kernel_of(programs.scaled(), N=1024)), "sm_90a")
    assert not m.kernels[0].early and "griddepcontrol" not in m.source


def test_three_kernels_wait_and_start_the_next(tmp_path):
    a, one, two, f = td.Tensor("a", (64, 64), td.f32), td.Func("one"), td.Func("two"), td.Func("f")
    one[i] = td.sum(a[i, k], axis=k)
    two[i] = one[i] + one[63 - i]
    f[i, j] = a[i, j] * two[i]
    s = td.Schedule(f)
    for g in (one, two):
        s[g].compute_root().bind(i, "blockIdx.x")
    s[f].bind(i, "blockIdx.x").bind(j, "threadIdx.x")
    m = module.build(launches_of(programs.kernel_of(s)), "sm_90a")
    middle = m.source.split('extern "C"')[2]
    assert (
        middle.index("tdsl_grid_wait();")
        < middle.index("tdsl_grid_launch_dependents();")
        < middle.index("two[bx]")
    )
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) % 7
    sums = x.sum(axis=1)
    got = td.emulate(td.compile(s, target="cuda"))(x)
    np.testing.assert_allclose(got, x * (sums + sums[::-1])[:, None], rtol=1e-6)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc makes the driver")
def test_the_driver_is_told_which_kernels_are_early(tmp_path):
    fake = FakeDriver(tmp_path)
    kernels = (RECORD, replace(RECORD, early=True))
    kernel = programs.kernel_of(programs.scaled(1), N=100)
    program = CudaExecutable(
        replace(MODULE, kernels=kernels), kernel.params, lambda: kernel, lambda: Driver(fake.path).device()
    )
    program.run([np.arange(100, dtype=np.float32), np.zeros(100, np.float32)])
    line = "f_kernel grid 1 1 1 block 64 1 1 shared 0"
    assert fake.log().splitlines() == [line, f"{line} early"]
