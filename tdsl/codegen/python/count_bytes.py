"""Counts the bytes that a kernel moves between caches, by running its loops as Python.

Each access goes through simulated caches of whole lines with LRU replacement. A write does not fetch its line
first; the line is written back when it is evicted, or at the end. A local buffer of the kernel has the same
address each time it is allocated; its lines are not written back at the end. Parallel loops run serially,
through one set of caches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tdsl.codegen.ir.loops import Alloc, BufferParam, Invoke, Kernel, Stmt
from tdsl.codegen.python.emit import Emitter, emit
from tdsl.codegen.python.estimate_accesses import estimate_accesses
from tdsl.codegen.python.expressions import tuple_text
from tdsl.codegen.python.instructions import instructions_of, python_code
from tdsl.codegen.python.run import with_dimensions_of
from tdsl.core.source import here
from tdsl.core.text import call
from tdsl.errors import TargetError
from tdsl.machine.model import MemoryLevel

MOST_ACCESSES = 30_000_000  # accesses: about a minute
ESTIMATE_TOLERANCE = 1.25  # tolerance of the estimate, which counts partial iterations (tails) as whole
PAGE = 4096  # alignment of arrays in bytes


class Cache:
    """An LRU cache of lines; `next_level` is None if that is main memory."""

    def __init__(self, level: MemoryLevel, next_level: Cache | None) -> None:
        assert level.bytes is not None
        self.name, self.line = level.name, level.line
        self.capacity, self.next_level = level.bytes // level.line, next_level
        self.dirty_by_line: OrderedDict[int, bool] = (
            OrderedDict()
        )  # line number -> dirty; least recently used first
        self.bytes_moved = 0

    def access(self, line: int, *, write: bool) -> None:
        """Access the line with this number."""
        cached = self.dirty_by_line.pop(line, None)
        self.dirty_by_line[line] = bool(cached) or write
        if cached is not None:
            return
        if not write:
            self.bytes_moved += self.line
            if self.next_level is not None:
                self.next_level.access(line, write=False)
        if len(self.dirty_by_line) > self.capacity:
            self._write_back(*self.dirty_by_line.popitem(last=False))

    def _write_back(self, line: int, written: bool) -> None:
        if written:
            self.bytes_moved += self.line
            if self.next_level is not None:
                self.next_level.access(line, write=True)

    def flush(self, argument_lines: Sequence[range]) -> None:
        """Write back the dirty lines in `argument_lines`, the lines of the kernel's arguments."""
        for line, written in self.dirty_by_line.items():
            if any(line in lines for lines in argument_lines):
                self._write_back(line, written)


class _TooManyAccesses(Exception):
    """Raised when a kernel makes more than `MOST_ACCESSES` accesses."""


