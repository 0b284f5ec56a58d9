"""The loop IR run by NumPy, one statement at a time: what compiled kernels are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tdsl.codegen.ir.loops import Alloc, Block, For, If, Kernel, Let, Prefetch, Stmt, Store
from tdsl.lang import arithmetic
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
    Select,
    Size,
    Unary,
    Var,
)

Names = Mapping[str, Any]


def run_plain(kernel: Kernel, *arguments: Any) -> None:
    """Run a kernel without checks, prints and instructions on arrays, scalars and sizes."""
    with np.errstate(all="ignore"):
        _run(
            kernel.body,
            {p.name: np.asarray(x) for p, x in zip(kernel.params, arguments, strict=True)},
        )


def _run(s: Stmt, names: Names) -> None:
    match s:
        case For(name, lo, extent, _, body):
            first = int(_value(lo, names))
            for k in range(first, first + int(_value(extent, names))):
                _run(body, {**names, name: np.int64(k)})
        case Block(parts):
            for part in parts:
                _run(part, names)
        case Let(name, x, body):
            _run(body, {**names, name: _value(x, names)})
        case Alloc(name, dtype, extents, _, body):
            shape = tuple(int(_value(e, names)) for e in extents)
            _run(body, {**names, name: np.zeros(shape, dtype.numpy)})
        case If(cond, then, orelse):
            if _value(cond, names):
                _run(then, names)
            elif orelse is not None:
                _run(orelse, names)
        case Store():
            _store(s, names)
        case Prefetch():
            pass
        case _:
            raise AssertionError(s)


def _store(s: Store, names: Names) -> None:
    index = [_value(x, names) for x in s.index]
    value = _value(s.value, names)
    mask = True if s.mask is None else _value(s.mask, names)
    buffer = names[s.buffer]
    lanes = np.broadcast(value, mask, *index)
    every = [np.broadcast_to(x, lanes.shape).reshape(-1) for x in (value, mask, *index)]
    for x, expected, *at in zip(*every, strict=True):
        if expected:
            new = arithmetic.binary(s.atomic, buffer[tuple(at)], x) if s.atomic else x
            buffer[tuple(at)] = new


def _value(e: Expr, names: Names) -> Any:
    match e:
        case Const():
            return arithmetic.constant(e)
        case Var(name) | Size(name) | Param(name):
            return names[name]
        case Ramp(base, stride, lanes):
            return _value(base, names) + stride * np.arange(lanes)
        case Broadcast(x, lanes):
            return np.repeat(_value(x, names), lanes)
        case Binary(op, x, y):
            return arithmetic.binary(op, _value(x, names), _value(y, names))
        case Unary(op, x):
            return arithmetic.unary(op, _value(x, names))
        case Select(cond, yes, no):
            return np.where(_value(cond, names), _value(yes, names), _value(no, names))
        case Cast(x, t, saturate):
            return arithmetic.cast(_value(x, names), t, saturate)
        case Call(fn, args, t):
            return arithmetic.call(fn, tuple(_value(x, names) for x in args), t)
        case Load():
            return _load(e, names)
        case _:
            raise AssertionError(e)


def _load(e: Load, names: Names) -> Any:
    index = [_value(x, names) for x in e.index]
    if e.mask is None:
        return names[e.buffer][tuple(index)]
    mask = _value(e.mask, names)
    safe = tuple(np.where(mask, x, 0) for x in index)
    return np.where(mask, names[e.buffer][safe], np.zeros((), e.dtype.numpy))
