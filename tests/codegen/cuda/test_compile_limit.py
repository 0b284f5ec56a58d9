"""The CUDA compiler is limited in time: simpler code for defaults, an error for schedules of the user."""

import os
import signal
import warnings

import pytest

import tdsl as td
from tdsl.codegen.cuda import module, nvrtc, spills
from tdsl.codegen.runtime import compile_limit
from tests.codegen.cuda import programs

pytestmark = pytest.mark.skipif(not module.tvm_version(), reason="without TVM")
i, j, k = td.vars("i j k")


@pytest.fixture
def slow(monkeypatch, tmp_path):
    """The CUDA compiler does not end where it has to unroll; the texts that it was given."""
    monkeypatch.setenv("TDSL_COMPILE_LIMIT", "20")
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path))
    texts, quick, compile_ = [], nvrtc._compile_here, nvrtc._compile

    def here(text, arch, kind):
        if "#pragma unroll\n" in text:
            os.kill(os.getpid(), signal.SIGPROF)  # as the timer does
        return quick(text, arch, kind)

    def noted(text, arch, kind):
        texts.append(text)
        return compile_(text, arch, kind)

    monkeypatch.setattr(nvrtc, "_compile_here", here)
    monkeypatch.setattr(nvrtc, "_compile", noted)
    return texts


def product():
    a, b, c = td.Tensor("a", (96, 96), td.f32), td.Tensor("b", (96, 96), td.f32), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    return c


def test_a_default_schedule_is_compiled_without_unrolled_loops(slow):
    for _ in range(2):  # the second time from the cache
        with pytest.warns(td.CompileWarning, match=r"20 s .* 'c_kernel'.* without unrolled loops") as caught:
            launch = td.compile(product(), target="cuda:sm_80").launch
        assert caught[0].filename == __file__
    assert launch.limit == 20 and launch.code.startswith(b"\x7fELF")
    assert len(slow) == 2
    assert "#pragma unroll 1\n" in slow[1] and "#pragma unroll\n" not in slow[1]


def test_a_larger_limit_tries_again(slow, monkeypatch):
    with pytest.warns(td.CompileWarning, match="20 s"):
        _ = td.compile(product(), target="cuda:sm_80").launch
    monkeypatch.setenv("TDSL_COMPILE_LIMIT", "30")
    with pytest.warns(td.CompileWarning, match="30 s"):
        _ = td.compile(product(), target="cuda:sm_80").launch


def test_a_schedule_of_the_user_is_an_error_that_names_the_limit(slow):
    f = td.compile(programs.matmul(), target="cuda", M=32, K=16, N=64)
    message = "NVRTC takes more than 20 s of processor time for kernel 'c_kernel'"
    with pytest.raises(compile_limit.CompileLimit, match=message) as caught:
        _ = f.launch
    assert "unroll less" in caught.value.hint and "TDSL_COMPILE_LIMIT=SECONDS" in caught.value.hint
    assert caught.value.loc.file == __file__
    assert len(slow) == 1


def test_without_a_limit_there_is_no_child_process(monkeypatch):
    monkeypatch.setenv("TDSL_COMPILE_LIMIT", "0")
    monkeypatch.setattr(compile_limit, "run_in_child", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = 'extern "C" __global__ void k() {}'
        assert nvrtc.compile_text(text, "sm_80").cubin.startswith(b"\x7fELF")


def test_an_architecture_that_the_compiler_lacks_is_refused_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr(nvrtc, "supported_archs", lambda: ("12.4", (75, 80, 86, 90)))
    monkeypatch.setattr(module, "require_tvm", lambda: pytest.fail("CUDA text is made"))
    f = td.compile(product(), target="cuda:sm_120")
    message = "NVRTC 12.4 does not compile for sm_120; it does for sm_75, sm_80, sm_86, sm_90"
    with pytest.raises(td.TargetError, match=message) as caught:
        _ = f.launch
    assert 'target="cuda:sm_90a"' in caught.value.hint


def test_nvrtc_says_what_it_compiles_for():
    version, known = nvrtc.supported_archs()
    assert float(version) >= 12 and {75, 80, 90} <= set(known)


def test_a_candidate_that_takes_too_long_is_given_up_for_the_next():
    def compiled(candidate):
        if candidate < 2:
            raise compile_limit.CompileLimit(f"NVRTC takes more than 20 s for kernel {candidate}")
        return module.Module("", "sm_80", (), (), (), b"")

    with pytest.warns(td.CompileWarning, match="20 s for kernel 1: it is compiled by a schedule for fewer"):
        assert spills.first_without_spills((0, 1, 2, 3), compiled)[0] == 2
    with pytest.raises(compile_limit.CompileLimit, match="kernel 1"):
        spills.first_without_spills((0, 1), compiled)
