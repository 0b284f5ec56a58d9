"""Machine code from the disk cache behaves as what was just compiled."""

import sys

import numpy as np
import pytest

from tdsl.codegen.cpu import cached_kernel as stored
from tdsl.codegen.cpu.cached_kernel import load_or_build
from tdsl.codegen.ir.loops import Block, BufferParam, Check, Kernel, Message, Print, Store
from tdsl.codegen.runtime import cache
from tdsl.errors import RequireError
from tdsl.lang.expr import TRUE, Binary, Load, const
from tdsl.lang.types import i64
from tdsl.machine.cpu import host

X = BufferParam("x", i64, (const(2),), (1,), written=True)
FIRST = Load("x", (const(0),), i64)


def kernel() -> Kernel:
    body = Block(
        (
            Check(Binary("lt", FIRST, const(10)), 0, (FIRST,)),
            Print(TRUE, 1, (FIRST,)),
            Store("x", (const(1),), Binary("add", FIRST, const(1))),
        )
    )
    messages = Message("require", ("", " is too much"), "x.py:1"), Message("print", ("x ", ""), "")
    return Kernel("k", (X,), body, messages)


@pytest.fixture
def cached_kernel(monkeypatch, tmp_path):
    """A function that loads or builds the kernel, and the list of the times that it was made."""
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path))
    calls = []

    def make():
        calls.append(1)
        return kernel()

    return (lambda program: load_or_build(program, (X,), make, host())), calls


def test_code_is_built_once_and_its_loops_on_demand(cached_kernel, capfd):
    load, calls = cached_kernel
    load("a").run([np.array([3, 0])])
    assert len(calls) == 1
    executable = load("a")
    assert len(calls) == 1
    x = np.array([3, 0])
    assert executable.fast(x) is True
    assert x.tolist() == [3, 4]
    assert repr(executable) == "<machine code of k>"
    assert executable.kernel == kernel()
    assert executable.kernel is executable.kernel
    assert len(calls) == 2
    assert "define i64 @k" in executable.llvm
    assert "k:" in executable.asm()
    assert capfd.readouterr().out == "x 3\nx 3\n"


def test_checks_of_stored_code_have_their_texts(cached_kernel):
    load, _ = cached_kernel
    load("a")
    with pytest.raises(RequireError, match="10 is too much"):
        load("a").run([np.array([10, 0])])


def test_other_programs_are_other_entries(cached_kernel):
    load, calls = cached_kernel
    for program in ("a", "b", "a", "b"):
        load(program)
    assert len(calls) == 2
    assert cache.info().entries == 2


def test_another_numpy_is_another_entry(cached_kernel, monkeypatch):
    load, calls = cached_kernel
    load("a")
    monkeypatch.setattr(stored, "_CALLER", (sys.version, "99"))
    load("a")
    assert len(calls) == 2
