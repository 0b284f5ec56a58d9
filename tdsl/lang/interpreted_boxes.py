"""Bounds inference for the interpreter: the box of each func that an unscheduled program computes.

    1. the box of an output is its natural range: the range that is computed if the func is an output
    2. the box of a func is extended by what its updates read and write of it
    3. the box of a producer is extended by what each definition reads of it, clipped to the
       producer's limits: the range where it may be read

Consumers are visited before producers. All bounds are numbers: sizes and scalars are already substituted.
"""

from __future__ import annotations

from tdsl.core.source import here
from tdsl.errors import IndexBoundError, ShapeError
from tdsl.lang.access_boxes import accessed_boxes, propagate, reads_of_func, update_closure
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Const, Expr, const
from tdsl.lang.program import FuncDef, Program
from tdsl.lang.regions import (
    Box,
    Interval,
    free_range,
    intersection_box,
    is_empty,
    reads_in,
    union_box,
)
from tdsl.lang.simplify import conjuncts, simplify

Bounds = tuple[tuple[int, int], ...]  # inclusive ends of each dimension


def number_of(e: Expr | None) -> int:
    """The integer value of a constant bound; IndexBoundError if it is None."""
    if e is None:
        raise IndexBoundError(
            "an index has no bounds", loc=here(), label="this call", hint="limit it with td.clip"
        )
    simple = simplify(e)
    assert isinstance(simple, Const), f"{simple} is not a number"
    return int(simple.value)


def realised_boxes(program: Program) -> dict[str, Bounds]:
    """The box that is computed of each func, by name; funcs of which no element is needed are left out."""
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

    def reads(f: FuncDef, box: Box) -> dict[str, Box]:
        touched = reads_of_func(f, box, ranges_at).items()
        funcs = {name: program.func(name) for name, _ in touched if program.has_func(name)}
        limited = {n: intersection_box(b, funcs[n].limits) for n, b in touched if n in funcs}
        return {name: b for name, b in limited.items() if not any(map(is_empty, b))}

    def computed(f: FuncDef, box: Box) -> Box:
        return _numeric_box(update_closure(f, _numeric_box(box), ranges_at))

    boxes = propagate(reversed(program.funcs), needed, reads, computed)
    return {n: tuple((number_of(lo), number_of(hi)) for lo, hi in b) for n, b in boxes.items()}


def ranges_at(d: Definition, box: Box) -> dict[str, Interval]:
    """Inclusive ranges of the variables of a definition; a free one runs over its dimension of `box`."""
    ranges: dict[str, Interval] = {}
    for name in d.free:
        ranges[name] = free_range(name, d.index, box)
    for name, lo, hi in d.ranges:
        assert hi is not None
        ranges[name] = (lo, const(number_of(hi) - 1))
    return ranges


def accessed_boxes_of(f: FuncDef, d: Definition, box: Box) -> dict[str, Box]:
    """The boxes that a definition of `f` reads, and the box of `f` that it writes, when run over `box`."""
    return accessed_boxes(d, ranges_at(d, box), writes=f.name)


def _numeric_box(box: Box) -> Box:
    return tuple((const(number_of(lo)), const(number_of(hi))) for lo, hi in box)


def split_conditions(d: Definition) -> tuple[list[Expr], list[Expr]]:
    """The conditions of a definition: first all on variables only, then all that read tensors or funcs."""
    split: tuple[list[Expr], list[Expr]] = ([], [])
    for c in conjuncts(d.where):
        split[any(True for _ in reads_in((c,)))].append(c)
    return split
