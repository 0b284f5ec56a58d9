"""Conflicts between threads of a block: the accesses of statements, and proofs that they are disjoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tdsl.codegen.ir.loops import LANES, CopyTile, Invoke, Stmt, Store
from tdsl.codegen.ir.statements import exprs_of
from tdsl.core.node import Node, frozen, post_order, transform
from tdsl.lang.affine import Sum, as_expr, as_sum, variables
from tdsl.lang.bounds import Facts, lower, upper
from tdsl.lang.expr import ZERO, Binary, Broadcast, Const, Expr, Load, Ramp, Var, const, lanes_of
from tdsl.lang.simplify import add, simplify, substitute
from tdsl.machine.instructions.instruction import INSTRUCTIONS


@frozen
class Access:
    """The elements that a statement reads or writes in memory shared by threads.

    A thread's number on an axis is the variable with the name of the axis. `axes` are those that an enclosing
    loop is bound to; on the others, only thread 0 runs the statement. `facts` are the ranges of variables.
    """

    buffer: str
    index: tuple[Expr, ...]
    kind: str  # "read", "write", or the operator of an atomic update
    axes: frozenset[str]
    facts: Facts

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
        pair = _ThreadPair.create(self, other, same, threads)
        return None if pair.are_disjoint() else pair.unequal_axes


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
            yield Access(operand.buffer, index, kind, axes | {LANES}, known)


def _tile_index(
    index: tuple[Expr, ...], axes: Sequence[int], shape: Sequence[int], lets: dict[str, Expr],
    facts: Facts,
) -> tuple[tuple[Expr, ...], Facts]:  # fmt: skip
    """The index of any element of a tile: its position in the tile along each axis is a variable."""
    element = [substitute(i, lets) for i in index]
    for axis, extent in zip(axes, shape, strict=True):
        name = f"tile {axis}"
        facts = facts.knowing(name, ZERO, const(extent - 1))
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
                return as_expr(as_sum(base).plus(Sum({Var("lane"): stride})))
            case Broadcast(x):
                return x
            case _:
                return n

    if count > 1:
        facts = facts.knowing("lane", const(0), const(count - 1))
    return tuple(substitute(transform(i, scalar), lets) for i in index), facts


@dataclass(slots=True)
class _ThreadPair:
    """Proof that two threads that access the same element are the same thread.

    The variables of the second thread are renamed (`twins`) unless both have the same value. `differences`
    are the sums that are 0 at equal indices; `equal_atoms` the atoms proved equal in both threads;
    `unequal_axes` the axes on which the threads may still have different numbers.
    """

    differences: list[Sum]
    facts: Facts
    twins: dict[str, Expr]
    unequal_axes: set[str]
    equal_atoms: set[Expr] = field(default_factory=set)

    @staticmethod
    def create(
        a: Access, b: Access, same: frozenset[str], threads: Mapping[str, int]
    ) -> _ThreadPair:
        names = {v for i in b.index for v in variables(i)} | set(b.facts.ranges)
        twins: dict[str, Expr] = {v: Var(f"{v}'") for v in names - same}
        facts = a.facts
        for name, (lo, hi) in b.facts.ranges.items():
            if name in twins:
                facts = facts.knowing(f"{name}'", substitute(lo, twins), substitute(hi, twins))
        unequal_axes = {
            x
            for x, n in threads.items()
            if n > 1 and (a.single_thread(x) is None or a.single_thread(x) != b.single_thread(x))
        }
        differences = []
        for x, y in zip(a.index, b.index, strict=True):
            differences.append(as_sum(x).plus(as_sum(substitute(y, twins)), -1))
        # outside of loops bound to an axis, only its thread 0 runs
        for side, name in ((a, "{}"), (b, "{}'")):
            for axis in unequal_axes - side.axes:
                facts = facts.knowing(name.format(axis), ZERO, ZERO)
                differences.append(Sum({Var(name.format(axis)): 1}))
        return _ThreadPair(differences, facts, twins, unequal_axes)

    def are_disjoint(self) -> bool:
        """True if it is proved that the indices of two different threads are never equal."""
        while self.unequal_axes:
            if any(self.never_zero(d) for d in self.differences):
                return True
            if not (self.equate_variable() or self.equate_dividend()):
                return False
        return True

    def never_zero(self, d: Sum) -> bool:
        lo, hi = self.limits(d)
        return (
            (lo is not None and lo > 0)
            or (hi is not None and hi < 0)
            or is_nonzero_slot_difference(d)
        )

    def equate_variable(self) -> bool:
        """Deduce x = x' and rest = 0 from c * x - c * x' + rest = 0, |rest| < c; False if no sum does."""
        for n, d in enumerate(self.differences):
            for x, c in d.terms.items():
                twin = substitute(x, self.twins)
                if x == twin or d.terms.get(twin, 0) != -c:
                    continue
                rest = d.without(x).without(twin)
                lo, hi = self.limits(rest)
                if lo is not None and hi is not None and max(abs(lo), abs(hi)) < abs(c):
                    self.differences[n] = rest
                    self.equal_atoms.add(x)
                    if isinstance(x, Var):
                        self.unequal_axes.discard(x.name)
                        self.differences = [self.unify(x, twin, e) for e in self.differences]
                    return True
        return False

    def unify(self, x: Var, twin: Expr, d: Sum) -> Sum:
        assert isinstance(twin, Var)
        return as_sum(substitute(as_expr(d), {twin.name: x}))

    def equate_dividend(self) -> bool:
        """Deduce x = x' from x // k = x' // k and x % k = x' % k; False if no atoms allow it."""
        for m in list(self.equal_atoms):
            match m:
                case Binary("mod", x, k) if self.is_period(k):
                    quotients = [Binary("floordiv", x, k)]
                    match x, k:
                        case Binary("floordiv", y, Const(n)), Const(period):
                            quotients.append(Binary("floordiv", y, const(int(n * period))))
                        case _:
                            pass
                    if any(
                        q in self.equal_atoms or simplify(q, self.facts) in self.equal_atoms
                        for q in quotients
                    ):
                        self.equal_atoms.discard(m)
                        twin = substitute(x, self.twins)
                        self.differences.append(as_sum(x).plus(as_sum(twin), -1))
                        return True
                case _:
                    pass
        return False

    def is_period(self, k: Expr) -> bool:
        """True for a divisor that is positive and has the same value in both threads."""
        return substitute(k, self.twins) == k and (lower(k, self.facts) or 0) > 0

    def limits(self, d: Sum) -> tuple[int | None, int | None]:
        e = as_expr(d)
        if any(v not in self.facts.ranges for v in variables(e)):
            return None, None
        return lower(e, self.facts), upper(e, self.facts)


def is_nonzero_slot_difference(d: Sum) -> bool:
    """True for x % k - y % k if x - y is a constant and no multiple of k: two different slots of a ring.

    >>> i, three = Var("i"), const(3)
    >>> later = Binary("mod", Binary("add", i, const(2)), three)
    >>> is_nonzero_slot_difference(as_sum(Binary("sub", later, Binary("mod", i, three))))
    True
    """
    match sorted(d.terms.items(), key=lambda term: term[1]):
        case [(Binary("mod", x, Const(k)), -1), (Binary("mod", y, Const(m)), 1)] if k == m:
            distance = as_sum(x).plus(as_sum(y), -1)
            return not (distance.terms or d.constant) and distance.constant % k != 0
        case _:
            return False
