"""A machine written to a file is read back, and a file that is something else is refused with its name."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import TargetError
from tdsl.machine import description
from tdsl.machine import description_fields as fields
from tdsl.machine.cpu import host
from tdsl.machine.description_json import Description, from_text, to_text
from tdsl.machine.devices import FOLDER, described_machine
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
H200 = json.loads((FOLDER / "h200.json").read_text())["gpu"]
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


def level_list(*names, **fields):
    """The text of ABOUT with only these of its levels, in this order."""
    levels = {x["name"]: x for x in json.loads(to_text(ABOUT))["levels"]}
    return changed(levels=[levels[name] | fields.get(name, {}) for name in names])


def rate(**fields):
    """The text of ABOUT with other fields of its only rate."""
    return changed(rates=[{"unit": "vector", "dtype": "f32", "per_second": 1e11} | fields])


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "Expecting value"),
        ("[]", "schema"),
        ("[" * 100_000, "nested too deeply"),
        (changed(schema=3), "its schema is 3"),
        (changed(schema=1), "its schema is 1, this version reads 2: write it anew by `tdsl machine measure`"),
        (changed(speed=3), "speed is not known"),
        (level("L1", lines=64), "levels.L1.lines is not known: did you mean 'line'?"),
        (rate(latencies=1), "rates.vector.f32.latencies is not known: did you mean 'latency'?"),
        (changed(cpu=...), "there is no cpu, a string"),
        (changed(threads=0), "threads is 0, not a whole number from 1 to 4096"),
        (changed(registers="many"), "registers is 'many', not a whole number"),
        (changed(vector_bytes=48), "vector_bytes is 48, not a power of two from 4 to 1024"),
        (changed(launch=[[4, -1.0]]), "launch has a figure that is -1.0, not a number from 1e-09 to 0.1"),
        (changed(launch=[[4, 1000]]), "launch has a figure that is 1000"),
        (changed(launch=3e-6), "launch is 3e-06, not a list of pairs [threads, number"),
        (changed(page=100), "page is 100, not a number from 0 to 0.001, or null"),
        (changed(hidden=2), "hidden is 2, not a number from 0 to 1, or null"),
        (changed(hidden=-1), "hidden is -1, not a number from 0 to 1, or null"),
        (changed(hidden="half"), "hidden is 'half', not a number"),
        (changed(hidden=...), "there is no hidden"),
        (changed(non_temporal_from=True), "non_temporal_from is true"),
        (changed(non_temporal_from="ever"), "non_temporal_from is 'ever', which is not known"),
        (changed(levels=...), "there is no levels"),
        (changed(levels=[]), "levels is [], not a list of objects that is not empty"),
        (changed(levels=3), "levels is 3, not a list"),
        (changed(levels=[3]), "levels[0] is 3, not an object"),
        (changed(levels=[{"name": "L1"}]), "there is no levels.L1.bytes"),
        (level_list("registers", "memory"), "levels has no cache"),
        (level_list("L1", "L2"), "levels has no memory: the last level, L2, is a cache"),
        (level_list("L1", "L1", "memory"), "levels.L1 is there twice"),
        (level_list("L2", "L1", "memory"), "levels.L1.bytes is 16384, not more than the 262144 of L2"),
        (level_list("memory", "L1", "registers"), "levels.memory.bytes is null, which only the last level"),
        (level("L1", bytes=None), "levels.L1.bytes is null, not a whole number from 1024 to "),
        (level("L1", bytes=10**12), "levels.L1.bytes is 1000000000000, not a whole number"),
        (level("L1", line=63), "levels.L1.line is 63, not a power of two from 16 to 1024"),
        (level("memory", line=1000000), "levels.memory.line is 1000000, not a power of two"),
        (level("network", latency=-1), "levels.network.latency is -1"),
        (
            level("L1", bandwidth=[[1, 0]]),
            "levels.L1.bandwidth has a figure that is 0, not a number",
        ),
        (level("memory", bandwidth=[[1, 1]]), "levels.memory.bandwidth has a figure that is 1, not"),
        (level("L1", bandwidth=[[1, float("nan")]]), "levels.L1.bandwidth has a figure that is nan"),
        (level("L1", bandwidth=5e9), "levels.L1.bandwidth is 5000000000.0, not a list of pairs"),
        (level("L1", bandwidth=[[2, 1e9], [1, 1e9]]), "whose numbers of threads do not rise"),
        (level("L1", bandwidth=[[0, 1e9]]), "levels.L1.bandwidth has the threads of a pair that is 0"),
        (level("memory", bandwidth=[[1, 2e12]]), "levels.memory.bandwidth is 2e+12 for 1 threads"),
        (level("L2", effective=[[1, 1 << 21]]), "levels.L2.effective has 2097152 bytes, more than 4 times"),
        (level("L2", managed="no"), "levels.L2.managed is 'no', not true or false"),
        (level("L2", name=2), "levels[2].name is 2, not a string"),
        (changed(gpu=3), "gpu is 3, not an object"),
        (changed(gpu=H200 | {"warps": 0}), "gpu.warps is 0, not a whole number from 1 to 1e+09"),
        (changed(gpu=H200 | {"cores": 4}), "gpu.cores is not known"),
        (changed(gpu=H200 | {"arch": "hopper"}), "gpu.arch is 'hopper', not sm_ and a compute capability"),
        (changed(rates=[]), "rates is [], not a list of objects that is not empty"),
        (changed(rates=[json.loads(rate())["rates"][0]] * 2), "rates.vector.f32 is there twice"),
        (rate(unit="zzz"), "rates.zzz.f32.unit is 'zzz', which is not known"),
        (rate(dtype="f31"), "rates.vector.f31.dtype is 'f31', which is not known: did you mean 'f32'?"),
        (rate(per_second=0), "rates.vector.f32.per_second is 0, not a number from 1e+06 to 1e+17"),
        (rate(per_second=1), "rates.vector.f32.per_second is 1,"),
        (rate(per_second=1e30), "rates.vector.f32.per_second is 1e+30,"),
        (rate(per_second=None), "rates.vector.f32.per_second is null"),
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
    message = r"none, which TDSL_MACHINE names, cannot be read: No such file or directory"
    with pytest.raises(TargetError, match=message):
        description.read()


def test_a_file_can_be_named_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TDSL_MACHINE", "~/mine.json")
    (tmp_path / "mine.json").write_text(to_text(ABOUT))
    assert description.read() == ABOUT


@pytest.mark.parametrize("setting", [None, ""])
def test_without_a_file_in_the_usual_place_there_is_no_description(setting, tmp_path, monkeypatch):
    monkeypatch.delenv("TDSL_MACHINE")
    if setting is not None:
        monkeypatch.setenv("TDSL_MACHINE", setting)
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
    for name, levels in (("small", LEVELS), ("large", (MemoryLevel("L1", 1 << 26), LEVELS[-1]))):
        file = tmp_path / name
        described = Machine(32, 4, levels=levels, rates=MACHINE.rates)
        description.write(str(file), Description(described, host().cpu))
        monkeypatch.setenv("TDSL_MACHINE", str(file))
        compiled = td.compile(c)
        arrays = np.ones((64, 4096), np.float32), np.ones((4096, 64), np.float32)
        np.testing.assert_array_equal(compiled(*arrays), np.full((64, 64), 4096))
        keys.add(compiled.variant(next(iter(compiled.executables))).fingerprint())
        loops.add(str(compiled.loops()))
    assert len(keys) == len(loops) == 2


@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("*.json")))
def test_the_machines_that_come_with_the_package_are_sound(name):
    assert described_machine(name).rates


TABLES = {
    "MACHINE": fields.MACHINE,
    "LEVEL": fields.LEVEL,
    "LINK": fields.LINK,
    "RATE": fields.RATE,
    "GPU": fields.GPU,
}


@pytest.mark.parametrize("table, name", [(t, name) for t in TABLES for name in TABLES[t]])
def test_the_documentation_has_every_field_with_its_values(table, name):
    page = (Path(__file__).parents[2] / "docs" / "machine.md").read_text(encoding="utf-8")
    assert any(
        row.startswith(f"| `{name}` |") and f"| {TABLES[table][name].values} |" in row
        for row in page.splitlines()
    )


def test_what_one_thread_may_count_on_is_its_share_of_a_cache():
    assert MACHINE.l1_share == 1 << 13
    assert MACHINE.l2_share == 1 << 18
    assert MACHINE.llc_bytes == 1 << 22
    assert Machine(levels=LEVELS[:2]).l2_share == 1 << 13


def test_bandwidth_is_that_of_the_nearest_number_of_threads():
    assert LEVELS[1].bytes_per_second(7) == 1.5e11
    assert LEVELS[2].bytes_per_second(1) is None
