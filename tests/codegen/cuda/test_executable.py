"""Calls of compiled kernels, against a driver that only writes down what it is asked for."""

import shutil
import struct
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cuda import module
from tdsl.codegen.cuda.driver import Driver
from tdsl.codegen.cuda.executable import CudaExecutable
from tdsl.codegen.cuda.launcher import code_of, plain
from tdsl.codegen.gpu.tensor_map_specs import TensorMapSpec
from tdsl.lang.types import ALL
from tdsl.machine.devices import describe_gpu
from tdsl.machine.gpu import runs_on
from tdsl.machine.occupancy import occupancy
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


def test_arrays_are_copied_to_the_gpu_and_back(fake):
    out = np.zeros(100, np.float32)
    executable(fake).run([X, out])
    np.testing.assert_array_equal(out, X * 2 + 1)
    assert fake.log() == "f_kernel grid 1 1 1 block 64 1 1 shared 0\n"


def test_arrays_of_any_layout(fake):
    wide = np.zeros(200, np.float32)
    executable(fake).run([np.repeat(X, 3)[::3], wide[::2]])
    np.testing.assert_array_equal(wide[::2], X * 2 + 1)
    assert not wide[1::2].any()


def test_large_shared_memory_is_requested_once(fake):
    large = replace(MODULE, kernels=(replace(RECORD, shared=100_000),))
    run = executable(fake, large).run
    for _ in range(2):
        run([X, np.zeros(100, np.float32)])
    lines = fake.log().splitlines()
    assert lines[0] == "f_kernel attribute 8 = 100000"
    assert lines[1:] == ["f_kernel grid 1 1 1 block 64 1 1 shared 100000"] * 2


def test_tensor_maps_are_encoded_for_the_arrays_of_a_call(fake):
    tile = TensorMapSpec("a", "f32", (10, 12), (8, 4))
    with_map = replace(MODULE, kernels=(replace(RECORD, maps=(tile,)),))
    program = executable(fake, with_map)
    for _ in range(2):
        program.run([X, np.zeros(100, np.float32)])
    text = "map of type 7, 10 x 12, 48 bytes apart, box 8 x 4"
    assert fake.log().splitlines()[0] == text
    program.run([X, np.zeros(100, np.float32)])
    assert fake.log().count(text) <= 3  # only where the address is another one


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
    assert "cuda:sm_90a" in caught.value.hint


@pytest.mark.parametrize(
    "capability, runs",
    [(80, "sm_80"), (89, "sm_86"), (90, "sm_90a"), (100, "compute_90"), (120, "compute_90")],
)
def test_of_several_architectures_that_of_the_gpu_runs(fake, capability, runs):
    fake.become(capability)
    codes = {arch: code(arch) for arch in ("sm_80", "sm_86", "sm_90", "sm_90a")}
    ptx = replace(code("compute_90"), code=b"// PTX\0")
    first, *others = [executable(fake, m) for m in (*codes.values(), ptx)]
    program = CudaExecutable(first.module, first.params, first.make, first._find, others)
    out = np.zeros(100, np.float32)
    program.run([X, out])
    np.testing.assert_array_equal(out, X * 2 + 1)
    assert f"kernel_{runs} grid" in fake.log()
    assert ("PTX is assembled" in fake.log()) == runs.startswith("compute")


@pytest.mark.parametrize("capability, hint", [(75, "cuda:sm_75"), (103, "cuda:sm_90,sm_120"), (70, "sm_75")])
def test_a_gpu_that_none_of_several_architectures_is_for_is_told_what_there_is(fake, capability, hint):
    fake.become(capability)
    first, other = (executable(fake, code(arch)) for arch in ("sm_80", "sm_90a"))
    program = CudaExecutable(first.module, first.params, first.make, first._find, [other])
    with pytest.raises(td.TargetError, match=f"are for sm_80, sm_90a, and Fake is sm_{capability}") as caught:
        program.run([X, X.copy()])
    assert hint in caught.value.hint


def test_ptx_for_larger_shared_memory_than_that_of_a_later_gpu_is_refused(fake):
    fake.become(120)
    ptx = replace(code("compute_90"), code=b"// PTX\0")
    program = executable(fake, replace(ptx, kernels=(replace(RECORD, shared=200_000),)))
    message = "'f_kernel' of the PTX for compute_90 takes 200000 bytes .* block of Fake 101376 at most"
    with pytest.raises(td.TargetError, match=message) as caught:
        program.run([X, X.copy()])
    assert "cuda:...,sm_120" in caught.value.hint


def code(arch):
    """A module for an architecture, whose kernel has its name."""
    return replace(MODULE, arch=arch, kernels=(replace(RECORD, name=f"kernel_{arch}"),))


def test_a_program_for_several_architectures_has_a_schedule_for_each():
    pytest.importorskip("tvm")
    i, j, k = td.vars("i j k")
    a, b, c = td.Tensor("a", (2048, 2048), td.f16), td.Tensor("b", (2048, 2048), td.f16), td.Func("c")
    c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    f = td.compile(c, target="cuda:sm_90a,sm_75,sm_80")
    modules = f.executable(f.specialisation({})).modules
    assert [m.arch for m in modules] == ["sm_75", "sm_80", "sm_90a", "compute_90"]
    uses = [[x for x in ("mma.sync", "wgmma.mma") if x in m.source] for m in modules]
    assert uses == [[], ["mma.sync"], ["wgmma.mma"], ["mma.sync"]]
    assert b".target sm_90\n" in modules[-1].code
    assert modules[0].arch == f.launch.arch and repr(f).endswith("for cuda:sm_90a,sm_75,sm_80>")


