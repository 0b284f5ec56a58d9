"""Loads and stores of scalars and vectors.

    lane step 1, -1           one vector load or store, masked if need be, reversed for -1
    lane step 2..4, -2..-4    |step| adjacent vector loads, of the active lanes only, then shuffles
    any other                 a permutation of registers if two hold all elements, else gather and scatter

A streaming store bypasses the caches if the address is aligned. If the alignment is not known at compile time
every store tests its address, which costs little compared to the memory traffic, and an aligned vector is
written in pieces of 16 bytes, the alignment of any large array; the processor combines the pieces.
"""

from __future__ import annotations

from dataclasses import replace

from tdsl.codegen.cpu import table_lookup as lookup
from tdsl.codegen.cpu.address import Address
from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.context import Context
from tdsl.codegen.cpu.ir_types import constants, register_type, suffix, vector
from tdsl.codegen.cpu.values import Value, full, select, splat
from tdsl.lang.types import DType, bool_, f32, f64

_LARGEST_STEP = 4  # elements from lane to lane; accesses of larger steps are scattered
# Bytes of a streaming store if no larger alignment is known: the alignment of any large array.
_PIECE_BYTES = 16


def load(cx: Context, at: Address, t: DType, lanes: int, mask: Value | None) -> Value:
    """The elements at an address; 0 in the lanes where `mask` is false."""
    b = cx.b
    if mask is not None and mask.constant is not None:
        if not mask.constant:
            return Value(_zero(t), t, lanes, lanes > 1)
        mask = None
    scattered = bool(at.offsets) or abs(at.step) > _LARGEST_STEP
    if mask is not None and (mask.uniform or mask.lanes == 1) and not scattered:
        at = replace(at, pointer=_pointer_or_zeros(cx, mask.name, at))
        mask = None
    if at.lanes == 1 or (at.step == 0 and not at.offsets):
        return _load_one(cx, replace(at, lanes=1), t, lanes, mask)
    if lookup.count_registers(b.target, at):
        return _zero_inactive(cx, _from_memory(b, _load_permuted(cx, at), t, at.lanes), mask)
    if abs(at.step) == 1 and not scattered:
        return _from_memory(b, _contiguous(cx, at, mask), t, at.lanes)
    if scattered or (mask is not None and not _has_masked_load(cx, at)):
        return _from_memory(b, _gather(cx, at, mask), t, at.lanes)
    return _from_memory(b, _strided(cx, at, mask), t, at.lanes)


def store(cx: Context, at: Address, x: Value, mask: Value | None, streaming: bool) -> None:
    """Store the lanes of `x` where `mask` is true; of lanes at the same address the last one is stored."""
    b = cx.b
    if mask is not None and (mask.constant is not None or mask.uniform or mask.lanes == 1):
        if mask.constant is None:
            with b.when(mask.name):
                store(cx, at, x, None, streaming)
        elif mask.constant:
            store(cx, at, x, None, streaming)
        return
    name = _to_memory(b, x)
    type_ = vector(at.element, at.lanes)
    if at.lanes == 1:
        b.do(f"store {type_} {name}, ptr {at.pointer}, align {at.align}")
    elif not at.offsets and abs(at.step) == 1:
        if at.step == -1:
            at, name = _at_last_lane(b, at), _reverse(b, type_, name, at.lanes)
            mask = mask and Value(_reverse(b, mask.type, full(b, mask), at.lanes), mask.dtype)
        _store_contiguous(cx, at, name, mask and full(b, mask), streaming)
    elif not at.offsets and at.step == 0 and mask is None:
        last = b.v(f"extractelement {type_} {name}, i64 {at.lanes - 1}")
        b.do(f"store {at.element} {last}, ptr {at.pointer}, align {at.align}")
    else:
        pointers = lane_pointers(b, at)
        _intrinsic(b, "void", "scatter", f"{suffix(type_)}.v{at.lanes}p0", (
            (type_, "", name),
            (f"<{at.lanes} x ptr>", f"align {_element_align(at)}", pointers),
            (f"<{at.lanes} x i1>", "", full(b, mask) if mask else "splat (i1 true)"),
        ))  # fmt: skip


