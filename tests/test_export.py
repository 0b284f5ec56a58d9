"""Programs exported for C give the same bits as in Python, and say what is wrong."""

import ctypes
import functools
import re
import shutil
import subprocess

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import ShapeError, TargetError
from tdsl.lang.show import show_expr
from tdsl.machine.cpu import host

pytestmark = pytest.mark.skipif(
    host().architecture != "x86_64" or shutil.which("cc") is None, reason="needs x86-64 and a C compiler"
)
i, j, k = td.vars("i j k")
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
C_LIBRARY = re.compile(r"\w+@GLIBC_[\d.]+|__gmon_start__|__cxa_finalize|_ITM\w+")


def twice():
    x, f = td.Tensor("x", ("N",), td.f32), td.Func("f")
    f[i] = x[i] * 2 + 1
    return f, {"N": 1000}


def blur():
    x, rows, f = td.Tensor("x", ("H", "W"), td.f32), td.Func("rows"), td.Func("f")
    rows[i, j] = (x[i, j] + x[i, j + 1] + x[i, j + 2]) / 3
    f[i, j] = (rows[i, j] + rows[i + 1, j] + rows[i + 2, j]) / 3
    return f, {"H": 300, "W": 211}


def product():
    a, b, f = td.Tensor("a", ("M", "K"), td.f64), td.Tensor("b", ("K", "N"), td.f64), td.Func("f")
    f[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    return f, {"M": 33, "K": 70, "N": 41}


def softmax():
    x, top, e, f = td.Tensor("x", ("T", "N"), td.f32), td.Func("top"), td.Func("e"), td.Func("f")
    top[i] = td.max(x[i, j], axis=j)
    e[i, j] = td.exp(x[i, j] - top[i])
    f[i, j] = e[i, j] / td.sum(e[i, j], axis=j)
    return f, {"T": 17, "N": 100}


def histogram():
    x, f = td.Tensor("x", ("N",), td.u8), td.Func("f", shape=256)
    r = td.range("r", 0, x.shape[0])
    f[i] = td.cast(0, td.i32)
    f[x[r]] += 1
    return f, {"N": 5000}


def scan():
    x, f = td.Tensor("x", ("N",), td.i64), td.Func("f")
    r = td.range("r", 1, x.shape[0])
    f[i] = x[i]
    f[r] += f[r - 1]
    return f, {"N": 999}


def numbers():
    x, f = td.Tensor("x", ("N",), td.f64), td.Func("f")
    c, n, flag = td.Scalar("c", td.f64), td.Scalar("n", td.i16), td.Scalar("flag", td.bool_)
    f[i] = td.where(flag, c * x[i], x[i]) + n
    return f, {"N": 77}


def narrow():
    x, f = td.Tensor("x", ("N",), td.bf16), td.Func("f")
    f[i] = td.cast(td.cast(x[i], td.f32) * 3, td.bf16)
    return f, {"N": 130}


def several():
    x, low, high = td.Tensor("x", ("H", "W"), td.f32), td.Func("low"), td.Func("high")
    low[i] = td.min(x[i, j], axis=j)
    high[i] = td.max(x[i, j], axis=j)
    return (low, high), {"H": 12, "W": 345}


def padded():
    x, f = td.Tensor("x", ("H", 5), td.f32), td.Func("f", shape=("H", 5))
    y = td.range("y", -1, 2)
    f[i, j] = td.sum(td.pad(x, mode="edge")[i + y, j], axis=y)
    return f, {"H": 40}


def parallel_heap():
    x, g, f = td.Tensor("x", ("N", "N"), td.f64), td.Func("g"), td.Func("f")
    g[i, j] = td.sqrt(x[i, j]) + 1
    f[i, j] = g[j, i] * g[i, j]
    return f, {"N": 300}


def whole():
    x, f = td.Tensor("x", ("N",), td.f64), td.Func("f")
    f[()] = td.sum(td.sin(x[i]), axis=i)
    return f, {"N": 12345}


def array_named_as_its_size():
    m, f = td.Tensor("m", ("m",), td.f32), td.Func("f")
    f[i] = m[i] + 1
    return f, {"m": 9}


KERNELS = [
    twice, blur, product, softmax, histogram, scan, numbers, narrow, several, padded, parallel_heap, whole,
    array_named_as_its_size,
]  # fmt: skip
COMPILERS = [c for c in ("gcc", "clang", "clang-14") if shutil.which(c)] or ["cc"]
LEVEL = "avx2" if "avx2" in host().has else "sse2"


def arguments_of(compiled, sizes, rng):
    """Arrays and numbers in the order of a call."""
    values = {}
    for t in compiled.schedule.program.inputs:
        shape = [sizes[text] if (text := show_expr(e)) in sizes else int(text) for e in t.shape]
        raw = rng.random(shape) * 100 if t.dtype.is_float else rng.integers(0, 100, shape)
        values[t.name] = raw.astype(t.dtype.numpy)
    values |= {"c": 2.5, "n": -3, "flag": True}
    return [values[n] for n in compiled.schedule.program.parameters]


def statements_of(name, compiled, given, sizes, outputs):
    """C statements that read the arrays from stdin, call the function, and write the outputs."""
    lines, call = [], []
    for n, x in enumerate(given):
        if isinstance(x, np.ndarray):
            lines.append(f"  void *in{n} = malloc({max(x.nbytes, 1)});")
            lines.append(f"  if (fread(in{n}, 1, {x.nbytes}, stdin) != {x.nbytes}) return 9;")
            call.append(f"in{n}")
        else:
            call.append(str(int(x) if isinstance(x, bool) else x))
    call += [str(sizes[s]) for s in compiled.signature.sizes]
    for n, y in enumerate(outputs):
        lines.append(f"  void *out{n} = malloc({max(y.nbytes, 1)});")
        call.append(f"out{n}")
    lines += [f"  int status = {name}({', '.join(call)});", "  if (status) return status;"]
    lines += [f"  fwrite(out{n}, 1, {y.nbytes}, stdout);" for n, y in enumerate(outputs)]
    return "  {\n" + "\n".join(lines) + "\n  }\n"


def run(compiler, folder, main, libraries, stdin=b""):
    program = folder / "program"
    command = [*compiler, *STRICT, "-I", folder, main, *libraries, "-lm", "-lpthread", "-o", program]
    built = subprocess.run(command, capture_output=True, text=True)
    assert not built.returncode, built.stderr
    return subprocess.run([program], input=stdin, capture_output=True)


def undefined_names(library):
    listed = subprocess.run(["nm", "-u", library], capture_output=True, text=True, check=True)
    return [line.split()[-1] for line in listed.stdout.splitlines()]


def outside_names(library):
    """The names that a library takes from neither libc nor libm nor libpthread."""
    return [n for n in undefined_names(library) if not C_LIBRARY.fullmatch(n)]


@functools.cache
def compiled_kernel(make):
    outputs, sizes = make()
    return td.compile(outputs, dynamic=tuple(sizes), target=td.Target("cpu", level=LEVEL)), sizes


def results_of(compiled, given):
    results = compiled(*given)
    return [np.asarray(y) for y in (results if isinstance(results, tuple) else (results,))]


def test_the_bits_are_those_of_python(tmp_path, rng):
    heads, statements, stdin, libraries = [], [], b"", []
    expected: dict[str, bytes] = {}
    for make in KERNELS:
        name = make.__name__
        compiled, sizes = compiled_kernel(make)
        given = arguments_of(compiled, sizes, rng)
        results = results_of(compiled, given)
        files = compiled.export(tmp_path, name=name, levels=LEVEL)
        assert outside_names(files.shared) == []
        heads.append(f'#include "{name}.h"\n')
        statements.append(statements_of(name, compiled, given, sizes, results))
        stdin += b"".join(np.ascontiguousarray(x).tobytes() for x in given if isinstance(x, np.ndarray))
        libraries.append(files.library)
        expected[name] = b"".join(y.tobytes() for y in results)
    main = tmp_path / "main.c"
    main.write_text(
        f"#include <stdio.h>\n#include <stdlib.h>\n{''.join(heads)}"
        f"int main(void) {{\n{''.join(statements)}  return 0;\n}}\n"
    )
    for compiler in COMPILERS:
        done = run([compiler, "-std=c99"], tmp_path, main, libraries, stdin)
        assert done.returncode == 0
        written = done.stdout
        for name, bits in expected.items():
            assert written[: len(bits)] == bits, name
            written = written[len(bits) :]
        assert written == b""


def test_a_header_is_c_and_cpp_and_two_libraries_are_linked_together(tmp_path):
    one, other = (td.compile(make()[0], dynamic="N") for make in (twice, whole))
    files = [one.export(tmp_path, name="one"), other.export(tmp_path, name="other")]
    main = tmp_path / "main.cpp"
    main.write_text(
        '#include "one.h"\n#include "other.h"\n'
        "int main() { float x[3] = {1, 2, 3}, y[3]; double z[2] = {0, 0}, w = 1;\n"
        "  one_set_threads(1);\n"
        "  return one(x, 3, y) || other(z, 2, &w) || y[2] < 7 || w < 0; }\n"
    )
    done = run(["c++", "-std=c++17"], tmp_path, main, [f.library for f in files])
    assert done.returncode == 0


def test_a_library_needs_only_the_c_library(tmp_path):
    files = td.compile(whole()[0], dynamic="N").export(tmp_path, name="all_levels")
    assert any(n.startswith("malloc@") for n in undefined_names(files.shared))
    assert outside_names(files.shared) == []


def test_wrong_arguments_are_told(tmp_path):
    compiled = td.compile(blur()[0], dynamic=("H", "W"))
    files = compiled.export(tmp_path, name="blur")
    function = ctypes.CDLL(str(files.shared)).blur
    x, y = np.ones((5, 6), np.float32), np.zeros((3, 4), np.float32)
    pointer, size = ctypes.c_void_p, ctypes.c_int64

    def call(a, h, w, b):
        return function(pointer(a), size(h), size(w), pointer(b))

    assert call(x.ctypes.data, 5, 6, y.ctypes.data) == 0
    np.testing.assert_allclose(y, 1)
    assert call(x.ctypes.data, 1, 6, y.ctypes.data) == 1  # an output of -1 rows
    assert call(x.ctypes.data, -5, 6, y.ctypes.data) == 1
    assert call(None, 5, 6, y.ctypes.data) == 1
    assert call(None, 2, 6, None) == 1
    assert call(x.ctypes.data, 2, 2, None) == 0  # no element


def test_checks_of_the_program_are_told(tmp_path):
    x, f = td.Tensor("x", ("N",), td.i32), td.Func("f")
    f[i] = td.require(x[i] >= 0, x[i], "negative")
    files = td.compile(f, dynamic="N").export(tmp_path)
    function = ctypes.CDLL(str(files.shared)).f
    good, bad, out = np.array([1, 2], np.int32), np.array([1, -2], np.int32), np.zeros(2, np.int32)
    for given, status in ((good, 0), (bad, 2)):
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (given, out)]
        assert function(pointers[0], ctypes.c_int64(2), pointers[1]) == status


