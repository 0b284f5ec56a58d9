"""Kernels built by hand, compiled for a CPU level and run on arrays, for tests of code generation."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tdsl.codegen.cpu import jit
from tdsl.codegen.cpu.emit import emit
from tdsl.codegen.cpu.executable import CpuExecutable
from tdsl.codegen.cpu.runtime import runtime
from tdsl.codegen.ir.loops import Block, BufferParam, For, Kernel, Stmt, Store, row_major
from tdsl.lang.expr import Binary, Broadcast, Expr, Load, Ramp, Var, const, dtype_of
from tdsl.lang.types import DType, from_numpy
from tdsl.machine.cpu import CpuTarget, host

i = Var("i")
_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)


def run(kernel: Kernel, *arguments: Any, target: CpuTarget | None = None) -> int:
    """Compile a kernel and run it; its status. The test is skipped where this machine cannot run the code."""
    if target is not None and not target.has <= host().has:
        pytest.skip(f"runs code for {target.cpu}")
    text = emit(kernel, target or host())
    executable = CpuExecutable(kernel, text)
    if target is not None:
        object_ = jit.emit_object(text, target)
        executable._code.loaded = jit.load(object_, [kernel.name], runtime().memory)
    return status(executable, *arguments)


def status(executable: CpuExecutable, *arguments: Any) -> int:
    """What the kernel itself returns."""
    frames: list[Any] = []

    def entry(frame: int, runtime: int) -> int:
        function = _ENTRY(executable._code.loaded.address(executable.kernel.name))
        frames.append(function(frame, runtime))
        return 0

    executable._entry = entry
    executable.run(arguments)
    return int(frames[0])


def assembly(kernel: Kernel, target: CpuTarget | None = None) -> str:
    """The assembly of the kernel."""
    target = target or host()
    return jit.assembly(emit(kernel, target), target, kernel.name)


def at(position: Expr | int, lanes: int, stride: int = 1) -> Expr:
    """An index: a scalar, or a ramp."""
    base = const(position) if isinstance(position, int) else position
    return base if lanes == 1 else Ramp(base, stride, lanes)


def wide(x: Expr, lanes: int) -> Expr:
    """A scalar in every lane."""
    return x if lanes == 1 else Broadcast(x, lanes)


def dense(name: str, dtype: DType, *extents: int, written: bool = False) -> BufferParam:
    """A parameter with constant row-major strides."""
    return BufferParam(name, dtype, tuple(map(const, extents)), row_major(extents), written)


def pointwise(
    inputs: Sequence[np.ndarray[Any, Any]],
    values: Sequence[Any],
    lanes: int,
    target: CpuTarget | None = None,
    fast_math: bool = False,
) -> list[np.ndarray[Any, Any]]:
    """For each function in `values` its result on the elements of one-dimensional arrays.

    A function takes an expression for each array, of `lanes` lanes, and gives an expression.
    """
    n = inputs[0].size
    assert n % lanes == 0
    index = at(Binary("mul", i, const(lanes)), lanes)
    types = [from_numpy(x.dtype) for x in inputs]
    loads = [Load(f"x{k}", (index,), t) for k, t in enumerate(types)]
    exprs = [value(*loads) for value in values]
    params = [dense(f"x{k}", t, n) for k, t in enumerate(types)]
    params += [dense(f"y{k}", dtype_of(e), n, written=True) for k, e in enumerate(exprs)]
    stores: list[Stmt] = [Store(f"y{k}", (index,), e) for k, e in enumerate(exprs)]
    body = For("i", const(0), const(n // lanes), "serial", Block(tuple(stores)))
    outputs = [np.zeros(n, dtype_of(e).numpy) for e in exprs]
    kernel = Kernel("pointwise", tuple(params), body, fast_math=fast_math)
    assert run(kernel, *inputs, *outputs, target=target) == 0
    return outputs
