"""Messages of run-time checks, and the proof that no input is read out of range."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tdsl.codegen.loops import Check, Message, Stmt
from tdsl.errors import IndexBoundError
from tdsl.lang.affine import variables
from tdsl.lang.bounds import NOTHING, at_most
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, ZERO, Binary, Const, Expr, Param, Read, Size, Var
from tdsl.lang.message import message_parts
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, Interval, interval_where, is_empty, reads_in
from tdsl.lang.show import show_expr
from tdsl.lang.simplify import add, simplify, subtract
from tdsl.node import post_order
from tdsl.schedule.facts import root_boxes
from tdsl.schedule.nest import Root, State
from tdsl.schedule.required import definition_ranges
from tdsl.schedule.tree import Tree
from tdsl.source import Loc


@dataclass(slots=True)
class Messages:
    """The messages of a kernel's checks and prints, and the instructions that it invokes."""

    made: list[Message] = field(default_factory=list)
    instructions: dict[str, None] = field(default_factory=dict)

    def site(self, kind: str, text: str, count: int, loc: Loc | None) -> int:
        """The number of a message; `{}` in the text stands for a value."""
        where = "" if loc is None else f"{loc.file}:{loc.line}"
        self.made.append(Message(kind, message_parts(text, count), where))
        return len(self.made) - 1


def check_boxes(
    tree: Tree, state: State, boxes: dict[str, Box], messages: Messages, declared: list[Condition]
) -> list[Stmt]:
    """Prove that every read stays inside what it reads; `declared` is what `check_declared` left open.

    What depends on sizes that are known only at a call becomes a `Check`; what is certainly or possibly
    outside for data-dependent reasons is an IndexBoundError.
    """
    checks: dict[tuple[str, Expr], Stmt] = {}
    program = state.program
    limits: dict[str, tuple[Interval, ...]] = {
        t.name: tuple((ZERO, subtract(e, ONE)) for e in t.shape) for t in program.inputs
    }
    limits |= {f.name: f.limits for f in program.funcs}
    for name in tree.order:
        if name not in boxes:
            continue
        f = program.func(name)
        for d in f.definitions:
            ranges = definition_ranges(f, d, boxes[name], NOTHING)
            if any(is_empty(r) for r in ranges.values()):
                continue
            for r in reads_in(d.expressions()):
                for axis, e in enumerate(r.index):
                    touched = interval_where(e, ranges, d.where)
                    for cond in _outside(f, r, axis, touched, limits[r.name][axis], d.loc):
                        cond = _unless_empty(cond, ranges)
                        text = _out_of_range(r, axis)
                        key = (text, cond)
                        if key not in checks:
                            checks[key] = Check(
                                cond, messages.site("bounds", text, 0, r.loc or d.loc), ()
                            )
        if f.name in program.outputs:
            _check_written(f, boxes[name])
    for cond, text, loc in declared:
        if (text, cond) not in checks:
            checks[text, cond] = Check(cond, messages.site("bounds", text, 0, loc), ())
    return list(checks.values())


def _out_of_range(r: Read, axis: int) -> str:
    return f"{_is_read(r, axis)} out of range in axis {axis}"


def _is_read(r: Read, axis: int) -> str:
    """Of an index that is made of data only the bounds are known."""
    data = any(isinstance(n, Read | Param) for n in post_order(r.index[axis]))
    return f"{r.name!r} {'may be' if data else 'is'} read"


Condition = tuple[Expr, str, Loc | None]  # what must hold, the message if not, where it is from