class _AddressSpace:
    """The addresses of arrays, the innermost cache, and the number of accesses left."""

    def __init__(self, caches: list[Cache]) -> None:
        self.innermost, self.line, self.next_address, self.accesses_left = (
            caches[0],
            caches[0].line,
            0,
            MOST_ACCESSES,
        )
        self.addresses: dict[object, int] = {}

    def allocate(self, key: object, size: int) -> int:
        """The address of an array of `size` bytes; the same for the same key."""
        if key not in self.addresses:
            self.addresses[key] = self.next_address
            self.next_address += -(-max(size, 1) // PAGE) * PAGE
        return self.addresses[key]

    def traced_array(self, name: str, shape: tuple[int, ...], dtype: Any) -> _TracedArray:
        """A new local array of the kernel, whose accesses are counted."""
        return _TracedArray(self, np.empty(shape, dtype), (name, shape))

    def access(self, address: int, *, write: bool) -> None:
        self.accesses_left -= 1
        if self.accesses_left < 0:
            raise _TooManyAccesses
        self.innermost.access(address // self.line, write=write)


class _TracedArray:
    """An array whose accesses go through the simulated caches."""

    def __init__(self, memory: _AddressSpace, array: Any, key: object) -> None:
        self.memory, self.array = memory, array
        itemsize = array.itemsize
        low = sum(min(s * (n - 1), 0) for s, n in zip(array.strides, array.shape, strict=True))
        size = sum(abs(s) * max(n - 1, 0) for s, n in zip(array.strides, array.shape, strict=True))
        self.first = memory.allocate(key, size + itemsize)
        self.origin, self.strides = self.first - low, array.strides
        self.lines = range(self.first // memory.line, (self.first + size + itemsize - 1) // memory.line + 1)

    def __getitem__(self, at: Any) -> Any:
        self.memory.access(self._address(at), write=False)
        return self.array[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        self.memory.access(self._address(at), write=True)
        self.array[at] = value

    def tile(self, at: Any, *, write: bool) -> Any:
        """A view of some elements; accesses each of their cache lines once."""
        view = self.array[at]
        first = self.origin + view.ctypes.data - self.array.ctypes.data
        addresses = np.full((1,) * view.ndim, first)
        for axis, (n, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
            steps = stride * np.arange(n)
            addresses = addresses + np.expand_dims(steps, tuple(k for k in range(view.ndim) if k != axis))
        for line in np.unique(addresses // self.memory.line):
            self.memory.access(int(line) * self.memory.line, write=write)
        return view

    def _address(self, at: Any) -> int:
        where = at if isinstance(at, tuple) else (at,)
        return int(self.origin + sum(n * s for n, s in zip(where, self.strides, strict=True)))


class _Emitter(Emitter):
    """Emits local arrays and instruction tiles whose accesses are counted, too."""

    def alloc(self, s: Alloc) -> None:
        """Emit the allocation of an array whose accesses are counted."""
        extents = self.expressions.values(*s.extents)
        name = self.expressions.buffers.setdefault(s.name, self.names.fresh(s.name))
        shape = tuple_text(v.text for v in extents)
        allocation = call("traced_array", repr(s.name), shape, self.expressions.scalar_type(s.dtype))
        self.writer.line(f"{name} = {allocation.text}")

    def statement(self, s: Stmt) -> None:
        """Emit a statement; an instruction counts as a write of its first operand."""
        super().statement(s)
        if isinstance(s, Invoke):
            to, shape = s.operands[0], self.instructions[s.instruction].shapes()[0]
            at, name = self.subscripts(to, shape), self.expressions.buffers[to.buffer]
            self.writer.line(f"{name}.tile(np.s_[{at}], write=True)")

    def tile(self, buffer: str, subscripts: str) -> str:
        """The text of a view whose reads are counted."""
        return f"{buffer}.tile(np.s_[{subscripts}], write=False)"


def count_bytes(kernel: Kernel, values: Mapping[str, Any], levels: Sequence[MemoryLevel]) -> dict[str, int]:
    """The bytes that each cache exchanges with the next level while a kernel of scalar loops runs, by name.

    An instruction reads each line of its tiles, and writes those of the first. TargetError for kernels that
    make too many accesses, or invoke an instruction without Python code.
    """
    estimate = estimate_accesses(kernel.body)
    if estimate > ESTIMATE_TOLERANCE * MOST_ACCESSES:
        raise _too_many(f"about {estimate:,.0f} accesses, more than the {MOST_ACCESSES:,} of a minute")
    caches: list[Cache] = []
    for level in reversed(levels):
        caches.insert(0, Cache(level, caches[0] if caches else None))
    memory = _AddressSpace(caches)
    module: dict[str, Any] = {"traced_array": memory.traced_array}
    module |= {name: python_code(instruction) for name, instruction in instructions_of(kernel).items()}
    exec(emit(kernel, emitter=_Emitter), module)
    function = list(module.values())[-1]
    arguments = [
        _TracedArray(memory, with_dimensions_of(p, values[p.name]), p.name)
        if isinstance(p, BufferParam)
        else values[p.name]
        for p in kernel.params
    ]
    try:
        function(*arguments)
    except _TooManyAccesses:
        raise _too_many(f"more than {MOST_ACCESSES:,} accesses") from None
    argument_lines = [a.lines for a in arguments if isinstance(a, _TracedArray)]
    for cache in caches:
        cache.flush(argument_lines)
    return {cache.name: cache.bytes_moved for cache in caches}


def _too_many(how_many: str) -> TargetError:
    return TargetError(
        f"the kernel makes {how_many}: too many to count one by one",
        loc=here(),
        label="this call",
        hint="counters=True for smaller sizes",
    )
