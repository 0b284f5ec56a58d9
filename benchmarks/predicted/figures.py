"""Bytes beyond each cache, predicted and counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np

import tdsl as td
from benchmarks.predicted.schedules import Counted
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.profiling import arguments_of, count_caches
from tdsl.schedule.bind import bind_state
from tdsl.target import Target


def machine(l1: int, l2: int) -> Machine:
    """One thread with two caches of so many bytes."""
    registers = MemoryLevel("registers", 512, managed=True)
    caches = MemoryLevel("L1", l1), MemoryLevel("L2", l2)
    memory = MemoryLevel("memory", None, managed=True)
    return Machine(vector_bytes=32, levels=(registers, *caches, memory))


MACHINES = (machine(4 << 10, 32 << 10), machine(8 << 10, 64 << 10))


@dataclass(frozen=True)
class Figure:
    """What one cache of a machine moves for a schedule."""

    schedule: str
    cache: int
    predicted: float
    counted: int

    @property
    def error(self) -> float:
        """By how much the prediction is off, as a part of what was counted."""
        return self.predicted / self.counted - 1 if self.counted else float(self.predicted > 0)


@contextmanager
def use_machine(machine: Machine) -> Iterator[None]:
    """A context in which every target has this machine."""
    with patch.object(Target, "machine", lambda _: machine):
        yield


def figures(counted: Counted, machine: Machine) -> list[Figure]:
    """Those of each cache; none where there is no such schedule."""
    with use_machine(machine):
        program = counted.build()
        return [] if program is None else _count(counted.name, program, machine)


def _count(name: str, program: td.Compiled, machine: Machine) -> list[Figure]:
    rng = np.random.default_rng(0)
    inputs = bind_state(program.state, program.sizes).program.inputs
    arrays = {t.name: rng.random([n.value for n in t.shape], np.float32) for t in inputs}
    values, specialisation = arguments_of(program.signature, (), arrays, None)
    variant = replace(program.variant(specialisation), machine=machine)
    return [
        Figure(name, level.bytes or 0, traffic.predicted, traffic.counted)
        for level, traffic in zip(machine.caches, count_caches(variant, values), strict=True)
    ]
