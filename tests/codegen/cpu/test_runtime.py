"""Parallel loops visit each index once, whatever the threads, nesting, forks and neighbours."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tdsl.codegen.cpu import jit, openmp, parallel_text, runtime
from tdsl.codegen.cpu.python_pool import PythonPool
from tdsl.errors import TargetError
from tdsl.machine import threads
from tdsl.machine.cpu import host

SCENARIOS = ["covers", "nested", "concurrent", "forked", "with_numpy", "printing", "at_exit"]
BACKENDS = ["pool", "openmp", "threads", "serial"]

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


def in_process(*scenarios: str, **environment: str) -> dict[str, object]:
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_THREADS")}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("parallel_scenarios.py"), *scenarios],
        env={**clean, "PYTHONPATH": str(Path(__file__).parents[3]), **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)


@functools.cache
def results(backend: str) -> dict[str, object]:
    chosen = [s for s in SCENARIOS if s != "forked" or hasattr(os, "fork")]
    return in_process(*chosen, TDSL_PARALLEL=backend)


@pytest.fixture(params=BACKENDS)
def seen(request):
    if request.param == "openmp" and not any(map(can_load, openmp.libraries())):
        pytest.skip("no OpenMP library")
    return results(request.param)


def can_load(path: str) -> bool:
    try:
        return bool(openmp.OpenMP(path))
    except (OSError, AttributeError):
        return False


def test_each_index_is_visited_once(seen):
    counts = seen["covers"]
    assert len(counts) == 27
    for case, different in counts.items():
        assert different == ([1] if int(case.split()[1]) > 0 else []), case


def test_nested_loops_are_complete(seen):
    assert seen["nested"] == [11]


def test_threads_of_python_run_loops_at_once(seen):
    assert seen["concurrent"] == [[50], [1000]] * 3


@needs_fork
def test_loops_run_after_a_fork_in_child_and_parent(seen):
    assert seen["forked"] == [0, [1]]


def test_loops_take_turns_with_numpy(seen):
    assert seen["with_numpy"] == [[[1], 200.0**3]] * 10


@pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="no two cores")
def test_a_worker_leaves_the_core_of_a_caller_and_may_come_back():
    shared = """
    define i32 @meet() {
      call void @opens()
      %here = load i32, ptr @opener
      call void @spread()
      ret i32 %here
    }
    define void @apart() {
      store i32 -1, ptr @opener
      call void @spread()
      ret void
    }
    """
    text = parallel_text.SELF_SCHEDULING + parallel_text.pool(host().architecture, sys.platform) + shared
    code = jit.load(jit.emit_object(text, host()), ["meet", "apart"])
    meet = ctypes.CFUNCTYPE(ctypes.c_int)(code.address("meet"))
    work_on_other_core = ctypes.CFUNCTYPE(None)(code.address("apart"))
    core = ctypes.CDLL(None).sched_getcpu
    allowed = os.sched_getaffinity(0)
    try:
        left = [meet() != core() for _ in range(5)]
        after = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(allowed)})
        assert meet() == core()  # there is no other core to go to
        work_on_other_core()
        assert os.sched_getaffinity(0) == {min(allowed)}
    finally:
        os.sched_setaffinity(0, allowed)
    assert any(left)
    assert after == allowed


def test_prints_of_all_threads_arrive(seen):
    assert seen["printing"] == [[7, value] for value in range(50)]


def test_chosen_backend_is_used():
    assert results("pool")["backend"] == "pool"
    assert results("threads")["backend"] == "threads"
    assert results("serial")["backend"] == "serial"


def test_interrupt_waits_for_the_end_of_the_loop():
    pool = PythonPool(lambda job: interrupts.append(job))
    interrupts: list[int] = []

    def interrupted(job: int) -> None:
        interrupts.append(job)
        if len(interrupts) == 1:
            raise KeyboardInterrupt

    def share_then_go_on() -> None:
        pool._run_job(5, 1)
        for _ in range(1000):  # the interrupt is delivered at some later bytecode
            pass

    pool._work = interrupted
    with pytest.raises(KeyboardInterrupt):
        share_then_go_on()
    assert interrupts == [5, 5]


def test_number_of_threads_can_be_set_and_is_checked():
    before = threads.num_threads()
    try:
        runtime.set_num_threads(3)
        assert threads.num_threads() == 3
        for wrong in (0, -1, 10**9, 2.0, True, "2"):
            with pytest.raises(TargetError, match="not a number of threads"):
                runtime.set_num_threads(wrong)
        assert threads.num_threads() == 3
    finally:
        runtime.set_num_threads(before)


@pytest.mark.parametrize(
    "environment, number",
    [
        ({"TDSL_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 3),
        ({"OMP_NUM_THREADS": "5"}, 5),
        ({"OMP_NUM_THREADS": "6,2"}, 6),
        ({"OMP_NUM_THREADS": "many"}, None),
        ({}, None),
    ],
)
def test_environment_gives_the_number_of_threads(monkeypatch, environment, number):
    monkeypatch.delenv("TDSL_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert threads.default_threads()[0] == (number or cores)


@pytest.mark.parametrize("value", ["0", "-2", "two", "1e3", "99999"])
def test_wrong_number_of_threads_in_the_environment_is_named(monkeypatch, value):
    monkeypatch.setenv("TDSL_NUM_THREADS", value)
    with pytest.raises(TargetError, match=f"TDSL_NUM_THREADS='{value}'"):
        threads.default_threads()


def test_settings_of_openmp_do_not_reach_child_processes():
    runtime.runtime()
    assert "KMP_BLOCKTIME" not in os.environ


def test_settings_of_the_user_stay(monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "17")
    with openmp._environment({"GOMP_SPINCOUNT": "1", "TDSL_TEST_VARIABLE": "1"}):
        assert os.environ["GOMP_SPINCOUNT"] == "17"
        assert os.environ["TDSL_TEST_VARIABLE"] == "1"
    assert os.environ["GOMP_SPINCOUNT"] == "17"
    assert "TDSL_TEST_VARIABLE" not in os.environ
