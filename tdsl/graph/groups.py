"""Which calls of a graph become one kernel.

A group is what the compiler gets as one program, so that its schedules can keep what flows inside of it near.
A call joins the group of the array that it reads element by element, of all of these the one that is made
last, where

- it is element-wise: no reduction, no update, every read at the point that is computed, or at a part of it;
- nothing else reads that array, and neither of the two has a schedule of the user's;
- what else it reads is there before the group runs.

Every other call begins a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tdsl.graph.values import Base, Call, Result, Source, View, base_of
from tdsl.lang.expr import Const, Var
from tdsl.lang.program import Program
from tdsl.lang.regions import reads_in
from tdsl.schedule.facts import has_effects

Groups = tuple[tuple[int, ...], ...]


def needed(calls: Sequence[Call], outputs: Iterable[Source]) -> set[int]:
    """The calls that the outputs depend on, and those that check or print."""
    found = {b.call for b in map(base_of, outputs) if isinstance(b, Result)}
    for n in reversed(range(len(calls))):
        if n in found or _has_effects(calls[n].compiled.state.program):
            found.add(n)
            found |= {b.call for b in map(base_of, sources(calls[n])) if isinstance(b, Result)}
    return found


def sources(call: Call) -> list[Source]:
    """The arrays that a call reads."""
    return [x for x in call.inputs if isinstance(x, Source)]


def each_alone(calls: Sequence[Call], outputs: Sequence[Source]) -> Groups:
    """A group for every call."""
    return tuple((n,) for n in sorted(needed(calls, outputs)))


def join_elementwise(calls: Sequence[Call], outputs: Sequence[Source]) -> Groups:
    """The groups of a graph, in an order in which they can run."""
    kept = sorted(needed(calls, outputs))
    read = [base_of(s) for n in kept for s in set(sources(calls[n]))] + [
        base_of(s) for s in outputs
    ]
    uses = Counter(read)
    groups: list[list[int]] = []
    group_of: dict[int, int] = {}
    for n in kept:
        at = _host(calls, n, group_of, uses)
        if at is None:
            at = len(groups)
            groups.append([])
        groups[at].append(n)
        group_of[n] = at
    return tuple(map(tuple, groups))


def _host(
    calls: Sequence[Call], n: int, group_of: dict[int, int], uses: Counter[Base]
) -> int | None:
    """The group that a call can join."""
    read = [s for s in sources(calls[n]) if isinstance(base_of(s), Result)]
    last = max((group_of[base_of(s).call] for s in read), default=None)  # type: ignore[union-attr]  # Results
    if (
        last is None
        or not is_open(calls[n])
        or not _is_elementwise(calls[n].compiled.state.program)
    ):
        return None
    inside = [s for s in read if group_of[base_of(s).call] == last]  # type: ignore[union-attr]  # as above
    if any(isinstance(s, View) for s in inside):
        return None
    joins = any(
        isinstance(s, Result)
        and uses[s] == 1
        and is_open(calls[s.call])
        and _point_by_point(calls[n], s)
        for s in inside
    )
    return last if joins else None


def is_open(call: Call) -> bool:
    """True where the user has scheduled nothing."""
    return not call.compiled.schedule.directives


def _is_elementwise(program: Program) -> bool:
    definitions = [d for f in program.funcs for d in f.definitions]
    return len(definitions) == len(program.funcs) and all(
        d.init is None
        and not d.ranges
        and all(isinstance(e, Var | Const) for r in reads_in(d.values) for e in r.index)
        for d in definitions
    )


def _point_by_point(call: Call, source: Source) -> bool:
    """True where each point of the outputs reads its own element of an array, and no other."""
    names = {
        arg.name
        for arg, given in zip(call.compiled.signature.inputs, call.inputs, strict=True)
        if given == source
    }
    program = call.compiled.state.program
    found = [
        (f, r) for f in program.funcs for r in reads_in(f.definitions[0].values) if r.name in names
    ]
    return bool(found) and all(
        r.index == tuple(Var(v) for v in f.variables) and f.name in program.outputs
        for f, r in found
    )


def _has_effects(program: Program) -> bool:
    return any(has_effects(d) for f in program.funcs for d in f.definitions)
