"""Windows: sums of what is read at an index that several pairs of a point and a term have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tdsl.lang.affine import as_sum, variables
from tdsl.lang.bounds import upper
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Expr, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import reads_in
from tdsl.lang.simplify import subtract

UNKNOWN = 1 << 20  # stands for an extent that is not known


def has_window(f: FuncDef) -> bool:
    """True for a sum of what is read at sums of a free variable and one that is summed over."""
    return bool(window_variables(f.definitions[0]))


def window_variables(d: Definition) -> tuple[str, ...]:
    """The free variables that a window moves along, the last one first."""
    ranges = {name for name, _, _ in d.ranges}
    return tuple(v for v in reversed(d.free) if slides(v, d.values, ranges))


def slides(variable: str, values: Iterable[Expr], ranges: set[str]) -> bool:
    """True where something is read at a sum of a variable and one of the ranges."""
    indices = (variables(e) for r in reads_in(values) for e in r.index)
    return any(variable in used and used & ranges for used in indices)


def has_shared_points(f: FuncDef) -> bool:
    """True for a window that reads points again after a step: it is wider than the step."""
    d = f.definitions[0]
    counts = {name: upper(subtract(hi, lo)) for name, lo, hi in d.ranges if lo and hi}
    sizes = dict.fromkeys(d.variables, UNKNOWN) | {v: n for v, n in counts.items() if n is not None}
    free, ranges = {*d.free}, {name for name, _, _ in d.ranges}
    indices = ((e, variables(e)) for r in reads_in(d.values) for e in r.index)
    return any(used & free and used & ranges and not are_digits(e, sizes) for e, used in indices)


def are_digits(e: Expr, sizes: Mapping[str, int]) -> bool:
    """True for a variable, and for several that are the digits of an index: 16 * h + k of 16 terms k."""
    span = 1
    for atom, factor in sorted(as_sum(e).terms.items(), key=lambda term: abs(term[1])):
        if not isinstance(atom, Var) or abs(factor) < span:
            return False
        span += abs(factor) * (sizes[atom.name] - 1)
    return True
