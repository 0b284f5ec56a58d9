"""Fuses adjacent stores of strided vectors into a block that is transposed in registers.

    t[k:k+16, j + 0] = a[j + 0, k:k+16]         16 vector loads, 64 shuffles, 16 vector stores,
    t[k:k+16, j + 1] = a[j + 1, k:k+16]         in place of 16 x 16 stores of elements
    ...

A transposed copy has this form if the loop along the rows that it reads is vectorized and the loops along
the rows that it writes are unrolled. If the stored rows have two or four elements and are adjacent in memory
(the layout of operands of dot-product instructions), the vectors are interleaved and stored whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tdsl.codegen.cpu import memory
from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.context import Context
from tdsl.codegen.cpu.emit_expr import access, value
from tdsl.codegen.cpu.ir_types import constants, scalar_type, vector
from tdsl.codegen.cpu.values import Value, broadcast, full
from tdsl.codegen.ir.loops import Stmt, Store
from tdsl.codegen.ir.statements import loads_of
from tdsl.codegen.transforms.extract_lanes import extract_lanes
from tdsl.lang.affine import constant_difference
from tdsl.lang.expr import Ramp, const, dtype_of, lanes_of
from tdsl.lang.simplify import add

_SMALLEST = 4  # vectors, and lanes; a transposition of fewer does not pay


def write_transposed(cx: Context, body: Sequence[Stmt], begin: int) -> int:
    """Write the stores from `body[begin]` on that form one block, transposed; their number, 0 without one."""
    first = body[begin]
    if not isinstance(first, Store) or not _is_transposable(cx, first):
        return 0
    axis = next(n for n, i in enumerate(first.index) if lanes_of(i) > 1)
    lanes = lanes_of(first.index[axis])
    stores = [first]
    for s in body[begin + 1 : begin + lanes]:
        if not isinstance(s, Store) or not _follows(cx, first, s, len(stores)):
            break
        stores.append(s)
    count = len(stores)
    dense = cx.buffers[first.buffer].strides[axis] == count and count in (2, 4)
    if count < _SMALLEST and not dense:
        return 0
    t = dtype_of(first.value)
    longest = cx.b.target.vector_bytes * 8 // max(t.bits, 8)
    for start, width in _power_of_two_parts(lanes, longest):
        values = [broadcast(value(cx, extract_lanes(s.value, start, width)), width) for s in stores]
        rows = [full(cx.b, x) for x in values]
        if width == 1:
            for n, x in enumerate(values):
                _store(cx, first, axis, start, n, x)
        elif dense:
            interleaved = _interleaved(cx.b, scalar_type(t), rows, width)
            _store(cx, first, axis, start, 0, Value(interleaved, t, count * width))
        else:
            for n in range(0, count, longest):
                _store_columns(cx, first, axis, start, n, rows[n : n + longest], width)
    return count


def _power_of_two_parts(total: int, longest: int) -> Iterator[tuple[int, int]]:
    """Partition `total` into (start, length); lengths are powers of two up to `longest`, a power of two.

    LLVM 22 does not terminate if it combines shuffles of vectors of 17 to 20 bytes into one of AVX-512.

    >>> list(_power_of_two_parts(23, 16))
    [(0, 16), (16, 4), (20, 2), (22, 1)]
    """
    start = 0
    while start < total:
        width = min(longest, 1 << (total - start).bit_length() - 1)
        yield start, width
        start += width


def _store_columns(
    cx: Context, first: Store, axis: int, start: int, n: int, rows: list[str], lanes: int
) -> None:
    """Transpose rows n, n + 1, ... of a block: store the same lane of all rows to adjacent elements."""
    t = dtype_of(first.value)
    size, columns = _transpose(cx.b, scalar_type(t), rows, lanes)
    for k, column in enumerate(columns):
        for offset, width in _power_of_two_parts(len(rows), size):
            x = _lane_range(cx.b, scalar_type(t), column, size, offset, width)
            _store(cx, first, axis, start + k, n + offset, Value(x, t, width))


def _store(cx: Context, first: Store, axis: int, k: int, n: int, v: Value) -> None:
    """Store `v` to adjacent elements, the first n elements after lane k of the store `first`."""
    index = list(first.index)
    ramp = index[axis]
    assert isinstance(ramp, Ramp)
    index[axis] = add(ramp.base, const(k))
    index[-1] = add(index[-1], const(n))
    if v.lanes > 1:
        index[-1] = Ramp(index[-1], 1, v.lanes)
    at = access(cx, first.buffer, tuple(index), certain=True)
    memory.store(cx, at, v, None, first.streaming)
    cx.invalidate(first.buffer)


def _is_transposable(cx: Context, s: Store) -> bool:
    """True for a plain, unmasked store of a vector along a dimension that is not the contiguous last one."""
    vector_indices = [i for i in s.index if lanes_of(i) > 1]
    if len(vector_indices) != 1 or s.mask is not None or s.atomic or s.fast or len(s.index) < 2:
        return False
    (ramp,) = vector_indices
    is_dense_ramp = isinstance(ramp, Ramp) and ramp.stride == 1 and ramp.lanes >= _SMALLEST
    is_last_contiguous = lanes_of(s.index[-1]) == 1 and cx.buffers[s.buffer].strides[-1] == 1
    is_bool = dtype_of(s.value).kind == "b"
    return is_dense_ramp and is_last_contiguous and not is_bool and s.buffer not in loads_of(s.value)


def _follows(cx: Context, first: Store, s: Store, n: int) -> bool:
    """True if each lane of `s` is stored n elements after the same lane of `first`."""
    is_same_kind = replace(s, index=first.index, value=first.value, loc=first.loc) == first
    if not is_same_kind or len(s.index) != len(first.index) or dtype_of(s.value) != dtype_of(first.value):
        return False
    offset = 0
    for i, j, stride in zip(s.index, first.index, cx.buffers[s.buffer].strides, strict=True):
        distance = 0 if i == j else None if lanes_of(i) > 1 else constant_difference(i, j)
        if distance is None or (distance and isinstance(stride, str)):
            return False
        offset += distance * int(stride) if distance else 0
    return offset == n and s.buffer not in loads_of(s.value)


def _transpose(b: Builder, element: str, rows: list[str], lanes: int) -> tuple[int, list[str]]:
    """Transpose rows by exchanging halves of ever larger squares; the length of the columns, the columns."""
    count = len(rows)
    size = 1 << (max(count, lanes) - 1).bit_length()
    type_ = vector(element, size)
    matrix = [_pad_lanes(b, element, x, lanes, size) for x in rows] + ["poison"] * (size - count)
    step = 1
    while step < size:
        for i in range(size):
            if not i & step and {matrix[i], matrix[i + step]} != {"poison"}:
                x, y = matrix[i], matrix[i + step]
                low = [n if not n & step else size + n - step for n in range(size)]
                high = [n + step if not n & step else size + n for n in range(size)]
                matrix[i], matrix[i + step] = (_shuffle(b, type_, x, y, n) for n in (low, high))
        step *= 2
    return size, matrix[:lanes]


def _interleaved(b: Builder, element: str, rows: list[str], lanes: int) -> str:
    """Interleave rows: the first lane of each row, then the second lane of each, and so on."""
    if len(rows) == 1:
        return rows[0]
    x, y = (_interleaved(b, element, rows[n::2], lanes) for n in (0, 1))
    size = lanes * len(rows) // 2
    order = [n // 2 + size * (n % 2) for n in range(2 * size)]
    return _shuffle(b, vector(element, size), x, y, order)


def _shuffle(b: Builder, type_: str, x: str, y: str, lanes: list[int]) -> str:
    order = constants("i32", lanes)
    return b.v(f"shufflevector {type_} {x}, {type_} {y}, <{len(lanes)} x i32> {order}")


def _lane_range(b: Builder, element: str, x: str, lanes: int, first: int, count: int) -> str:
    """`count` lanes of a vector, from lane `first` on; a scalar for a count of 1."""
    if count == lanes:
        return x
    type_ = vector(element, lanes)
    if count == 1:
        return b.v(f"extractelement {type_} {x}, i64 {first}")
    return _shuffle(b, type_, x, "poison", list(range(first, first + count)))


def _pad_lanes(b: Builder, element: str, x: str, lanes: int, size: int) -> str:
    """A vector extended by lanes of poison."""
    if lanes == size:
        return x
    type_ = vector(element, lanes)
    order = ", ".join(f"i32 {n}" if n < lanes else "i32 poison" for n in range(size))
    return b.v(f"shufflevector {type_} {x}, {type_} poison, <{size} x i32> <{order}>")
