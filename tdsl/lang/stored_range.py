"""The range of the values that a func holds, kept with the reads of it by which others are indexed.

    at[i] = td.clip(n[i], 0, 9)        what `at` holds is between 0 and 9
    sums[at[i]] += x[i]                so that this writes `sums` from 0 to 9, wherever `at` is stored

The ends are expressions of sizes. What is computed from what is stored before, as sums are, is known by its
type alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tdsl.lang.affine import has_data
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, Binary, Const, Expr, Read, Size
from tdsl.lang.program import FuncDef, Program
from tdsl.lang.regions import EVERYTHING, Interval, free_range, interval_of, tighten, union
from tdsl.lang.simplify import subtract
from tdsl.node import Node, post_order, transform

Known = Mapping[str, tuple[Interval, ...]]  # by func and component


def keep_ranges(program: Program) -> Program:
    """The program in which every func that is read in an index is read with the range of what it holds."""
    known: dict[str, tuple[Interval, ...]] = {}
    read = read_in_indices(program)
    if not read:
        return program
    funcs = []
    for f in program.funcs:
        f = with_ranges(f, known)
        if f.name in read:
            known[f.name] = ranges_held(f)
        funcs.append(f)
    return replace(program, funcs=tuple(funcs))


def read_in_indices(program: Program) -> set[str]:
    """The funcs that others read in an index, a condition or an end of a range."""
    return {name for f in program.funcs for name in _read_in_indices(f) if program.has_func(name)}


def with_ranges(f: FuncDef, known: Known) -> FuncDef:
    """The func in which what its indices and conditions read has the ranges `known`."""
    names = _read_in_indices(f) & known.keys()
    if not names:
        return f

    def visit(n: Node) -> Node:
        if not isinstance(n, Read) or n.name not in names:
            return n
        held = known[n.name][n.component]
        return n if n.held == held else replace(n, held=held)

    return f.map_expressions(lambda e: transform(e, visit))


def _read_in_indices(f: FuncDef) -> set[str]:
    """What is read in an index, a condition or an end of a range."""
    found: set[str] = set()
    for d in f.definitions:
        ends = [e for _, *ends in d.ranges for e in ends if e is not None]
        indices = [e for r in d.reads for e in r.index]
        reading = filter(has_data, (*indices, *d.index, d.where, *ends))
        found |= {n.name for n in post_order(*reading) if isinstance(n, Read)}
    return found


def ranges_held(f: FuncDef) -> tuple[Interval, ...]:
    """For each component of a func the range of what it holds, unbounded where that is not known."""
    held: list[Interval] = []
    for n, t in enumerate(f.dtypes):
        if not t.is_integer or any(d.combine is not None for d in f.definitions):
            held.append(EVERYTHING)
            continue
        lo, hi = _value(f, f.definitions[0], n)
        for d in f.definitions[1:]:
            lo, hi = union((lo, hi), _value(f, d, n))
        held.append((lo if _is_fixed(lo) else None, hi if _is_fixed(hi) else None))
    return tuple(held)


def _value(f: FuncDef, d: Definition, n: int) -> Interval:
    """The range of a component of what a definition assigns."""
    ranges: dict[str, Interval] = {name: free_range(name, d.index, f.limits) for name in d.free}
    for name, lo, hi in d.ranges:
        ranges[name] = lo, None if hi is None else subtract(hi, ONE)
    return interval_of(d.values[n], tighten(ranges, d.where))


def _is_fixed(e: Expr | None) -> bool:
    """True for an end that is the same throughout a call."""
    return e is not None and all(isinstance(n, Const | Size | Binary) for n in post_order(e))
