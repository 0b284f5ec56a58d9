"""A machine written to a file is read back, and a file that is something else is refused with its name."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import TargetError
from tdsl.machine import description
from tdsl.machine.cpu import host
from tdsl.machine.description_json import FIGURES, Description, from_text, to_text
from tdsl.machine.model import Machine, MemoryLevel, Rate
from tdsl.target import Target

LEVELS = (
    MemoryLevel("registers", 1024, 32, managed=True),
    MemoryLevel("L1", 1 << 14, 64, 2, bandwidth=((1, 1e11), (2, 1.5e11))),
    MemoryLevel("L2", 1 << 18),
    MemoryLevel("L3", 1 << 22, shared_by=4),
    MemoryLevel("memory", None, managed=True, non_temporal_bandwidth=((1, 2e10),)),
)
LINK = MemoryLevel("network", None, 4096, managed=True, bandwidth=((1, 1e9),), latency=5e-7)
MACHINE = Machine(
    32,
    4,
    frozenset({"avx", "fma"}),
    16,
    LEVELS,
    (Rate("vector", "f32", 1e11),),
    ((4, 2e-6),),
    links=(LINK,),
)
ABOUT = Description(MACHINE, "haswell", "2026-01-02T03:04:05+00:00")


def changed(**fields):
    """The text of ABOUT with other fields; None leaves one out."""
    data = json.loads(to_text(ABOUT)) | fields
    return json.dumps({name: value for name, value in data.items() if value is not ...})


def test_a_description_comes_back_whole():
    assert from_text(to_text(ABOUT)) == ABOUT


@pytest.mark.parametrize("least", [None, 1 << 24, math.inf])
def test_ordinary_stores_may_always_be_as_fast(least):
    machine = replace(MACHINE, non_temporal_from=least, hidden=0.5, barrier=((2, 1e-6),))
    assert from_text(to_text(Description(machine, "x"))).machine == machine


def level(level_name, **fields):
    """The text of ABOUT with other fields of a level."""
    levels = json.loads(to_text(ABOUT))["levels"]
    return changed(levels=[x | fields if x["name"] == level_name else x for x in levels])


def old():
    """The text of ABOUT as it was written before there were effective sizes."""
    launch = {"schema": 1, "launch": 2e-6, "barrier": ...}
    return changed(**launch, **dict.fromkeys((*FIGURES, "non_temporal_from"), ...))


def test_the_schema_before_is_read():
    assert from_text(old()) == ABOUT


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "Expecting value"),
        ("[]", "schema"),
        (changed(schema=3), "its schema is 3"),
        (changed(levels=...), "there is no levels"),
        (changed(levels=[]), "levels has no cache"),
        (changed(threads=0), "threads is 0"),
        (changed(registers="many"), "registers is 'many'"),
        (changed(launch=[[4, -1.0]]), "launch is -1.0"),
        (changed(levels=[{"name": "L1"}]), "there is no levels.L1.bytes"),
        (level("network", latency=-1), "levels.network.latency is -1"),
        (level("L1", bandwidth=[[1, 0]]), "levels.L1.bandwidth is 0, not a positive number"),
        (level("L1", bandwidth=[[1, float("nan")]]), "levels.L1.bandwidth is nan, not a number"),
        (level("L1", bandwidth=5e9), "levels.L1.bandwidth is 5000000000.0, not a list of pairs"),
        (level("L1", bandwidth=[[2, 1e9], [1, 1e9]]), "levels.L1.bandwidth is not in the order"),
        (level("L1", bandwidth=[[0, 1e9]]), "levels.L1.bandwidth is for 0 threads"),
        (level("memory", bandwidth=[[1, 2e12]]), "levels.memory.bandwidth is 2e+12 for 1 threads"),
        (level("L2", effective=[[1, 1 << 21]]), "levels.L2.effective is 2097152, more than 4 times"),
        (level("L2", managed="no"), "levels.L2.managed is 'no', neither true nor false"),
        (level("L2", name=2), "levels.2.name is 2, not a string"),
        (changed(levels=3), "levels is 3, not a list"),
        (changed(levels=[3]), "levels.0.: 3 is not an object"),
        (changed(rates=[{"unit": "div", "dtype": "f32", "per_second": 0}]), "rates.div.per_second is 0"),
        (
            changed(rates=[{"unit": "div", "dtype": "f32", "per_second": None}]),
            "rates.div.per_second is null",
        ),
        (changed(hidden="half"), "hidden is 'half', not a number"),
        (changed(hidden=...), "there is no hidden"),
        (changed(non_temporal_from=True), "non_temporal_from is True"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text, reason, tmp_path, monkeypatch):
    file = tmp_path / "machine.json"
    file.write_text(text)
    monkeypatch.setenv("TDSL_MACHINE", str(file))
    with pytest.raises(TargetError, match=r"machine\.json does not describe a machine") as caught:
        description.read()
    assert reason in caught.value.message


def test_an_implausible_measurement_is_not_written(tmp_path):
    levels = (*LEVELS[:-1], replace(LEVELS[-1], bandwidth=((1, 9e12),)))
    file = tmp_path / "machine.json"
    with pytest.raises(TargetError, match=r"not plausible: levels\.memory\.bandwidth is 9e\+12"):
        description.write(str(file), Description(replace(MACHINE, levels=levels), "x"))
    assert not file.exists()


def test_a_file_that_is_named_has_to_be_there(tmp_path, monkeypatch):
    monkeypatch.setenv("TDSL_MACHINE", str(tmp_path / "none"))
    with pytest.raises(TargetError, match="none"):
        description.read()


def test_without_a_file_in_the_usual_place_there_is_no_description(tmp_path, monkeypatch):
    monkeypatch.delenv("TDSL_MACHINE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert description.path().startswith(str(tmp_path))
    assert description.read() is None


def test_caches_and_times_of_a_file_are_used_and_registers_of_the_processor(tmp_path, monkeypatch):
    file = tmp_path / "deep" / "machine.json"
    description.write(str(file), Description(MACHINE, host().cpu))
    monkeypatch.setenv("TDSL_MACHINE", str(file))
    machine = Target("cpu").machine()
    assert (machine.levels, machine.rates, machine.launch) == (LEVELS, MACHINE.rates, ((4, 2e-6),))
    assert machine.vector_bytes == host().vector_bytes
    assert machine.registers == host().vector_registers


def test_a_file_of_another_processor_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("TDSL_PROBE", "0")
    before = Target("cpu").machine()
    file = tmp_path / "machine.json"
    description.write(str(file), Description(MACHINE, "another"))
    monkeypatch.setenv("TDSL_MACHINE", str(file))
    assert Target("cpu").machine() == before


def test_the_code_of_another_description_has_another_key(tmp_path, monkeypatch):
    i, j, k = td.vars("i j k")
    a, b, c = td.Tensor("a", (64, 4096), td.f32), td.Tensor("b", (4096, 64), td.f32), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    keys, loops = set(), set()
    for name, levels in (("small", LEVELS), ("large", (MemoryLevel("L1", 1 << 26),))):
        file = tmp_path / name
        described = Machine(32, 4, levels=levels)
        description.write(str(file), Description(described, host().cpu))
        monkeypatch.setenv("TDSL_MACHINE", str(file))
        compiled = td.compile(c)
        arrays = np.ones((64, 4096), np.float32), np.ones((4096, 64), np.float32)
        np.testing.assert_array_equal(compiled(*arrays), np.full((64, 64), 4096))
        keys.add(compiled.variant(next(iter(compiled.executables))).fingerprint())
        loops.add(str(compiled.loops()))
    assert len(keys) == len(loops) == 2


def test_what_one_thread_may_count_on_is_its_share_of_a_cache():
    assert MACHINE.l1_share == 1 << 13
    assert MACHINE.l2_share == 1 << 18
    assert MACHINE.llc_bytes == 1 << 22
    assert Machine(levels=LEVELS[:2]).l2_share == 1 << 13


def test_bandwidth_is_that_of_the_nearest_number_of_threads():
    assert LEVELS[1].bytes_per_second(7) == 1.5e11
    assert LEVELS[2].bytes_per_second(1) is None
