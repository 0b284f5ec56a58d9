"""Value-range analysis of funcs that are used in indices; each read of such a func is annotated with it.

    at[i] = td.clip(n[i], 0, 9)        values of `at` are between 0 and 9
    sums[at[i]] += x[i]                so this update writes `sums` from 0 to 9, wherever `at` is stored

The ends are expressions of sizes. The range of a func that copies or computes from others follows from
theirs; the values of a reduction are bounded by their type alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tdsl.core.node import Node, post_order, transform
from tdsl.lang.affine import has_data
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, Binary, Const, Expr, Read, Size
from tdsl.lang.program import FuncDef, Program
from tdsl.lang.regions import EVERYTHING, Interval, free_range, interval_of, tighten, union
from tdsl.lang.simplify import subtract

Known = Mapping[str, tuple[Interval, ...]]  # value ranges by func and component


def keep_ranges(program: Program) -> Program:
    """The program with the value range (`Read.held`) of each read of a func that is used in an index."""
    known: dict[str, tuple[Interval, ...]] = {}
    read = read_in_indices(program)
    if not read:
        return program
    funcs = []
    for f in program.funcs:
        f = with_ranges(f, known, values=f.name in read)
        if f.name in read:
            known[f.name] = ranges_held(f)
        funcs.append(f)
    return replace(program, funcs=tuple(funcs))


def read_in_indices(program: Program) -> set[str]:
    """The funcs read in an index, a condition or a range bound, and the funcs that they are computed from."""
    names = {name for f in program.funcs for name in _read_in_indices(f)}
    for f in reversed(program.funcs):
        if f.name in names:
            names |= _read(f)
    return {name for name in names if program.has_func(name)}


def with_ranges(f: FuncDef, known: Known, *, values: bool) -> FuncDef:
    """The func with the value ranges `known` on reads in indices and conditions; with `values`, on all."""
    names = (_read(f) if values else _read_in_indices(f)) & known.keys()
    if not names:
        return f

    def visit(n: Node) -> Node:
        if not isinstance(n, Read) or n.name not in names:
            return n
        values = known[n.name][n.component]
        return n if n.held == values else replace(n, held=values)

    return f.map_expressions(lambda e: transform(e, visit))


def _read(f: FuncDef) -> set[str]:
    return {name for d in f.definitions for name in d.sources}


def _read_in_indices(f: FuncDef) -> set[str]:
    """The names of the tensors and funcs that a func reads in an index, a condition or a range bound."""
    names: set[str] = set()
    for d in f.definitions:
        ends = [e for _, *ends in d.ranges for e in ends if e is not None]
        indices = [e for r in d.reads for e in r.index]
        reading = filter(has_data, (*indices, *d.index, d.where, *ends))
        names |= {n.name for n in post_order(*reading) if isinstance(n, Read)}
    return names


def ranges_held(f: FuncDef) -> tuple[Interval, ...]:
    """The value range of each component of a func; unbounded if not known."""
    ranges: list[Interval] = []
    for n, t in enumerate(f.dtypes):
        if not t.is_integer or any(d.combine is not None for d in f.definitions):
            ranges.append(EVERYTHING)
            continue
        lo, hi = _value(f, f.definitions[0], n)
        for d in f.definitions[1:]:
            lo, hi = union((lo, hi), _value(f, d, n))
        ranges.append((lo if _is_fixed(lo) else None, hi if _is_fixed(hi) else None))
    return tuple(ranges)


def _value(f: FuncDef, d: Definition, n: int) -> Interval:
    """The range of the values that a definition assigns to a component."""
    ranges: dict[str, Interval] = {name: free_range(name, d.index, f.limits) for name in d.free}
    for name, lo, hi in d.ranges:
        ranges[name] = lo, None if hi is None else subtract(hi, ONE)
    return interval_of(d.values[n], tighten(ranges, d.where))


def _is_fixed(e: Expr | None) -> bool:
    """True if a bound is built of constants and sizes only, so that it is constant during a call."""
    return e is not None and all(isinstance(n, Const | Size | Binary) for n in post_order(e))
