"""Conflicts between threads of a block: the accesses of statements, and proofs that they are disjoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tdsl.codegen.analysis.disjoint_indices import DisjointIndices
from tdsl.codegen.ir.loops import LANES, CopyTile, Invoke, Stmt, Store
from tdsl.codegen.ir.statements import exprs_of
from tdsl.core.node import Node, frozen, post_order, transform
from tdsl.lang.affine import AffineSum, as_expr, as_sum, variables
from tdsl.lang.bounds import Facts
from tdsl.lang.expr import ZERO, Broadcast, Const, Expr, Load, Ramp, Var, const, lanes_of
from tdsl.lang.simplify import add, substitute
from tdsl.machine.instructions.instruction import INSTRUCTIONS


@frozen
class Access:
    """The elements that a statement reads or writes in memory shared by threads.

    A thread's number on an axis is the variable with the name of the axis. `axes` are those that an enclosing
    loop is bound to; on the others, only thread 0 runs the statement. `facts` are the ranges of variables.
    `by` is the instruction that a group of threads, those along threadIdx.x, runs together.
    """

    buffer: str
    index: tuple[Expr, ...]
    kind: str  # "read", "write", or the operator of an atomic update
    axes: frozenset[str]
    facts: Facts
    by: Invoke | None = None

    def single_thread(self, axis: str) -> Expr | None:
        """The number on an axis of the only thread that makes this access; None if several do, or unknown."""
        if axis not in self.axes:
            return ZERO
        first, last = self.facts.ranges.get(axis, (None, None))
        return first if first == last and isinstance(first, Const) else None

    def conflicts(self, other: Access, same: frozenset[str], threads: Mapping[str, int]) -> bool:
        """True unless the two accesses, by different threads of a block, are proved not to conflict.

        `same` are variables with the same value in both threads; `threads` is the number on each axis.
        """
        return self.conflicting_axes(other, same, threads) is not None

    def conflicting_axes(
        self, other: Access, same: frozenset[str], threads: Mapping[str, int]
    ) -> set[str] | None:
        """The axes on which the threads of conflicting accesses may differ; None if there is no conflict."""
        if self.buffer != other.buffer or self.kind == other.kind != "write":
            return None
        if self.kind == "write" and self.by is not None and self.by == other.by:
            # a group stores its tiles one after another; the elements of each are those of one warp
            threads = {axis: n for axis, n in threads.items() if axis != LANES}
        proof = _proof(self, other, same, threads)
        return None if proof.is_proved() else proof.unequal


def accesses(
    s: Stmt, shared: frozenset[str], lets: dict[str, Expr], axes: frozenset[str], facts: Facts
) -> Iterator[Access]:
    """The accesses of a statement itself, without those nested in it, to the buffers `shared`."""
    if isinstance(s, Invoke):
        yield from _instruction_accesses(s, shared, lets, axes, facts)
        return
    if isinstance(s, Store) and s.buffer in shared:
        index, known = scalar_index(s.index, lets, facts)
        yield Access(s.buffer, index, s.atomic or "write", axes, known)
    if isinstance(s, CopyTile) and s.buffer in shared:
        last = range(len(s.index) - len(s.extents), len(s.index))
        index, known = _tile_index(s.index, last, s.extents, lets, facts)
        yield Access(s.buffer, index, "write", axes, known)
    for n in post_order(*exprs_of(s)):
        if isinstance(n, Load) and n.buffer in shared:
            index, known = scalar_index(n.index, lets, facts)
            yield Access(n.buffer, index, "read", axes, known)


def _instruction_accesses(
    s: Invoke, shared: frozenset[str], lets: dict[str, Expr], axes: frozenset[str], facts: Facts
) -> Iterator[Access]:
    """The tiles of an instruction, any element of which any thread that runs it may access."""
    chosen = INSTRUCTIONS[s.instruction]
    for n, (operand, shape) in enumerate(zip(s.operands, chosen.shapes(), strict=True)):
        if operand.buffer in shared:
            index, known = _tile_index(operand.index, operand.axes, shape, lets, facts)
            kind = "write" if n == 0 else "read"
            yield Access(operand.buffer, index, kind, axes | {LANES}, known, s)


def _tile_index(
    index: tuple[Expr, ...], axes: Sequence[int], shape: Sequence[int], lets: dict[str, Expr],
    facts: Facts,
) -> tuple[tuple[Expr, ...], Facts]:  # fmt: skip
    """The index of any element of a tile: its position in the tile along each axis is a variable."""
    element = [substitute(i, lets) for i in index]
    for axis, extent in zip(axes, shape, strict=True):
        name = f"tile {axis}"
        facts = facts.with_range(name, ZERO, const(extent - 1))
        element[axis] = add(element[axis], Var(name))
    return tuple(element), facts


def scalar_index(
    index: tuple[Expr, ...], lets: dict[str, Expr], facts: Facts
) -> tuple[tuple[Expr, ...], Facts]:
    """An index with lets substituted and with scalars for vectors, of a variable `lane`; and the facts."""
    count = max(map(lanes_of, index), default=1)

    def scalar(n: Node) -> Node:
        match n:
            case Ramp(base, stride):
                return as_expr(as_sum(base).plus(AffineSum({Var("lane"): stride})))
            case Broadcast(x):
                return x
            case _:
                return n

    if count > 1:
        facts = facts.with_range("lane", const(0), const(count - 1))
    return tuple(substitute(transform(i, scalar), lets) for i in index), facts


def _proof(a: Access, b: Access, same: frozenset[str], threads: Mapping[str, int]) -> DisjointIndices:
    """The proof, still to be carried out, that two threads that access the same element are one thread."""
    names = {v for i in b.index for v in variables(i)} | set(b.facts.ranges)
    twins: dict[str, Expr] = {v: Var(f"{v}'") for v in names - same}
    facts = a.facts
    for name, (lo, hi) in b.facts.ranges.items():
        if name in twins:
            facts = facts.with_range(f"{name}'", substitute(lo, twins), substitute(hi, twins))
    unequal = {
        x
        for x, n in threads.items()
        if n > 1 and (a.single_thread(x) is None or a.single_thread(x) != b.single_thread(x))
    }
    differences = []
    for x, y in zip(a.index, b.index, strict=True):
        differences.append(as_sum(x).plus(as_sum(substitute(y, twins)), -1))
    # outside of loops bound to an axis, only its thread 0 runs
    for side, name in ((a, "{}"), (b, "{}'")):
        for axis in unequal - side.axes:
            facts = facts.with_range(name.format(axis), ZERO, ZERO)
            differences.append(AffineSum({Var(name.format(axis)): 1}))
    return DisjointIndices(differences, facts, twins, unequal)
