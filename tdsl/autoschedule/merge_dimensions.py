"""Adjacent dimensions that all funcs of a program treat as one are merged, where rows are short.

`y[i, j] = x[i, j] + 1` of (1000000, 3) elements is `y[p] = x[p] + 1` of 3000000: vectors are full, and there
is one loop. Two adjacent dimensions of an array are one if each read has adjacent variables there, over all
their points, and these variables are one in everything else that the reader computes.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from tdsl.core.node import Node, frozen, transform
from tdsl.errors import ScheduleError
from tdsl.lang.affine import variables
from tdsl.lang.expr import ONE, ZERO, Const, Expr, Read, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.simplify import add
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule
from tdsl.schedule.properties import max_bytes
from tdsl.schedule.state import State, is_ordered

SHORT = 2  # vectors of a row, from which a loop over rows costs little


@frozen
class Pair:
    """A variable of a func and the one that follows it, or a dimension of an array and the next."""

    owner: str
    first: str | int


def merge_dimensions(state: State, machine: Machine) -> BaseSchedule | None:
    """A schedule in which dimensions of funcs without directives are merged; None where rows are long.

    >>> import tdsl as td
    >>> from tdsl.machine.devices import reference_cpu
    >>> i, j, x, y = *td.vars("i j"), td.Tensor("x", (1000, 3), td.f32), td.Func("y")
    >>> y[i, j] = x[i, j] + 1
    >>> print(merge_dimensions(td.Schedule(y).state, reference_cpu(32)).state.program)
    y(x: f32[3000]) -> y
    y: f32 on 0 <= i_j < 3000
      y[i_j] = x[i_j] + 1.0
    """
    program = state.program
    if machine.block_threads or not machine.has_vectors or program.sizes or state.grid is not None:
        return None
    short = [f for f in program.funcs if _has_short_rows(state, f, machine)]
    if not short:
        return None
    classes = _Classes()
    for f in program.funcs:
        _relate(state, f, classes)
    merged = {f.name: _runs(f, classes) for f in program.funcs}
    if not any(any(_is_row(f, run) for run in merged[f.name]) for f in short):
        return None
    schedule = BaseSchedule.of_state(state)
    try:
        for f in program.funcs:
            for run in merged[f.name]:
                schedule[f.name].flatten(*run, inputs=True)
    except ScheduleError:
        return None  # the memory of a func has been laid out
    return schedule


class _Classes:
    """Sets of pairs that are merged together or not at all (union-find); those with `None` are not."""

    def __init__(self) -> None:
        self.parents: dict[Pair | None, Pair | None] = {}

    def find(self, pair: Pair | None) -> Pair | None:
        while pair in self.parents:
            pair = self.parents[pair]
        return pair

    def unite(self, a: Pair | None, b: Pair | None) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            if a is None:
                a, b = b, a
            self.parents[a] = b


def _relate(state: State, f: FuncDef, classes: _Classes) -> None:
    """Unite the pairs of a func's variables with those of its dimensions, and of the arrays it reads."""
    d, extents = f.definitions[0], _extents(f)
    pairs = _pairs(f)
    for n, (u, v) in enumerate(pairwise(d.free)):
        classes.unite(Pair(f.name, n), Pair(f.name, u) if pairs.get(u) == v else None)
    outside = {v for e in (*d.values, d.where, d.mask) for v in variables(transform(e, _without_reads))}
    closed = _is_closed(state, f)
    for u, v in pairs.items():
        if closed or {u, v} & outside or not {u, v} <= extents.keys():
            classes.unite(Pair(f.name, u), None)
    for read in d.reads:
        shape, united = () if read.name in state.with_gaps else _shape(state, read.name), set[str]()
        uses = Counter(v for e in read.index for v in variables(e))
        for n, (a, b) in enumerate(pairwise(read.index)):
            match a, b:
                case Var(u), Var(v) if (
                    pairs.get(u) == v
                    and uses[u] == uses[v] == 1
                    and (extents.get(u), extents.get(v)) == shape[n : n + 2]
                ):
                    classes.unite(Pair(read.name, n), Pair(f.name, u))
                    united.add(u)
                case _:
                    classes.unite(Pair(read.name, n), None)
        for u, v in pairs.items():
            if u not in united and uses.keys() & {u, v}:
                classes.unite(Pair(f.name, u), None)


def _without_reads(n: Node) -> Node:
    return ZERO if isinstance(n, Read) else n


def _is_closed(state: State, f: FuncDef) -> bool:
    """True for a func that cannot be flattened, or about which a directive says something."""
    d, plan = f.definitions[0], state.plan(f.name)
    several = len(f.definitions) > 1 or len(f.dtypes) > 1
    given = plan.scheduled or plan.place is not None or bool(f.array) or f.name in state.with_gaps
    return several or given or is_ordered(f, 0) or d.index != tuple(map(Var, d.free))


def _pairs(f: FuncDef) -> dict[str, str]:
    """The variable that follows each variable: in the order of dimensions, for ranges in that of reads."""
    d = f.definitions[0]
    ranges, following = {v for v, _, _ in d.ranges}, dict(pairwise(d.free))
    for read in d.reads:
        for a, b in pairwise(read.index):
            if isinstance(a, Var) and isinstance(b, Var) and {a.name, b.name} <= ranges:
                following.setdefault(a.name, b.name)
    return following


def _runs(f: FuncDef, classes: _Classes) -> list[list[str]]:
    """The variables that are merged, each run in the order of the dimensions."""
    pairs = {u: v for u, v in _pairs(f).items() if classes.find(Pair(f.name, u)) is not None}
    runs = []
    for first in pairs.keys() - pairs.values():
        run = [first]
        while run[-1] in pairs:
            run.append(pairs[run[-1]])
        runs.append(run)
    return sorted(runs)


def _extents(f: FuncDef) -> dict[str, Expr]:
    """The constant extents of variables that begin at 0."""
    d = f.definitions[0]
    ends = zip(d.free, f.natural, strict=True)
    free = ((v, lo, None if hi is None else add(hi, ONE)) for v, (lo, hi) in ends)
    return {v: end for v, lo, end in (*free, *d.ranges) if lo == ZERO and isinstance(end, Const)}


def _shape(state: State, name: str) -> tuple[Expr | None, ...]:
    """The extents of an array; None for those of a func that do not begin at 0."""
    if not state.program.has_func(name):
        return state.program.input(name).shape
    f = state.program.func(name)
    extents = _extents(f)
    return tuple(extents.get(v) for v in f.variables)


def _is_row(f: FuncDef, run: list[str]) -> bool:
    """True if a run of variables ends with the last dimension of what a func reads or writes."""
    d = f.definitions[0]
    last = {index[-1] for index in (d.index, *(r.index for r in d.reads)) if index}
    return Var(run[-1]) in last


def _has_short_rows(state: State, f: FuncDef, machine: Machine) -> bool:
    """True if a func reads or writes an array of several rows, each of a few vectors."""
    d = f.definitions[0]
    most = SHORT * machine.vector_bytes // max_bytes(d)
    shapes = [_shape(state, name) for name in (f.name, *(r.name for r in d.reads))]
    return any(len(shape) > 1 and isinstance(shape[-1], Const) and shape[-1].value < most for shape in shapes)
