"""Inlining: replaces reads of inlined funcs by their definitions; the reads of a definition after that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tdsl.core.node import Node, children, map_children
from tdsl.errors import ScheduleError
from tdsl.lang.affine import as_sum
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Expr, Read, Var
from tdsl.lang.operations import arithmetic_of
from tdsl.lang.program import FuncDef, Program
from tdsl.lang.regions import reads_in
from tdsl.lang.simplify import substitute
from tdsl.schedule.state import Inline, State

MAX_COPIES = 10_000  # values of inlined funcs at different indices in one func


def inline_funcs(state: State) -> State:
    """The state without inlined funcs: each read of one is replaced by its value at that index."""
    inlined = {f.name for f in state.program.funcs if is_inlined(state, f.name)}
    if not inlined:
        return state
    kept = [
        f.map_expressions(_Expansion(state.program, inlined, f))
        for f in state.program.funcs
        if f.name not in inlined
    ]
    plans = tuple((name, plan) for name, plan in state.plans if name not in inlined)
    program = replace(state.program, funcs=tuple(kept))
    return replace(state, program=program, plans=plans)


class _Expansion:
    """Replaces the reads of inlined funcs in the expressions of a func by their values.

    Reads of one value at equal indices share one expression, so the result grows with the number of
    different reads, not with the number of paths to them. An explicit stack replaces recursion.
    """

    def __init__(self, program: Program, inlined: set[str], owner: FuncDef) -> None:
        self.program, self.inlined, self.owner = program, inlined, owner
        self.done: dict[int, Node] = {}  # expanded nodes, by the id of the original node
        self.copies: dict[object, Expr] = {}  # values, by func, component and index
        self.alive: list[Node] = []  # nodes whose ids are in `done`

    def __call__(self, root: Expr) -> Expr:
        done, stack = self.done, [root]
        self.alive.append(root)
        while stack:
            n = stack[-1]
            if id(n) in done:
                stack.pop()
                continue
            missing = [c for c in children(n) if id(c) not in done]
            if missing:
                stack += missing  # type: ignore[arg-type]  # of an expression
                continue
            new = map_children(n, lambda child: done[id(child)])
            if isinstance(new, Read) and new.name in self.inlined:
                value = self.value(new)
                if id(value) not in done:
                    stack.append(value)
                    continue
                done[id(n)] = done[id(value)]
            else:
                done[id(n)] = new
            stack.pop()
        return done[id(root)]  # type: ignore[return-value]  # an Expr stays one

    def value(self, read: Read) -> Expr:
        """The value of an inlined func at an expanded index; reads in that value are not expanded yet."""
        key = read.name, read.component, index_key(read.index)
        value = self.copies.get(key)
        if value is None:
            if len(self.copies) >= MAX_COPIES:
                raise self.too_many(read)
            value = self.copies[key] = value_at(self.program.func(read.name).definitions[0], read)
            self.done |= {id(i): i for i in read.index if id(i) not in self.done}
            self.alive += (read, value)
        return value

    def too_many(self, read: Read) -> ScheduleError:
        return ScheduleError(
            f"{self.owner.name!r} reads funcs that are inlined at more than {MAX_COPIES} different indices",
            loc=self.owner.loc,
            label="defined here",
            related=((self.program.func(read.name).loc, "one of those that are inlined"),),
            hint=f"store one of them: compute_root() of {read.name!r} in the place of inline()",
        )


def index_key(index: tuple[Expr, ...]) -> tuple[object, ...]:
    """A key of an index that is the same for indices that are equal as sums."""
    sums = map(as_sum, index)
    return tuple((s.constant, frozenset(s.terms.items())) for s in sums)


def cost_with_inlined(state: State, d: Definition, limit: int) -> int:
    """The estimated operations and reads per point of a definition, including those of inlined funcs.

    Each different read of an inlined func counts once; counting stops beyond `limit`.
    """
    total, seen, queue = arithmetic_of(d), set(), [*d.reads]
    while queue and total <= limit:
        read = queue.pop()
        key = read.name, index_key(read.index)
        if key in seen or not is_inlined(state, read.name):
            continue
        seen.add(key)
        inner = state.program.func(read.name).definitions[0]
        reads = {*inner.reads}
        total += max(arithmetic_of(inner), 1) + len(reads) - 1
        if total <= limit:
            at = dict(zip(inner.free, read.index, strict=True))
            queue += reads_in(substitute(r, at) for r in reads if is_inlined(state, r.name))
    return total


def is_inlined(state: State, name: str) -> bool:
    """True for a func without memory, whose definition replaces its reads."""
    return state.program.has_func(name) and isinstance(state.plan(name).place, Inline)


def with_inlined_indices(state: State, name: str) -> FuncDef:
    """A func, with values instead of reads of inlined funcs if the indices of its updates have such reads."""
    f = state.program.func(name)
    if any(is_inlined(state, r.name) for d in f.definitions[1:] for r in reads_in(d.index)):
        return inline_funcs(state).program.func(name)
    return f


def inlined_into(state: State, definitions: Iterable[Definition]) -> tuple[Definition, ...]:
    """The definitions of all inlined funcs that some definitions read, directly or indirectly."""
    inlined: dict[str, Definition] = {}
    queue = [*definitions]
    for d in queue:  # grows
        for name in sorted({r.name for r in d.reads} - {*inlined}):
            if is_inlined(state, name):
                inlined[name] = state.program.func(name).definitions[0]
                queue.append(inlined[name])
    return tuple(inlined.values())


def expand_reads(state: State, func: str, source: str) -> State:
    """The state with inlined funcs expanded in `func` if it reads `source` through them."""
    program = state.program
    inside = inlined_into(state, program.func(func).definitions)
    if not any(r.name == source for d in inside for r in d.reads):
        return state
    expanded = inline_funcs(state).program.func(func)
    funcs = tuple(expanded if f.name == func else f for f in program.funcs)
    return replace(state, program=replace(program, funcs=funcs))


def readers_of(state: State, func: str) -> tuple[FuncDef, ...]:
    """The funcs with loops that read a func, directly or through inlined funcs."""
    readers: dict[str, FuncDef] = {}
    for f, _ in state.consumers(func):
        funcs = readers_of(state, f.name) if is_inlined(state, f.name) else (f,)
        readers |= {g.name: g for g in funcs}
    return tuple(readers.values())


def value_at(d: Definition, read: Read) -> Expr:
    """The value of a pure definition at the index of a read."""
    values = {n: e for n, e in zip(d.free, read.index, strict=True) if e != Var(n)}
    return substitute(d.values[read.component], values)
