"""The command line: what it prints, and the exit code that scripts rely on."""

import json
import shutil
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tdsl.codegen.cuda.driver import Driver
from tdsl.codegen.runtime import cache
from tdsl.machine import description
from tdsl.machine.description_json import Description, from_text
from tdsl.machine.devices import reference_cpu
from tdsl.machine.model import Machine, Rate
from tdsl.machine.threads import num_threads
from tdsl.tools import doctor
from tdsl.tools.cli import app, main
from tests.codegen.cuda.fake_driver import FakeDriver

MEASURED = Description(Machine(16, rates=(Rate("vector", "f32", 1e10),)), "x")
RUNNER = CliRunner()
KEY = "0" * 64


@pytest.fixture
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def test_doctor_finds_nothing_wrong_here():
    done = RUNNER.invoke(app, ["doctor", "--json"])
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert not [check for check in checks.values() if check["status"] == "FAIL"]
    assert set(checks) == set(doctor.CHECKS)
    assert done.exit_code == 0


def test_doctor_reports_a_failure(monkeypatch):
    def broken():
        raise OSError("no such device")

    monkeypatch.setitem(doctor.CHECKS, "kernel", broken)
    done = RUNNER.invoke(app, ["doctor"])
    assert "FAIL kernel" in done.stdout
    assert "OSError: no such device" in done.stdout
    assert done.exit_code == 1


def test_doctor_says_how_to_enable_what_is_missing(monkeypatch):
    missing = doctor._package("nothing", "no_such_module", "what it is for")
    monkeypatch.setattr(doctor, "CHECKS", {"absent": missing})
    done = RUNNER.invoke(app, ["doctor"])
    assert "SKIP absent" in done.stdout
    assert "pip install nothing" in done.stdout
    assert done.exit_code == 0


def test_doctor_tells_of_a_gpu(monkeypatch, tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("gcc makes the driver")
    stand_in = Driver(FakeDriver(tmp_path).path)
    monkeypatch.setattr("tdsl.codegen.cuda.driver.driver", lambda: stand_in)
    assert doctor.CHECKS["gpu"]() == ("PASS", "Fake (sm_90), a driver for CUDA 13.0", "")
    monkeypatch.setattr("tdsl.codegen.cuda.driver.driver", lambda: Driver("libthere-is-none.so"))
    status, detail, hint = doctor.CHECKS["gpu"]()
    assert (status, "not launched" in detail, "run_bundle" in hint) == ("SKIP", True, True)


def test_doctor_names_the_chosen_compiler(monkeypatch, tmp_path):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho release 13.0\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("TDSL_CUDA_COMPILER", str(nvcc))
    assert doctor.CHECKS["nvrtc"]()[1] == f"CUDA C++ to machine code: {nvcc}, release 13.0"


def test_doctor_on_a_cache_that_others_can_write(private_cache, monkeypatch):
    private_cache.mkdir()
    private_cache.chmod(0o777)
    monkeypatch.setattr(doctor, "CHECKS", {"cache": doctor.CHECKS["cache"]})
    done = RUNNER.invoke(app, ["doctor"])
    assert "FAIL cache" in done.stdout
    assert done.exit_code == 1


def test_cache_info_verify_clear(private_cache):
    cache.store(KEY, b"payload")
    info = RUNNER.invoke(app, ["cache", "info"])
    assert str(private_cache) in info.stdout
    assert "entries  1" in info.stdout

    sound = RUNNER.invoke(app, ["cache", "verify"])
    assert "1 entries are sound, 0 are damaged" in sound.stdout
    assert sound.exit_code == 0

    cleared = RUNNER.invoke(app, ["cache", "clear"])
    assert "removed 1 files" in cleared.stdout
    assert cache.info().entries == 0


def test_cache_verify_finds_a_damaged_entry(private_cache):
    cache.store(KEY, b"payload")
    (entry,) = private_cache.iterdir()
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    with pytest.warns(UserWarning, match="bad entry"):
        done = RUNNER.invoke(app, ["cache", "verify"])
    assert "0 entries are sound, 1 are damaged" in done.stdout
    assert done.exit_code == 1


def test_demo_of_one_case():
    done = RUNNER.invoke(app, ["demo", "equalize"])
    assert "right" in done.stdout
    assert done.exit_code == 0


def test_demo_of_an_unknown_case():
    done = RUNNER.invoke(app, ["demo", "sharpen"])
    assert "sharpen" in done.output
    assert done.exit_code == 2


def test_machine_show_tells_the_file_and_what_is_used(tmp_path, monkeypatch):
    file = tmp_path / "machine.json"
    shown = RUNNER.invoke(app, ["machine", "show", "--json"])
    described = from_text(shown.stdout)
    levels = tuple(replace(x, bandwidth=((1, 5e9),)) for x in described.machine.levels)
    rates = (Rate("vector", "f32", 7e9, 5e-10),)
    machine = replace(
        described.machine,
        levels=levels,
        rates=rates,
        launch=((2, 3e-6),),
        non_temporal_from=1 << 24,
        gathers=2e9,
    )
    description.write(str(file), replace(described, machine=machine, date="2026"))
    monkeypatch.setenv("TDSL_MACHINE", str(file))
    done = RUNNER.invoke(app, ["machine", "show"])
    assert done.exit_code == 0
    for text in (
        "measured 2026",
        "L1",
        "5.0",
        "vector",
        "7.00",
        "0.50",
        "3.0 us",
        "from 16 MiB on",
        "2.00 10^9",
        "that stay",
    ):
        assert text in done.stdout
    description.write(str(file), replace(described, cpu="another"))
    assert "is not used" in RUNNER.invoke(app, ["machine", "show"]).stdout


def test_machine_measure_writes_the_file_that_is_read(tmp_path, monkeypatch):
    file = tmp_path / "new" / "machine.json"
    monkeypatch.setattr("tdsl.tools.measure.measure", lambda **_: MEASURED)
    monkeypatch.setenv("TDSL_MACHINE", str(file))
    done = RUNNER.invoke(app, ["machine", "measure", "--quick"])
    assert done.stdout.strip() == str(file)
    assert description.read().cpu == "x"


@pytest.mark.parametrize("load, warned", [(0.1, False), (3.0, True)])
def test_machine_measure_warns_of_other_work(tmp_path, monkeypatch, load, warned):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 1.0, 1.0), raising=False)
    monkeypatch.setattr("tdsl.tools.measure.measure", lambda **_: MEASURED)
    done = RUNNER.invoke(app, ["machine", "measure", "--to", str(tmp_path / "machine.json")])
    assert ("other programs run (load 3.0)" in done.stderr) == warned


