"""Kernels as machine code: loops, branches, memory of their own, checks, threads, instructions."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tdsl.codegen.cpu import jit
from tdsl.codegen.cpu.emit import emit
from tdsl.codegen.cpu.executable import CpuExecutable
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
    Prefetch,
    Print,
    ScalarParam,
    SizeParam,
    Stmt,
    Store,
)
from tdsl.errors import RequireError
from tdsl.lang.expr import Binary, Call, Cast, Const, Expr, Load, Param, Ramp, Size, Var, const
from tdsl.lang.types import bf16, bool_, f16, f32, f64, i32, i64, u8
from tdsl.machine.cpu import host, level
from tests.codegen.cpu.plain import run_plain
from tests.codegen.cpu.running import assembly, at, dense, i, run, wide

Array = np.ndarray[Any, Any]
X86 = pytest.mark.skipif(host().architecture != "x86_64", reason="looks at x86 code")
j, n = Var("j"), Size("n")


def add(x: Expr, y: Expr | int) -> Expr:
    return Binary("add", x, const(y) if isinstance(y, int) else y)


def agree(kernel: Kernel, *arguments: Any) -> None:
    """The kernel leaves the same arrays behind as NumPy."""
    plain = [x.copy() if isinstance(x, np.ndarray) else x for x in arguments]
    run_plain(kernel, *plain)
    assert run(kernel, *arguments) == 0
    for got, expected in zip(arguments, plain, strict=True):
        if isinstance(got, np.ndarray):
            assert np.array_equal(got, expected)


def matrix(written: bool = True) -> BufferParam:
    return BufferParam("a", i64, (n, n), (None, None), written)


@pytest.mark.parametrize("kind", ["serial", "parallel"])
@pytest.mark.parametrize("size", [0, 1, 7])
def test_loops_branches_and_scalars(kind: str, size: int) -> None:
    inner = Let(
        "d",
        Binary("sub", i, j),
        If(
            Binary("lt", Var("d"), const(0)),
            Store("a", (i, j), Var("d")),
            If(Binary("gt", j, const(1)), Store("a", (i, j), Binary("mul", Var("d"), Var("d")))),
        ),
    )
    below = For("j", i, Binary("sub", n, i), "serial", inner)
    above = For("j", const(-3), add(i, 3), "serial", If(Binary("ge", j, const(0)), inner))
    body = For("i", const(0), n, kind, Block((below, above)))
    kernel = Kernel("nest", (matrix(), SizeParam("n")), body)
    agree(kernel, np.full((size, size), 99, np.int64), size)


@pytest.mark.parametrize("extent", [-1, 0, 1, 3])
def test_constant_extents(extent: int) -> None:
    body = For("i", const(2), const(extent), "serial", Store("y", (i,), i))
    agree(Kernel("few", (dense("y", i64, 8, written=True),), body), np.zeros(8, np.int64))


@pytest.mark.parametrize("t", [bool_, u8, i32, i64, f16, bf16, f32, f64], ids=repr)
def test_scalar_arguments(t: Any) -> None:
    stores: list[Stmt] = [Store("y", (const(0),), Param("p", t))]
    loop = For("i", const(1), const(3), "parallel", Store("y", (i,), Param("p", t)))
    kernel = Kernel("scalar", (ScalarParam("p", t), dense("y", t, 4, written=True)), Block((*stores, loop)))
    y = np.zeros(4, t.numpy)
    assert run(kernel, t.numpy.type(1), y) == 0
    assert (y == t.numpy.type(1)).all()


@pytest.mark.parametrize("scope", ["heap", "stack", "register"])
@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_memory_of_a_kernel(scope: str, kind: str) -> None:
    row = Block((
        For("j", const(0), const(8), "serial", Store("t", (const(1), j), Binary("mul", i, j))),
        Store("y", (i, at(0, 8)), Load("t", (const(1), at(0, 8)), i64)),
        Store("y", (i, const(0)), Load("t", (const(1), const(7)), i64)),
    ))  # fmt: skip
    alloc = Alloc("t", i64, (const(2), const(8)), scope, row, (11, 1))
    body = For("i", const(0), const(6), kind, alloc)
    agree(Kernel("rows", (dense("y", i64, 6, 8, written=True),), body), np.zeros((6, 8), np.int64))


@pytest.mark.parametrize("strides", [(), (64, 8, 1)])
def test_memory_of_a_size_known_at_run_time(strides: tuple[int, ...]) -> None:
    shape = (n, const(3), add(n, 1))
    cell = (i, const(2), add(j, 1))
    fill = For("i", const(0), n, "parallel", For("j", const(0), n, "serial", Store("t", cell, add(i, j))))
    copy = For(
        "i",
        const(0),
        n,
        "serial",
        For("j", const(0), n, "serial", Store("a", (i, j), Load("t", cell, i64))),
    )
    body = Alloc("t", i64, shape, "heap", Block((fill, copy)), strides)
    for size in (0, 1, 6):
        kernel = Kernel("sized", (matrix(), SizeParam("n")), body)
        agree(kernel, np.zeros((size, size), np.int64), size)


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_memory_that_cannot_be_had(kind: str) -> None:
    for extents in ((n, n, n), (n, const(1 << 20), n)):
        alloc = Alloc("t", f64, extents, "heap", Store("t", (const(0),) * 3, Const(1.0, f64)))
        kernel = Kernel("huge", (SizeParam("n"),), For("i", const(0), const(2), kind, alloc))
        executable = CpuExecutable(kernel, emit(kernel, host()))
        with pytest.raises(MemoryError, match="huge"):
            executable.run([1 << 39])


def test_memory_is_given_back_on_every_way_out() -> None:
    small = Alloc("u", i64, (n,), "heap", Check(Binary("lt", i, n), 0, (i,)))
    body = Alloc("t", i64, (const(1 << 20),), "heap", For("i", const(0), const(5), "serial", small))
    kernel = Kernel("leak", (SizeParam("n"),), body, (Message("require", ("i is ", ""), ""),))
    text = emit(kernel, host())
    objects: dict[int, Any] = {}

    def malloc(size: int) -> int:
        memory = ctypes.create_string_buffer(size)
        objects[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    functions = (
        ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(malloc),
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda pointer: objects.pop(pointer)),
    )
    addresses = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions]
    imports = dict(zip(("tdsl_malloc", "tdsl_free"), addresses, strict=True))
    loaded = jit.load(jit.emit_object(text, host()), ["leak"], imports)
    entry = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(loaded.address("leak"))
    for size, status in ((5, 0), (3, 1), (0, 1)):
        frame = (ctypes.c_int64 * 9)(size)
        assert entry(ctypes.addressof(frame), 0) == status
        assert frame[1] == (size if status else 0)
        assert not objects


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_a_failed_check_stops_the_kernel_and_shows_values(kind: str) -> None:
    x = Load("x", (i,), f32)
    check = Check(Binary("lt", x, Const(50.0, f32)), 1, (i, x, Binary("lt", i, const(0))))
    body = For("i", const(0), const(64), kind, Block((check, Store("y", (i,), x))))
    messages = (
        Message("print", ("not ", ""), ""),
        Message("require", ("x[", "] is ", ", ", ""), "here"),
    )
    kernel = Kernel("checked", (dense("x", f32, 64), dense("y", f32, 64, written=True)), body, messages)
    executable = CpuExecutable(kernel, emit(kernel, host()))
    x_data, y_data = np.arange(64, dtype=np.float32) % 50, np.zeros(64, np.float32)
    executable.run([x_data, y_data])
    assert (y_data == x_data).all()
    x_data[40] = 77.5
    with pytest.raises(RequireError, match=r"x\[40\] is 77.5, False"):
        executable.run([x_data, y_data])


def test_print(capfd: pytest.CaptureFixture[str]) -> None:
    site = Print(Binary("eq", Binary("mod", i, const(2)), const(1)), 0, (i, Cast(i, f32), Cast(i, u8)))
    body = For("i", const(-1), const(4), "serial", site)
    kernel = Kernel("show", (), body, (Message("print", ("", " ", " ", ""), ""),))
    assert run(kernel) == 0
    assert capfd.readouterr().out.split() == ["-1", "-1", "255", "1", "1", "1"]


def test_prefetch_of_any_address() -> None:
    body = Block((
        Prefetch("x", (const(1 << 40),)),
        Prefetch("x", (Binary("mul", Param("p", i64), const(-(1 << 30))),)),
        Store("x", (const(0),), Const(2.0, f32)),
    ))  # fmt: skip
    kernel = Kernel("ahead", (dense("x", f32, 4, written=True), ScalarParam("p", i64)), body)
    x = np.zeros(4, np.float32)
    assert run(kernel, x, 1 << 40) == 0
    assert x[0] == 2
    assert "prefetch" in emit(kernel, host())


@dataclass(frozen=True)
class Declared:
    """An instruction as `schedule.instructions.instruction` makes it."""

    name: str
    llvm: str


COPY = """
; copies 4 numbers
declare i64 @llvm.smax.i64(i64, i64)
define internal void @copy4(ptr %to, i64 %step, ptr %from, i64 %unused, i64 %gap) alwaysinline {
entry:
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%next, %loop]
  %i = mul i64 %k, %gap
  %p = getelementptr double, ptr %from, i64 %i
  %x = load double, ptr %p
  %o = mul i64 %k, %step
  %q = getelementptr double, ptr %to, i64 %o
  store double %x, ptr %q
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, 4
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
"""


def test_an_instruction_gets_addresses_and_strides_in_elements() -> None:
    to = Operand("y", (i, const(0)), (1,))
    source = Operand("x", (const(1), i), (1, 0))
    body = For("i", const(0), const(3), "parallel", Invoke("copy", (to, source)))
    x = BufferParam("x", f64, (const(5), const(3)), (None, None), False)
    y = dense("y", f64, 3, 4, written=True)
    kernel = Kernel("invoke", (x, y), body, instructions=(Declared("copy", COPY),))
    data, out = np.arange(15.0).reshape(5, 3), np.zeros((3, 4))
    assert run(kernel, data, out) == 0
    assert (out == data[1:].T).all()
    out[:] = 0
    assert run(kernel, np.asfortranarray(data), out) == 0
    assert (out == data[1:].T).all()


@X86
@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_only_fast_arithmetic_flushes_subnormal_numbers(kind: str) -> None:
    half = Binary("mul", Load("x", (i,), f32), Const(0.5, f32))
    body = For("i", const(0), const(8), kind, Store("y", (i,), half))
    params = (dense("x", f32, 8), dense("y", f32, 8, written=True))
    tiny = np.full(8, 2.0**-126, np.float32)
    for fast, expected in ((False, 2.0**-127), (True, 0.0)):
        y = np.ones(8, np.float32)
        assert run(Kernel("tiny", params, body, fast_math=fast), tiny, y) == 0
        assert (y == np.float32(expected)).all()
        # the caller's mode is as before
        assert (tiny * np.float32(0.5) == np.float32(2.0**-127)).all()


def test_ieee_arithmetic_is_not_reassociated() -> None:
    x = Load("x", (i,), f32)
    value = Binary("sub", Binary("add", x, Const(1e8, f32)), Const(1e8, f32))
    params = (dense("x", f32, 8), dense("y", f32, 8, written=True))
    body = For("i", const(0), const(8), "serial", Store("y", (i,), value))
    agree(Kernel("kept", params, body), np.arange(8, dtype=np.float32), np.zeros(8, np.float32))
    assert "fast" not in emit(Kernel("kept", params, body), host())
    assert "fadd fast" in emit(Kernel("kept", params, body, fast_math=True), host())


def test_i64_values_wrap_although_indices_do_not() -> None:
    big = const(0x5851F42D4C957F2D)
    value = add(Binary("mul", Binary("mul", i, big), Binary("mul", i, big)), big)
    vector = Binary("mul", Ramp(i, 3, 4), wide(big, 4))
    stores = (Store("y", (i,), value), Store("z", (i, at(0, 4)), vector))
    params = (dense("y", i64, 50, written=True), dense("z", i64, 50, 4, written=True))
    body = For("i", const(0), const(50), "serial", Block(stores))
    agree(Kernel("wraps", params, body), np.zeros(50, np.int64), np.zeros((50, 4), np.int64))


def test_expressions_may_be_deep_and_shared() -> None:
    x: Expr = Load("x", (i,), i64)
    deep = x
    for k in range(3000):
        deep = add(deep, k % 3)
    shared = x
    for _ in range(60):
        shared = Binary("add", shared, shared)
    params = (
        dense("x", i64, 4),
        dense("y", i64, 4, written=True),
        dense("z", i64, 4, written=True),
    )
    body = For("i", const(0), const(4), "serial", Block((Store("y", (i,), deep), Store("z", (i,), shared))))
    x_data, y, z = np.arange(4), np.zeros(4, np.int64), np.zeros(4, np.int64)
    assert run(Kernel("deep", params, body), x_data, y, z) == 0
    assert (y == x_data + 3000).all()
    assert (z == x_data << 60).all()


def test_invariant_addresses_leave_their_loops() -> None:
    params = (dense("x", f32, 64, 64), dense("y", f32, 64, 64, written=True))
    taps = [Load("x", (add(i, r), add(j, c)), f32) for r in range(3) for c in range(3)]
    total = taps[0]
    for tap in taps[1:]:
        total = Binary("add", total, tap)
    inner = For("j", const(0), const(62), "serial", Store("y", (i, j), total))
    text = emit(Kernel("taps", params, For("i", const(0), const(62), "serial", inner)), host())
    loop = re.search(r"\nbody\.2:\n(.*?)\nexit\.2:", text, re.DOTALL)
    assert loop is not None
    assert " mul " not in loop[1]
    # where j is, from there each tap, the result
    assert loop[1].count("getelementptr") == 1 + 8 + 1


@X86
def test_register_tiles_stay_in_registers() -> None:
    rows, lanes, depth = 6, 16, Var("k")
    tile = [(const(r), at(0, lanes)) for r in range(rows)]
    zero: list[Stmt] = [Store("t", cell, wide(Const(0.0, f32), lanes)) for cell in tile]
    step: list[Stmt] = [
        Store("t", tile[r], Binary("add", Load("t", tile[r], f32), Binary(
            "mul", wide(Load("x", (depth, const(r)), f32), lanes), Load("w", (depth, at(0, lanes)), f32))))
        for r in range(rows)
    ]  # fmt: skip
    end: list[Stmt] = [Store("y", tile[r], Load("t", tile[r], f32)) for r in range(rows)]
    loop = For("k", const(0), const(128), "serial", Block(tuple(step)))
    body = Alloc("t", f32, (const(rows), const(lanes)), "register", Block((*zero, loop, *end)))
    params = (
        dense("x", f32, 128, rows),
        dense("w", f32, 128, lanes),
        dense("y", f32, rows, lanes, written=True),
    )
    kernel = Kernel("tile", params, body)
    text = assembly(kernel, level("avx512"))
    assert text.count("vfmadd231ps") >= rows
    assert "(%rsp)" not in text[text.index("tile.body:") :]
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, (128, m)).astype(np.float32) for m in (rows, lanes))
    y = np.zeros((rows, lanes), np.float32)
    assert run(kernel, x, w, y) == 0
    assert (y == x.T @ w).all()


def test_nested_parallel_loops_capture_what_they_use() -> None:
    cell = Binary("add", Binary("mul", Var("s"), Load("x", (j,), i64)), Load("t", (i,), i64))
    inner = For("j", const(0), n, "parallel", Store("a", (i, j), cell))
    both = Block((Store("t", (i,), i), inner))
    loop = For("i", const(0), n, "parallel", both)
    body = Alloc("t", i64, (n,), "heap", Let("s", add(n, 5), loop))
    params = (matrix(), BufferParam("x", i64, (n,), (None,), False), SizeParam("n"))
    agree(Kernel("nested", params, body), np.zeros((9, 9), np.int64), np.arange(18)[::2], 9)


def test_text_is_the_same_every_time_and_names_no_address() -> None:
    body = For("i", const(0), n, "parallel", Store("y", (i,), Call("exp", (Load("y", (i,), f32),), f32)))
    kernel = Kernel("same", (BufferParam("y", f32, (n,), (1,), True), SizeParam("n")), body)
    text = emit(kernel, host())
    assert text == emit(kernel, host())
    assert "inttoptr" not in text


def test_functions_of_half_types() -> None:
    x = np.linspace(-3, 3, 32)
    for t, error in ((f16, 2.0**-10), (bf16, 2.0**-7)):
        for lanes in (1, 16):
            index = at(Binary("mul", i, const(lanes)), lanes)
            value = Call("tanh", (Load("x", (index,), t),), t)
            kernel = Kernel(
                "half",
                (dense("x", t, 32), dense("y", t, 32, written=True)),
                For("i", const(0), const(32 // lanes), "serial", Store("y", (index,), value)),
            )
            given, y = x.astype(t.numpy), np.zeros(32, t.numpy)
            assert run(kernel, given, y) == 0
            expected = np.tanh(given.astype(np.float64))
            assert np.allclose(y.astype(np.float64), expected, rtol=error, atol=0)


def test_memory_too_large_for_a_stack_comes_from_the_heap() -> None:
    row = Block((Store("t", (const(70000),), i), Store("y", (i,), Load("t", (const(70000),), i64))))
    small = Alloc("s", i64, (const(4),), "stack", Store("y", (i,), i))
    for alloc, malloc in ((Alloc("t", i64, (const(1 << 18),), "stack", row), True), (small, False)):
        body = For("i", const(0), const(40), "parallel", alloc)
        kernel = Kernel("large", (dense("y", i64, 40, written=True),), body)
        agree(kernel, np.zeros(40, np.int64))
        assert ("@tdsl_malloc" in emit(kernel, host())) is malloc
        assert ("load atomic" in emit(kernel, host())) is malloc  # is there a failure to look for?


def test_what_was_loaded_is_loaded_again_after_loops_and_branches() -> None:
    first = Load("x", (const(0),), i64)
    more = Store("x", (const(0),), add(first, 1))

    def keep(k: Expr | int) -> Stmt:
        return Store("y", (const(k) if isinstance(k, int) else k,), first)

    loop = For("i", const(0), n, "serial", Block((keep(add(i, 1)), more)))
    arms = If(Binary("lt", first, const(9)), Block((more, keep(10))), Block((keep(11), more)))
    body = Block((keep(0), loop, keep(12), arms, keep(13), If(Binary("gt", n, const(2)), more), keep(14)))
    params = (dense("x", i64, 2, written=True), dense("y", i64, 16, written=True), SizeParam("n"))
    for size in (0, 4, 9):
        agree(Kernel("again", params, body), np.ones(2, np.int64), np.zeros(16, np.int64), size)
