"""Lowers loads and stores with a cache policy to calls of device functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx as T  # noqa: N812  # as its own documentation calls it
from tvm.sym import Analyzer

from tdsl.codegen.cuda.expressions import Expressions
from tdsl.codegen.cuda.tir_types import bytes_of

TIR = Any


def bind_policies(e: Expressions, policies: Mapping[str, str]) -> list[TIR]:
    """The statements at the head of a kernel that create the cache policies of loads, by buffer."""
    variables: dict[str, TIR] = {}
    statements = []
    for name in sorted(set(policies.values())):
        variables[name] = T.Var(e.identifiers.declare(name), "uint64")
        e.used.add(f"tdsl_{name}")
        statements.append(T.Bind(variables[name], T.call_extern("uint64", f"tdsl_{name}")))
    e.policies |= {buffer: (name, variables[name]) for buffer, name in policies.items()}
    return statements


def load_vector(e: Expressions, buffer: str, at: TIR, count: int, part: TIR) -> TIR:
    """The load of `count` elements of a buffer from the offset `at` into the registers `part`."""
    source, _ = e.buffers[buffer]
    if buffer not in e.policies and not is_aligned(at, count):
        size = count * bytes_of(str(source.dtype))
        return e.statement_call(f"tdsl_load<{size}>", _place(part), _place(source, at))
    if buffer not in e.policies:
        loaded = T.BufferLoad(source, [T.Ramp(at, 1, count)])
        return T.BufferStore(part, loaded, [T.Ramp(T.const(0, "int32"), 1, count)])
    name, policy = e.policies[buffer]
    size = count * bytes_of(str(source.dtype))
    return e.statement_call(f"tdsl_load_{name}<{size}>", _place(part), _place(source, at), policy)


def load_shifted(e: Expressions, buffer: str, at: TIR, count: int, part: TIR) -> TIR:
    """The load of 16 bytes of a buffer from the offset `at`, which is aligned to one element only."""
    source, _ = e.buffers[buffer]
    size = bytes_of(str(source.dtype))
    return e.statement_call(f"tdsl_load_shifted<{size}>", _place(part), _place(source), at, source.shape[0])


def is_aligned(at: TIR, count: int) -> bool:
    """True where TVM sees that an offset is a multiple of `count`, without which it loads one by one.

    It does not see through data that choose a row, whose elements are aligned as all are.
    """
    factor = Analyzer().modular_set(at)
    return bool(factor.coeff % count == 0 and factor.base % count == 0)


def store_streaming(e: Expressions, memory: TIR, at: TIR, value: TIR) -> TIR:
    """A store that lines of L2 are evicted first for; `value` is a scalar."""
    return e.statement_call("tdsl_store_streaming", _place(memory, at), value)


def store_vector_streaming(e: Expressions, memory: TIR, at: TIR, count: int, part: TIR) -> TIR:
    """A streaming store of `count` elements from the registers `part`."""
    size = count * bytes_of(str(memory.dtype))
    return e.statement_call(f"tdsl_store_streaming<{size}>", _place(memory, at), _place(part))


def _place(memory: TIR, at: TIR | None = None) -> TIR:
    """The address of an element of a buffer, of the first one without `at`."""
    return T.address_of(T.BufferLoad(memory, [T.const(0, "int32") if at is None else at]))
