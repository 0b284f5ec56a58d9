"""Gathered copies (im2col): a stage with one dimension for each variable that the indices of a read use."""

from __future__ import annotations

from tdsl.core.node import Node, frozen, post_order
from tdsl.lang.affine import as_sum, variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, ZERO, Binary, Const, Expr, Read, Select, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Interval
from tdsl.lang.simplify import substitute, subtract
from tdsl.schedule.padding import reads_or_padding
from tdsl.schedule.properties import needed_box
from tdsl.schedule.state import Illegal, State


@frozen
class GatheredCopy:
    """A gathered copy: the index in the copy for each read that it replaces, its value over d0, d1, ..., and
    the interval of each dimension."""

    reads: dict[Node, tuple[Expr, ...]]
    value: Expr
    limits: tuple[Interval, ...]


def gathered_reads(
    state: State, f: FuncDef, definition: int, source: str, along: str | None = None
) -> GatheredCopy:
    """The copy of a definition's read of a tensor or func, with its padding, over the variables of its index.

    With `along`, the copy of the read whose index has that variable.
    Raises Illegal if it reads at several indices, or if a range is unknown.
    """
    d = f.definitions[definition]
    parts = dict.fromkeys(part for e in d.expressions() for part in reads_or_padding(e, source))
    matches = [part for part in parts if uses_variable(part, along)]
    if len(matches) != 1:
        raise Illegal(f"{f.name!r} reads {source!r} at {len(matches)} indices", "only one can be gathered")
    (part,) = matches
    names = read_variables(d, part)
    index = {v: Var(f"d{n}") for n, v in enumerate(names)}
    ranges = variable_intervals(state, f, d)
    limits = tuple(ranges[v] for v in names)
    if any(None in ends for ends in limits):
        raise Illegal(f"the ranges of {f.name!r} are not known", "declare a shape: with_shape(...)")
    value = substitute(part, dict(index))
    return GatheredCopy({part: tuple(map(Var, names))}, value, limits)


def uses_variable(part: Expr, along: str | None) -> bool:
    """True if a read depends on the variable `along`, or if `along` is None."""
    return along is None or along in variables(part)


def read_variables(d: Definition, part: Expr) -> list[str]:
    """The variables that a read depends on, those of its last index (contiguous in memory) last.

    Of blocks of the last index, as in `a[i, b * 32 + k]`, the variable inside of a block is last.

    >>> from tdsl.lang.expr import TRUE, Binary
    >>> from tdsl.lang.types import f32
    >>> i, k = Var("i"), Var("k")
    >>> read = Read("a", (Binary("mod", k, i), Binary("floordiv", i, k)), 0, f32)
    >>> read_variables(Definition((i,), ("i",), (("k", None, None),), TRUE, (read,), None, None), read)
    ['k', 'i']
    """
    read = part.yes if isinstance(part, Select) else part
    assert isinstance(read, Read)
    last = frozenset[str]() if not read.index else variables(read.index[-1])
    sums = [as_sum(e).terms for e in post_order(*read.index[-1:]) if isinstance(e, Binary)]
    ends = {v: int(hi.value) for v, lo, hi in d.ranges if lo == ZERO and isinstance(hi, Const)}
    blocks = {
        v for terms in sums for v in last for r, n in ends.items()
        if terms.get(Var(r)) == 1 and terms.get(Var(v)) == n
    }  # fmt: skip
    used = (v for v in d.variables if v in variables(part))
    return sorted(used, key=lambda v: (v in last, v in d.free and v not in blocks, v not in blocks))


def variable_intervals(state: State, f: FuncDef, d: Definition) -> dict[str, Interval]:
    """The interval of each variable of a definition."""
    box = needed_box(state, f)
    at = {e.name: ends for e, ends in zip(d.index, box, strict=True) if isinstance(e, Var)}
    return at | {v: (lo, None if hi is None else subtract(hi, ONE)) for v, lo, hi in d.ranges}
