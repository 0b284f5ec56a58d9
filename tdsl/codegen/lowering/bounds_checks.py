"""Bounds checking: proves that every access is in bounds, or emits a run-time check with its message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from tdsl.codegen.ir.loops import Check, Message, Stmt
from tdsl.core.node import post_order
from tdsl.core.source import Loc
from tdsl.core.text import split_placeholders
from tdsl.errors import IndexBoundError, TdslError
from tdsl.lang.affine import as_sum, fold_remainders, has_data, variables
from tdsl.lang.bounds import NO_FACTS, at_most
from tdsl.lang.definition import Definition
from tdsl.lang.expr import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Binary,
    Const,
    Expr,
    Read,
    Size,
    Unary,
    Var,
    const,
    dtype_of,
)
from tdsl.lang.program import FuncDef, Program
from tdsl.lang.regions import Box, Interval, Ranges, interval_where, is_empty, reads_in
from tdsl.lang.show import show_expr
from tdsl.lang.simplify import add, conjuncts, simplify, subtract
from tdsl.lang.types import i64
from tdsl.schedule.bounds_inference import definition_ranges
from tdsl.schedule.properties import root_boxes
from tdsl.schedule.state import Root, State
from tdsl.schedule.tree import ScheduleTree


@dataclass(slots=True)
class KernelTables:
    """The messages of a kernel's checks and prints, and the instructions that it invokes."""

    sites: list[Message] = field(default_factory=list)
    instructions: dict[str, None] = field(default_factory=dict)

    def site(self, kind: str, text: str, count: int, loc: Loc | None) -> int:
        """Adds a message and returns its number; `{}` in the text stands for a value."""
        where = "" if loc is None else f"{loc.file}:{loc.line}"
        self.sites.append(Message(kind, split_placeholders(text, count), where))
        return len(self.sites) - 1


def check_boxes(
    tree: ScheduleTree,
    state: State,
    boxes: dict[str, Box],
    tables: KernelTables,
    declared: list[Condition],
) -> list[Stmt]:
    """Prove that reads and writes are in bounds; returns the checks left for a call, `declared` included.

    `declared` are the conditions of `check_declared`. A condition on sizes that are known only in a call
    becomes a `Check`; IndexBoundError for an access that is out of bounds or data-dependently may be.
    """
    program, limits = state.program, _limits(state.program)
    unproved: list[Condition] = []
    for name in tree.order:
        f = program.func(name)
        nests = _nonempty_definitions(f, boxes)
        if name in program.outputs or f.declared:
            for d, ranges in nests:  # before reads: an update extends the box of all definitions
                unproved += _unproved_writes(f, d, ranges)
        if not state.plan(name).filled:  # which loads only what there is, and is 0 elsewhere
            unproved += _unproved_reads(f, boxes, limits)
    checks: dict[tuple[str, Expr], Stmt] = {}
    for cond, text, loc in (*unproved, *declared):
        if cond != TRUE and (text, cond) not in checks:
            checks[text, cond] = Check(cond, tables.site("bounds", text, 0, loc), ())
    return list(checks.values())


Condition = tuple[Expr, str, Loc | None]  # the condition, the message if it is false, its source


def check_declared(state: State) -> list[Condition]:
    """Prove that no func is read outside of its declared shape; the conditions on sizes left for a call.

    To be called before inlining, which removes the reads of inlined funcs.
    """
    declared = {f.name: f.limits for f in state.program.funcs if f.declared}
    return [] if declared.keys() <= {*state.program.outputs} else _unproved_at_root(state, declared)


SAMPLE_SIZE = 64  # the value of each unknown size; one wrong for all sizes is wrong for this one


def check_every_call(state: State, lower: Callable[[int], None], *, known: bool) -> None:
    """IndexBoundError if an access is out of bounds in every call with arrays that are not empty.

    `known` is true if all sizes are numbers.

    An access that may be out of bounds with all funcs at the root is decided by `lower`, which lowers the
    program at sample sizes: an inlined func may be read on a smaller box.
    """
    try:
        check_reads(state)
    except IndexBoundError as error:
        try:
            lower(SAMPLE_SIZE)
        except IndexBoundError as exact:
            if exact.loc == error.loc:
                raise (exact if known else error) from None
        except TdslError:  # due to the sample sizes; a call with such sizes raises it
            pass


def check_reads(state: State) -> None:
    """IndexBoundError if an access may be out of bounds of a tensor or func with all funcs at the root.

    With another schedule the access may be in bounds: an inlined func may be read on a smaller box.
    """
    _unproved_at_root(state, _limits(state.program), writes=True)


