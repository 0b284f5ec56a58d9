"""A probe finds where the bandwidth of copies steps; where it cannot run, built-in sizes hold."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import time
from dataclasses import replace

import pytest

from tdsl.machine import probe as probes
from tdsl.machine.machine_of import machine_of
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.machine.probe import Probe, evaluate, probe, with_probe
from tdsl.tools import doctor

MIB = 1 << 20
LEVELS = (
    MemoryLevel("L1", 1 << 15), MemoryLevel("L2", 1 << 19), MemoryLevel("L3", 480 * MIB, shared_by=2),
    MemoryLevel("memory", None, managed=True),
)  # fmt: skip
MACHINE = Machine(vector_bytes=32, threads=2, levels=LEVELS)
FOUND = Probe(24 * MIB, 10 * MIB)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The cache folder, in which no probe has run yet."""
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(probes, "_results", {})
    return tmp_path


@pytest.fixture
def runs(monkeypatch):
    """The machines that were probed; what is found is FOUND."""
    machines = []

    def run(machine):
        machines.append(machine)
        return FOUND

    monkeypatch.setattr(probes, "run", run)
    return machines


def copies(*speeds, non_temporal=10):
    """The times of copies of 4 MiB, 8 MiB and so on, at so many bytes in a time."""
    sizes = [4 * MIB << n for n in range(len(speeds))]
    return [(n, n / speed, n / non_temporal) for n, speed in zip(sizes, speeds, strict=True)]


def test_the_step_of_the_bandwidth_is_the_size_of_the_cache():
    assert evaluate(copies(30, 30, 28, 9, 8), 16 * MIB, whole=True) == Probe(16 * MIB, 16 * MIB)
    assert evaluate(copies(30, 30, 30, 30, 8, 8), 16 * MIB, whole=True).effective == 32 * MIB


def test_a_cache_without_a_step_keeps_its_built_in_size():
    assert evaluate(copies(8, 8.3, 8, 8.1, 8), 32 * MIB, whole=True) == Probe(None, 16 * MIB)
    assert evaluate(copies(11, 11, 11, 11), 32 * MIB, whole=True) == Probe(None, math.inf)
    assert "equally fast" not in evaluate(copies(11, 11, 11, 11), 32 * MIB, whole=True).problem


def test_one_slow_run_is_no_step():
    assert evaluate(copies(30, 30, 30, 8), 32 * MIB, whole=False).effective is None
    assert evaluate(copies(30, 8, 30, 30, 30), 32 * MIB, whole=True).effective is None


def test_what_there_was_no_time_for_is_not_known():
    assert evaluate(copies(30, 30, 30, 30), 32 * MIB, whole=False).non_temporal_from is None
    assert "more than 150 ms" in evaluate(copies(30, 8), 32 * MIB, whole=False).problem


def test_a_probe_runs_once_and_is_kept_for_the_next_process(folder, runs):
    machine = with_probe(MACHINE)
    assert (machine.llc_bytes, machine.non_temporal_from) == (24 * MIB, 10 * MIB)
    assert with_probe(MACHINE) == machine
    probes._results.clear()
    assert with_probe(MACHINE) == machine
    assert len(runs) == 1
    assert with_probe(replace(MACHINE, threads=1)).llc_bytes == 24 * MIB
    assert len(runs) == 2


@pytest.mark.parametrize("least", [None, 8 * MIB, math.inf])
def test_a_file_keeps_what_was_found(tmp_path, least):
    file = str(tmp_path / "probe.json")
    probes._write(file, Probe(None, least, ""))
    assert probes._read(file) == Probe(None, least, "")


@pytest.mark.parametrize("text", ["", "{}", "3", '{"effective": -1, "non_temporal_from": 1, "problem": ""}'])
def test_a_damaged_file_is_written_anew(folder, runs, text):
    with_probe(MACHINE)
    (file,) = folder.glob("probe-*.json")
    file.write_text(text)
    probes._results.clear()
    assert probe(MACHINE) == FOUND
    assert json.loads(file.read_text())["effective"] == 24 * MIB


def test_a_probe_that_found_nothing_runs_again_a_day_later(folder, runs):
    with_probe(MACHINE)
    (file,) = folder.glob("probe-*.json")
    probes._write(str(file), Probe(problem="busy"))
    probes._results.clear()
    assert probe(MACHINE).problem == "busy"
    past = time.time() - 2 * probes.RETRY
    os.utime(file, (past, past))
    probes._results.clear()
    assert probe(MACHINE) == FOUND


