"""Bundles, made here and run on a stand-in for a GPU: its kernels are the CUDA texts, compiled by g++."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import tdsl as td
from tdsl import run_bundle
from tdsl.codegen.cuda import manifest
from tdsl.tools import bundle
from tdsl.tools.cli import app
from tests.codegen.cuda import programs
from tests.codegen.cuda.fake_driver import FakeDriver, image

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
from tests.codegen.cuda import shim  # imports tvm

pytestmark = pytest.mark.skipif(not shim.HAS_COMPILER, reason="g++ makes the kernels")

i, j = td.vars("i j")

SCRIPT = """
import numpy as np
import tdsl as td
from tests.codegen.cuda import programs

matmul = td.compile(programs.matmul(td.f16, 8), target="cuda", M=40, K=24, N=72)
scaled = td.compile(programs.scaled(), target="cuda:sm_80", N=1000)
several = td.compile(programs.scaled(), target="cuda:sm_80,sm_90a", N=1000)
producer = programs.matmul(td.f16, stages=3, bulk=True, producer=True)
tiles = td.compile(producer, target="cuda", M=48, K=32, N=96)
"""


def chain():
    """Two kernels, memory between them, a scalar and results of two types."""
    a, n = td.Tensor("a", ("N",), td.bf16), td.Scalar("n", td.f32)
    g, f, count = td.Func("g"), td.Func("f"), td.Func("count")
    g[i] = td.cast(a[i], td.f32) * n
    f[i] = g[i] + g[i + 1]
    count[i] = td.cast(f[i] > 0, td.i32)
    s = td.Schedule(f, count)
    for stage in (s[g].compute_root(), s[f].compute_root(), s[count]):
        block, thread = stage.split(i, 32)
        stage.bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    return td.compile(s, target="cuda", N=100)


def groups():
    """Products of groups of warps, whose operands tensor maps fetch ahead."""
    k = td.vars("k")
    a, b, c = td.Tensor("a", (128, 128), td.f16), td.Tensor("b", (128, 128), td.f16), td.Func("c")
    c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(s[c], block=(64, 64, 64), warp=(64, 64), stages=2, warpgroups=True)
    return td.compile(s, target="cuda")


def gather():
    """An input that has to be an index, which its author gives."""
    a, at, f = td.Tensor("a", (8,), td.f32), td.Tensor("at", (5,), td.i64), td.Func("f")
    f[i] = a[td.clip(at[i], 0, 7)]
    compiled = td.compile(f, target="cuda")
    return [bundle.Job("gather", compiled, {"at": np.array([7, 0, 3, 3, 1])}, flops=5.0)]


def emulated(folder: Path, jobs: list[bundle.Job]) -> None:
    """Put kernels for the CPU into the place of the machine code."""
    for job in jobs:
        variant = bundle._variant(job)
        launches = shim.TextExecutable(td.pipeline.make_kernel(job.compiled.variant(variant))).launches
        cpu_folder = folder / f"{job.name}_for_the_cpu"
        cpu_folder.mkdir()
        shim.library_of(launches, cpu_folder)
        (folder / f"{job.name}.sm_90a.cubin").write_bytes(image(cpu_folder / "kernels.so"))


@pytest.fixture(scope="module")
def written_bundle(tmp_path_factory):
    """A bundle as the command makes it, ready for the stand-in, and that."""
    folder = tmp_path_factory.mktemp("bundle")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    words = [
        str(script),
        *(f"tests.tools.test_bundle:{name}" for name in ("chain", "gather", "groups")),
    ]
    done = CliRunner().invoke(app, ["bundle", str(folder / "out"), *words], catch_exceptions=False)
    assert done.exit_code == 0
    assert "matmul: sm_90a, 1 kernels" in done.stdout
    jobs = bundle.collect(words)
    assert [job.name for job in jobs] == ["matmul", "scaled", "several", "tiles", "chain", "gather", "groups"]
    assert "several: sm_80, sm_90a, compute_90, 1 kernels" in done.stdout
    for name in ("matmul.sm_90a", "scaled.sm_80", "several.sm_80", "several.sm_90a"):
        assert (folder / "out" / f"{name}.cubin").read_bytes().startswith(b"\x7fELF")
        assert "__global__" in (folder / "out" / f"{name}.cu").read_text()
    assert ".target sm_90\n" in (folder / "out" / "several.compute_90.ptx").read_text()
    emulated(folder / "out", jobs)
    return folder / "out", FakeDriver(folder).path


CHILD = """
import runpy, sys
sys.argv = ["run_bundle", *sys.argv[1:]]
sys.modules |= dict.fromkeys(("tvm", "tvm_ffi", "llvmlite", "cuda", "numba", "sympy"))  # no import finds them
runpy.run_module("tdsl.run_bundle", run_name="__main__")
"""


def run(folder, driver, *more):
    command = [sys.executable, "-W", "ignore", "-c", CHILD, str(folder), "--driver", driver, *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_bundle_runs_without_the_compiler(written_bundle):
    folder, driver = written_bundle
    done = run(folder, driver, "--count", "4")
    assert "ImportError" not in done.stderr, done.stderr
    record = json.loads((folder / "results.json").read_text())
    assert record["device"] == "Fake"
    results = {r["name"]: r for r in record["results"]}
    # code for sm_80 does not run on the stand-in, which is of sm_90
    assert "for sm_80" in results["scaled"]["note"]
    for name in ("matmul", "several", "tiles", "chain", "gather", "groups"):
        assert results[name]["note"] == "", results[name]
        assert len(results[name]["turns_ms"]) == 4
        assert results[name]["error"] <= 1e-3
    assert done.returncode == 1  # because of the one that did not run


def test_only_some_programs_are_run(written_bundle, tmp_path):
    folder, driver = written_bundle
    record = tmp_path / "record.json"
    done = run(folder, driver, "--only", "gather", "--json", str(record))
    assert done.returncode == 0
    assert [r["name"] for r in json.loads(record.read_text())["results"]] == ["gather"]
    assert "gather" in done.stdout
    assert "right" in done.stdout


def test_tensor_maps_are_encoded_for_the_arrays_of_a_bundle(written_bundle):
    folder, _ = written_bundle
    programs_of = {p.name: p for p in manifest.load(str(folder))[1]}
    for name in ("tiles", "groups"):
        (kernel,) = programs_of[name].codes[0].kernels
        assert [tile.array for tile in kernel.maps] == ["a", "b"]


@pytest.mark.parametrize("name", ["matmul", "chain", "groups"])
def test_a_wrong_result_fails(written_bundle, tmp_path, name):
    folder, driver = written_bundle
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    with np.load(broken / f"{name}.npz") as stored:
        kept = dict(stored)
    expected = next(k for k in kept if k.startswith("expected"))
    kept[expected] = kept[expected].copy()
    kept[expected][3] += 1
    np.savez(broken / f"{name}.npz", **kept)
    done = run(broken, driver, "--only", name)
    assert done.returncode == 1
    assert f"WRONG: {expected.removeprefix('expected_')}" in done.stdout


def test_without_a_gpu_it_says_so(written_bundle):
    folder, _ = written_bundle
    done = run(folder, "libthere-is-none.so")
    assert done.returncode == 1
    assert "there is no CUDA driver here" in done.stderr


def test_a_folder_that_is_no_bundle(tmp_path, capsys):
    assert run_bundle.main([str(tmp_path)]) == 1
    assert "tdsl bundle FOLDER program.py" in capsys.readouterr().err
    (tmp_path / manifest.MANIFEST).write_text('{"format": 0}')
    assert run_bundle.main([str(tmp_path)]) == 1
    assert "has format 0" in capsys.readouterr().err


def test_generated_numbers_are_the_same_on_every_machine():
    x = manifest.random_array((1000,), "f32", 3)
    assert (abs(x) <= 1).all()
    assert abs(x.mean()) < 0.1
    assert 0.5 < x.std() < 0.65
    assert set(manifest.random_array((100,), "i8", 3).tolist()) == {-3, -2, -1, 0, 1, 2, 3}
    assert set(manifest.random_array((100,), "bool_", 3).tolist()) == {False, True}


def test_what_cannot_be_bundled_is_refused(tmp_path):
    f = td.Func("f")
    f[i] = td.Tensor("a", ("N",), td.f32)[i] * 2
    with pytest.raises(td.ShapeError, match="for sizes that are not known yet: N"):
        bundle.write(tmp_path, [bundle.Job("f", td.compile(f, target="cuda"))])
    with pytest.raises(td.TargetError, match="only kernels of a GPU are bundled"):
        bundle.write(tmp_path, [bundle.Job("f", td.compile(f, N=4))])
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(td.TypeMismatch, match=r"there is no program nosuch\.py"):
        bundle.collect(["nosuch.py"])
    with pytest.raises(td.TypeMismatch, match="pi is float, nothing that is compiled for a GPU"):
        bundle.collect(["math:pi"])
    with pytest.raises(td.TypeMismatch, match="missing a required argument"):
        bundle.collect(["os:makedirs"])
    with pytest.raises(td.TypeMismatch, match="nothing that is compiled for a GPU"):
        bundle.collect([str(tmp_path / "empty.py")])
    for word in ("tests.tools.test_bundle:absent", "no_such_module:f", "nothing"):
        with pytest.raises(td.TypeMismatch, match="neither a program nor a function"):
            bundle.collect([word])


def test_sizes_of_a_call_are_those_of_the_bundle(tmp_path):
    compiled = td.compile(programs.scaled(), target="cuda")
    compiled.source(N=100)
    compiled.executable(compiled.specialisation({"N": 100}))
    (program,) = bundle.write(tmp_path, [bundle.Job("f", compiled)])
    assert [a.shape for a in program.arguments] == [(100,), (100,)]
    assert program.bytes == 800


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(td.TargetError, match=r"cannot make the folder .*file/bundle"):
        bundle.write(str(tmp_path / "file" / "bundle"), [])
