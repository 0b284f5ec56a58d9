"""The machine model of a target: what its backend generates code for, and what was measured of it."""

from __future__ import annotations

from dataclasses import replace

from tdsl.machine.description import BUILT_IN, read, read_gpu, setting
from tdsl.machine.devices import DEFAULT_ARCH, as_gpu, describe_gpu
from tdsl.machine.model import Machine
from tdsl.machine.probe import with_probe
from tdsl.machine.threads import num_threads


def machine_of(backend: str, level: str = "", arch: str = "") -> Machine:
    """The machine model of a target: it has vectors and threads only if the backend generates code for them.

    For this processor, caches and rates are those of the stored machine description, if it describes it;
    without one a probe tells how much stays in the last-level cache. A level of processors has neither. A GPU
    is the one that TDSL_GPU describes, if that has the architecture.
    """
    if backend == "cuda":
        described_gpu = read_gpu()
        if described_gpu is not None and described_gpu.arch == (arch or DEFAULT_ARCH):
            return as_gpu(described_gpu)
        return describe_gpu(arch)
    if backend != "cpu":
        return Machine()
    from tdsl.machine.cpu import (  # LLVM is imported with the first program for a CPU
        cpu_for,
        host,
    )
    from tdsl.machine.cpu_caches import describe

    machine = replace(describe(cpu_for(level)), threads=num_threads())
    if level:
        return machine
    described = read()
    if described is None or described.cpu != host().cpu:
        return machine if setting() == BUILT_IN else with_probe(machine)
    return replace(
        described.machine,
        vector_bytes=machine.vector_bytes,
        threads=machine.threads,
        features=machine.features,
        registers=machine.registers,
    )