def test_fixed_sizes_need_no_argument(tmp_path):
    f, sizes = softmax()
    files = td.compile(f, **sizes).export(tmp_path, name="fixed", levels=("sse2", "sse4"))
    assert "int fixed(const float *x, float *f);" in files.header.read_text()
    assert {p.name for p in files.objects} == {
        "fixed_entry.o", "fixed_sse2.o", "fixed_sse4.o", "fixed_runtime.o",
    }  # fmt: skip


NUMBA_KERNELS = [twice, blur, product, softmax, histogram, scan, numbers, whole]


def test_numba_calls_programs_in_parallel_loops(rng):
    numba = pytest.importorskip("numba")
    scope, lines, arguments, results = {"numba": numba}, [], {}, {}
    for make in NUMBA_KERNELS:
        name = make.__name__
        compiled, sizes = compiled_kernel(make)
        scope[name] = compiled.c_function().numba
        given = [arguments_of(compiled, sizes, rng) for _ in range(6)]
        expected = np.stack([compiled(*x) for x in given])
        values = []
        for n, x in enumerate(given[0]):
            parameter = f"{name}{n}"
            arguments[parameter] = np.stack([row[n] for row in given]) if isinstance(x, np.ndarray) else x
            values.append(f"{parameter}[n]" if isinstance(x, np.ndarray) else parameter)
        arguments[f"{name}_y"], results[name] = np.empty_like(expected), expected
        output = f"{name}_y[n]" if expected.ndim > 1 else f"{name}_y[n : n + 1].reshape(())"
        lines.append(f"        status[n] += {name}({', '.join(values)}, {output})\n")
    exec(
        f"def loop({', '.join(arguments)}, status):\n"
        f"    for n in numba.prange(len(status)):\n{''.join(lines)}",
        scope,
    )
    status = np.zeros(6, np.int64)
    numba.njit(parallel=True)(scope["loop"])(*arguments.values(), status)
    assert not status.any()
    for name, expected in results.items():
        assert arguments[f"{name}_y"].tobytes() == expected.tobytes(), name


