"""Kernels compiled by numba compute what the plain Python of the same kernel does."""

import math
import sys

import numpy as np
import pytest

from tdsl.codegen.ir.loops import (
    Alloc,
    Block,
    BufferParam,
    Check,
    For,
    If,
    Invoke,
    Kernel,
    Let,
    Message,
    Operand,
    Print,
    ScalarParam,
    SizeParam,
    Store,
)  # fmt: skip
from tdsl.codegen.ir.verify import verify
from tdsl.codegen.python.run import NumbaExecutable, PythonExecutable
from tdsl.errors import IndexBoundError, TargetError
from tdsl.lang.build_program import build_program
from tdsl.lang.casts import cast
from tdsl.lang.expr import (
    TRUE,
    Binary,
    Call,
    Cast,
    Const,
    Load,
    Param,
    Select,
    Size,
    Unary,
    Var,
    const,
)  # fmt: skip
from tdsl.lang.tensor import Func
from tdsl.lang.types import bf16, bool_, f8e4m3, f16, f32, f64, i8, i32, i64, u8, u64
from tdsl.lang.value import vars as variables
from tdsl.machine.instructions.instruction import Instruction
from tests.codegen.python.kernels import buffer, element, out

pytest.importorskip("numba")
i, j = Var("i"), Var("j")
a, b = (lambda t: element("a", t)), (lambda t: element("b", t))


def many(t, n, values):
    """A kernel that computes each of `values` (name, expression, dtype) into an output of its own."""
    params = [buffer("a", t, n), buffer("b", t, n)]
    params += [buffer(f"o{k}", dtype, n, written=True) for k, (_, _, dtype) in enumerate(values)]
    stores = tuple(Store(f"o{k}", (i,), e) for k, (_, e, _) in enumerate(values))
    kernel = Kernel("many", tuple(params), For("i", const(0), const(n), "serial", Block(stores)))
    verify(kernel)
    return kernel


def compare(t, left, right, values, tolerance=0.0):
    kernel = many(t, len(left), values)
    inputs = [np.array(left, t.numpy), np.array(right, t.numpy)]
    got, expected = ([np.zeros(len(left), d.numpy) for _, _, d in values] for _ in range(2))
    NumbaExecutable(kernel).run([*inputs, *got])
    PythonExecutable(kernel, checked=True).run([*inputs, *expected])
    for (name, _, _), x, y in zip(values, got, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=0, err_msg=name)


def casts(t):
    targets = [i8, u8, i32, i64, u64, f32, f64, bool_]
    return [(f"to {s}", Cast(a(t), s), s) for s in targets if s != t] + [
        (f"clip to {s}", Cast(a(t), s, True), s) for s in targets if s.is_integer and s != t
    ]


@pytest.mark.parametrize("t", [i8, i64, u64], ids=str)
def test_integers(t):
    edges = [v for v in (t.low, t.low + 1, -7, -2, -1, 0, 1, 2, 3, 7, 63, t.high) if t.low <= v <= t.high]
    left, right = zip(*[(x, y) for x in edges for y in edges], strict=True)
    ops = [
        "add",
        "sub",
        "mul",
        "floordiv",
        "mod",
        "pow",
        "min",
        "max",
        "and",
        "or",
        "xor",
        "shl",
        "shr",
    ]
    values = [(op, Binary(op, a(t), b(t)), t) for op in ops]
    values += [(f"{op} by 3", Binary(op, a(t), Const(3, t)), t) for op in ("floordiv", "mod", "shl", "shr")]
    values += [(op, Unary(op, a(t)), t) for op in ("neg", "not", "abs")]
    values += [(op, Binary(op, a(t), b(t)), bool_) for op in ("lt", "eq")]
    values += [(f"{fn}", Call(fn, (a(t),), i32), i32) for fn in ("popcount", "clz", "ctz")]
    values += [("random", Call("random", (Const(1, t), a(t), b(t)), r), r) for r in (f32, f64)]
    values += [("seed", Call("random", (a(t),), f32), f32)]
    compare(t, left, right, values + casts(t) * (t == i8))


FLOAT_OPS = ("add", "sub", "mul", "div", "floordiv", "mod", "min", "max")


@pytest.mark.parametrize("t", [f32, f64], ids=str)
def test_floats(t):
    edges = [0.0, -0.0, 0.5, 1.0, -2.5, 3.5, 300.0, -1e10, 2.0**63, math.inf, -math.inf, math.nan]
    left, right = zip(*[(x, y) for x in edges for y in edges], strict=True)
    values = [(op, Binary(op, a(t), b(t)), t) for op in FLOAT_OPS]
    values += [(op, Unary(op, a(t)), t) for op in ("neg", "abs")]
    values += [(fn, Call(fn, (a(t),), t), t) for fn in ["sqrt", "floor", "ceil", "trunc", "round"]]
    values += [(fn, Call(fn, (a(t),), bool_), bool_) for fn in ("isnan", "isfinite")]
    values += [
        ("fma", Call("fma", (a(t), b(t), a(t)), t), t),
        ("inf", Select(TRUE, Const(-math.inf, t), a(t)), t),
    ]
    bits = i32 if t == f32 else i64
    values += [("bits", Call("reinterpret", (a(t),), bits), bits)]
    compare(t, left, right, [*values, *casts(t)])


