"""TDSL_DEBUG=canaries names memory of a kernel beyond which it writes, wherever that memory comes from."""

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cpu import executable
from tdsl.codegen.ir.loops import (
    HEAP,
    PARALLEL,
    REGISTER,
    SERIAL,
    STACK,
    Alloc,
    Block,
    BufferParam,
    For,
    Kernel,
    SizeParam,
    Store,
)
from tdsl.lang.expr import ZERO, Binary, Load, Size, Var, const
from tdsl.lang.types import i32

N = Size("N")


def kernel(scope, extent, at, loop=SERIAL):
    """One that fills `rows`, of an extent, with 1 in a loop to an index, and gives its first element."""
    fill = For("k", ZERO, const(1), SERIAL, Store("rows", (at,), const(1)))
    first = Store("y", (Var("i"),), Load("rows", (ZERO,), i32))
    start = Store("rows", (ZERO,), const(5))
    rows = Alloc("rows", i32, (extent,), scope, Block((start, fill, first)))
    y = BufferParam("y", i32, (const(3),), (1,), written=True)
    body = For("i", ZERO, const(3), loop, Alloc("other", i32, (const(9),), scope, rows))
    return Kernel("fills", (y, SizeParam("N")), body)


@pytest.mark.parametrize(
    "scope, extent, loop, at",
    [
        (REGISTER, 7, SERIAL, 7),
        (STACK, 7, SERIAL, -1),
        (STACK, 7, PARALLEL, 30),
        (HEAP, 7, SERIAL, -64),
        (HEAP, N, SERIAL, 7),
        (HEAP, N, PARALLEL, 70),
    ],
)
def test_a_store_beyond_memory_names_it(monkeypatch, scope, extent, loop, at):
    monkeypatch.setenv("TDSL_DEBUG", "canaries")
    extent = const(extent) if isinstance(extent, int) else extent
    wrong = executable.build(kernel(scope, extent, const(at), loop))
    with pytest.raises(td.TargetError, match="kernel 'fills' writes beyond the memory of 'rows'"):
        wrong.run([np.zeros(3, np.int32), 7])
    good = executable.build(kernel(scope, extent, const(6), loop))
    y = np.zeros(3, np.int32)
    good.run([y, 7])
    np.testing.assert_array_equal(y, 5)


def test_what_is_read_before_it_is_written_is_no_number(monkeypatch):
    monkeypatch.setenv("TDSL_DEBUG", "canaries")
    read = Store("y", (ZERO,), Load("rows", (Binary("sub", N, const(1)),), i32))
    rows = Alloc("rows", i32, (N,), HEAP, read)
    y = BufferParam("y", i32, (const(1),), (1,), written=True)
    got = np.zeros(1, np.int32)
    executable.build(Kernel("reads", (y, SizeParam("N")), rows)).run([got, 4])
    assert got[0] == 0x7FFF7FFF


def test_code_with_canaries_has_separate_cache_entries(monkeypatch, tmp_path):
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path))
    entries = []
    for topics in ("", "canaries", "", "canaries"):
        monkeypatch.setenv("TDSL_DEBUG", topics)
        i, a, f = td.vars("i"), td.Tensor("a", (5,), td.f32), td.Func("f")
        f[i] = a[i] + 1
        np.testing.assert_array_equal(td.compile(f)(np.zeros(5, np.float32)), 1)
        entries.append(sum(path.is_file() for path in tmp_path.rglob("*")))
    assert entries[0] < entries[1] == entries[2] == entries[3]
