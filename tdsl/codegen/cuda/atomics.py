"""Lowers atomic stores to calls of device functions."""

from __future__ import annotations

from typing import Any

from tvm import tirx as T  # noqa: N812  # as its own documentation calls it

from tdsl.codegen.cuda.expressions import Expressions
from tdsl.codegen.ir.loops import Store
from tdsl.core.source import here
from tdsl.errors import TargetError
from tdsl.lang.expr import dtype_of
from tdsl.lang.types import bool_

TIR = Any


def atomic_update(e: Expressions, s: Store, memory: TIR, at: TIR, value: TIR) -> TIR:
    """The call that updates an element atomically; TargetError for types without atomics."""
    t = dtype_of(s.value)
    if t.bytes < 4 or t == bool_:
        raise TargetError(
            f"a GPU has no atomic {s.atomic} of {t}",
            loc=here(),
            label="compiled here",
            hint="update elements of 4 or 8 bytes, or use rfactor",
        )
    place = T.address_of(T.BufferLoad(memory, [at]))
    name = f"tdsl_atomic_{s.atomic}"
    e.used.add(name)
    return T.Evaluate(T.call_extern("void", name, place, value))