def lane_pointers(b: Builder, at: Address) -> str:
    """The addresses of the lanes, as a vector of pointers."""
    if at.offsets:
        return b.v(f"getelementptr {at.unit}, ptr {at.pointer}, <{at.lanes} x i64> {at.offsets}")
    # Constant 32-bit steps let the CPU gather twice as many lanes at a time.
    steps = [k * at.step for k in range(at.lanes)]
    width = "i32" if max(map(abs, steps)) < 1 << 31 else "i64"
    return b.v(
        f"getelementptr {at.element}, ptr {at.pointer}, <{at.lanes} x {width}> {constants(width, steps)}"
    )


def _load_one(cx: Context, at: Address, t: DType, lanes: int, mask: Value | None) -> Value:
    """Load one element and broadcast it; 0 in the lanes where `mask` is false."""
    b = cx.b
    if mask is not None:  # no memory may be read if no lane is active
        name = f"llvm.vector.reduce.or.{suffix(mask.type)}"
        any_lane = b.call("i1", name, (mask.type, mask.name))
        at = replace(at, pointer=_pointer_or_zeros(cx, any_lane, at))
    one = _read(cx, at.buffer, at.element, at.pointer, at.align)
    x = _from_memory(b, one, t, 1)
    if mask is None:
        return Value(x.name, t, lanes, lanes > 1)
    zero = splat(b, register_type(t), _zero(t), lanes)
    every = splat(b, register_type(t), x.name, lanes)
    return Value(select(b, register_type(t, lanes), mask.name, every, zero), t, lanes)


def _read(cx: Context, buffer: str, type_: str, pointer: str, align: int) -> str:
    text = f"load {type_}, ptr {pointer}, align {align}"
    known = cx.load_values.setdefault(buffer, {})
    if text not in known:
        known[text] = cx.b.get(text)
    return known[text]


def _contiguous(cx: Context, at: Address, mask: Value | None) -> str:
    b, type_ = cx.b, vector(at.element, at.lanes)
    reverse = at.step == -1
    if reverse:
        at = _at_last_lane(b, at)
    if mask is None:
        x = _read(cx, at.buffer, type_, at.pointer, at.align)
    else:
        lanes = _reverse(b, mask.type, mask.name, at.lanes) if reverse else mask.name
        x = _intrinsic(b, type_, "load", f"{suffix(type_)}.p0", (
            ("ptr", f"align {at.align}", at.pointer),
            (f"<{at.lanes} x i1>", "", lanes),
            (type_, "", "zeroinitializer"),
        ))  # fmt: skip
    return _reverse(b, type_, x, at.lanes) if reverse else x


def _has_masked_load(cx: Context, at: Address) -> bool:
    """True if the CPU has a masked load of these elements, which accesses the active lanes only."""
    return ("avx512bw" if _element_align(at) < 4 else "avx") in cx.b.target.has


def _strided(cx: Context, at: Address, mask: Value | None) -> str:
    """Load every step-th element by adjacent loads and shuffles. The last load ends with the last lane.

    With a mask only the elements of active lanes are loaded.
    """
    b, lanes, step = cx.b, at.lanes, abs(at.step)
    if at.step < 0:
        at = _at_last_lane(b, at)
    type_ = vector(at.element, lanes)
    last = (lanes - 1) * step
    starts = [min(k * lanes, last - lanes + 1) for k in range(step)]
    elements = [k * step for k in range(lanes)]
    if at.step < 0:
        elements.reverse()
    parts = []
    for start in starts:
        pointer = b.v(f"getelementptr inbounds {at.element}, ptr {at.pointer}, i64 {start}")
        source = replace(at, pointer=pointer if start else at.pointer, step=1, align=_element_align(at))
        part_mask = None if mask is None else _shift_mask(b, mask, [w - start for w in elements])
        parts.append(_contiguous(cx, source, part_mask))
    result, start = parts[0], starts[0]
    chosen = [w - start if w < lanes else -1 for w in elements]
    for part, start in zip(parts[1:], starts[1:], strict=True):
        picks = []
        for k, w in enumerate(elements):
            if chosen[k] >= 0:
                picks.append(chosen[k])
            else:
                picks.append(lanes + w - start if start <= w < start + lanes else -1)
        order = ", ".join(f"i32 {p}" if p >= 0 else "i32 poison" for p in picks)
        result = b.v(f"shufflevector {type_} {result}, {type_} {part}, <{lanes} x i32> <{order}>")
        chosen = [k if p >= 0 else -1 for k, p in enumerate(picks)]
    return result