def test_a_schedule_by_hand_has_to_suit_each_of_several_architectures():
    pytest.importorskip("tvm")
    i, j, k = td.vars("i j k")
    a, b, c = td.Tensor("a", (128, 128), td.f16), td.Tensor("b", (128, 128), td.f16), td.Func("c")
    c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    s = td.Schedule(c, target="cuda:sm_90a")
    td.recipes.tensor_core_matmul(s[c], block=(64, 64, 64), warp=(64, 64), stages=2, warpgroups=True)
    with pytest.raises(td.TargetError, match="sm_80 has no TMA, which sm_90 has"):
        td.compile(s, target="cuda:sm_80,sm_90a").source()
    f = td.compile(s, target="cuda:sm_90a,sm_90a")
    assert [m.arch for m in f.executable(f.specialisation({})).modules] == ["sm_90a"]


@pytest.mark.parametrize(
    "arch, gpu, runs",
    [
        ("sm_80", "sm_80", True), ("sm_80", "sm_86", True), ("sm_86", "sm_80", False),
        ("sm_80", "sm_90", False), ("sm_90", "sm_90", True), ("sm_90a", "sm_90", True),
        ("sm_90a", "sm_100", False), ("sm_100a", "sm_100", True), ("sm_120", "sm_121", True),
        ("compute_90", "sm_90", True), ("compute_90", "sm_120", True), ("compute_90", "sm_80", False),
    ],
)  # fmt: skip
def test_compatible_architectures(arch, gpu, runs):
    assert runs_on(arch, gpu) == runs


def test_without_a_driver_the_error_says_what_to_do():
    with pytest.raises(td.TargetError, match="no CUDA driver") as caught:
        Driver("libthere-is-none.so")
    assert "td.emulate" in caught.value.hint


def test_a_missing_driver_is_an_error_before_compilation(monkeypatch):
    monkeypatch.setattr("tdsl.codegen.cuda.executable.driver", lambda: Driver("libthere-is-none.so"))
    monkeypatch.setattr("tdsl.codegen.cuda.module.load_or_build", lambda *_: pytest.fail("compiled"))
    f = td.compile(programs.matmul(), target="cuda")
    with pytest.raises(td.TargetError, match="no CUDA driver"):
        f(np.ones((32, 16), np.int32), np.ones((16, 64), np.int32))
    with pytest.raises(td.ShapeError):  # what is wrong with the call comes first
        f(np.ones((32, 16), np.int32), np.ones((17, 64), np.int32))


def test_launch_shows_configurations_of_kernels():
    pytest.importorskip("tvm")
    s = programs.matmul()
    f = td.compile(s, target="cuda", M=32, K=16, N=64)
    (kernel,) = f.launch.kernels
    assert (kernel.grid, kernel.block) == ((2, 2, 1), (8, 8, 1))
    assert kernel.arguments == ("a", "b", "c")
    assert "2 x 2 x 1 blocks of 8 x 8 x 1 threads, 1536 shared bytes" in str(f.launch)
    assert str(f.launch) in str(f.explain())


def test_launch_names_clusters_and_tensor_maps():
    pytest.importorskip("tvm")
    i, j, k = td.vars("i j k")
    a, b, c = td.Tensor("a", (256, 64), td.f16), td.Tensor("b", (64, 64), td.f16), td.Func("c")
    c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(
        s[c], block=(64, 64, 64), warp=(64, 64), stages=2, cluster=2, warpgroups=True
    )
    text = str(td.compile(s, target="cuda").explain())
    assert "blocks in clusters of 2, of " in text
    assert "tiles by tensor maps (TMA): a 64 x 64, b 32 x 64" in text


def test_other_targets_launch_nothing():
    i, a, g = td.vars("i"), td.Tensor("a", (4,), td.f32), td.Func("g")
    g[i] = a[i]
    f = td.compile(g)
    with pytest.raises(td.TargetError, match="the target cpu launches no kernels"):
        f.launch


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_scalars_of_every_type_have_their_bits_in_a_slot(dtype):
    value = dtype.numpy.type(1)
    data = struct.pack("=" + code_of(dtype.name), plain(value))
    assert len(data) == 8
    assert data[: dtype.bytes] == value.tobytes()


# worked out by hand: registers come 256 for a warp, four groups of warps have a quarter each
@pytest.mark.parametrize(
    "arch, threads, registers, shared, warps",
    [
        ("sm_80", 256, 32, 0, 64), ("sm_80", 256, 33, 0, 48), ("sm_80", 1024, 64, 0, 32),
        ("sm_90a", 128, 168, 0, 12), ("sm_90a", 384, 168, 200 << 10, 12), ("sm_80", 256, 64, 48 << 10, 24),
        ("sm_86", 256, 32, 0, 48), ("sm_80", 32, 16, 0, 32), ("sm_90a", 33, 16, 0, 64),
        ("sm_75", 64, 32, 4096, 32), ("sm_75", 64, 32, 4097, 30), ("sm_75", 256, 64, 0, 32),
    ],
)  # fmt: skip
def test_occupancy(arch, threads, registers, shared, warps):
    assert occupancy(describe_gpu(arch).gpu, (threads, 1, 1), registers, shared).warps == warps
