"""The suite of kernels of a GPU: right by emulation without one, and timed on a stand-in for one."""

import json
import shutil
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import tdsl as td
from benchmarks import goals
from benchmarks.__main__ import app
from benchmarks.cuda import command, emulated, measure
from benchmarks.cuda.cases import ALL
from tdsl.codegen.cuda import module
from tdsl.codegen.cuda.driver import Driver
from tests.codegen.cuda.fake_driver import FakeDriver, image

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
from tests.codegen.cuda import shim  # imports tvm

# one case of each program; those of other sizes are the same at small ones
PROGRAMS = list({id(c.program): name for name, c in ALL.items()}.values())


@pytest.mark.parametrize("name", PROGRAMS)
def test_small_sizes_are_right_by_emulation(name):
    case = ALL[name]
    compiled = case.compiled(case.small)
    arrays = case.arrays(compiled)
    result = td.emulate(compiled)(*arrays)
    assert case.error(compiled, result, case.expected(*arrays))[1]
    assert not case.error(compiled, result + result.dtype.type(1), case.expected(*arrays))[1]


def test_the_command_checks_without_a_gpu(tmp_path):
    record = tmp_path / "record.json"
    words = ["cuda", "--emulate", "--case", "add", "--case", "row-sums", "--json", str(record)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    results = json.loads(record.read_text())["results"]
    assert [r["case"] for r in results] == ["add", "row-sums"]
    assert all(r["right"] and r["kernels"][0]["registers"] for r in results)
    assert "by emulation at small sizes" in done.stdout


def test_without_a_gpu_nothing_is_timed(monkeypatch):
    monkeypatch.setattr(command, "driver", lambda: Driver("libthere-is-none.so"))
    done = CliRunner().invoke(app, ["cuda", "--case", "add"])
    assert done.exit_code == 1
    assert "Nothing was timed" in done.stdout
    assert "--emulate" in done.stdout


def test_unknown_cases_are_named():
    done = CliRunner().invoke(app, ["cuda", "--case", "sgem"])
    assert done.exit_code == 2


def test_every_group_has_a_goal_and_peers_for_it():
    for case in ALL.values():
        peers = {*measure.peers_of(case), *(("copy",) if case.bound else ())}
        goals_of_group = [g for g in goals.CUDA_GOALS if g.group == case.group]
        assert bool(goals_of_group) == bool(case.group)
        assert all(set(g.peers) & peers for g in goals_of_group)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A GPU whose machine code is the text of kernels, compiled for the CPU."""
    numbers, build = iter(range(99)), module.build

    def build_for_cpu(launches, arch):
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        shim.library_of(launches, folder)
        return replace(build(launches, arch), code=image(folder / "kernels.so"))

    monkeypatch.setenv("TDSL_CACHE", "0")
    monkeypatch.setattr(module, "build", build_for_cpu)
    driver = Driver(FakeDriver(tmp_path).path)
    for place in (
        "benchmarks.cuda.command",
        "tdsl.codegen.cuda.driver",
        "tdsl.codegen.cuda.device_call",
    ):
        monkeypatch.setattr(f"{place}.driver", lambda: driver)
    return driver


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ makes the kernels")
def test_the_command_times_and_compares(stand_in, tmp_path, monkeypatch):
    cases = {name: replace(ALL[name], sizes=ALL[name].small) for name in ("add", "row-sums")}
    monkeypatch.setattr(command, "ALL", cases)
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    done = CliRunner().invoke(app, ["cuda", "--rounds", "2"], catch_exceptions=False)
    assert done.exit_code == 0, done.stdout
    (file,) = (tmp_path / "results").iterdir()
    record = json.loads(file.read_text())
    assert record["device"] == "Fake"
    assert [line["group"] for line in record["summary"]] == ["cuda-memory"]
    for result in record["results"]:
        assert len(result["peers"]["tdsl"]["turns_ms"]) == 2
        assert result["peers"]["torch"]["note"]  # PyTorch sees no GPU, or is not here
        assert result["peers"]["copy"]["turns_ms"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ makes the kernels")
def test_a_wrong_result_is_not_timed(stand_in, tmp_path, monkeypatch):
    case = replace(ALL["add"], sizes=ALL["add"].small, expected=lambda a, b: a - b)
    monkeypatch.setattr(command, "ALL", {"add": case})
    record = tmp_path / "record.json"
    done = CliRunner().invoke(app, ["cuda", "--rounds", "1", "--json", str(record)])
    assert done.exit_code == 1
    (result,) = json.loads(record.read_text())["results"]
    assert "WRONG" in result["peers"]["tdsl"]["note"]
    assert not result["peers"]["tdsl"]["turns_ms"]


def test_the_table_of_emulation_shows_what_is_wrong():
    record = {
        "case": "a", "right": False, "error": 1.0, "compile_ms": 1.0, "useful": 1.0,
        "conflicts": 1.0,
        "kernels": [{"registers": 8, "spills": 0, "shared": 0}],
    }  # fmt: skip
    table = emulated.table([record])
    assert table.row_count == 1
    assert "WRONG" in str(list(table.columns[1].cells))
