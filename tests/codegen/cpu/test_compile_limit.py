"""LLVM is limited in time: fallbacks are compiled, and the child process that compiles is killed."""

import os
import signal
import threading
import warnings

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cpu import jit
from tdsl.codegen.cpu.runtime import runtime
from tdsl.codegen.runtime import compile_limit
from tdsl.codegen.runtime.child_process import ChildFailure, run_in_child

i, j, k = td.vars("i j k")
a, b = td.Tensor("a", ("M", "K"), td.f32), td.Tensor("b", ("K", "N"), td.f32)


def product():
    f = td.Func("f")
    f[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    return f


@pytest.fixture
def slow(monkeypatch, tmp_path):
    """A function that says for which text and target LLVM does not end; a list of the targets tried."""
    monkeypatch.setenv("TDSL_COMPILE_LIMIT", "20")
    runtime()  # which is compiled, too
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit, "_compiles_fast", lambda text: False)
    targets_tried, quick = [], jit._object
    within = jit._within_time_limit

    def make_slow(is_slow):
        def compile_(text, target, name):
            if is_slow(text, target):
                os.kill(os.getpid(), signal.SIGPROF)  # as the timer does
            return quick(text, target, name)

        def counted(compute, text, target, name):
            targets_tried.append(target.vector_bytes)
            return within(compute, text, target, name)

        monkeypatch.setattr(jit, "_object", compile_)
        monkeypatch.setattr(jit, "_within_time_limit", counted)

    return make_slow, targets_tried


def of_kernel(text):
    return "@f_kernel" in text


def run(what, rng, **options):
    x, y = rng.random((9, 14), np.float32), rng.random((14, 33), np.float32)
    np.testing.assert_allclose(td.compile(what, **options)(x, y), x @ y, rtol=1e-5)


def test_a_default_schedule_falls_back_to_the_next_lower_level(slow, rng):
    make_slow, targets_tried = slow
    make_slow(lambda text, target: of_kernel(text) and target.vector_bytes == 32)
    with pytest.warns(td.CompileWarning, match=r"20 s .* 'f_kernel'.* for cpu:sse4") as caught:
        run(product(), rng, target="cpu:avx2")
    assert caught[0].filename == __file__
    assert targets_tried == [32, 16]


def test_a_cached_fallback_is_used_unless_the_limit_is_larger(slow, rng, monkeypatch):
    make_slow, targets_tried = slow
    make_slow(lambda text, target: of_kernel(text) and target.vector_bytes == 32)
    for _ in range(2):
        with pytest.warns(td.CompileWarning, match="for cpu:sse4"):
            run(product(), rng, target="cpu:avx2")
    assert targets_tried == [32, 16]
    monkeypatch.setenv("TDSL_COMPILE_LIMIT", "21")
    with pytest.warns(td.CompileWarning, match="21 s"):
        run(product(), rng, target="cpu:avx2")
    assert targets_tried == [32, 16, 32, 16]


def test_a_schedule_of_the_user_falls_back_to_loops_without_vectors(slow, rng):
    make_slow, targets_tried = slow
    make_slow(lambda text, target: of_kernel(text) and "<8 x float>" in text)
    s = td.Schedule(product())
    s["f"].split(j, 8)
    s["f"].vectorize("j_i").parallel(i)
    with pytest.warns(td.CompileWarning, match="without vectors"):
        run(s, rng, target="cpu:avx2")
    assert targets_tried == [32, 32]


def test_an_error_of_all_fallbacks_has_the_line_of_the_user(slow, rng):
    make_slow, targets_tried = slow
    make_slow(lambda text, target: of_kernel(text))
    with pytest.raises(td.TargetError, match="TDSL_COMPILE_LIMIT") as error:
        run(product(), rng, target="cpu:avx2")
    assert error.value.loc.file == __file__
    assert len(targets_tried) == 3


def test_an_error_of_llvm_is_the_same_from_a_child(slow):
    with pytest.raises(td.TargetError, match="LLVM refused"):
        jit.generate("define void @f( {", jit.host())


def test_a_computation_that_does_not_end_is_killed():
    def spin():
        while True:
            pass

    with pytest.raises(ChildFailure, match=r"more than 0.05 s of processor time"):
        run_in_child(spin, 0.05)


def test_a_child_that_dies_is_an_error():
    with pytest.raises(ChildFailure, match=f"ends with signal {int(signal.SIGTERM)}"):
        run_in_child(lambda: os.kill(os.getpid(), signal.SIGTERM) or b"", 10)


def test_a_large_result_and_one_that_is_an_error():
    assert run_in_child(lambda: bytes(10**6), 10) == bytes(10**6)
    assert run_in_child(lambda: bytes(1 // 0), 10) is None


def test_a_fork_with_threads_warns_not_and_leaves_no_child():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert run_in_child(lambda: b"x", 10) == b"x"
    finally:
        stop.set()
        thread.join()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize("limit", ["fast", "-1", "nan", "inf"])
def test_a_limit_that_is_no_number_of_seconds(monkeypatch, limit):
    monkeypatch.setenv("TDSL_COMPILE_LIMIT", limit)
    with pytest.raises(td.TargetError, match="no number of seconds"):
        compile_limit.compile_limit()


def test_no_limit_takes_no_child(monkeypatch, rng, slow):
    monkeypatch.setenv("TDSL_COMPILE_LIMIT", "0")
    monkeypatch.setattr(compile_limit, "run_in_child", None)
    run(product(), rng)


@pytest.mark.parametrize(
    "text, soon",
    [
        ("shufflevector <16 x i8> %a, <16 x i8> %b, <16 x i32> <i32 0, i32 1>", True),
        ("shufflevector <17 x i8> %a, <17 x i8> %b, <34 x i32> <i32 0, i32 17>", False),
        ("shufflevector <256 x i8> %a, <256 x i8> %b, <256 x i32> <i32 0, i32 17>", False),
        (" " * 200_001, False),
    ],
)
def test_long_text_and_vectors_that_no_register_holds_are_compiled_in_a_child(text, soon):
    assert jit._compiles_fast(text) == soon
