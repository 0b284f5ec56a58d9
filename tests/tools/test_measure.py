"""A measurement finds every figure that it should; how large they are is not asserted."""

import dataclasses

import pytest

from tdsl.machine.capacities import LevelFigures
from tdsl.machine.description_json import from_text, to_text
from tdsl.machine.instructions.dots import DOTS
from tdsl.machine.model import MemoryLevel
from tdsl.machine.threads import num_threads
from tdsl.tools.measure import FUNCTIONS, Measurement, measure
from tests.distribute.test_mpi import needs_mpi

LEVELS = (
    MemoryLevel("registers", 1024, managed=True),
    MemoryLevel("L1", 1 << 14),
    MemoryLevel("L2", 1 << 16, shared_by=2),
    MemoryLevel("memory", None, managed=True),
)


@pytest.fixture
def measurement():
    measurement = Measurement(0.0, 1 << 19)
    measurement.machine = dataclasses.replace(measurement.machine, levels=LEVELS, threads=2)
    return measurement


def test_all_figures_are_measured_and_written_to_a_file(measurement, monkeypatch):
    monkeypatch.setattr(Measurement, "links", lambda _: ())
    threads, names = num_threads(), []
    description = measurement.describe(lambda name, number, count: names.append((name, number, count)))
    machine = description.machine
    assert num_threads() == threads
    assert [(number, count) for _, number, count in names] == [(n, len(names)) for n in range(len(names))]
    assert from_text(to_text(description)) == description
    for what in ("bandwidth", "write_bandwidth"):
        counts = [[n for n, _ in getattr(level, what)] for level in machine.levels]
        assert counts == [[], [1, 2], [1, 2], [1, 2]]
    assert [n for n, _ in machine.levels[-1].non_temporal_bandwidth] == [1, 2]
    assert {(rate.unit, rate.dtype) for rate in machine.rates} == {
        *((unit, dtype) for unit in ("scalar", "vector") for dtype in ("f32", "f64", "i32", "i64")),
        *((unit, dtype) for unit in FUNCTIONS for dtype in ("f32", "f64")),
        *((dot.name, str(dot.total)) for dot in DOTS if dot.feature in machine.features),
    }
    assert all(machine.latency(unit, t) for unit in ("scalar", "vector", "add") for t in ("f32", "f64"))
    assert [n for n, _ in machine.launch] == [n for n, _ in machine.barrier] == [2]
    assert None not in (machine.gathers, machine.page, machine.first_touch, machine.non_temporal_from)
    assert 0 <= (machine.hidden or 0) <= 1


@needs_mpi
def test_two_ranks_measure_the_network(measurement):
    (link,) = measurement.links()
    assert link.latency > 0
    assert link.bytes_per_second(1) > 0


def test_without_mpi_there_is_no_network(measurement, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert measurement.links() == ()


def test_a_working_set_for_a_level_is_larger_than_the_nearer_one(measurement):
    _, first, second, memory = measurement.machine.levels
    figures = LevelFigures(1e9, None)
    assert measurement._inside(first, figures, 0, 2) == 1 << 13
    assert measurement._inside(second, figures, 1 << 12, 2) == 1 << 14
    assert measurement._inside(second, figures, 1 << 16, 1) > 1 << 16
    assert measurement._inside(second, LevelFigures(1e9, 1 << 14), 0, 1) == 1 << 13
    assert measurement._inside(memory, figures, 1 << 16, 2) == 1 << 18


def test_working_sets_do_not_depend_on_what_the_system_reports(measurement, monkeypatch):
    sizes = {}
    for reported in (1 << 20, 480 << 20):
        level = MemoryLevel("L3", reported)
        machine = dataclasses.replace(measurement.machine, levels=(*LEVELS[:3], level, LEVELS[3]))
        tried = sizes.setdefault(reported, [])
        monkeypatch.setattr(
            Measurement,
            "memory_seconds",
            lambda _, name, size, threads, x=tried: x.append((name, size)) or 1,
        )
        measurement.with_levels(machine, 2)
    reads = [[size for name, size in tried if name == "read"] for tried in sizes.values()]
    assert reads[0] == reads[1]


def test_a_crossing_is_where_non_temporal_stores_begin_to_win(measurement, monkeypatch):
    def win(least):
        def seconds(self, name, size, threads):
            return 1.0 if name == "copy" else 0.5 if size * threads >= least else 2.0

        monkeypatch.setattr(Measurement, "memory_seconds", seconds)
        return measurement.crossing(measurement.machine)

    assert win(1 << 17) == 1 << 16
    assert win(1 << 10) == 1 << 15  # half of the last cache, from which it may be read
    assert win(1 << 30) == float("inf")


def test_measuring_does_not_ask_for_the_file_that_it_makes(monkeypatch, tmp_path):
    monkeypatch.setenv("TDSL_MACHINE", str(tmp_path / "none"))
    monkeypatch.setattr(Measurement, "describe", lambda self, tell: self.loop_seconds(1))
    assert measure(quick=True) > 0
