"""`Context`: the state of code generation in one function (names, buffers, memoised values, heap memory)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.values import Value
from tdsl.codegen.ir.loops import Kernel, Operand
from tdsl.core.node import frozen
from tdsl.lang.bounds import NO_FACTS, Facts
from tdsl.lang.expr import Expr
from tdsl.lang.types import DType
from tdsl.machine.instructions.instruction import RegisterFile

# The largest loop variable or size, so that sums and small multiples of them do not wrap.
LARGEST_INDEX = 1 << 40


@frozen
class Buffer:
    """A buffer: a pointer, and for each axis a stride: an int in elements, or the name of an i64 in bytes.

    `align` is the known alignment of the pointer in bytes, `size` the elements from it on, if constant.
    """

    pointer: str
    dtype: DType
    strides: tuple[int | str, ...]
    align: int
    written: bool = True
    size: int | None = None


@dataclass
class HeapBlock:
    """Heap memory that a function frees, at `label` if an early return branches there."""

    pointer: str
    label: str
    has_branch: bool = False


@dataclass
class Context:
    """The names and buffers in scope in a function, the memory that it owns, and its memoised values.

    `status_cell` is, in a parallel loop, the pointer to the status that its threads share, else empty.
    `heap_blocks` are freed on return, innermost last; `return_slot` points to the value returned after that.
    `stack_bytes` is the size of the stack frame. `has_streaming_stores` is set if a store bypasses the
    caches. `register_files` are those that the function uses, by name, `tile_registers` the register of each
    tile that stays in one throughout the loop being written. `memo` maps the ids of expression nodes to their
    values within one statement, `load_values` the text of each load of a buffer to its value, until a store.
    """

    b: Builder
    kernel: Kernel
    names: dict[str, Value]
    buffers: dict[str, Buffer]
    facts: Facts = NO_FACTS
    status_cell: str = ""
    heap_blocks: list[HeapBlock] = field(default_factory=list)
    return_slot: str = ""
    stack_bytes: int = 0
    has_streaming_stores: bool = False
    register_files: dict[str, RegisterFile] = field(default_factory=dict)
    tile_registers: dict[Operand, int] = field(default_factory=dict)
    memo: dict[int, tuple[Expr, Value]] = field(default_factory=dict)
    load_values: dict[str, dict[str, str]] = field(default_factory=dict)

    def invalidate(self, buffer: str | None = None) -> None:
        """Discard the memoised values of nodes, and those of loads from one buffer or all buffers."""
        self.memo.clear()
        if buffer is None:
            self.load_values.clear()
        else:
            self.load_values.pop(buffer, None)
