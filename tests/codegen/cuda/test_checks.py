"""Conditions that kernels check: emulated, in the text, and told by a launch."""

from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cuda import device_call, module
from tdsl.codegen.cuda.driver import Driver
from tdsl.codegen.gpu.launches import launches_of
from tests.codegen.cuda import programs
from tests.codegen.cuda.fake_driver import FakeDriver, image

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
from tests.codegen.cuda import shim  # imports tvm

pytestmark = pytest.mark.skipif(not shim.HAS_COMPILER, reason="g++ runs the text")

i, j = td.vars("i j")
X = np.arange(1, 101, dtype=np.float32)


def roots() -> td.Schedule:
    """The root of each number, none of which may be negative."""
    a, f = td.Tensor("a", ("N",), td.f32), td.Func("f")
    fine = td.require(a[i] >= 0, a[i], "a[{}] = {} is negative", i, a[i])
    f[i] = td.sqrt(fine)
    s = td.Schedule(f)
    block, thread = s[f].split(i, 32)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    return s


def wrong(at: int) -> np.ndarray:
    x = X.copy()
    x[at] = -2.5
    return x


def test_emulation_tells_the_first_value_that_is_wrong():
    f = td.emulate(td.compile(roots(), target="cuda"))
    np.testing.assert_array_equal(f(X), np.sqrt(X))
    with pytest.raises(td.RequireError, match=r"a\[70\] = -2.5 is negative"):
        f(wrong(70))


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """The program on a stand-in for a GPU, whose machine code is the text, compiled for the CPU."""
    build = module.build

    def for_the_cpu(launches, arch):
        shim.library_of(launches, tmp_path)
        return replace(build(launches, arch), code=image(tmp_path / "kernels.so"))

    monkeypatch.setenv("TDSL_CACHE", "0")
    monkeypatch.setattr(module, "build", for_the_cpu)
    driver = Driver(FakeDriver(tmp_path).path)
    monkeypatch.setattr(device_call, "driver", lambda: driver)
    monkeypatch.setattr("tdsl.codegen.cuda.executable.driver", lambda: driver)
    return td.compile(roots(), target="cuda")


def test_a_launch_tells_the_values_and_the_next_one_works(launched):
    for _ in range(2):
        np.testing.assert_array_equal(launched(X), np.sqrt(X))
        with pytest.raises(td.RequireError, match=r"a\[70\] = -2.5 is negative"):
            launched(wrong(70))


def test_calls_with_arrays_on_a_gpu_wait_for_checks(launched, tmp_path):
    from benchmarks.cuda.measure import on_gpu

    device = device_call.driver().device()
    good, bad = on_gpu(device, X), on_gpu(device, wrong(3))
    for _ in range(2):  # by the slow path, then by the fast path
        np.testing.assert_array_equal(launched(good).numpy(), np.sqrt(X))
        with pytest.raises(td.RequireError, match=r"a\[3\] = -2.5 is negative") as caught:
            launched(bad)
        assert "test_checks.py" in str(caught.value.related[0][0].file)


def test_programs_without_checks_have_no_memory_for_them():
    launches = launches_of(programs.kernel_of(programs.scaled(), N=64))
    assert not launches.temporaries
