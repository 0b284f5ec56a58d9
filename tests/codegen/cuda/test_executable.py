"""Calls of compiled kernels, against a driver that only writes down what it is asked for."""

import ctypes
import shutil
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cuda import device_call, module
from tdsl.codegen.cuda.driver import Device, Driver
from tdsl.codegen.cuda.executable import CudaExecutable
from tests.codegen.cuda import programs
from tests.codegen.cuda.fake_driver import FakeDriver

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc makes the driver")

RECORD = module.KernelRecord("f_kernel", ("a", "f"), (1, 1, 1), (64, 1, 1), 0, 0, 8, 0, 0)
MODULE = module.Module("text", "sm_90a", (RECORD,), (), (), b"\x7fELF")
X = np.arange(100, dtype=np.float32)


@pytest.fixture
def fake(tmp_path):
    return FakeDriver(tmp_path)


def executable(fake: FakeDriver, m: module.Module = MODULE) -> CudaExecutable:
    kernel = programs.kernel_of(programs.scaled(1), N=100)
    return CudaExecutable(m, kernel.params, lambda: kernel, lambda: Driver(fake.path).device())


def test_arrays_are_copied_there_and_back(fake):
    out = np.zeros(100, np.float32)
    executable(fake).run([X, out])
    np.testing.assert_array_equal(out, X * 2 + 1)
    assert fake.log() == "f_kernel grid 1 1 1 block 64 1 1 shared 0\n"


def test_arrays_of_any_layout(fake):
    wide = np.zeros(200, np.float32)
    executable(fake).run([np.repeat(X, 3)[::3], wide[::2]])
    np.testing.assert_array_equal(wide[::2], X * 2 + 1)
    assert not wide[1::2].any()


def test_large_shared_memory_is_asked_for_once(fake):
    large = replace(MODULE, kernels=(replace(RECORD, shared=100_000),))
    run = executable(fake, large).run
    for _ in range(2):
        run([X, np.zeros(100, np.float32)])
    lines = fake.log().splitlines()
    assert lines[0] == "f_kernel attribute 8 = 100000"
    assert lines[1:] == ["f_kernel grid 1 1 1 block 64 1 1 shared 100000"] * 2


def test_a_kernel_that_fails_is_named_and_the_next_call_works(fake):
    run = executable(fake).run
    fake.fail(700)
    with pytest.raises(td.TargetError, match="kernel 'f_kernel' failed: an illegal memory access"):
        run([X, np.zeros(100, np.float32)])
    fake.fail(0)
    out = np.zeros(100, np.float32)
    run([X, out])
    np.testing.assert_array_equal(out, X * 2 + 1)


def test_code_for_another_architecture_is_refused(fake):
    with pytest.raises(td.TargetError, match="for sm_80, and Fake is sm_90") as caught:
        executable(fake, replace(MODULE, arch="sm_80")).run([X, X.copy()])
    assert "cuda:sm_90" in caught.value.hint


@pytest.mark.parametrize(
    "arch, own, runs",
    [
        ("sm_80", "sm_80", True), ("sm_80", "sm_86", True), ("sm_86", "sm_80", False),
        ("sm_80", "sm_90", False), ("sm_90", "sm_90", True), ("sm_90a", "sm_90", True),
        ("sm_90a", "sm_100", False),
    ],
)  # fmt: skip
def test_where_code_runs(fake, arch, own, runs):
    assert Device(Driver(fake.path), "Fake", own).runs(arch) == runs


def test_without_a_driver_the_error_says_what_to_do():
    with pytest.raises(td.TargetError, match="no CUDA driver") as caught:
        Driver("libthere-is-none.so")
    assert "td.emulate" in caught.value.hint


def test_launch_says_how_kernels_run():
    pytest.importorskip("tvm")
    s = programs.matmul()
    f = td.compile(s, target="cuda", M=32, K=16, N=64)
    (kernel,) = f.launch.kernels
    assert (kernel.grid, kernel.block) == ((2, 2, 1), (8, 8, 1))
    assert kernel.arguments == ("a", "b", "c")
    assert "2 x 2 x 1 blocks of 8 x 8 x 1 threads, 1536 shared bytes" in str(f.launch)
    assert str(f.launch) in str(f.explain())


