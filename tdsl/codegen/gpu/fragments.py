"""Register fragments: the thread and the register of each element, and a check of every access to them.

An instruction declares the register layout of its tiles (`machine/instructions/layout.py`). A fragment is
an array of such tiles in consecutive registers, so its layout follows from the instructions that use it.
Any other statement may access an element only in the thread that owns it, provably by its indices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.analysis.thread_conflicts import scalar_index
from tdsl.codegen.ir.loops import FRAGMENT, LANES, Alloc, For, If, Invoke, Operand, Stmt, Store
from tdsl.codegen.ir.statements import exprs_of, parts_of, walk
from tdsl.core.node import frozen, post_order
from tdsl.errors import ScheduleError
from tdsl.lang.bounds import NO_FACTS, Facts
from tdsl.lang.expr import ZERO, Const, Expr, Load, Var, const
from tdsl.lang.simplify import add, multiply, simplify
from tdsl.machine.instructions.instruction import INSTRUCTIONS
from tdsl.machine.instructions.layout import Layout


@frozen
class Fragment:
    """A register buffer of `extents` elements, an array of tiles with `layout`, distributed over a group."""

    extents: tuple[int, ...]
    layout: Layout

    @property
    def count(self) -> int:
        """The number of elements in the registers of each thread."""
        return prod(self.extents) * self.layout.copy_count // self.layout.threads

    def lane(self, index: Sequence[Expr], facts: Facts = NO_FACTS) -> Expr:
        """The thread of the group that owns an element; the first one of those that own a copy."""
        return self.layout.lane(index, facts)

    def register(self, index: Sequence[Expr], facts: Facts = NO_FACTS) -> Expr:
        """The number of the register that stores an element in its thread."""
        tile: Expr = ZERO
        for n, extent in enumerate(self.extents):
            tile_position = self.layout.tile(n, index[n], facts)
            tile = add(multiply(tile, const(extent // self.layout.shape[n])), tile_position)
        in_tile = self.layout.register(index, facts)
        return simplify(add(multiply(tile, const(self.layout.count)), in_tile), facts)


def fragments_of(body: Stmt) -> dict[str, Fragment]:
    """The fragments allocated in a statement, by name.

    Raises ScheduleError if no instruction determines the layout of a fragment, if two determine different
    ones, and if a statement accesses an element in a thread that does not own it.
    """
    allocs = {s.name: s for s in walk(body) if isinstance(s, Alloc) and s.scope == FRAGMENT}
    if not allocs:
        return {}
    layouts: dict[str, tuple[Fragment, str]] = {}
    for s in walk(body):
        for instruction, operand, layout in _layouts(s):
            if operand.buffer in allocs:
                _set_layout(layouts, allocs[operand.buffer], f"instruction {instruction!r}", layout)
    for s in allocs.values():
        if s.layout is not None and s.name not in layouts:
            _set_layout(layouts, s, "the fragments that it reads", s.layout)
    for name, s in allocs.items():
        if name not in layouts:
            raise _error(
                s, "is used by no instruction, so that its layout is unknown",
                "tensorize what computes with it, or keep it in a thread's own memory",
            )  # fmt: skip
    fragments = {name: fragment for name, (fragment, _) in layouts.items()}
    _check_owners(body, fragments, allocs, NO_FACTS, None)
    return fragments


def _layouts(s: Stmt) -> Iterator[tuple[str, Operand, Layout]]:
    """The fragment operands of an instruction, each with its layout over the axes of the buffer."""
    if not isinstance(s, Invoke):
        return
    instruction = INSTRUCTIONS[s.instruction]
    layouts = dict(instruction.fragments)
    for operand, operand_name in zip(s.operands, instruction.operands(), strict=True):
        if operand_name not in layouts:
            continue
        layout = layouts[operand_name]
        shape = [1] * len(operand.index)
        for axis, extent in zip(operand.axes, layout.shape, strict=True):
            shape[axis] = extent
        digits = tuple(replace(d, axis=operand.axes[d.axis]) for d in layout.digits)
        yield s.instruction, operand, Layout(tuple(shape), layout.threads, digits)


def _set_layout(layouts: dict[str, tuple[Fragment, str]], s: Alloc, by: str, layout: Layout) -> None:
    extents = tuple(int(e.value) for e in s.extents if isinstance(e, Const))
    for extent, tile_extent in zip(extents, layout.shape, strict=True):
        if extent % tile_extent:
            shape, tile = (" x ".join(map(str, x)) for x in (extents, layout.shape))
            raise _error(
                s, f"has {shape} elements, which {tile} tiles of {by} do not divide",
                f"split the loops so that the stage has a multiple of {tile} elements there",
            )  # fmt: skip
    fragment = Fragment(extents, layout)
    known, other = layouts.setdefault(s.name, (fragment, by))
    if known.layout != layout and (
        known.layout.copies != layout.copies
        or any(
            (a != b).any() for a, b in zip(known.layout.places(extents), layout.places(extents), strict=True)
        )
    ):
        raise _error(
            s, f"is laid out in one way by {other} and in another by {by}",
            "copy it into a stage of its own for one of them: cache_read(..., scope='fragment')",
        )  # fmt: skip


def _check_owners(
    s: Stmt,
    fragments: dict[str, Fragment],
    allocs: dict[str, Alloc],
    facts: Facts,
    lane: Var | None,
) -> None:
    """ScheduleError if a thread accesses an element it does not own; `lane` is the loop over the threads."""
    for buffer, index in _accesses(s, fragments):
        flat, known = scalar_index(index, {}, facts)
        thread, fragment = ZERO if lane is None else lane, fragments[buffer]
        owner = simplify(add(fragment.lane(flat, known), fragment.layout.copy(thread)), known)
        if owner != thread:
            raise _error(
                allocs[buffer], "is accessed by a thread that does not own the element",
                "distribute the points of the stage that accesses it by its layout: cooperate()",
            )  # fmt: skip
    if isinstance(s, For) and s.kind == LANES:
        lane = Var(s.name)
    # the bounds that a condition implies are in terms of other variables and would hide the loop's own range
    within = facts if isinstance(s, If) else facts_inside(facts, s)
    for part in parts_of(s):
        _check_owners(part, fragments, allocs, within, lane)


def _accesses(s: Stmt, fragments: dict[str, Fragment]) -> Iterator[tuple[str, tuple[Expr, ...]]]:
    """The accesses (fragment, index) of a statement itself, without the operands of instructions."""
    if isinstance(s, Store) and s.buffer in fragments:
        yield s.buffer, s.index
    for n in post_order(*exprs_of(s)):
        if isinstance(n, Load) and n.buffer in fragments:
            yield n.buffer, n.index


def _error(s: Alloc, what: str, hint: str) -> ScheduleError:
    return ScheduleError(f"fragment {s.name!r} {what}", loc=s.loc, label="stored here", hint=hint)