def test_functions_are_within_four_roundings():
    fns = ["exp", "exp2", "log1p", "sin", "tanh", "erf", "sigmoid", "rsqrt"]
    x = [0.25, 0.5, 1.0, 2.5]
    values = [(fn, Call(fn, (a(f32),), f32), f32) for fn in fns]
    compare(f32, x, x, [*values, ("pow", Binary("pow", a(f32), b(f32)), f32)], tolerance=2.0**-21)


def statements():
    """Parallel rows over a buffer of their own, with a size, a scalar, a let and a branch."""
    n = Size("n")
    fill = For(
        "j",
        const(0),
        const(4),
        "serial",
        Store("row", (j,), Binary("mul", Load("a", (i, j), f32), Param("s", f32))),
    )
    odd = Binary("eq", Binary("mod", i, const(2)), const(1))
    last = Let("k", Binary("sub", const(3), j), Store("out", (i, j), Load("row", (Var("k"),), f32)))
    copy = For(
        "j",
        const(0),
        const(4),
        "serial",
        If(odd, last, Store("out", (i, j), Load("row", (j,), f32))),
    )
    body = For("i", const(0), n, "parallel", Alloc("row", f32, (const(4),), "stack", Block((fill, copy))))
    shape = (n, const(4))
    params = (BufferParam("a", f32, shape, (None, None), False), ScalarParam("s", f32), SizeParam("n"),
              BufferParam("out", f32, shape, (None, None), True))  # fmt: skip
    return Kernel("rows", params, body)


def test_parallel_loops_lets_and_memory():
    source = np.random.default_rng(0).random((4, 5), np.float32)
    got, expected = np.zeros((5, 4), np.float32), np.zeros((5, 4), np.float32)
    executable = NumbaExecutable(statements())
    assert "prange" in executable.source
    executable.run([source.T, 1.5, 5, got])
    PythonExecutable(statements()).run([source.T, 1.5, 5, expected])
    assert np.array_equal(got, expected)


def in_place(target):
    target[0] *= 2


def test_a_parallel_loop_inside_another_is_an_ordinary_one():
    inner = For("j", const(0), const(3), "parallel", Store("out", (i, j), Binary("sub", i, j)))
    kernel = Kernel("k", (out(i64, 4, 3),), For("i", const(0), const(4), "parallel", inner))
    result = np.zeros((4, 3), np.int64)
    NumbaExecutable(kernel).run([result])
    assert np.array_equal(result, np.subtract.outer(np.arange(4), np.arange(3)))


def test_checks_prints_atomics_and_instructions(capfd):
    m, doubled = variables("m"), Func("doubled", shape=(1,))
    doubled[m] *= cast(2, i32)
    double = Instruction("double", build_program((doubled,)), "", in_place)
    messages = (
        Message("bounds", ("bin ", " is outside"), ""),
        Message("print", ("bin ", " {", "}"), ""),
    )
    bin_ = Cast(element("a", u8), i64)
    body = Block((
        Check(Binary("lt", bin_, const(3)), 0, (bin_,)),
        Print(Binary("eq", i, const(2)), 1, (bin_, Const(0.1, f32))),
        Store("out", (bin_,), Const(1, i32), atomic="add"),
    ))  # fmt: skip
    loop = For("i", const(0), const(4), "parallel", body)
    twice = Invoke("double", (Operand("out", (const(0),), (0,)),))
    params = (buffer("a", u8, 4), out(i32, 3))
    kernel = Kernel("k", params, Block((loop, twice)), messages, False, (double,))
    verify(kernel)
    executable, counts = NumbaExecutable(kernel), np.zeros(3, np.int32)
    executable.run([np.array([0, 2, 1, 0], np.uint8), counts])
    assert counts.tolist() == [4, 1, 1]
    assert capfd.readouterr().out == "bin 1 {0.1}\n"
    with pytest.raises(IndexBoundError, match=r"^bin 9 is outside"):
        executable.run([np.array([0, 2, 9, 0], np.uint8), counts])


@pytest.mark.parametrize("t", [bf16, f16, f8e4m3], ids=str)
def test_narrow_floats_are_refused_by_name(t):
    with pytest.raises(TargetError, match=f"numba cannot compute with {t}"):
        NumbaExecutable(Kernel("k", (out(t),), Store("out", (), Const(0, t))))


def test_a_missing_numba_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(TargetError, match=r'pip install "tdsl\[numba\]"'):
        NumbaExecutable(statements())