def test_numba_is_told_of_extents_and_types_that_do_not_fit():
    numba = pytest.importorskip("numba")
    function = td.compile(blur()[0], dynamic=("H", "W")).c_function().numba
    x = np.ones((5, 6), np.float32)
    assert function(x, np.empty((3, 4), np.float32)) == 0
    assert function(x, np.empty((3, 5), np.float32)) == 1
    for wrong in (x.T, x.astype(np.float64)):
        with pytest.raises((TypeError, numba.TypingError)):
            function(wrong, np.empty((3, 4), np.float32))


@pytest.mark.parametrize("make", [twice, histogram, numbers, narrow, several, parallel_heap])
def test_ctypes_calls_programs_of_this_process(make, rng):
    compiled, sizes = compiled_kernel(make)
    given = arguments_of(compiled, sizes, rng)
    expected = results_of(compiled, given)
    results = [np.empty_like(y) for y in expected]
    function = compiled.c_function()
    address = ctypes.cast(function.ctypes, ctypes.c_void_p).value
    assert address == function.address
    arguments = [x.ctypes.data if isinstance(x, np.ndarray) else x for x in given]
    sizes_of_call = [sizes[s] for s in compiled.signature.sizes]
    assert function.ctypes(*arguments, *sizes_of_call, *(y.ctypes.data for y in results)) == 0
    assert [y.tobytes() for y in results] == [y.tobytes() for y in expected]
    assert function.ctypes(*arguments, *(-1 for _ in sizes_of_call), *(None for _ in results)) == 1


