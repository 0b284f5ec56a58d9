"""`Context`: the state of code generation in one function (names, buffers, memoised values, owned memory)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.values import Value
from tdsl.codegen.ir.loops import Kernel, Operand
from tdsl.core.node import frozen
from tdsl.lang.bounds import NOTHING, Facts
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
class Held:
    """Heap memory that a function frees; `left` is set if an early return branches to `label` to free it."""

    pointer: str
    label: str
    left: bool = False


@dataclass
class Context:
    """The names and buffers in scope in a function, the memory that it owns, and its memoised values.

    `failed` is, in a parallel loop, the pointer to the status that its threads share, else empty. `owned` is
    the heap memory to free on return, innermost last, `status` the pointer to the value returned after that.
    `stacked` is the size of the stack frame in bytes. `streams` is set if a store bypasses the caches.
    `files` are the register files that the function uses, by name, and `held` the register of each tile that
    stays in one throughout the loop being written. `memo` maps the ids of expression nodes to their values
    within one statement, `loaded` the text of each load of a buffer to its value, until a store to it.
    """

    b: Builder
    kernel: Kernel
    names: dict[str, Value]
    buffers: dict[str, Buffer]
    facts: Facts = NOTHING
    failed: str = ""
    owned: list[Held] = field(default_factory=list)
    status: str = ""
    stacked: int = 0
    streams: bool = False
    files: dict[str, RegisterFile] = field(default_factory=dict)
    held: dict[Operand, int] = field(default_factory=dict)
    memo: dict[int, tuple[Expr, Value]] = field(default_factory=dict)
    loaded: dict[str, dict[str, str]] = field(default_factory=dict)

    def forget(self, buffer: str | None = None) -> None:
        """Discard the memoised values of nodes, and those of loads from one buffer or all buffers."""
        self.memo.clear()
        if buffer is None:
            self.loaded.clear()
        else:
            self.loaded.pop(buffer, None)
