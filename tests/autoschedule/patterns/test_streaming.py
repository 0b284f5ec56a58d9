"""Large results are written past the caches, whatever size of the last-level cache the system reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tdsl as td
from tdsl import pipeline
from tdsl.codegen.runtime.signature import dense_specialisation
from tdsl.machine.devices import described_machine
from tdsl.machine.model import Machine
from tdsl.variant import Variant

SPR = described_machine("spr")
y, x = td.vars("y x")


def variant_of(program: td.Func, machine: Machine = SPR) -> Variant:
    """The variant of the default schedule for a machine with AMX."""
    compiled = td.compile(program, target="cpu:amx")
    variant = compiled.variant(dense_specialisation(compiled.signature, {}, frozenset()))
    return replace(variant, machine=machine)


def streams(program: td.Func, machine: Machine = SPR) -> bool:
    """True if a program's only func is written by streaming stores."""
    state, _ = pipeline.completed_with_decisions(variant_of(program, machine))
    return state.plan(program.name).stream


def copy(size: int) -> td.Func:
    """A copy of an array of so many bytes."""
    a, out = td.Tensor("a", (size // 4,), td.f32), td.Func("out")
    out[x] = a[x]
    return out


def triad(size: int) -> td.Func:
    """The triad of STREAM on arrays of so many bytes."""
    a, b = (td.Tensor(name, (size // 4,), td.f32) for name in "ab")
    out = td.Func("out")
    out[x] = a[x] + 3 * b[x]
    return out


def blur(size: int) -> td.Func:
    """A blur of three by three pixels of so many bytes."""
    rows = size // 4 // 4096
    a, out = td.Tensor("a", (rows + 2, 4098), td.f32), td.Func("out", shape=(rows, 4096))
    out[y, x] = sum(a[y + m, x + n] for m in range(3) for n in range(3)) / 9
    return out


@pytest.mark.parametrize("program", [copy, triad, blur])
def test_a_cache_of_480_megabytes_that_is_only_reported_does_not_keep_results(program):
    assert streams(program(64 << 20))
    assert not streams(program(2 << 20))


def test_the_measured_crossing_decides():
    assert not streams(copy(64 << 20), replace(SPR, non_temporal_from=float("inf")))
    assert not streams(copy(64 << 20), replace(SPR, non_temporal_from=80 << 20))
    assert streams(copy(64 << 20), replace(SPR, non_temporal_from=60 << 20))


@pytest.mark.parametrize("program", [copy, triad])
def test_schedules_and_loops_of_streams_for_a_machine_with_a_large_reported_cache(program, golden):
    from tdsl.autoschedule.explain import explain
    from tdsl.codegen.ir.show import show

    variant = variant_of(program(64 << 20))
    state, decisions = pipeline.completed_with_decisions(variant)
    golden(f"{explain(decisions, state)}\n\n{show(pipeline.lower_variant(variant))}")
