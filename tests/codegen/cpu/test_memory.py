"""Loads and stores of every shape touch the elements that they name, and no others."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdsl.codegen.ir.loops import (
    Block,
    BufferParam,
    For,
    If,
    Kernel,
    ScalarParam,
    SizeParam,
    Stmt,
    Store,
)  # fmt: skip
from tdsl.lang.expr import (
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Param,
    Ramp,
    Size,
    Var,
    const,
    lanes_of,
)  # fmt: skip
from tdsl.lang.types import ALL, DType, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16
from tdsl.machine.cpu import host, level
from tests.codegen.cpu.plain import run_plain
from tests.codegen.cpu.running import assembly, at, dense, i, run, wide

Array = np.ndarray[Any, Any]
SIDE = 96
AVX512 = pytest.mark.skipif("avx512f" not in host().has, reason="looks at AVX-512 code")


def numbers(t: DType, *shape: int) -> Array:
    rng = np.random.default_rng(3)
    return (rng.integers(0, 2 if t == bool_ else 100, shape) + (t == f64) / 4).astype(t.numpy)


def agree(kernel: Kernel, *arguments: Any) -> None:
    """The kernel leaves the same arrays behind as NumPy."""
    plain = [x.copy() if isinstance(x, np.ndarray) else x for x in arguments]
    run_plain(kernel, *plain)
    assert run(kernel, *arguments) == 0
    for got, expected in zip(arguments, plain, strict=True):
        if isinstance(got, np.ndarray):
            assert (got == expected).all()


@st.composite
def indices(draw: st.DrawFn, lanes: int) -> Expr:
    """A vector index within 0..SIDE - 1, or a scalar; `p` is 3 and `idx` holds any numbers below SIDE."""
    base = draw(st.sampled_from([const(40), Var("i"), Binary("add", Param("p", i64), const(38))]))
    kinds = ["scalar", "ramp", "ramp", "ramp", "broadcast", "gather", "near", "shifted"]
    match draw(st.sampled_from(kinds)) if lanes > 1 else "scalar":
        case "ramp":
            return Ramp(base, draw(st.integers(-(40 // lanes), 40 // lanes)), lanes)
        case "broadcast":
            return Broadcast(base, lanes)
        case "gather":
            return Cast(Load("idx", (Ramp(const(draw(st.integers(0, 40))), 1, lanes),), i32), i64)
        case "near":
            far = Load("idx", (Ramp(const(draw(st.integers(0, 40))), 1, lanes),), i32)
            low, most = Const(draw(st.integers(0, 9)), i32), Const(draw(st.integers(9, 36)), i32)
            above = Binary("max", far, Broadcast(low, lanes))
            return Cast(Binary("min", above, Broadcast(most, lanes)), i64)
        case "shifted":
            ramp = Binary("mul", Ramp(const(-9), 1, lanes), Broadcast(const(2), lanes))
            return Binary("add", Broadcast(base, lanes), ramp)
    return base


@st.composite
def masks(draw: st.DrawFn, lanes: int) -> Expr | None:
    limit: Expr = draw(st.sampled_from([const(0), const(5), Param("p", i64), Var("i"), const(99)]))
    op = draw(st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]))
    match draw(st.sampled_from(["none", "none", "uniform", "ramp", "loaded"])):
        case "uniform":
            return wide(Binary(op, Param("p", i64), limit), lanes)
        case "ramp":
            step = draw(st.sampled_from([1, 1, -1, 3]))
            return Binary(op, at(Param("p", i64), lanes, step), wide(limit, lanes))
        case "loaded":
            number = Load("idx", (at(7, lanes),), i32)
            return Binary(op, number, wide(Const(50, i32), lanes))
    return None


def layouts(a: Array, kind: str) -> tuple[Array, tuple[int | None, ...]]:
    """A two-dimensional array in memory, and the strides that are told to the compiler."""
    match kind:
        case "dense":
            return np.ascontiguousarray(a), (SIDE, 1)
        case "fortran":
            return np.asfortranarray(a), (1, SIDE)
        case "dynamic":
            return np.ascontiguousarray(a), (None, None)
        case "reversed":
            return np.ascontiguousarray(a)[::-1, ::-1], (None, -1)
        case _:
            return np.repeat(np.ascontiguousarray(a), 2, axis=1)[:, ::2], (None, 2)


LAYOUTS = ("dense", "fortran", "dynamic", "reversed", "spaced")
PARAMS = (dense("idx", i32, SIDE), ScalarParam("p", i64))
IDX = np.random.default_rng(5).permutation(SIDE).astype(np.int32)


@given(st.data())
def test_loads(data: st.DataObject) -> None:
    lanes = data.draw(st.sampled_from([1, 3, 4, 8, 16, 32]))
    t = data.draw(st.sampled_from(ALL))
    a, strides = layouts(numbers(t, SIDE, SIDE), data.draw(st.sampled_from(LAYOUTS)))
    stores: list[Stmt] = []
    for k in range(3):
        index = (data.draw(indices(lanes)), data.draw(indices(lanes)))
        load = Load("a", index, t, data.draw(masks(lanes)))
        expected = Broadcast(load, lanes) if lanes > 1 and lanes_of(load) == 1 else load
        stores.append(Store("out", (const(k), Var("i"), at(0, lanes)), expected))
    params = (
        BufferParam("a", t, (const(SIDE), const(SIDE)), strides, False),
        *PARAMS,
        dense("out", t, 3, 50, lanes, written=True),
    )
    body = For("i", const(43), const(3), "serial", Block(tuple(stores)))
    agree(Kernel("loads", params, body), a, IDX, 3, np.zeros((3, 50, lanes), t.numpy))


@given(st.data())
def test_stores(data: st.DataObject) -> None:
    lanes = data.draw(st.sampled_from([1, 4, 8, 16]))
    t = data.draw(st.sampled_from(ALL))
    a, strides = layouts(numbers(t, SIDE, SIDE), data.draw(st.sampled_from(LAYOUTS)))
    index = (data.draw(indices(lanes)), data.draw(indices(lanes)))
    value = Load("x", (at(0, lanes),), t)
    streaming = data.draw(st.booleans())
    store = Store("a", index, value, data.draw(masks(lanes)), streaming=streaming)
    if lanes > 1 and all(lanes_of(e) == 1 for e in index):
        return
    params = (
        BufferParam("a", t, (const(SIDE), const(SIDE)), strides, True),
        *PARAMS,
        dense("x", t, lanes),
    )
    body = For("i", const(43), const(2), "serial", store)
    agree(Kernel("stores", params, body), a, IDX, 3, numbers(t, lanes)[::-1].copy())


@pytest.mark.parametrize("t", [u8, u16, f32, f64], ids=repr)
@pytest.mark.parametrize("step", [-4, -3, -2, -1, 1, 2, 3, 4])
def test_nothing_is_read_beyond_the_first_and_last_lane(t: DType, step: int) -> None:
    lanes, page = 16, mmap.PAGESIZE
    pages = mmap.mmap(-1, 3 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    size = ((lanes - 1) * abs(step) + 1) * t.bytes
    protect = ctypes.CDLL(None).mprotect
    for guard in (0, 2):
        assert protect(ctypes.c_void_p(start + guard * page), ctypes.c_size_t(page), 0) == 0
    x = np.frombuffer(pages, t.numpy)
    first = 0 if step > 0 else (lanes - 1) * -step
    load = Load("x", (Ramp(const(first), step, lanes),), t)
    kernel = Kernel(
        "edge",
        (dense("x", t, size // t.bytes), dense("y", t, lanes, written=True)),
        Store("y", (at(0, lanes),), load),
    )
    for offset in (page, 2 * page - size):
        a = x[offset // t.bytes :][: size // t.bytes]
        a[:] = np.arange(a.size)
        y = np.zeros(lanes, t.numpy)
        assert run(kernel, a, y) == 0
        assert (y == (a[::step])).all()


@pytest.mark.parametrize("t", [u8, f32, f64], ids=repr)
@pytest.mark.parametrize("step", [-3, -2, 2, 3, 4])
def test_of_masked_strided_lanes_nothing_is_read(t: DType, step: int) -> None:
    """Memory ends with the last element that is wanted, or begins with it."""
    lanes, page = 16, mmap.PAGESIZE
    pages = mmap.mmap(-1, 3 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    protect = ctypes.CDLL(None).mprotect
    for guard in (0, 2):
        assert protect(ctypes.c_void_p(start + guard * page), ctypes.c_size_t(page), 0) == 0
    x = np.frombuffer(pages, t.numpy)[page // t.bytes : 2 * page // t.bytes]
    x[:] = np.arange(1, x.size + 1) % 127
    first = x.size - 1 - 6 * step if step > 0 else -6 * step  # the lane at the edge is the seventh
    mask = Binary("lt", at(0, lanes), wide(Param("n", i64), lanes))
    kernel = Kernel(
        "edge",
        (dense("x", t, x.size), dense("y", t, lanes, written=True), ScalarParam("n", i64)),
        Store("y", (at(0, lanes),), Load("x", (Ramp(const(first), step, lanes),), t, mask)),
    )
    for n in (0, 3, 7):
        y = np.full(lanes, 9, t.numpy)
        assert run(kernel, x, y, n) == 0
        assert (y[:n] == [x[first + k * step] for k in range(n)]).all()
        assert not y[n:].any()


def test_masked_lanes_are_not_touched() -> None:
    page = mmap.PAGESIZE
    pages = mmap.mmap(-1, 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + page), ctypes.c_size_t(page), 0) == 0
    x = np.frombuffer(pages, np.float32)[page // 4 - 3 : page // 4]
    x[:] = [1, 2, 3]
    lane = at(0, 16)
    mask = Binary("lt", lane, wide(Size("n"), 16))
    far, negative = 1 << 30, Binary("lt", Size("n"), const(0))
    beyond = Binary("lt", at(5, 8), wide(Size("n"), 8))
    kernel = Kernel(
        "tail",
        (dense("x", f32, 3, written=True), dense("y", f32, 16, written=True), SizeParam("n")),
        Block((
            Store("y", (lane,), Load("x", (lane,), f32, mask)),
            Store("x", (lane,), Load("y", (lane,), f32), mask),
            Store("y", (at(0, 8),), Load("x", (at(far, 8),), f32, beyond)),
            Store("y", (at(8, 8),), Load("x", (at(far, 8, 3),), f32, wide(negative, 8))),
            Store("x", (at(far, 16, 2),), Load("y", (lane,), f32), wide(negative, 16)),
        )),
    )  # fmt: skip
    y = np.ones(16, np.float32)
    assert run(kernel, x, y, 3) == 0
    assert (y == 0).all()
    assert (x == [1, 2, 3]).all()


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("t", [bool_, i8, i16, i32, i64, u8, f16, bf16, f32, f64], ids=repr)
def test_atomic_updates_from_threads_are_not_lost(t: DType, lanes: int) -> None:
    n = 128
    ops = ("or", "xor") if t == bool_ else ("add", "min", "max", "mul")
    ops += () if t.is_float or t == bool_ else ("and", "or", "xor")
    x = numbers(t, n)
    if not t.is_integer and t != bool_:
        x = (x % 2).astype(t.numpy)  # sums stay exact
    start = 1 if t.is_float else 0
    bins = np.full((len(ops), 4), start, t.numpy)
    position = at(Binary("mul", i, const(lanes)), lanes)
    where = Binary("and", Cast(Load("x", (position,), t), i64), wide(const(3), lanes))
    mask = Binary("lt", position, wide(const(n - 5), lanes))
    stores: list[Stmt] = [
        Store("bins", (wide(const(k), lanes), where), Load("x", (position,), t), mask, op)
        for k, op in enumerate(ops)
    ]
    params = (dense("x", t, n), dense("bins", t, len(ops), 4, written=True))
    for kind in ("serial", "parallel"):
        body = For("i", const(0), const(n // lanes), kind, Block(tuple(stores)))
        agree(Kernel("bins", params, body), x, bins.copy())


def test_offsets_beyond_32_bits() -> None:
    n = (1 << 31) + 64
    with mmap.mmap(-1, n) as pages:
        x = np.frombuffer(pages, np.uint8)
        x[-64:] = np.arange(64)
        y = np.zeros(16, np.uint8)
        big = Binary("mul", Param("p", i64), const(1 << 20))
        kernel = Kernel(
            "far",
            (dense("x", u8, n), dense("y", u8, 16, written=True), ScalarParam("p", i64)),
            Store("y", (at(0, 16),), Load("x", (Ramp(big, 4, 16),), u8)),
        )
        assert run(kernel, x, y, 1 << 11) == 0
        assert (y == np.arange(0, 64, 4)).all()
        del x


@AVX512
def test_streaming_stores_bypass_the_caches_where_aligned() -> None:
    index = at(Binary("mul", i, const(16)), 16)
    store = Store("y", (index,), wide(Param("p", f32), 16), streaming=True)
    kernel = Kernel(
        "fill",
        (dense("y", f32, 64, written=True), ScalarParam("p", f32)),
        For("i", const(0), const(4), "parallel", store),
    )
    text = assembly(kernel)
    assert "vmovntps\t%xmm" in text
    assert "sfence" in text
    room = np.zeros(64 + 17, np.float32)
    for offset in range(17):
        room[:] = 0
        assert run(kernel, room[offset : offset + 64], 2.5) == 0
        assert room.sum() == 2.5 * 64


@AVX512
def test_vector_accesses_are_not_scalarised() -> None:
    index = at(Binary("mul", i, const(16)), 16)
    mask = Binary("lt", index, wide(Size("n"), 16))
    x = Load("x", (index,), f32, mask)
    scalars = (ScalarParam("p", f32), SizeParam("n"))
    axpy = Binary("add", Binary("mul", wide(Param("p", f32), 16), x), Load("y", (index,), f32, mask))
    kernel = Kernel(
        "axpy",
        (dense("x", f32, 64), dense("y", f32, 64, written=True), *scalars),
        For("i", const(0), Size("n"), "serial", Store("y", (index,), axpy, mask)),
    )  # fmt: skip
    text = assembly(kernel)
    body = text[text.index("axpy.body:") :]
    assert "vfmadd" in body
    assert "{%k" in body
    assert "vmulps" not in body
    assert "vmovss" not in body
    assert body.count("vpcmp") == 1  # one comparison makes the mask


@AVX512
@pytest.mark.parametrize(
    "step, expected, unexpected",
    [(2, "2ps", "vgather"), (-1, "vperm", "vgather"), (9, "vgatherdps", "vmovss")],
)
def test_strided_loads(step: int, expected: str, unexpected: str) -> None:
    kernel = Kernel(
        "k",
        (dense("x", f32, 256), dense("y", f32, 16, written=True)),
        Store("y", (at(0, 16),), Load("x", (Ramp(const(100), step, 16),), f32)),
    )
    text = assembly(kernel)
    assert expected in text
    assert unexpected not in text


@AVX512
@pytest.mark.parametrize("step", [-3, 2, 4])
def test_strided_loads_under_a_mask_are_vectors_side_by_side(step: int) -> None:
    mask = Binary("lt", at(0, 16), wide(Param("n", i64), 16))
    params = (dense("x", f32, 256), dense("y", f32, 16, written=True), ScalarParam("n", i64))
    load = Load("x", (Ramp(const(100), step, 16),), f32, mask)
    text = assembly(Kernel("k", params, Store("y", (at(0, 16),), load)))
    assert "vgather" not in text
    assert text.count("{z}") >= abs(step)


@pytest.mark.parametrize("name", ["sse2", "sse4", "avx2", "avx512", "aarch64"])
def test_every_target_has_code_for_every_type(name: str) -> None:
    stores: list[Stmt] = []
    params = [ScalarParam("p", i64)]
    lane = Ramp(Param("p", i64), 1, 16)
    for t in ALL:
        params += [dense(f"x_{t}", t, 64, written=True)]
        x = Load(f"x_{t}", (Ramp(const(0), 3, 16),), t, Binary("lt", lane, wide(const(9), 16)))
        y = x if t == bool_ else Binary("max", x, Load(f"x_{t}", (lane,), t))
        z = Call("sqrt", (y,), t) if t.is_float else Cast(Cast(y, f32), t)
        stores.append(Store(f"x_{t}", (lane,), z, streaming=True))
        stores.append(Store(f"x_{t}", (Cast(Load("x_i64", (lane,), i64), i64),), z))
    kernel = Kernel("every", tuple(params), If(Binary("lt", Param("p", i64), const(3)), Block(tuple(stores))))
    text = assembly(kernel, level(name))
    for library in ("truncsfhf", "extendhfsf", "truncdfhf", "truncsfbf", "extendhfdf"):
        assert library not in text
