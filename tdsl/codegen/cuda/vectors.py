"""Lowers vector stores to TIR, with accesses as wide as memory allows."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from tvm import tirx as T  # noqa: N812  # as its own documentation calls it

from tdsl.codegen.analysis.access_widths import access_width, is_loaded_whole, is_shifted
from tdsl.codegen.cuda.cache_hints import is_aligned, load_shifted, load_vector, store_vector_streaming
from tdsl.codegen.cuda.expressions import TIR, Expressions
from tdsl.codegen.cuda.identifiers import without_number
from tdsl.codegen.cuda.tir_types import bytes_of
from tdsl.codegen.ir.loops import Store
from tdsl.codegen.ir.statements import rebuilt
from tdsl.codegen.ir.strides import constant_strides
from tdsl.codegen.transforms.extract_lanes import extract_lane, lane_count, lane_store
from tdsl.core.node import post_order, transform
from tdsl.cost.sectors import WIDEST
from tdsl.lang.expr import Binary, Broadcast, Const, Expr, Load, Select, const, lanes_of
from tdsl.lang.types import DType


def lanes_of_access(e: Expressions, s: Store) -> int:
    """The number of lanes of a store that one access writes."""
    return 1 if s.mask is not None or s.atomic else _width(e, s.buffer, s.index, lane_count(s))


def lanes_of_loads(e: Expressions, s: Store) -> int:
    """The number of lanes that the widest load of a store covers whose lanes are stored one by one."""
    widest, lanes = 1, lane_count(s)
    for n in post_order(s.value) if s.mask is None and not s.atomic else ():
        if isinstance(n, Load) and lanes_of(n) == lanes:
            memory, _ = e.buffers[n.buffer]
            count = max(WIDEST // bytes_of(str(memory.dtype)), 1)
            while count > widest and (lanes % count or not _is_one_load(e, n, count)):
                count //= 2
            widest = max(widest, count) if memory.scope() != "local" else widest
    return widest


def _is_one_load(e: Expressions, n: Load, count: int) -> bool:
    return _is_vector_load(e, n, count) or _is_shifted_load(e, n, count)


def lower_vector_loads(
    e: Expressions, s: Store, start: int, count: int, store: Callable[[Store], list[TIR]]
) -> list[TIR]:
    """Loads of `count` lanes from lane `start` as vectors, and the stores of these lanes one by one."""
    statements, loaded_parts = _load_parts(e, s, start, count)
    for k in range(count):
        value = _lane_from_parts(s.value, loaded_parts, start + k, k)
        with e.statement() as values:
            stored = store(rebuilt(lane_store(s, start + k), value=value))
        statements += [*values, *stored]
    return statements


def lower_vector_store(e: Expressions, s: Store, start: int, count: int) -> list[TIR]:
    """The store of `count` lanes from lane `start` as one access; its loads are vectorised where possible."""
    match s.value:
        case Load(mask=None) as n if n.buffer not in e.policies and not s.streaming:
            at = e.offset(n.buffer, tuple(extract_lane(i, start) for i in n.index))
            whole = _is_vector_load(e, n, count) and not _is_shifted_load(e, n, count)
            if whole and is_aligned(at, count):
                source, _ = e.buffers[n.buffer]
                return [_write(e, s, start, count, T.BufferLoad(source, [T.Ramp(at, 1, count)]))]
        case _:
            pass
    statements, loaded_parts = _load_parts(e, s, start, count)
    target, _ = e.buffers[s.buffer]
    name = e.identifiers.declare(f"{without_number(s.buffer)}_vec")
    result = T.decl_buffer((count,), str(target.dtype), name, scope="local")
    statements.append(T.AllocBuffer(result))
    for k in range(count):
        with e.statement() as values:
            value = e.value(_lane_from_parts(s.value, loaded_parts, start + k, k))
        statements += [*values, T.BufferStore(result, value, [T.const(k, "int32")])]
    if s.streaming:
        at = e.offset(s.buffer, tuple(extract_lane(i, start) for i in s.index))
        return [*statements, store_vector_streaming(e, target, at, count, result)]
    whole = T.BufferLoad(result, [T.Ramp(T.const(0, "int32"), 1, count)])
    return [*statements, _write(e, s, start, count, whole)]


def _load_parts(
    e: Expressions, s: Store, start: int, count: int
) -> tuple[list[TIR], dict[Expr, tuple[str, DType]]]:
    """Loads of `count` lanes of a store's value to registers, one access each, and the registers by load."""
    statements: list[TIR] = []
    loaded_parts: dict[Expr, tuple[str, DType]] = {}
    for n in post_order(s.value):
        shifted = isinstance(n, Load) and _is_shifted_load(e, n, count)
        if isinstance(n, Load) and (shifted or _is_vector_load(e, n, count)):
            source, _ = e.buffers[n.buffer]
            at = e.offset(n.buffer, tuple(extract_lane(i, start) for i in n.index))
            name = e.identifiers.declare(f"{without_number(n.buffer)}_vec")
            part = T.decl_buffer((count,), str(source.dtype), name, scope="local")
            store = (load_shifted if shifted else load_vector)(e, n.buffer, at, count, part)
            if n.mask is not None:
                lanes = 1 if isinstance(n.mask, Broadcast) else count
                tests = dict.fromkeys(extract_lane(n.mask, start + k) for k in range(lanes))
                some = reduce(lambda a, b: Binary("or", a, b), tests)
                store = T.IfThenElse(e.value(some), store, _zeros(e, n.dtype, part, count))
            statements += [T.AllocBuffer(part), store]
            name = f"part {len(loaded_parts)}"
            e.buffers[name] = part, (1,)
            loaded_parts[n] = name, n.dtype
    return statements, loaded_parts