def _shift_mask(b: Builder, mask: Value, targets: list[int]) -> Value:
    """The mask with lane k moved to lane `targets[k]`, if that is one of its lanes; false in other lanes."""
    lanes = mask.lanes
    order = [targets.index(k) if k in targets else lanes for k in range(lanes)]
    type_ = f"<{lanes} x i1>"
    name = b.v(
        f"shufflevector {type_} {full(b, mask)}, {type_} zeroinitializer, "
        f"<{lanes} x i32> {constants('i32', order)}"
    )
    return Value(name, mask.dtype, lanes)


def _gather(cx: Context, at: Address, mask: Value | None) -> str:
    b, type_ = cx.b, vector(at.element, at.lanes)
    return _intrinsic(b, type_, "gather", f"{suffix(type_)}.v{at.lanes}p0", (
        (f"<{at.lanes} x ptr>", f"align {_element_align(at)}", lane_pointers(b, at)),
        (f"<{at.lanes} x i1>", "", full(b, mask) if mask else "splat (i1 true)"),
        (type_, "", "zeroinitializer"),
    ))  # fmt: skip


def _load_permuted(cx: Context, at: Address) -> str:
    """Load the range of an access and permute its registers; inactive lanes are within the range, too."""
    tables = []
    for start, count in lookup.register_slices(at):
        pointer = cx.b.v(f"getelementptr inbounds {at.element}, ptr {at.pointer}, i64 {start}")
        part = replace(at, pointer=pointer, align=_element_align(at), step=1, offsets="")
        lanes = constants("i1", (int(k < count) for k in range(at.lanes)))
        mask = None if count == at.lanes else Value(lanes, bool_, at.lanes)
        tables.append(_contiguous(cx, part, mask))
    return lookup.permute(cx.b, at, tables)


def _zero_inactive(cx: Context, x: Value, mask: Value | None) -> Value:
    """`x` in the lanes where `mask` is true, else 0."""
    if mask is None:
        return x
    zero = splat(cx.b, register_type(x.dtype), _zero(x.dtype), x.lanes)
    return x._replace(name=select(cx.b, x.type, full(cx.b, mask), x.name, zero))


_SAME_SIZE = {"i16": "half", "i32": "float"}


def _hide_narrowing(b: Builder, at: Address, type_: str, name: str, mask: str) -> tuple[str, str, str]:
    """The type, value and mask of a store, rewritten to hide truncated values and constant masks from LLVM.

    Works around LLVM 22: for AVX-512, if the value is truncated and the mask is one constant lane, it stores
    the whole wide element, and so writes beyond the lane.
    """
    if "avx512f" not in b.target.has or at.element not in ("i8", *_SAME_SIZE):
        return type_, name, mask
    if at.element in _SAME_SIZE:
        other = vector(_SAME_SIZE[at.element], at.lanes)
        return other, b.v(f"bitcast {type_} {name} to {other}"), mask
    bits, wide = f"i{at.lanes}", f"i{max(at.lanes, 8)}"
    known = b.v(f"bitcast <{at.lanes} x i1> {mask} to {bits}")
    if wide != bits:
        known = b.v(f"zext {bits} {known} to {wide}")
    hidden = b.v(f'call {wide} asm "", "=r,0"({wide} {known})')
    if wide != bits:
        hidden = b.v(f"trunc {wide} {hidden} to {bits}")
    return type_, name, b.v(f"bitcast {bits} {hidden} to <{at.lanes} x i1>")


