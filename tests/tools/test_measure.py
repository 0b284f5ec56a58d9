"""A measurement finds every figure that it should; how large they are is not asserted."""

import dataclasses

import pytest

from tdsl.machine.description import from_text, to_text
from tdsl.machine.instructions.dots import DOTS
from tdsl.machine.model import MemoryLevel
from tdsl.machine.threads import num_threads
from tdsl.tools.measure import Measurement, measure
from tests.distribute.test_mpi import needs_mpi


@pytest.fixture
def measurement():
    measurement = Measurement(0.0, lambda _: None)
    levels = (
        MemoryLevel("registers", 1024, managed=True),
        MemoryLevel("L1", 1 << 12),
        MemoryLevel("L2", 1 << 16, shared_by=2),
        MemoryLevel("memory", None, managed=True),
    )
    measurement.machine = dataclasses.replace(measurement.machine, levels=levels, threads=2)
    return measurement


def test_all_figures_are_measured_and_written_to_a_file(measurement):
    threads = num_threads()
    description = measurement.describe()
    assert num_threads() == threads
    assert from_text(to_text(description)) == description
    assert [[n for n, _ in level.bandwidth] for level in description.machine.levels] == [
        [], [1, 2], [1, 2], [1, 2],
    ]  # fmt: skip
    assert {(rate.unit, rate.dtype) for rate in description.machine.rates} == {
        *((unit, dtype) for unit in ("scalar", "vector") for dtype in ("f32", "f64", "i32")),
        ("exp", "f32"),
        *((dot.name, str(dot.total)) for dot in DOTS if dot.feature in description.machine.features),
    }


@needs_mpi
def test_two_ranks_measure_the_network(measurement):
    (link,) = measurement.links()
    assert link.latency > 0
    assert link.bytes_per_second(1) > 0


def test_without_mpi_there_is_no_network(measurement, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert measurement.links() == ()


def test_the_array_for_a_level_is_larger_than_the_nearer_one(measurement):
    _, first, second, memory = measurement.machine.levels
    assert measurement._working_set(first, 0, 2) == 1 << 11
    assert measurement._working_set(second, 1 << 12, 1) == 1 << 15
    assert measurement._working_set(second, 1 << 12, 2) == 1 << 14
    assert measurement._working_set(memory, 1 << 16, 2) == 1 << 17


def test_measuring_does_not_ask_for_the_file_that_it_makes(monkeypatch, tmp_path):
    monkeypatch.setenv("TDSL_MACHINE", str(tmp_path / "none"))
    monkeypatch.setattr(Measurement, "describe", lambda self: self.launch())
    assert measure(quick=True) > 0
