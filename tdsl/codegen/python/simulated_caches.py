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
from tdsl.codegen.python.estimate_accesses import accesses
from tdsl.codegen.python.expressions import tuple_text
from tdsl.codegen.python.instructions import instructions_of, python_code
from tdsl.core.source import here
from tdsl.core.text import call
from tdsl.errors import TargetError
from tdsl.machine.model import MemoryLevel

MOST = 30_000_000  # accesses: about a minute
WHOLE = 1.25  # tolerance of the estimate, which counts partial iterations (tails) as whole
PAGE = 4096  # alignment of arrays in bytes


class Cache:
    """An LRU cache of lines; `moved` counts bytes, `behind` is the next level, None for main memory."""

    def __init__(self, level: MemoryLevel, behind: Cache | None) -> None:
        assert level.bytes is not None
        self.name, self.line = level.name, level.line
        self.lines, self.behind = level.bytes // level.line, behind
        self.there: OrderedDict[int, bool] = (
            OrderedDict()
        )  # line number -> dirty; least recently used first
        self.moved = 0

    def use(self, line: int, *, write: bool) -> None:
        """Access the line with this number."""
        known = self.there.pop(line, None)
        self.there[line] = bool(known) or write
        if known is not None:
            return
        if not write:
            self.moved += self.line
            if self.behind is not None:
                self.behind.use(line, write=False)
        if len(self.there) > self.lines:
            self._give_up(*self.there.popitem(last=False))

    def _give_up(self, line: int, written: bool) -> None:
        if written:
            self.moved += self.line
            if self.behind is not None:
                self.behind.use(line, write=True)

    def flush(self, kept: Sequence[range]) -> None:
        """Write back the dirty lines in `kept`, the lines of the kernel's arguments."""
        for line, written in self.there.items():
            if any(line in lines for lines in kept):
                self._give_up(line, written)


class _TooMany(Exception):
    """Raised when a kernel makes more than `MOST` accesses."""


class _Memory:
    """The addresses of arrays, the innermost cache, and the number of accesses left."""

    def __init__(self, caches: list[Cache]) -> None:
        self.near, self.line, self.next, self.left = caches[0], caches[0].line, 0, MOST
        self.places: dict[object, int] = {}

    def place(self, key: object, size: int) -> int:
        """The address of an array of `size` bytes; the same for the same key."""
        if key not in self.places:
            self.places[key] = self.next
            self.next += -(-max(size, 1) // PAGE) * PAGE
        return self.places[key]

    def watched(self, name: str, shape: tuple[int, ...], dtype: Any) -> _Watched:
        """A new local array of the kernel, whose accesses are counted."""
        return _Watched(self, np.empty(shape, dtype), (name, shape))

    def use(self, address: int, *, write: bool) -> None:
        self.left -= 1
        if self.left < 0:
            raise _TooMany
        self.near.use(address // self.line, write=write)


class _Watched:
    """An array whose accesses go through the simulated caches."""

    def __init__(self, memory: _Memory, array: Any, key: object) -> None:
        self.memory, self.array = memory, array
        itemsize = array.itemsize
        low = sum(min(s * (n - 1), 0) for s, n in zip(array.strides, array.shape, strict=True))
        size = sum(abs(s) * max(n - 1, 0) for s, n in zip(array.strides, array.shape, strict=True))
        self.first = memory.place(key, size + itemsize)
        self.origin, self.strides = self.first - low, array.strides
        self.lines = range(
            self.first // memory.line, (self.first + size + itemsize - 1) // memory.line + 1
        )

    def __getitem__(self, at: Any) -> Any:
        self.memory.use(self._address(at), write=False)
        return self.array[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        self.memory.use(self._address(at), write=True)
        self.array[at] = value

    def tile(self, at: Any, *, write: bool) -> Any:
        """A view of some elements; accesses each of their cache lines once."""
        view = self.array[at]
        first = self.origin + view.ctypes.data - self.array.ctypes.data
        places = np.full((1,) * view.ndim, first)
        for axis, (n, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
            steps = stride * np.arange(n)
            places = places + np.expand_dims(steps, tuple(k for k in range(view.ndim) if k != axis))
        for line in np.unique(places // self.memory.line):
            self.memory.use(int(line) * self.memory.line, write=write)
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
        made = call("watched", repr(s.name), shape, self.expressions.scalar_type(s.dtype))
        self.writer.line(f"{name} = {made.text}")

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


def count_bytes(
    kernel: Kernel, values: Mapping[str, Any], levels: Sequence[MemoryLevel]
) -> dict[str, int]:
    """The bytes that each cache exchanges with the next level while a kernel of scalar loops runs, by name.

    An instruction reads each line of its tiles, and writes those of the first. TargetError for kernels that
    make too many accesses, or invoke an instruction without Python code.
    """
    about = accesses(kernel.body)
    if about > WHOLE * MOST:
        raise _too_many(f"about {about:,.0f} accesses, more than the {MOST:,} of a minute")
    caches: list[Cache] = []
    for level in reversed(levels):
        caches.insert(0, Cache(level, caches[0] if caches else None))
    memory = _Memory(caches)
    module: dict[str, Any] = {"watched": memory.watched}
    module |= {name: python_code(known) for name, known in instructions_of(kernel).items()}
    exec(emit(kernel, emitter=_Emitter), module)
    function = list(module.values())[-1]
    arguments = [
        _Watched(memory, values[p.name], p.name) if isinstance(p, BufferParam) else values[p.name]
        for p in kernel.params
    ]
    try:
        function(*arguments)
    except _TooMany:
        raise _too_many(f"more than {MOST:,} accesses") from None
    kept = [a.lines for a in arguments if isinstance(a, _Watched)]
    for cache in caches:
        cache.flush(kept)
    return {cache.name: cache.moved for cache in caches}


def _too_many(how_many: str) -> TargetError:
    return TargetError(
        f"the kernel makes {how_many}: too many to count one by one",
        loc=here(),
        label="this call",
        hint="counters=True for smaller sizes",
    )