def test_other_targets_launch_nothing():
    i, a, g = td.vars("i"), td.Tensor("a", (4,), td.f32), td.Func("g")
    g[i] = a[i]
    f = td.compile(g)
    with pytest.raises(td.TargetError, match="the target cpu launches no kernels"):
        f.launch


class OnGpu:
    """What another library would have on the GPU: memory that the fake driver reads, too."""

    def __init__(self, array, **changes):
        self.array = array
        about = array.__array_interface__
        self.__cuda_array_interface__ = {
            "version": 3, "shape": array.shape, "typestr": array.dtype.str,
            "strides": about["strides"], "data": about["data"], **changes,
        }  # fmt: skip


@pytest.fixture
def entry(fake, monkeypatch):
    """`f = 2 * a + 1` compiled for the fake driver, and the way to call it."""
    a, f, i = td.Tensor("a", ("N",), td.f32), td.Func("f"), td.vars("i")
    f[i] = a[i] * 2 + 1
    compiled = td.compile(f, target="cuda")
    monkeypatch.setattr(compiled, "build", lambda _: executable(fake))
    device = Driver(fake.path).device()

    def call(*args, out=None, **kwargs):
        assert device_call.uses_a_gpu(args, kwargs, out)
        return device_call.call_on_device(compiled, args, kwargs, out, lambda: device)

    return call


def aligned(count=100):
    """Memory at a multiple of 64 bytes."""
    raw = np.zeros(count + 16, np.float32)
    first = -raw.ctypes.data % 64 // 4
    return raw[first : first + count]


def test_arrays_on_a_gpu_are_used_where_they_are(entry):
    x, out = aligned(), aligned()
    x[:] = X
    result = entry(OnGpu(x))
    assert (result.shape, result.dtype) == ((100,), np.float32)
    held = result.__cuda_array_interface__
    found = np.ctypeslib.as_array((ctypes.c_float * 100).from_address(held["data"][0]))
    np.testing.assert_array_equal(found, X * 2 + 1)
    target = OnGpu(out)
    assert entry(a=OnGpu(x), out=target) is target
    np.testing.assert_array_equal(out, X * 2 + 1)


def test_results_are_arguments_of_the_next_call(entry):
    again = entry(entry(OnGpu(aligned())))
    assert again.nbytes == 400
    assert repr(again) == "<DeviceArray of float32, shape (100,)>"


def test_arrays_of_the_cpu_go_with_those_of_a_gpu(entry):
    out = aligned()
    entry(X, out=OnGpu(out))
    np.testing.assert_array_equal(out, X * 2 + 1)


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda x: OnGpu(x, typestr="<f8"), "a has dtype float64, expected float32"),
        (lambda x: OnGpu(x[:50].repeat(4)[::4], shape=(50,)), "a is not contiguous: strides"),
        (lambda x: OnGpu(x, data=(x.ctypes.data + 4, False)), "begins at no multiple of 16 bytes"),
        (lambda x: OnGpu(x, shape=(10, 10), strides=None), r"a has shape \(10, 10\), expected"),
    ],
)  # fmt: skip
def test_arrays_that_no_kernel_takes_are_refused(entry, make, says):
    with pytest.raises(td.TdslError, match=says):
        entry(make(aligned()))


def test_outputs_have_memory_of_their_own(entry):
    x = aligned()
    with pytest.raises(td.TypeMismatch, match="f in out= shares memory with a"):
        entry(OnGpu(x), out=OnGpu(x))
    with pytest.raises(td.TypeMismatch, match="f in out= is on the CPU"):
        entry(OnGpu(x), out=np.zeros(100, np.float32))


def test_a_compiled_program_sees_where_its_arguments_are(monkeypatch):
    a, f, i = td.Tensor("a", ("N",), td.f32), td.Func("f"), td.vars("i")
    f[i] = a[i]
    seen = []
    monkeypatch.setattr(device_call, "call_on_device", lambda *call: seen.append(call))
    td.compile(f, target="cuda")(OnGpu(aligned()))
    assert len(seen) == 1