@pytest.mark.parametrize(
    "name, value, reason", [("TDSL_PROBE", "0", "TDSL_PROBE=0"), ("TDSL_CACHE", "0", "disk cache")]
)
def test_a_probe_can_be_switched_off(folder, runs, monkeypatch, name, value, reason):
    monkeypatch.setenv(name, value)
    assert with_probe(MACHINE) == MACHINE
    assert reason in probe(MACHINE).problem
    assert not runs


def test_a_folder_that_cannot_be_written_keeps_built_in_sizes(tmp_path, runs, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setattr(probes, "_results", {})
    monkeypatch.setenv("TDSL_CACHE_DIR", str(file / "folder"))
    assert with_probe(MACHINE) == MACHINE
    assert "cannot be kept" in probe(MACHINE).problem
    assert not runs


def test_without_a_timer_or_memory_built_in_sizes_hold(monkeypatch):
    monkeypatch.setattr(probes, "free_memory", lambda: 64 * MIB)
    assert "too little memory" in probes.run(MACHINE).problem
    monkeypatch.setattr(probes, "TIMER", 0)
    assert "no timer" in probes.run(MACHINE).problem


def test_the_memory_of_a_control_group_is_what_is_free(tmp_path, monkeypatch):
    most, used = tmp_path / "max", tmp_path / "current"
    most.write_text("1000\n")
    used.write_text("400\n")
    monkeypatch.setattr(probes, "GROUPS", ((str(most), str(used)), (str(tmp_path / "none"), str(used))))
    assert probes.free_memory() == 600
    most.write_text("max\n")
    assert probes.free_memory() != 600


def test_the_wait_for_another_process_ends(folder, runs, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(probes, "WAIT", 0.02)
    with_probe(MACHINE)
    (file,) = folder.glob("probe-*.json")
    file.unlink()
    probes._results.clear()
    with open(f"{file}.tmp", "w") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        assert "another process" in probe(MACHINE).problem
    assert len(runs) == 1


def _probed(count):
    """Probe in a process of its own; the bytes that stay in the last cache."""
    with count.get_lock():
        count.value += 1
    while count.value < 2:
        time.sleep(0.001)
    return_value = with_probe(MACHINE).llc_bytes
    assert return_value == 24 * MIB


def test_processes_that_race_agree(folder, runs):
    context = multiprocessing.get_context("fork")
    count = context.Value("i", 0)
    workers = [context.Process(target=_probed, args=(count,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]


def test_a_probe_runs_for_this_processor_alone(folder, runs, monkeypatch):
    machine_of("cpu")
    assert not runs
    monkeypatch.delenv("TDSL_MACHINE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    for level in ("avx2", "amx"):
        machine_of("cpu", level)
    machine_of("cuda")
    assert not runs
    assert machine_of("cpu").llc_bytes == 24 * MIB
    assert len(runs) == 1


def test_doctor_says_what_the_sizes_are_from(folder, runs, monkeypatch):
    assert "TDSL_MACHINE=builtin" in doctor.CHECKS["machine"]()[1]
    monkeypatch.delenv("TDSL_MACHINE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    status, detail, _ = doctor.CHECKS["machine"]()
    assert (status, detail.split()[0]) == ("PASS", "24")
    monkeypatch.setenv("TDSL_PROBE", "0")
    status, detail, hint = doctor.CHECKS["machine"]()
    assert (status, hint) == ("SKIP", "measure all of it: tdsl machine measure")
    assert "switched off" in detail


def test_a_probe_of_this_processor_ends_in_time(monkeypatch):
    monkeypatch.setattr(probes, "LIMIT", 0.02)
    found = probes.run(MACHINE)
    assert found.effective is None or found.effective >= 16 * MIB


def test_the_kernels_copy_what_they_should():
    from tdsl.machine.memory_kernels import MemoryKernels

    kernels = MemoryKernels(2, 1 << 16)
    kernels.touch(0, 1 << 16)
    for name in ("copy", "copy_non_temporal"):
        starts = [-m.ctypes.data % 4096 for m in kernels.memory]
        for m, start in zip(kernels.memory, starts, strict=True):
            m[start : start + (1 << 15)] = 7
            m[start + (1 << 15) : start + (1 << 16)] = 0
        assert kernels.seconds(name, 1 << 16) > 0
        assert all((m[s : s + (1 << 16)] == 7).all() for m, s in zip(kernels.memory, starts, strict=True))
    for name in ("write", "write_non_temporal"):
        kernels.seconds(name, 1 << 16)
        assert not any(m[s : s + (1 << 16)].any() for m, s in zip(kernels.memory, starts, strict=True))
    assert kernels.seconds("read", 1 << 16, repeat=3, threads=1) > 0
