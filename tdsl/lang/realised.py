"""The box of each func that is computed when a program runs whole, nothing fused.

    1. an output needs its natural range
    2. the updates of a func add what they read and write of it
    3. each definition adds what it reads of other funcs, within the ranges of those

Consumers come before producers. All ends are numbers: sizes and scalars are bound.
"""

from __future__ import annotations

from tdsl.errors import IndexBoundError, ShapeError
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Const, Expr, const
from tdsl.lang.program import FuncDef, Program
from tdsl.lang.regions import (
    Box,
    Interval,
    box_of,
    boxes_of,
    free_range,
    reads_in,
    tighten,
    union_box,
)
from tdsl.lang.simplify import conjuncts, maximum, minimum, simplify
from tdsl.source import here

Bounds = tuple[tuple[int, int], ...]  # inclusive ends of each dimension


def number_of(e: Expr | None) -> int:
    """A bound that is a number; IndexBoundError where there is none."""
    if e is None:
        raise IndexBoundError(
            "an index has no bounds", loc=here(), label="this call", hint="limit it with td.clip"
        )
    simple = simplify(e)
    assert isinstance(simple, Const), f"{simple} is not a number"
    return int(simple.value)


def realised_boxes(program: Program) -> dict[str, Bounds]:
    """For each func that is needed, the box that is computed; a func of which nothing is read has none."""
    needed: dict[str, Box] = {}
    for name in program.outputs:
        f = program.func(name)
        extents = tuple(number_of(e) for _, e in f.output_box(None))
        if any(e < 0 for e in extents):
            raise ShapeError(
                f"{name} would have shape {extents}",
                loc=f.loc,
                label="this func",
                hint="the arguments are too small",
            )
        if 0 not in extents:
            needed[name] = union_box(needed.get(name), f.natural)
    boxes: dict[str, Bounds] = {}
    for f in reversed(program.funcs):
        if f.name not in needed:
            continue
        box = _with_own_updates(f, needed[f.name])
        boxes[f.name] = tuple((number_of(lo), number_of(hi)) for lo, hi in box)
        for d in f.definitions:
            for name, touched in touched_boxes(f, d, box).items():
                if name != f.name and program.has_func(name):
                    limited = _limited(program.func(name), touched)
                    if not _empty(limited):
                        needed[name] = union_box(needed.get(name), limited)
    return boxes


def _empty(box: Box) -> bool:
    return any(number_of(lo) > number_of(hi) for lo, hi in box)


def _limited(f: FuncDef, box: Box) -> Box:
    """A box without what lies outside the range of the func: a box may be larger than what is read."""
    return tuple(
        (lo if low is None or lo is None else maximum(lo, low),
         hi if high is None or hi is None else minimum(hi, high))
        for (lo, hi), (low, high) in zip(box, f.limits, strict=True)
    )  # fmt: skip


def ranges_at(d: Definition, box: Box) -> dict[str, Interval]:
    """Inclusive ranges of the variables of a definition; a free one runs over its dimension of the box."""
    ranges: dict[str, Interval] = {}
    for name in d.free:
        ranges[name] = free_range(name, d.index, box)
    for name, lo, hi in d.ranges:
        assert hi is not None
        ranges[name] = (lo, const(number_of(hi) - 1))
    return ranges


def touched_boxes(f: FuncDef, d: Definition, box: Box) -> dict[str, Box]:
    """The boxes that a definition reads, and writes of `f`, when its free variables run over a box.

    A condition is tested at the points at which the conditions without reads hold.
    """
    pure, mixed = split_conditions(d)
    ranges = _tightened(ranges_at(d, box), pure)
    if _empty(tuple(ranges.values())):
        return {}
    found = boxes_of(mixed, ranges)
    ranges = _tightened(ranges, mixed)
    if _empty(tuple(ranges.values())):
        return found
    found[f.name] = union_box(found.get(f.name), box_of(d.index, ranges))
    for name, b in boxes_of((*d.index, *d.values), ranges).items():
        found[name] = union_box(found.get(name), b)
    return found


def _tightened(ranges: dict[str, Interval], conditions: list[Expr]) -> dict[str, Interval]:
    if _empty(tuple(ranges.values())):
        return ranges
    for c in conditions:
        ranges = tighten(ranges, c)
    return ranges


def split_conditions(d: Definition) -> tuple[list[Expr], list[Expr]]:
    """The conditions on the points: those of variables alone, then those that read something."""
    both: tuple[list[Expr], list[Expr]] = ([], [])
    for c in conjuncts(d.where):
        both[any(True for _ in reads_in((c,)))].append(c)
    return both


def _with_own_updates(f: FuncDef, box: Box) -> Box:
    """The box with what the updates of the func read and write of it, until nothing is added."""
    for _ in range(2 * len(box) + 2):
        grown = box
        for d in f.definitions[1:]:
            own = touched_boxes(f, d, grown).get(f.name)
            limited = None if own is None else _limited(f, own)
            if limited is not None and not _empty(limited):
                grown = union_box(grown, limited)
        grown = tuple((const(number_of(lo)), const(number_of(hi))) for lo, hi in grown)
        if grown == box:
            return box
        box = grown
    raise IndexBoundError(
        f"the updates of {f.name!r} need an ever larger range of it",
        loc=f.loc,
        label="this definition",
        hint=f"declare its shape: {f.name}.with_shape(...)",
    )