def test_machine_show_has_the_figures_that_are_built_in():
    described = from_text(RUNNER.invoke(app, ["machine", "show", "--json"]).stdout)
    reference = reference_cpu(described.machine.vector_bytes)
    assert described.machine.rates == reference.rates
    assert described.machine.level("L1").bandwidth == reference.level("L1").bandwidth
    assert f"{reference.rates[0].per_second / 1e9:.2f}" in RUNNER.invoke(app, ["machine", "show"]).stdout


def test_doctor_on_a_cache_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path / "file" / "cache"))
    status, detail, hint = doctor.CHECKS["cache"]()
    assert (status, "file/cache" in detail, "TDSL_CACHE_DIR" in hint) == ("FAIL", True, True)


def test_doctor_leaves_no_file_in_the_cache_folder(private_cache):
    assert doctor.CHECKS["cache"]()[0] == "PASS"
    assert not [*private_cache.iterdir()]


def test_doctor_says_what_the_number_of_threads_is_from(monkeypatch):
    monkeypatch.setenv("TDSL_NUM_THREADS", str(num_threads()))
    assert f"{num_threads()}, set by TDSL_NUM_THREADS: " in doctor.CHECKS["threads"]()[1]


def test_an_error_of_tdsl_is_its_message_and_hint(monkeypatch, capsys):
    monkeypatch.setenv("TDSL_MACHINE", "/nowhere.json")
    monkeypatch.setattr("sys.argv", ["tdsl", "machine", "show"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    message = capsys.readouterr().err
    assert "/nowhere.json, which TDSL_MACHINE names, cannot be read" in message
    assert "hint: write it anew" in message


PLANNED = """
import tdsl as td
i, j, k = td.vars("i j k")
A, B, C = td.Tensor("A", (8, 8), td.f32), td.Tensor("B", (8, 8), td.f32), td.Func("C")
C[i, j] = td.sum(A[i, k] * B[k, j], axis=k)
s = td.Schedule(C)
"""


def test_plan_prints_directives_bytes_memory_and_time(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PLANNED)
    done = RUNNER.invoke(app, ["plan", str(program), "-n", "4", "--forbid", "copies"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "# s"
    assert any(line.startswith('s.place("A"') for line in lines)
    assert any(line.startswith('s["C"].distribute(') for line in lines)
    assert "bytes received a rank, memory " in done.stdout
    assert "at most 0.00 % above the best" in done.stdout


def test_plan_names_what_it_lacks(tmp_path, capsys, monkeypatch):
    (tmp_path / "empty.py").write_text("x = 1")
    for arguments, message in (
        ([str(tmp_path / "none.py"), "-n", "4"], "there is no program"),
        ([str(tmp_path / "empty.py"), "-n", "4"], "defines no schedule"),
        ([str(tmp_path / "program.py"), "-n", "4", "--memory", "10"], "a rank needs"),
    ):
        (tmp_path / "program.py").write_text(PLANNED)
        monkeypatch.setattr("sys.argv", ["tdsl", "plan", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 1
        assert message in capsys.readouterr().err