def _limits(program: Program) -> dict[str, Box]:
    """The box on which each input and func may be read."""
    inputs = {t.name: tuple((ZERO, subtract(e, ONE)) for e in t.shape) for t in program.inputs}
    return inputs | {f.name: f.limits for f in program.funcs}


def _unproved_at_root(state: State, limits: Mapping[str, Box], *, writes: bool = False) -> list[Condition]:
    """The conditions left open for reads of names in `limits`, and `writes`, with all funcs at the root."""
    unproved: list[Condition] = []
    plans = tuple((n, replace(p, place=Root(), store=None)) for n, p in state.plans)
    boxes = root_boxes(State(state.program, plans))
    for f in state.program.funcs:
        if writes and (f.name in state.program.outputs or f.declared):
            for d, ranges in _nonempty_definitions(f, boxes):
                unproved += _unproved_writes(f, d, ranges)
        unproved += _unproved_reads(f, boxes, limits)
    return unproved


def _nonempty_definitions(f: FuncDef, boxes: Mapping[str, Box]) -> list[tuple[Definition, Ranges]]:
    """The definitions of a func with nonempty ranges, each with the ranges of its variables."""
    ranges_of = [
        (d, definition_ranges(d, boxes[f.name], NO_FACTS)) for d in (f.definitions if f.name in boxes else ())
    ]
    return [
        (d, ranges) for d, ranges in ranges_of if d.where != FALSE and not any(map(is_empty, ranges.values()))
    ]


def _unproved_reads(
    f: FuncDef, boxes: Mapping[str, Box], limits: Mapping[str, tuple[Interval, ...]]
) -> Iterator[Condition]:
    """Conditions to check in a call for the reads of names in `limits`; IndexBoundError if one is outside."""
    for d, ranges in _nonempty_definitions(f, boxes):
        yield from _unproved_accesses(f, d, d.reads, ranges, limits)
    for d in f.definitions if f.name in boxes else ():
        if d.tested:  # conditions with reads are evaluated only where those without reads are true
            plain = replace(d, where=d.tested[0])
            ranges = definition_ranges(plain, boxes[f.name], NO_FACTS)
            if not any(map(is_empty, ranges.values())):
                reads = tuple(reads_in((d.where,)))
                yield from _unproved_accesses(f, plain, reads, ranges, limits)


def _unproved_accesses(
    f: FuncDef,
    d: Definition,
    reads: Iterable[Read],
    ranges: Ranges,
    limits: Mapping[str, tuple[Interval, ...]],
) -> Iterator[Condition]:
    intervals: dict[Expr, Interval] = {}
    for r in reads:
        for axis, e in enumerate(r.index if r.name in limits else ()):
            if e not in intervals:
                intervals[e] = interval_where(e, ranges, d.where)
            touched = intervals[e]
            for cond in _unproved_read(f, r, axis, touched, limits[r.name][axis], d):
                text = f"{r.name!r} {_verb(e, d)} read out of range in axis {axis}"
                yield _unless_empty(cond, ranges, d.where), text, r.loc or d.loc


def _unproved_writes(f: FuncDef, d: Definition, ranges: Ranges) -> Iterator[Condition]:
    """As `_unproved_reads`, for writes; a free variable as an index is in bounds by construction."""
    for axis, e in enumerate(d.index):
        if not (isinstance(e, Var) and e.name in d.free):
            touched = interval_where(e, ranges, d.where)
            for cond in _unproved_write(f, d, axis, touched):
                text = f"{f.name!r} {_verb(e, d)} written out of range in axis {axis}"
                yield _unless_empty(cond, ranges, d.where), text, d.loc or f.loc


def _verb(index: Expr, d: Definition) -> str:
    """The verb of a message: "may be" if the index is not known to attain its bounds or has a predicate."""
    return "is" if d.where == TRUE and _attains_bounds(index) else "may be"


def _attains_bounds(e: Expr) -> bool:
    """True if an expression attains its bounds: sums, quotients and clips of parts that share no variable."""
    atoms = [*fold_remainders(as_sum(e)).terms] if dtype_of(e) == i64 else [e]
    names = [variables(a) for a in atoms]
    if sum(map(len, names)) != len(frozenset[str]().union(*names)):
        return False
    for atom in atoms:
        match atom:
            case Var() | Size() | Const():
                pass
            case Binary("floordiv", x, Const(k)) if k > 0 and _attains_bounds(x):
                pass
            case Binary("min" | "max", x, y) if variables(x).isdisjoint(variables(y)):
                if not (_attains_bounds(x) and _attains_bounds(y)):
                    return False
            case _:
                return False
    return True


