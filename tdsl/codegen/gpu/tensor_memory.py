"""Sums of `tcgen05` in tensor memory: the columns of each fragment, and when it moves there and back.

In the loop IR the sums are a fragment in registers, with a row for each thread. Products add to them in
tensor memory: before the outermost loop in which only products access a fragment its registers are stored
there, and before the next access by threads they are loaded back. The passes have inserted a wait between.

    acc = 0                 registers
    store acc               to tensor memory
    for k: products         there
    wait
    load acc                to registers
    c = acc
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tdsl.codegen.gpu.launches import Launch
from tdsl.codegen.ir.loops import AXES, Alloc, For, If, Invoke, Stmt, WarpSpecialize
from tdsl.codegen.ir.statements import exprs_of, loads_of, parts_of, stored_in, walk
from tdsl.machine.instructions.instruction import INSTRUCTIONS
from tdsl.machine.instructions.tcgen05 import TENSOR_COLUMNS

_LEAST = 32  # columns of an allocation, which are a power of two


@dataclass(slots=True)
class TensorSums:
    """The first column of each fragment among those of its group of threads, and what is in tensor memory.

    `width` are the columns of a group; a block has `groups` of them, `rows` along threadIdx.y. `stored`
    changes as statements are visited in the order they run.
    """

    columns: Mapping[str, int]
    width: int
    groups: int
    rows: int
    stored: set[str] = field(default_factory=set)

    @property
    def allocated(self) -> int:
        """The columns of a block: a power of two."""
        return max(1 << (self.groups * self.width - 1).bit_length(), _LEAST)

    def to_store(self, s: Stmt) -> list[str]:
        """The fragments that go from registers to tensor memory before a statement, and stay there."""
        if not isinstance(s, Invoke) and not (isinstance(s, For) and s.kind not in AXES):
            return []
        names = [x for x in _summed_in(s) if x in self.columns and x not in self.stored]
        names = [x for x in dict.fromkeys(names) if not _is_accessed(s, x)]
        self.stored.update(names)
        return names

    def to_load(self, s: Stmt) -> list[str]:
        """The fragments that come back to registers before a statement, whose threads access them."""
        accesses = _is_accessed if isinstance(s, For | If) else _accesses
        return self._loaded([x for x in sorted(self.stored) if accesses(s, x)])

    def to_load_after(self, s: Stmt, before: frozenset[str]) -> list[str]:
        """The fragments that come back to registers at the end of a body, where they were before it."""
        allocated = {x.name for x in walk(s) if isinstance(x, Alloc)}
        names = self._loaded([x for x in sorted(self.stored) if x not in before])
        return [x for x in names if x not in allocated]

    def _loaded(self, names: list[str]) -> list[str]:
        self.stored.difference_update(names)
        return names


def tensor_sums(launch: Launch) -> TensorSums | None:
    """The tensor memory of a launch, None if no instruction uses it."""
    columns: dict[str, int] = {}
    width = 0
    for name in dict.fromkeys(_summed_in(launch.body)):
        columns[name] = width
        width += launch.fragments[name].count
    if not columns:
        return None
    rows, planes = _groups(launch)
    sums = TensorSums(columns, width, rows * planes, rows)
    # outside of products the sums are in registers, of which a multiprocessor has as many as columns
    assert sums.allocated <= TENSOR_COLUMNS, "sums fit the registers of a block"
    return sums


def _groups(launch: Launch) -> tuple[int, int]:
    """The groups of threads along threadIdx.y and .z of a block, without those that only copy tiles."""
    extents = {axis: launch.extent(axis) for axis in ("threadIdx.y", "threadIdx.z")}
    for s in walk(launch.body):
        if isinstance(s, WarpSpecialize):
            extents[s.axis] = min(extents.get(s.axis, 1), s.first)
    return extents["threadIdx.y"], extents["threadIdx.z"]


def _summed_in(s: Stmt) -> Iterator[str]:
    """The fragments to which instructions in a statement add in tensor memory."""
    for x in walk(s):
        if isinstance(x, Invoke) and INSTRUCTIONS[x.instruction].tensor_memory:
            yield x.operands[0].buffer


def _is_accessed(s: Stmt, name: str) -> bool:
    """True if threads access a fragment in registers in a statement, or allocate it there."""
    return any(_accesses(x, name) for x in walk(s))


def _accesses(s: Stmt, name: str) -> bool:
    """True if a statement, without those inside of it, accesses or allocates a fragment in registers."""
    match s:
        case Alloc():
            return s.name == name
        case Invoke(instruction, operands):
            sums = operands[:1] if INSTRUCTIONS[instruction].tensor_memory else ()
            return any(o.buffer == name for o in operands[len(sums) :])
        case _:
            stored = not parts_of(s) and name in stored_in(s)
            return stored or any(name in loads_of(e) for e in exprs_of(s))
