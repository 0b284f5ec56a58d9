"""Widening of the scalar expressions of a loop to vectors over all of its iterations."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from tdsl.codegen.transforms.extract_lanes import extract_lane
from tdsl.core.node import children, map_children, post_order
from tdsl.lang.affine import AffineSum, as_expr, as_sum
from tdsl.lang.bounds import Facts, at_most
from tdsl.lang.expr import (
    ONE,
    TRUE,
    ZERO,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Param,
    Ramp,
    Select,
    Unary,
    Var,
    const,
    dtype_of,
    lanes_of,
)  # fmt: skip
from tdsl.lang.simplify import add, simplify, substitute, subtract
from tdsl.lang.types import i64


@dataclass(slots=True)
class VectorLanes:
    """The lanes of a vectorized loop: its iterations lo, lo + 1, ..., lo + count - 1, run in lockstep.

    `vectors` are the values of scalars that differ by lane, `private` the buffers with a last axis for
    lanes, `extents` the known extents of buffers. `mask` is the conjunction of `conditions`,
    which are scalar, for one iteration; `facts` hold for every lane, whether its mask holds or not.
    """

    name: str
    lo: Expr
    count: int
    facts: Facts
    vectors: dict[str, Expr]
    extents: dict[str, tuple[Expr, ...]]
    private: frozenset[str] = frozenset()
    mask: Expr | None = None
    conditions: tuple[Expr, ...] = ()
    memo: dict[Expr, Expr] = field(default_factory=dict)

    def widen(self, e: Expr) -> Expr:
        """The expression as a vector over all lanes; a scalar if it is the same in every lane."""
        memo = self.memo
        if e in memo:
            return memo[e]
        for n in post_order(e):
            if n not in memo:
                memo[n] = self.widen_node(n)  # type: ignore[index, arg-type]  # an expression
        return memo[e]

    def widen_full(self, e: Expr) -> Expr:
        """The expression as a vector, also where it is the same in every lane."""
        return self.broadcast(self.widen(e))

    def broadcast(self, x: Expr) -> Expr:
        """A value as a vector of all lanes."""
        return x if lanes_of(x) > 1 else Broadcast(x, self.count)

    def broadcast_parts(self, e: Expr) -> Expr:
        """The expression with its operands replaced by vectors."""
        vectors = {part: self.broadcast(self.memo[part]) for part in _parts(e)}
        return map_children(e, vectors.__getitem__)  # type: ignore[arg-type]  # of expressions

    def widen_node(self, e: Expr) -> Expr:
        """The expression over all lanes, from its operands, which must have been widened (`memo`)."""
        memo = self.memo
        match e:
            case Var(name) | Param(name):
                return self.vectors.get(name, e)
            case Load():
                return self.load(e)
            case _ if all(lanes_of(memo[child]) == 1 for child in _parts(e)):
                return map_children(e, memo.__getitem__)  # type: ignore[arg-type]  # of expressions
            case Binary("add" | "sub" | "mul") | Unary("neg") if dtype_of(e) == i64:
                return self.widen_sum(e)
            case Binary() if (aligned := self.aligned(e)) is not None:
                return aligned
            case Binary() | Unary() | Select() | Cast() | Call():
                return self.broadcast_parts(e)
            case _:
                raise AssertionError(f"{type(e).__name__} in a loop that is not yet vectorized")

    def aligned(self, e: Binary) -> Expr | None:
        """A quotient, remainder or comparison of an aligned ramp as a scalar or a ramp; None for others."""
        match e:
            case Binary("floordiv" | "mod" as op, x, Const(k)) if k > 0 and k % self.count == 0:
                inner = self.memo[x]
                if isinstance(inner, Ramp) and inner.stride == 1 and self.is_aligned(as_sum(inner.base)):
                    first = simplify(Binary(op, inner.base, const(int(k))), self.facts)
                    return first if op == "floordiv" else Ramp(first, 1, self.count)
            case Binary("lt" | "le" | "gt" | "ge" as op, x, y) if dtype_of(x) == i64:
                difference = self.widen(subtract(x, y))
                if isinstance(difference, Ramp) and abs(difference.stride) == 1:
                    sign = -1 if op in ("gt", "ge") else 1
                    # for all lanes alike: base + lane <= 0 if base <= 1 - count, base - lane if base <= 0
                    start = int(op in ("lt", "gt")) - (sign * difference.stride == 1)
                    if self.is_aligned(as_sum(difference.base).times(sign).plus(AffineSum({}, start))):
                        return Binary(op, extract_lane(self.memo[x], 0), extract_lane(self.memo[y], 0))
            case _:
                pass
        return None

    def is_aligned(self, s: AffineSum) -> bool:
        """True if the sum is certainly a multiple of the number of lanes."""
        return not any(n % self.count for n in (s.constant, *s.terms.values()))

    def widen_sum(self, e: Binary | Unary) -> Expr:
        """A sum of indices over all lanes: its affine terms as one ramp, plus the other vectors."""
        total = as_sum(e)
        if e in total.terms:  # a product of two values that are not constant
            return self.broadcast_parts(e)
        scalar, step = AffineSum({}, total.constant), 0
        others: list[tuple[Expr, int]] = []
        for atom, times in total.terms.items():
            match self.widen(atom):
                case Ramp(base, stride):
                    scalar, step = scalar.plus(as_sum(base), times), step + stride * times
                case Broadcast(x):
                    scalar = scalar.plus(as_sum(x), times)
                case x if lanes_of(x) > 1:
                    others.append((x, times))
                case x:
                    scalar = scalar.plus(AffineSum({x: 1}), times)
        base = as_expr(scalar)
        result: Expr | None = None
        if step:
            result = Ramp(base, step, self.count)
        elif scalar.terms or scalar.constant:
            result = Broadcast(base, self.count)
        for x, times in others:
            term = x if abs(times) == 1 else Binary("mul", x, self.broadcast(const(abs(times))))
            if result is None:
                result = term if times > 0 else Unary("neg", term)
            else:
                result = Binary("add" if times > 0 else "sub", result, term)
        if result is None or (not others and not step):
            return base
        return result

    def index(self, buffer: str, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The index over all lanes; with the lane as its last element for a buffer of `private`."""
        wide = tuple(map(self.widen, index))
        return (*wide, Ramp(ZERO, 1, self.count)) if buffer in self.private else wide

    def load(self, e: Load) -> Expr:
        """A load over all lanes, without the loop's mask if its index is in bounds in every lane."""
        index = self.index(e.buffer, e.index)
        given = None if e.mask is None else self.widen(e.mask)
        vector = any(lanes_of(i) > 1 for i in index) or (given is not None and lanes_of(given) > 1)
        guarded = self.mask is not None and not self.is_safe(e)
        if not vector and guarded and index and not self.is_some_lane_active():
            index, vector = (self.broadcast(index[0]), *index[1:]), True
        if not vector:
            same = given is e.mask and all(a is b for a, b in zip(index, e.index, strict=True))
            return e if same else dataclasses.replace(e, index=index, mask=given)
        mask = None if given is None else self.broadcast(given)
        if guarded and self.mask is not None:
            mask = self.mask if mask is None else Binary("and", self.mask, mask)
        if mask is not None and all(lanes_of(i) == 1 for i in index):
            index = (self.broadcast(index[0]), *index[1:])
        return dataclasses.replace(e, index=index, mask=mask)

    def is_safe(self, e: Load) -> bool:
        """True if the index is certainly in bounds in every lane."""
        extents = self.extents.get(e.buffer)
        return extents is not None and all(
            at_most(ZERO, i, self.facts) and at_most(add(i, ONE), extent, self.facts)
            for i, extent in zip(e.index, extents, strict=True)
        )

    def is_some_lane_active(self) -> bool:
        """True if the mask certainly holds in the first or the last lane."""
        last = add(self.lo, const(self.count - 1))
        return any(
            all(simplify(substitute(c, {self.name: lane}), self.facts) == TRUE for c in self.conditions)
            for lane in (self.lo, last)
        )


def _parts(e: Expr) -> tuple[Expr, ...]:
    return children(e)  # type: ignore[return-value]  # an expression holds expressions only
