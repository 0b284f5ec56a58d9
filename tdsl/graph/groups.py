"""Operator fusion by rule: which calls of a graph are compiled into one kernel.

A group is compiled as one program, so that a schedule can keep intermediate results in cache or registers.
A call joins a group that computes an array which the call reads element by element, the last such group, if

- the call is element-wise: no reduction, no update, each read indexed by plain variables and constants;
- nothing else reads that array, and the user has scheduled neither the call nor the call that computes it;
- everything else that the call reads is computed before the group runs.

Every other call starts a new group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tdsl.graph.values import Base, Call, Result, Source, View, base_of
from tdsl.lang.expr import Const, Var
from tdsl.lang.program import Program
from tdsl.lang.regions import reads_in
from tdsl.schedule.properties import has_effects

Groups = tuple[tuple[int, ...], ...]


def needed(calls: Sequence[Call], outputs: Iterable[Source]) -> set[int]:
    """The numbers of the calls that the outputs depend on, and of calls with effects, such as `require`."""
    found = {b.call for b in map(base_of, outputs) if isinstance(b, Result)}
    for n in reversed(range(len(calls))):
        if n in found or _has_effects(calls[n].compiled.state.program):
            found.add(n)
            found |= {b.call for b in map(base_of, sources(calls[n])) if isinstance(b, Result)}
    return found


def sources(call: Call) -> list[Source]:
    """The arrays that a call reads, in the order of its inputs."""
    return [x for x in call.inputs if isinstance(x, Source)]


def each_alone(calls: Sequence[Call], outputs: Sequence[Source]) -> Groups:
    """The groups of a graph without fusion: one for each call that is needed."""
    return tuple((n,) for n in sorted(needed(calls, outputs)))


def join_elementwise(calls: Sequence[Call], outputs: Sequence[Source]) -> Groups:
    """The groups of a graph with element-wise calls fused into their producers, in an executable order."""
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
    """The number of the group that call `n` can join; None if it starts a new group."""
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
    """True if the user has given no directives for the operator of the call."""
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
    """True if each point of the outputs reads the element of `source` at the same index, and no other."""
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