def _zeros(e: Expressions, dtype: DType, part: TIR, count: int) -> TIR:
    """Store zeros to all of `part`; beyond 4 lanes, TVM can print vector constants of halves only."""
    zero = e.value(Const(0, dtype))
    if count <= 4 or str(part.dtype).endswith("float16"):
        return T.BufferStore(part, T.Broadcast(zero, count), [T.Ramp(T.const(0, "int32"), 1, count)])
    each = (T.BufferStore(part, zero, [T.const(k, "int32")]) for k in range(count))
    return T.SeqStmt(list(each))


def _width(e: Expressions, buffer: str, index: tuple[Expr, ...], lanes: int) -> int:
    """The number of lanes that one access covers: contiguous ones, aligned to their total size."""
    memory, strides = e.buffers[buffer]
    kind = str(memory.dtype)
    if kind == "bool" or buffer in e.fragments:
        return 1
    return access_width(index, constant_strides(strides), lanes, bytes_of(kind))


def _is_shifted_load(e: Expressions, n: Load, count: int) -> bool:
    """True for a load of 16 bytes of global memory that begin anywhere; lanes may be masked one by one."""
    memory, strides = e.buffers[n.buffer]
    size, kind = bytes_of(str(memory.dtype)), str(memory.dtype)
    if memory.scope() != "global" or kind == "bool" or n.buffer in e.policies or count * size != WIDEST:
        return False
    return is_shifted(n.index, constant_strides(strides), count, size)


def _is_vector_load(e: Expressions, n: Load, count: int) -> bool:
    """True for a load of `count` contiguous lanes that one access covers; lanes may be masked one by one."""
    memory, _ = e.buffers[n.buffer]
    (size,) = memory.shape
    elements = int(size) if isinstance(size, T.IntImm) else None
    return is_loaded_whole(n.mask, elements, count) and _width(e, n.buffer, n.index, count) == count


def _write(e: Expressions, s: Store, start: int, count: int, value: TIR) -> TIR:
    target, _ = e.buffers[s.buffer]
    at = e.offset(s.buffer, tuple(extract_lane(i, start) for i in s.index))
    return T.BufferStore(target, value, [T.Ramp(at, 1, count)])


def _lane_from_parts(e: Expr, loaded_parts: dict[Expr, Any], which: int, n: int) -> Expr:
    """Lane `which` of an expression, with `loaded_parts` replaced by element n of their registers."""

    def loaded(x: Any) -> Any:
        if x in loaded_parts:
            name, dtype = loaded_parts[x]
            part = Load(name, (const(n),), dtype)
            if x.mask is None or isinstance(x.mask, Broadcast):
                return part
            return Select(extract_lane(x.mask, which), part, Const(0, dtype))
        return x

    return extract_lane(transform(e, loaded), which)
