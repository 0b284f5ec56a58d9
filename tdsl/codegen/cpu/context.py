"""What is known at a point of the function being written."""

from __future__ import annotations

from dataclasses import dataclass, field

from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.values import Value
from tdsl.codegen.ir.loops import Kernel, Operand
from tdsl.lang.bounds import NOTHING, Facts
from tdsl.lang.expr import Expr
from tdsl.lang.types import DType
from tdsl.schedule.instructions.instruction import RegisterFile

# No loop counts further, so sums and small multiples of loop variables and sizes do not wrap.
LARGEST_INDEX = 1 << 40


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory: a pointer, and for each axis a stride in elements, or the name of one in bytes.

    `align` is what is known of the pointer, in bytes, `size` how many elements follow it, if that is known.
    """

    pointer: str
    dtype: DType
    strides: tuple[int | str, ...]
    align: int
    written: bool = True
    size: int | None = None


@dataclass
class Held:
    """Heap memory that a function gives back; `left` when some way out goes through `label`."""

    pointer: str
    label: str
    left: bool = False


@dataclass
class Context:
    """The names in scope, and how the function is left early.

    `failed` is in a parallel loop the pointer to the status that its threads share, else empty. `owned` is
    heap memory to give back when the function is left, innermost last, and `status` what is then returned.
    `stacked` is the size of its frame in bytes. `streams` says
    that some store bypasses the caches. `files` are the register files that it uses, by name, and `held`
    the registers that hold tiles throughout the loop that is being written. `memo` holds values of
    expression nodes within one statement, `loaded` for each buffer its loads by their text, until something
    may have been stored there.
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
        """Values of nodes and loads hold no longer: those of one buffer, or all."""
        self.memo.clear()
        if buffer is None:
            self.loaded.clear()
        else:
            self.loaded.pop(buffer, None)
