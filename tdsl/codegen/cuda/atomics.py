"""Lowers atomic stores to calls of device functions."""

from __future__ import annotations

from typing import Any

from tvm import tirx as T  # noqa: N812  # as its own documentation calls it

from tdsl.codegen.cuda.expressions import Expressions
from tdsl.codegen.ir.loops import Store

TIR = Any


def atomic_update(e: Expressions, s: Store, memory: TIR, at: TIR, value: TIR) -> TIR:
    """The call that updates an element atomically."""
    place = T.address_of(T.BufferLoad(memory, [at]))
    name = f"tdsl_atomic_{s.atomic}"
    e.used.add(name)
    return T.Evaluate(T.call_extern("void", name, place, value))