def test_names_of_parameters_differ():
    compiled, _ = compiled_kernel(array_named_as_its_size)
    assert compiled.c_function().prototype == "int f(const float *m, int64_t m_, float *f);"


def energy(t=td.f64):
    x, f = td.Tensor("x", ("N",), t), td.Func("f")
    f[()] = td.sum(x[i] * x[i], axis=i)
    return td.compile(f, dynamic="N")


def test_scipy_calls_programs():
    scipy = pytest.importorskip("scipy")
    from scipy import integrate
    from scipy.ndimage import generic_filter

    function = energy().c_function()
    callback = scipy.LowLevelCallable(function.capsule("int (double *, intptr_t, double *, void *)"))
    values = np.arange(40.0).reshape(5, 8)
    expected = generic_filter(values, lambda window: (window**2).sum(), size=3)
    np.testing.assert_array_equal(generic_filter(values, callback, size=3), expected)
    integrand = scipy.LowLevelCallable(function.capsule("double (int, double *, void *)"))
    assert integrate.quad(integrand, 0, 3, args=(2.0,))[0] == pytest.approx(9 + 12)
    for compiled, signature in (
        (energy(), "double (double)"),
        (energy(td.f32), "double (int, double *, void *)"),
    ):
        with pytest.raises(td.TypeMismatch, match=r"'f' is no callback"):
            compiled.c_function().capsule(signature)


def test_without_a_compiler_there_is_no_shared_library(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    files = td.compile(twice()[0], dynamic="N").export(tmp_path, levels="sse2")
    assert files.shared is None
    assert files.library.exists()


def test_refused(tmp_path):
    f, _ = twice()
    with pytest.raises(ShapeError, match="neither fixed nor dynamic: N"):
        td.compile(f).export(tmp_path)
    dynamic = td.compile(f, dynamic="N")
    with pytest.raises(TargetError, match="level 'avx9'"):
        dynamic.export(tmp_path, levels=("avx2", "avx9"))
    with pytest.raises(TargetError, match="needs one level"):
        dynamic.export(tmp_path, levels=())
    with pytest.raises(TargetError, match="'double' is no name of a function in C"):
        dynamic.export(tmp_path, name="double")
    with pytest.raises(TargetError, match="programs for python are not exported"):
        td.compile(f, dynamic="N", target="python").c_function()
    with pytest.raises(ShapeError, match="neither fixed nor dynamic: N"):
        td.compile(f).c_function()
    with pytest.raises(TargetError, match="programs for python are not exported"):
        td.compile(f, dynamic="N", target="python").export(tmp_path)
    shown, g = td.Tensor("x", ("N",), td.f32), td.Func("g")
    g[i] = td.debug_print(shown[i], "{}", shown[i])
    with pytest.raises(TargetError, match=r"prints by td\.debug_print"):
        td.compile(g, dynamic="N").export(tmp_path)
