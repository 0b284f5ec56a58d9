"""A pass that turns vectorized loops that reduce lanes to one element into trees of vector operations."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import REGISTER, VECTORIZED, Alloc, For, Kernel, Stmt, Store
from tdsl.codegen.ir.statements import map_parts, sequence
from tdsl.codegen.transforms.partial_results import combine_results, partial_loads
from tdsl.lang.expr import ZERO, Binary, Const, Expr, Load, Var, const
from tdsl.lang.simplify import add
from tdsl.lang.types import DType

_ASSOCIATIVE = ("add", "mul", "min", "max", "and", "or", "xor")


def reduce_lanes(kernel: Kernel) -> Kernel:
    """Reduce the lanes of vectorized loops by a tree: halves of the lanes are combined until one is left.

    This applies to vectorized loops over 4, 8, 16, ... lanes that have `merges`, or whose body is
    t = t op lane with an operator that is associative up to rounding. Other loops do not change.

    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.types import f32
    >>> total, lane = Load("t", (ZERO,), f32), Load("x", (Var("i"),), f32)
    >>> loop = For("i", ZERO, const(4), VECTORIZED, Store("t", (ZERO,), Binary("add", total, lane)))
    >>> print(show(reduce_lanes(Kernel("k", (), loop)).body))
    t_half = alloc(f32, [2])  # register
    t_half_1 = alloc(f32, [1])  # register
    for i_1 in range(0, 2):  # vectorized
      t_half[i_1] = x[i_1] + x[i_1 + 2]
    t_half_1[0] = t_half[0] + t_half[1]
    t[0] = t[0] + t_half_1[0]
    """
    fresh = FreshNames(kernel)
    return replace(kernel, body=_reduce(kernel.body, fresh))


def _reduce(s: Stmt, fresh: FreshNames) -> Stmt:
    match s:
        case For(name, lo, Const(count), "vectorized", body, merges) if _is_power(int(count)):
            pairs = merges or _accumulation(body)
            loads = partial_loads(body, pairs, name)
            if pairs and len(loads) == len(pairs):
                return _ReductionTree(body, name, loads, fresh).build(lo, int(count))
        case _:
            pass
    return map_parts(s, lambda part: _reduce(part, fresh))


def _is_power(n: int) -> bool:
    return n >= 4 and n & (n - 1) == 0


def _accumulation(body: Stmt) -> tuple[tuple[str, str], ...]:
    """(t, lane) of t = t op lane."""
    match body:
        case Store(t, at, Binary(op, Load(t_, at_, _, None), Load(x, _, _, None)), None, "") if (
            (t, at) == (t_, at_) and x != t and op in _ASSOCIATIVE
        ):
            return ((t, x),)
        case _:
            return ()


@dataclass(slots=True)
class _ReductionTree:
    """The tree of a loop with the given body; `lanes` are the loads of its lanes, by name of the result."""

    body: Stmt
    loop: str
    lanes: dict[str, Load]
    fresh: FreshNames

    def build(self, lo: Expr, count: int) -> Stmt:
        """Steps that each halve the number of partial results, then the update of the results themselves."""
        loads = {t: replace(x, index=(*x.index[:-1], lo)) for t, x in self.lanes.items()}
        steps: list[Stmt] = []
        buffers: list[tuple[str, DType, int]] = []
        half = count // 2
        while half:
            names = {t: self.fresh.name(f"{t}_half") for t in loads}
            buffers += [(names[t], x.dtype, half) for t, x in loads.items()]
            i = self.fresh.name(self.loop) if half > 1 else ""
            at: Expr = Var(i) if i else ZERO
            low, high = ({t: _shift_load(x, add(at, const(k))) for t, x in loads.items()} for k in (0, half))
            step = self._combine(low, high, {t: Store(name, (at,), ZERO) for t, name in names.items()})
            steps.append(For(i, ZERO, const(half), VECTORIZED, step) if i else step)
            loads = {t: replace(x, buffer=names[t], index=(ZERO,)) for t, x in loads.items()}
            half //= 2
        body = sequence((*steps, self._combine({}, loads, {})))
        for name, dtype, size in reversed(buffers):
            body = Alloc(name, dtype, (const(size),), REGISTER, body)
        return body

    def _combine(self, low: dict[str, Load], high: dict[str, Load], into: dict[str, Store]) -> Stmt:
        return combine_results(self.body, self.fresh, self.lanes, low, high, into)


def _shift_load(x: Load, distance: Expr) -> Load:
    """The load with its last index increased by `distance`."""
    return replace(x, index=(*x.index[:-1], add(x.index[-1], distance)))