def _store_contiguous(cx: Context, at: Address, name: str, mask: str | None, streaming: bool) -> None:
    b, type_ = cx.b, vector(at.element, at.lanes)
    if mask is not None:
        type_, name, mask = _hide_narrowing(b, at, type_, name, mask)
        _intrinsic(b, "void", "store", f"{suffix(type_)}.p0", (
            (type_, "", name),
            ("ptr", f"align {at.align}", at.pointer),
            (f"<{at.lanes} x i1>", "", mask),
        ))  # fmt: skip
        return
    size = at.lanes * _element_align(at)
    if not streaming or size < _PIECE_BYTES or size & (size - 1):
        b.do(f"store {type_} {name}, ptr {at.pointer}, align {at.align}")
        return
    cx.has_streaming_stores = True
    b.declare("!0 = !{i32 1}")
    if at.align % size == 0:
        b.do(f"store {type_} {name}, ptr {at.pointer}, align {size}, !nontemporal !0")
        return
    bits = b.v(f"and i64 {b.v(f'ptrtoint ptr {at.pointer} to i64')}, {_PIECE_BYTES - 1}")
    aligned = b.v(f"icmp eq i64 {bits}, 0")
    b.branch(
        aligned,
        lambda: _store_pieces(b, at, name),
        lambda: b.do(f"store {type_} {name}, ptr {at.pointer}, align {at.align}"),
    )


def _store_pieces(b: Builder, at: Address, name: str) -> None:
    """Streaming stores of a vector in pieces of 16 bytes, to which its address is aligned."""
    type_, lanes = vector(at.element, at.lanes), _PIECE_BYTES // _element_align(at)
    for start in range(0, at.lanes, lanes):
        order = constants("i32", range(start, start + lanes))
        part = b.v(f"shufflevector {type_} {name}, {type_} poison, <{lanes} x i32> {order}")
        pointer = b.v(f"getelementptr inbounds {at.element}, ptr {at.pointer}, i64 {start}")
        piece = vector(at.element, lanes)
        b.do(f"store {piece} {part}, ptr {pointer}, align {_PIECE_BYTES}, !nontemporal !0")


def _intrinsic(b: Builder, result: str, what: str, types: str, args: tuple[tuple[str, str, str], ...]) -> str:
    """Call a masked intrinsic; `args` are (type, attribute, value)."""
    name = f"llvm.masked.{what}.{types}"
    b.declare(f"declare {result} @{name}({', '.join(t for t, _, _ in args)})")
    given = ", ".join(" ".join(filter(None, arg)) for arg in args)
    if result != "void":
        return b.get(f"call {result} @{name}({given})")
    b.do(f"call void @{name}({given})")
    return ""


def _pointer_or_zeros(cx: Context, cond: str, at: Address) -> str:
    """The pointer of `at` if the i1 `cond` is true, else one to zeros from which all lanes can be loaded."""
    size = _element_align(at) * (1 + (at.lanes - 1) * min(max(abs(at.step), 1), _LARGEST_STEP))
    cx.b.declare(f"@tdsl.zeros.{size} = internal constant [{size} x i8] zeroinitializer, align 64")
    base = f"@tdsl.zeros.{size}"
    if at.step < 0:
        base = cx.b.v(f"getelementptr i8, ptr {base}, i64 {size - _element_align(at)}")
    return cx.b.v(f"select i1 {cond}, ptr {at.pointer}, ptr {base}")


def _at_last_lane(b: Builder, at: Address) -> Address:
    """`at` with the pointer moved to its last lane, the lowest address if the step is negative."""
    distance = (at.lanes - 1) * at.step
    pointer = b.v(f"getelementptr {at.element}, ptr {at.pointer}, i64 {distance}")
    return replace(at, pointer=pointer, align=_element_align(at))


def _reverse(b: Builder, type_: str, x: str, lanes: int) -> str:
    order = constants("i32", reversed(range(lanes)))
    return b.v(f"shufflevector {type_} {x}, {type_} poison, <{lanes} x i32> {order}")


def _element_align(at: Address) -> int:
    return {"i8": 1, "i16": 2, "i32": 4, "float": 4}.get(at.element, 8)


def _zero(t: DType) -> str:
    if t.kind == "b":
        return "false"
    return "0.0" if t in (f32, f64) else "0"


def _from_memory(b: Builder, x: str, t: DType, lanes: int) -> Value:
    if t.kind == "b":
        x = b.v(f"icmp ne {vector('i8', lanes)} {x}, {splat(b, 'i8', '0', lanes)}")
    return Value(x, t, lanes)


def _to_memory(b: Builder, x: Value) -> str:
    if x.dtype.kind == "b":
        return b.v(f"zext {x.type} {full(b, x)} to {vector('i8', x.lanes)}")
    return full(b, x)
