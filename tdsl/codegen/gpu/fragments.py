"""Register fragments: the thread and the register of each element, and a check of every access to them.

An instruction declares the register layout of its tiles (`machine/instructions/layout.py`). A fragment is
an array of such tiles in consecutive registers, so its layout follows from the instructions that use it.
Any other statement may access an element only in the thread that owns it, provably by its indices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from tdsl.codegen.analysis.scope import inside
from tdsl.codegen.analysis.thread_conflicts import plain_index
from tdsl.codegen.ir.loops import FRAGMENT, LANES, Alloc, For, If, Invoke, Operand, Stmt, Store
from tdsl.codegen.ir.statements import exprs_of, parts_of, walk
from tdsl.core.node import frozen, post_order
from tdsl.errors import ScheduleError
from tdsl.lang.bounds import NOTHING, Facts
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
        return prod(self.extents) * self.layout.kept // self.layout.threads

    def lane(self, index: Sequence[Expr], facts: Facts = NOTHING) -> Expr:
        """The thread of the group that owns an element; the first one of those that own a copy."""
        return self.layout.lane(index, facts)

    def register(self, index: Sequence[Expr], facts: Facts = NOTHING) -> Expr:
        """The number of the register that stores an element in its thread."""
        tile: Expr = ZERO
        for n, extent in enumerate(self.extents):
            own = self.layout.tile(n, index[n], facts)
            tile = add(multiply(tile, const(extent // self.layout.shape[n])), own)
        own_register = self.layout.register(index, facts)
        return simplify(add(multiply(tile, const(self.layout.count)), own_register), facts)


def fragments_of(body: Stmt) -> dict[str, Fragment]:
    """The fragments allocated in a statement, by name.

    Raises ScheduleError if no instruction determines the layout of a fragment, if two determine different
    ones, and if a statement accesses an element in a thread that does not own it.
    """
    made = {s.name: s for s in walk(body) if isinstance(s, Alloc) and s.scope == FRAGMENT}
    if not made:
        return {}
    found: dict[str, tuple[Fragment, str]] = {}
    for s in walk(body):
        for instruction, operand, layout in _layouts(s):
            if operand.buffer in made:
                _enter(found, made[operand.buffer], f"instruction {instruction!r}", layout)
    for s in made.values():
        if s.layout is not None and s.name not in found:
            _enter(found, s, "what it is made of", s.layout)
    for name, s in made.items():
        if name not in found:
            raise _error(
                s, "is used by no instruction, so nothing says which thread has which element",
                "tensorize what computes with it, or keep it in a thread's own memory",
            )  # fmt: skip
    fragments = {name: fragment for name, (fragment, _) in found.items()}
    _check_owners(body, fragments, made, NOTHING, None)
    return fragments


def _layouts(s: Stmt) -> Iterator[tuple[str, Operand, Layout]]:
    """The fragment operands of an instruction, each with its layout over the axes of the buffer."""
    if not isinstance(s, Invoke):
        return
    chosen = INSTRUCTIONS[s.instruction]
    layouts = dict(chosen.fragments)
    for operand, called in zip(s.operands, chosen.operands(), strict=True):
        if called not in layouts:
            continue
        own = layouts[called]
        shape = [1] * len(operand.index)
        for axis, extent in zip(operand.axes, own.shape, strict=True):
            shape[axis] = extent
        digits = tuple(replace(d, axis=operand.axes[d.axis]) for d in own.digits)
        yield s.instruction, operand, Layout(tuple(shape), own.threads, digits)


def _enter(found: dict[str, tuple[Fragment, str]], s: Alloc, by: str, layout: Layout) -> None:
    extents = tuple(int(e.value) for e in s.extents if isinstance(e, Const))
    for extent, own in zip(extents, layout.shape, strict=True):
        if extent % own:
            shape, tile = (" x ".join(map(str, x)) for x in (extents, layout.shape))
            raise _error(
                s, f"has {shape} elements, which {tile} tiles of {by} do not divide",
                f"split the loops so that the stage has a multiple of {tile} elements there",
            )  # fmt: skip
    made = Fragment(extents, layout)
    known, other = found.setdefault(s.name, (made, by))
    if known.layout != layout and (
        known.layout.copies != layout.copies
        or any(
            (a != b).any()
            for a, b in zip(known.layout.places(extents), layout.places(extents), strict=True)
        )
    ):
        raise _error(
            s, f"is laid out in one way by {other} and in another by {by}",
            "copy it into a stage of its own for one of them: cache_read(..., scope='fragment')",
        )  # fmt: skip


def _check_owners(
    s: Stmt, fragments: dict[str, Fragment], made: dict[str, Alloc], facts: Facts, lane: Var | None
) -> None:
    """ScheduleError if a thread accesses an element it does not own; `lane` is the loop over the threads."""
    for buffer, index in _touched(s, fragments):
        flat, known = plain_index(index, {}, facts)
        own, fragment = ZERO if lane is None else lane, fragments[buffer]
        owner = simplify(add(fragment.lane(flat, known), fragment.layout.copy(own)), known)
        if owner != own:
            raise _error(
                made[buffer], "is touched by a thread that does not have the element",
                "share the points of the stage that reads or writes it out by its layout: cooperate()",
            )  # fmt: skip
    if isinstance(s, For) and s.kind == LANES:
        lane = Var(s.name)
    # the bounds that a condition implies are in terms of other variables and would hide the loop's own range
    within = facts if isinstance(s, If) else inside(facts, s)
    for part in parts_of(s):
        _check_owners(part, fragments, made, within, lane)


def _touched(s: Stmt, fragments: dict[str, Fragment]) -> Iterator[tuple[str, tuple[Expr, ...]]]:
    """The accesses (fragment, index) of a statement itself, without the operands of instructions."""
    if isinstance(s, Store) and s.buffer in fragments:
        yield s.buffer, s.index
    for n in post_order(*exprs_of(s)):
        if isinstance(n, Load) and n.buffer in fragments:
            yield n.buffer, n.index


def _error(s: Alloc, what: str, hint: str) -> ScheduleError:
    return ScheduleError(f"fragment {s.name!r} {what}", loc=s.loc, label="stored here", hint=hint)