def check_declared(state: State) -> list[Condition]:
    """Prove that no func is read outside of its declared shape; what depends on sizes is left to a call.

    Done while the funcs that are inlined are still there: afterwards nothing tells where they were read.
    """
    open_: list[Condition] = []
    declared = {f.name: f.limits for f in state.program.funcs if f.declared}
    if declared.keys() <= set(state.program.outputs):
        return open_
    plans = tuple((n, replace(p, place=Root(), store=None)) for n, p in state.plans)
    boxes = root_boxes(State(state.program, plans))
    for f in state.program.funcs:
        for d in f.definitions if f.name in boxes else ():
            ranges = definition_ranges(f, d, boxes[f.name], NOTHING)
            for r in reads_in(d.expressions()):
                for axis, e in enumerate(r.index if r.name in declared else ()):
                    touched = interval_where(e, ranges, d.where)
                    if not any(is_empty(i) for i in ranges.values()):
                        for cond in _outside(f, r, axis, touched, declared[r.name][axis], d.loc):
                            cond = _unless_empty(cond, ranges)
                            open_.append((cond, _out_of_range(r, axis), r.loc or d.loc))
    return open_


def _check_written(f: FuncDef, box: Box) -> None:
    for axis, ((lo, hi), (first, last)) in enumerate(zip(box, f.natural, strict=True)):
        if not _within((lo, hi), (first, last)):
            writer = _writer(f, box, axis)
            raise IndexBoundError(
                f"axis {axis} of output {f.name!r} runs over {_shown((first, last))}, but "
                f"{_shown((lo, hi))} is written",
                loc=writer.loc or f.loc,
                label="written here",
                related=((f.loc, "the output"),),
                hint="limit the index with td.clip, or give the output a larger shape",
            )


def _writer(f: FuncDef, box: Box, axis: int) -> Definition:
    """The definition that writes outside of the array in an axis: the first update that may."""
    for d in f.definitions[1:]:
        written = interval_where(d.index[axis], definition_ranges(f, d, box, NOTHING), d.where)
        bare = d.index[axis] == Var(f.variables[axis]) and f.variables[axis] in d.free
        if not bare and not _within(written, f.natural[axis]):
            return d
    return f.definitions[0]


def _within(inner: Interval, outer: Interval) -> bool:
    (lo, hi), (first, last) = inner, outer
    if lo is None or hi is None or first is None or last is None:
        return False
    return at_most(first, lo) and at_most(hi, last)


def _outside(
    f: FuncDef, r: Read, axis: int, touched: Interval, limit: Interval, loc: Loc | None
) -> list[Expr]:
    """Conditions left to check at a call; none where the access is certainly inside."""
    (lo, hi), (first, last) = touched, limit
    if lo is None or hi is None:
        raise IndexBoundError(
            f"the index {show_expr(r.index[axis])} of {r.name!r} has no bounds",
            loc=r.loc or loc,
            label=f"axis {axis} of this access",
            hint="limit it: td.clip(index, 0, n - 1)",
        )
    open_: list[Expr] = []
    for small, large, wrong in ((first, lo, lo), (hi, last, hi)):
        if small is None or large is None:
            continue
        if at_most(small, large):
            continue
        cond = simplify(Binary("le", small, large))
        if not any(isinstance(n, Size) for n in post_order(cond)) or variables(cond):
            raise IndexBoundError(
                f"{_is_read(r, axis)} at {show_expr(wrong)} in axis {axis}, outside of {_shown(limit)}",
                loc=r.loc or loc,
                label="this access",
                related=((f.loc, f"{f.name!r} is computed on a range that needs it"),),
                hint=f"pad it: td.pad({r.name}, ...), limit the index with td.clip, or narrow the range",
            )
        open_.append(cond)
    return open_


def _unless_empty(cond: Expr, ranges: dict[str, Interval]) -> Expr:
    for lo, hi in ranges.values():
        if lo is not None and hi is not None:
            empty = simplify(Binary("lt", hi, lo))
            if not isinstance(empty, Const):
                cond = Binary("or", empty, cond)
    return cond


def _shown(interval: Interval) -> str:
    lo, hi = interval
    first = "..." if lo is None else show_expr(lo)
    last = "..." if hi is None else show_expr(simplify(add(hi, ONE)))
    return f"[{first}, {last})"