def _unproved_write(f: FuncDef, d: Definition, axis: int, touched: Interval) -> list[Expr]:
    """Conditions to check in a call; none if the write is certainly in bounds."""
    limit = f.limits[axis] if f.declared else f.natural[axis]

    def error(_: Expr | None) -> IndexBoundError:
        return IndexBoundError(
            f"axis {axis} of {f.name!r} runs over {_interval_text(limit)}, "
            f"but {_interval_text(touched)} {_verb(d.index[axis], d)} written",
            loc=d.loc or f.loc,
            label="written here",
            related=((f.loc, f"{f.name!r} is defined here"),),
            hint=f"limit the index with td.clip, or give {f.name!r} a larger shape",
        )

    if None in touched:
        raise error(None)
    return _unproved_conditions(touched, limit, error)


def _unproved_read(
    f: FuncDef, r: Read, axis: int, touched: Interval, limit: Interval, d: Definition
) -> list[Expr]:
    """Conditions to check in a call; none if the read is certainly in bounds."""
    if None in touched:
        raise IndexBoundError(
            f"the index {show_expr(r.index[axis])} of {r.name!r} has no bounds",
            loc=r.loc or d.loc,
            label=f"axis {axis} of this access",
            hint="limit it: td.clip(index, 0, n - 1)",
        )
    return _unproved_conditions(
        touched,
        limit,
        lambda wrong: IndexBoundError(
            f"{r.name!r} {_verb(r.index[axis], d)} read at {show_expr(wrong)} in axis {axis}, "
            f"outside of {_interval_text(limit)}",
            loc=r.loc or d.loc,
            label="this access",
            related=((f.loc, f"{f.name!r} is computed on a range that needs it"),),
            hint=f"pad it: td.pad({r.name}, ...), limit the index with td.clip, or narrow the range",
        ),
    )


def _unproved_conditions(
    touched: Interval, limit: Interval, error: Callable[[Expr], IndexBoundError]
) -> list[Expr]:
    """Conditions on sizes under which `touched` is inside `limit`; raises `error` if no size can decide."""
    (lo, hi), (first, last) = touched, limit
    unproved: list[Expr] = []
    for small, large, wrong in ((first, lo, lo), (hi, last, hi)):
        if small is None or large is None or wrong is None or at_most(small, large):
            continue
        cond = simplify(Binary("le", small, large))
        if not any(isinstance(n, Size) for n in post_order(cond)) or variables(cond):
            raise error(wrong)
        ends = product(_operands("max", small), _operands("min", large))
        parts = [simplify(Binary("le", a, b)) for a, b in ends]
        unproved += [cond] if FALSE in parts else parts
    return unproved


def _operands(op: str, e: Expr) -> tuple[Expr, ...]:
    """The operands of nested calls of min or max (`op`); the expression alone if it is no such call."""
    match e:
        case Binary(operator, x, y) if operator == op:
            return (*_operands(op, x), *_operands(op, y))
        case _:
            return (e,)


def _unless_empty(cond: Expr, ranges: Ranges, where: Expr) -> Expr:
    """The condition that `cond` holds, or that there is no point: a range is empty, or sizes fail `where`.

    TRUE if a nonempty range implies `cond`.
    """
    ends = [(lo, hi) for lo, hi in ranges.values() if lo is not None and hi is not None]
    if cond in [_nonempty(lo, hi) for lo, hi in ends]:
        return TRUE
    for lo, hi in ends:
        empty = simplify(Binary("lt", hi, lo))
        if not isinstance(empty, Const):
            cond = Binary("or", empty, cond)
    for test in conjuncts(where):
        if test != TRUE and not variables(test) and not has_data(test):
            cond = Binary("or", simplify(Unary("not", test)), cond)
    return cond


def _nonempty(lo: Expr, hi: Expr) -> Expr:
    """The condition that `lo <= hi`; x // k - 1 >= 0 is written as x >= k."""
    difference = as_sum(subtract(hi, lo))
    match [*difference.terms.items()]:
        case [(Binary("floordiv", x, Const(int(k))), 1)] if k > 0:
            return simplify(Binary("le", ZERO, add(x, const(k * difference.constant))))
        case _:
            return simplify(Binary("le", lo, hi))


def _interval_text(interval: Interval) -> str:
    lo, hi = interval
    first = "..." if lo is None else show_expr(lo)
    last = "..." if hi is None else show_expr(simplify(add(hi, ONE)))
    return f"[{first}, {last})"
