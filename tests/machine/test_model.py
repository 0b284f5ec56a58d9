"""What a level holds is what stays there, and what was not measured is not believed."""

from __future__ import annotations

import pytest

from tdsl.machine.devices import described_machine
from tdsl.machine.model import Machine, MemoryLevel, Rate

L1, L2 = MemoryLevel("L1", 1 << 15), MemoryLevel("L2", 1 << 20)
L3 = MemoryLevel("L3", 480 << 20, shared_by=96)
MEMORY = MemoryLevel("memory", None, managed=True)


@pytest.mark.parametrize("threads, size", [(1, 16), (2, 32), (8, 128), (96, 480)])
def test_a_last_cache_that_was_not_measured_has_at_most_a_size_for_each_thread(threads, size):
    machine = Machine(threads=threads, levels=(L1, L2, L3, MEMORY))
    assert machine.llc_bytes == size << 20
    assert machine.capacity(L2) == machine.l2_share == 1 << 20
    assert machine.capacity(MEMORY) is None


def test_what_was_measured_holds_whatever_the_system_reports():
    level = MemoryLevel("L3", 480 << 20, shared_by=2, effective=((1, 40 << 20), (4, 100 << 20)))
    assert Machine(threads=1, levels=(L2, level)).llc_bytes == 40 << 20
    assert Machine(threads=8, levels=(L2, level)).llc_bytes == 100 << 20


def test_a_store_costs_as_many_bytes_as_are_read_in_its_time():
    speeds = ((1, 30e9), (2, 40e9))
    level = MemoryLevel("memory", None, bandwidth=speeds, non_temporal_bandwidth=((1, 20e9),))
    assert level.write_cost(2, non_temporal=True) == 1.5  # of one thread, for which both were measured
    assert level.write_cost(2) is None


def test_rates_are_those_of_the_type_or_of_another():
    rates = (Rate("div", "f32", 4e9, 3e-9), Rate("div", "f64", 2e9))
    machine = Machine(rates=rates)
    assert [machine.rate("div", t) for t in ("f32", "f64", "i32")] == [4e9, 2e9, 4e9]
    assert [machine.latency("div", t) for t in ("f32", "f64", "i32")] == [3e-9, 3e-9, 3e-9]
    assert machine.rate("exp") is machine.latency("exp") is None


def test_a_described_machine_with_a_large_reported_cache_has_little_of_it():
    machine = described_machine("spr")
    assert machine.level("L3").bytes == 480 << 20
    assert machine.llc_bytes == 32 << 20
    assert "amx-int8" in machine.features
