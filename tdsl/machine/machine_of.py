"""The machine model of a target: what its backend generates code for, and what was measured of it."""

from __future__ import annotations

from dataclasses import replace

from tdsl.machine.description import read
from tdsl.machine.devices import describe_gpu
from tdsl.machine.model import Machine
from tdsl.machine.threads import num_threads


def machine_of(backend: str, level: str = "", arch: str = "") -> Machine:
    """The machine model of a target: it has vectors and threads only if the backend generates code for them.

    Caches and rates are those of the stored machine description, if it describes this processor.
    """
    if backend == "cuda":
        return describe_gpu(arch)
    if backend != "cpu":
        return Machine()
    from tdsl.machine.cpu import (  # LLVM is imported with the first program for a CPU
        cpu_for,
        host,
    )
    from tdsl.machine.cpu_caches import describe

    machine = replace(describe(cpu_for(level)), threads=num_threads())
    described = None if level else read()
    if described is None or described.cpu != host().cpu:
        return machine
    measured = described.machine
    return replace(
        machine,
        levels=measured.levels,
        rates=measured.rates,
        launch=measured.launch,
        links=measured.links,
    )
