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
from tdsl.lang.regions import UNBOUNDED, Interval, free_range, interval_of, restrict_ranges, union
from tdsl.lang.simplify import subtract

ValueRanges = Mapping[str, tuple[Interval, ...]]  # value ranges by func and component


def annotate_value_ranges(program: Program) -> Program:
    """The program with the value range (`Read.value_range`) of each read of a func used in an index."""
    known: dict[str, tuple[Interval, ...]] = {}
    read = sources_of_indices(program)
    if not read:
        return program
    funcs = []
    for f in program.funcs:
        f = with_value_ranges(f, known, values=f.name in read)
        if f.name in read:
            known[f.name] = value_ranges(f)
        funcs.append(f)
    return replace(program, funcs=tuple(funcs))


def sources_of_indices(program: Program) -> set[str]:
    """The funcs read in an index, a condition or a range bound, and the funcs that they are computed from."""
    names = {name for f in program.funcs for name in _index_sources(f)}
    for f in reversed(program.funcs):
        if f.name in names:
            names |= _sources(f)
    return {name for name in names if program.has_func(name)}


def with_value_ranges(f: FuncDef, known: ValueRanges, *, values: bool) -> FuncDef:
    """The func with the value ranges `known` on reads in indices and conditions; with `values`, on all."""
    names = (_sources(f) if values else _index_sources(f)) & known.keys()
    if not names:
        return f

    def visit(n: Node) -> Node:
        if not isinstance(n, Read) or n.name not in names:
            return n
        values = known[n.name][n.component]
        return n if n.value_range == values else replace(n, value_range=values)

    return f.map_expressions(lambda e: transform(e, visit))


def _sources(f: FuncDef) -> set[str]:
    return {name for d in f.definitions for name in d.sources}


def _index_sources(f: FuncDef) -> set[str]:
    """The names of the tensors and funcs that a func reads in an index, a condition or a range bound."""
    names: set[str] = set()
    for d in f.definitions:
        ends = [e for _, *ends in d.ranges for e in ends if e is not None]
        indices = [e for r in d.reads for e in r.index]
        reading = filter(has_data, (*indices, *d.index, d.where, *ends))
        names |= {n.name for n in post_order(*reading) if isinstance(n, Read)}
    return names


def value_ranges(f: FuncDef) -> tuple[Interval, ...]:
    """The value range of each component of a func; unbounded if not known."""
    ranges: list[Interval] = []
    for n, t in enumerate(f.dtypes):
        if not t.is_integer or any(d.combine is not None for d in f.definitions):
            ranges.append(UNBOUNDED)
            continue
        lo, hi = _assigned_range(f, f.definitions[0], n)
        for d in f.definitions[1:]:
            lo, hi = union((lo, hi), _assigned_range(f, d, n))
        ranges.append((lo if _is_call_constant(lo) else None, hi if _is_call_constant(hi) else None))
    return tuple(ranges)


def _assigned_range(f: FuncDef, d: Definition, n: int) -> Interval:
    """The range of the values that a definition assigns to a component."""
    ranges: dict[str, Interval] = {name: free_range(name, d.index, f.limits) for name in d.free}
    for name, lo, hi in d.ranges:
        ranges[name] = lo, None if hi is None else subtract(hi, ONE)
    return interval_of(d.values[n], restrict_ranges(ranges, d.where))


def _is_call_constant(e: Expr | None) -> bool:
    """True if a bound is built of constants and sizes only, so that it is constant during a call."""
    return e is not None and all(isinstance(n, Const | Size | Binary) for n in post_order(e))
