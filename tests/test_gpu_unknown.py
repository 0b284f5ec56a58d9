"""The group gpu-unknown: its programs are right by emulation, and what is bad about kernels is named."""

import json
import time

import pytest
from typer.testing import CliRunner

import tdsl as td
from benchmarks.__main__ import app
from benchmarks.cuda.unknown import ALL, resources
from benchmarks.cuda.unknown import command as gpu_unknown

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')

KERNEL = {"blocks": 200, "threads": 256, "spills": 0, "bytes": 1 << 30, "registers": 40}
GOOD = {
    "kernels": [KERNEL], "right": True, "useful": 1.0, "conflicts": 1.0, "memory_bytes": 1.0,
    "width": 16, "cached_s": 1.0, "lines_s": 1.0, "lacks_tensor": False, "bound_s": 1.0, "compile_s": 1.0,
    "processors": 132,
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_small_sizes_are_right_by_emulation(name):
    program = ALL[name]
    compiled = program.compiled("sm_80", small=True)
    arrays = program.arrays(compiled)
    assert program.error(compiled, td.emulate(compiled)(*arrays), arrays)[1]


@pytest.mark.parametrize(
    "change, text",
    [
        ({"kernels": [KERNEL, KERNEL | {"blocks": 1, "threads": 1}]}, "1 one-thread kernels"),
        ({"kernels": [KERNEL | {"spills": 8}]}, "8 bytes spilled"),
        ({"kernels": [KERNEL | {"blocks": 64}]}, "64 of 132 multiprocessors"),
        ({"useful": 0.5}, "0.50 of sectors used"),
        ({"width": 2}, "2-byte accesses"),
        ({"conflicts": 2.0}, "conflicts 2.00"),
        ({"memory_bytes": 3.0}, "3.0 x bytes"),
        ({"cached_s": 4.0}, "waits 4.0 x for L2"),
        ({"lines_s": 4.0}, "waits 4.0 x for L1"),
        ({"lacks_tensor": True}, "no tensor cores"),
        ({"compile_s": 30.0}, "compiles 30 s"),
        ({"right": False}, "WRONG"),
        ({"failure": "no end within 9 s"}, "no end within 9 s"),
    ],
)
def test_what_no_kernel_should_have_is_named(change, text):
    assert resources.cliffs(GOOD) == []
    assert resources.cliffs(GOOD | change) == [text]


def test_the_command_writes_a_record(tmp_path):
    path = tmp_path / "record.json"
    words = ["gpu-unknown", "--case", "channels scaled", "--arch", "sm_80", "--json", str(path)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    (record,) = json.loads(path.read_text())["results"]
    assert (record["right"], record["arch"], record["kernels"][0]["spills"]) == (True, "sm_80", 0)
    assert "1 of 1 programs without a cliff" in done.stdout
    assert CliRunner().invoke(app, ["gpu-unknown", "--case", "odd"]).exit_code == 2


def test_a_record_of_a_run_that_is_interrupted_has_the_programs_before(tmp_path, monkeypatch):
    def one_program(*_):
        yield {"program": "argmax", "arch": "sm_80"} | GOOD
        raise RuntimeError("interrupted")

    monkeypatch.setattr(resources, "run", one_program)
    path = tmp_path / "record.json"
    done = CliRunner().invoke(app, ["gpu-unknown", "--arch", "sm_80", "--json", str(path)])
    assert str(done.exception) == "interrupted"
    (record,) = json.loads(path.read_text())["results"]
    assert (record["program"], record["cliffs"]) == ("argmax", [])


def test_compilations_are_timed_by_processor_time():
    start = resources.cpu_seconds()
    time.sleep(0.3)
    assert resources.cpu_seconds() - start < 0.2


def test_a_program_that_does_not_end_is_given_up(monkeypatch):
    monkeypatch.setattr(resources, "resources", lambda *_: __import__("time").sleep(60))
    (record,) = resources.run(["argmax"], "sm_80", 0.1)
    assert "no end within" in record["failure"]
    assert gpu_unknown.ARCHS[0] == "sm_80"
