"""Compiling: what is taken, when it is built, and what the disk cache gives back in another process."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.runtime import cache

# Blank lines in front shift the line of the program in the source; what is compiled stays the same.
PROGRAM = """
import json, sys
import numpy as np, tdsl as td
from tdsl.codegen.runtime import cache
i, j = td.vars("i j")
a, limit = td.Tensor("a", ("H", "W"), td.f32), td.Scalar("limit", td.f32)
b, c = td.Func("b"), td.Func("c")
b[i, j] = (a[i, j] + a[i, j + 1]) / 2
c[i, j] = td.require(b[i, j] < limit, b[i, j] + b[i + 1, j], "{} at {}", b[i, j], i)
s = td.Schedule(c)
s[b].compute_at(s[c], "i")
f = td.compile(s)
image = np.arange(12, dtype=np.float32).reshape(3, 4)
result = f(image, 100.0)
told = {
    "result": result.tolist(),
    "misses": cache.info().misses,
    "lowered": "tdsl.codegen.lowering.lower" in sys.modules,
    "quick": f.executables[next(iter(f.executables))].fast is not None,
}
try:
    f(image, 5.0)
except td.RequireError as error:
    told["error"] = str(error).splitlines()[:2]
told["loops"] = f.loops("final")
told["llvm"] = f.source("llvm")
told["misses after all"] = cache.info().misses
print(json.dumps(told))
"""


def run(folder, seed="0", program=PROGRAM, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "PYTHONHASHSEED": seed,
            "TDSL_CACHE_DIR": str(folder),
            "TDSL_NUM_THREADS": "2",
            **environment,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout), done.stderr


def test_another_process_compiles_nothing(tmp_path):
    first, _ = run(tmp_path, "1")
    second, _ = run(tmp_path, "2", "\n\n\n" + PROGRAM)
    assert first["misses"] > 0
    assert first["lowered"]
    assert second["misses"] == second["misses after all"] == 0
    assert not second["lowered"]
    assert second["quick"] == first["quick"]
    for same in ("result", "loops", "llvm"):
        assert first[same] == second[same]
    assert first["error"][0] == second["error"][0]
    line = int(first["error"][1].partition(":")[2].split()[0])
    assert f":{line + 3}" in second["error"][1]


def test_what_changes_the_code_is_compiled(tmp_path):
    run(tmp_path)
    for change in (
        PROGRAM.replace("/ 2", "/ 3"),
        PROGRAM.replace('compute_at(s[c], "i")', "compute_root()"),
        PROGRAM.replace("reshape(3, 4)", "reshape(4, 3)"),
        PROGRAM.replace("reshape(3, 4)", "reshape(4, 3).T"),
        PROGRAM.replace("compile(s)", 'compile(s, dynamic="H")'),
    ):
        output, _ = run(tmp_path, program=change)
        assert output["misses"] == 1
    assert run(tmp_path, TDSL_NUM_THREADS="1")[0]["misses"] == 1


def test_a_damaged_entry_is_compiled_again(tmp_path):
    first, _ = run(tmp_path)
    for entry in tmp_path.glob("*.entry"):
        data = bytearray(entry.read_bytes())
        data[len(data) // 2] ^= 1
        entry.write_bytes(data)
    second, warned = run(tmp_path)
    assert second["misses"] == first["misses"]
    assert second["result"] == first["result"]
    assert "CacheWarning" in warned


def test_looking_at_the_passes_runs_them(tmp_path):
    run(tmp_path)
    _, output = run(tmp_path, TDSL_DEBUG="passes,llvm,cache")
    assert "--- simplify_loops" in output
    assert "define i64 @c_kernel" in output
    assert "not found" in output
    _, output = run(tmp_path, TDSL_DEBUG="cache")
    assert output.startswith("found ")


def test_a_dump_holds_each_stage(monkeypatch, tmp_path):
    monkeypatch.setenv("TDSL_DUMP", str(tmp_path))
    for target in ("cpu", "python"):
        td.compile(scale(), target=target)(np.ones(3, np.float32))
    names = {path.name for path in tmp_path.iterdir()}
    assert {"f_kernel.00.simplify_loops.txt", "f_kernel.ll", "f_kernel.s", "f_kernel.py"} <= names


def test_a_cache_that_is_off_is_no_trouble(tmp_path):
    assert run(tmp_path, TDSL_CACHE="0")[0]["result"] == run(tmp_path)[0]["result"]
    assert run(tmp_path, TDSL_CACHE="0")[0]["misses"] == 0


def scale() -> td.Func:
    i = td.vars("i")
    a, f = td.Tensor("a", ("N",), td.f32), td.Func("f")
    f[i] = a[i] * 3
    return f


def test_variants_are_built_once_for_each_size(monkeypatch, tmp_path):
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path))
    f = td.compile(scale())
    for n in (3, 5, 3, 5):
        np.testing.assert_array_equal(f(np.ones(n, np.float32)), np.full(n, 3, np.float32))
    assert [dict(s.sizes)["N"] for s in f.executables] == [3, 5]
    g = td.compile(scale(), dynamic="N")
    for n in (3, 5, 0):
        assert g(np.ones(n, np.float32)).size == n
    assert len(g.executables) == 1


def test_a_size_given_before_is_the_only_one():
    f = td.compile(scale(), N=4)
    assert f(np.ones(4, np.float32)).tolist() == [3] * 4
    with pytest.raises(td.ShapeError):
        f(np.ones(5, np.float32))


@pytest.mark.parametrize("target", ["cpu", "numba", "python", td.Target("cpu"), None])
def test_targets_agree(target):
    if target == "numba":
        pytest.importorskip("numba")
    assert td.compile(scale(), target=target)(np.arange(3, dtype=np.float32)).tolist() == [0, 3, 6]


def test_funcs_tuples_schedules_and_operators_can_be_compiled():
    f, x = scale(), np.ones(2, np.float32)

    @td.op
    def double(a: td.f32["N"]):
        i, g = td.vars("i"), td.Func("g")
        g[i] = a[i] * 2
        return g

    assert td.compile((f,))(x).tolist() == td.compile(td.Schedule(f))(x).tolist() == [3, 3]
    assert td.compile(double)(x).tolist() == [2, 2]


@pytest.mark.parametrize("what", [3, None, "f", ()])
def test_other_things_cannot(what):
    with pytest.raises(td.TypeMismatch, match="cannot be compiled"):
        td.compile(what)


def test_a_size_that_only_an_output_has_can_be_fixed():
    o, k = td.vars("o k")
    at, bins = td.Tensor("at", ("P",), td.i32), td.Func("bins", shape="S")
    bins[o] = td.cast(0, td.i64)
    bins[td.clip(at[k], 0, 2)] += 1
    f, data = td.compile(bins, S=4), np.array([2, 9, 0], np.int32)
    np.testing.assert_array_equal(f(data), [1, 0, 2, 0])
    with pytest.raises(td.ShapeError, match="decides the size S"):
        td.compile(bins, dynamic="S")(data)


def test_unknown_sizes_and_targets_are_errors():
    with pytest.raises(td.ShapeError, match="no size 'M'") as raised:
        td.compile(scale(), dynamic="M")
    assert "N" in raised.value.hint
    with pytest.raises(td.ShapeError, match="no size 'M'"):
        td.compile(scale(), M=3)
    with pytest.raises(td.TargetError, match="no target 'gpu'"):
        td.compile(scale(), target="gpu")


def test_a_program_that_cannot_be_compiled_leaves_the_next_call_fit(monkeypatch, tmp_path):
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path))
    i = td.vars("i")
    a, f = td.Tensor("a", ("N",), td.f32), td.Func("f", (6,))
    f[i] = a[i + 2]
    compiled = td.compile(f)
    with pytest.raises(td.IndexBoundError):
        compiled(np.ones(7, np.float32))
    assert not compiled.executables
    stored = cache.info().entries
    assert compiled(np.ones(8, np.float32)).tolist() == [1] * 6
    assert cache.info().entries == stored + 1


def test_large_results_begin_at_a_line_of_the_caches():
    i, j = td.vars("i j")
    a, f = td.Tensor("a", (1000, 500), td.f32), td.Func("f")
    f[i, j] = a[i, j] * 2
    s = td.Schedule(f)
    s[f].vectorize(j, 16).stream_stores()
    double, x = td.compile(s), np.ones((1000, 500), np.float32)
    for result in (double(x), double(x), double(a=x)):
        assert result.ctypes.data % 64 == 0
        np.testing.assert_array_equal(result, 2 * x)
    memory = np.empty(500_020, np.float32)
    for start in (0, 1, 4, 16):
        out = memory[start : start + 500_000].reshape(1000, 500)
        out[...] = 0
        assert double(x, out=out) is out
        np.testing.assert_array_equal(out, 2 * x)
    assert len(double.executables) == 2


def test_arguments_in_the_order_of_reads_are_deprecated() -> None:
    a, s, b, f = (
        td.Tensor("a", (2,), td.f32),
        td.Scalar("s", td.f32),
        td.Tensor("b", (2,), td.f32),
        td.Func("f"),
    )
    i = td.vars("i")
    f[i] = b[i] - s * a[i]
    one, two = np.float32([1, 2]), np.float32([3, 5])
    np.testing.assert_array_equal(td.compile(f)(one, 2, two), [1, 1])
    for what in (f, td.Schedule(f)):
        with pytest.warns(DeprecationWarning, match="create tensors in the order") as caught:
            compiled = td.compile(what, arguments="reads", target="cpu")
        assert caught[0].filename == __file__
        assert repr(compiled) == "<compiled f(b, s, a) -> f for cpu>"
        np.testing.assert_array_equal(compiled(two, 2, one), [1, 1])
    with pytest.raises(td.TypeMismatch, match="arguments= is an order") as wrong:
        td.compile(f, arguments="name")
    assert '"created"' in wrong.value.hint


def test_arguments_of_an_operator_are_its_parameters_in_any_order_of_reads() -> None:
    @td.op
    def f(x: td.f32["N"], y: td.f32["N"]) -> td.Func:
        return td.einsum("i,i->i", y, x, name="f")

    assert repr(f.compile(target="cpu")) == "<compiled f(x, y) -> f for cpu>"
    with pytest.warns(DeprecationWarning, match="create tensors"):
        compiled = td.compile(f, arguments="reads", target="cpu")
    assert repr(compiled) == "<compiled f(x, y) -> f for cpu>"
