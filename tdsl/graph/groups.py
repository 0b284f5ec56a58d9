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


def needed_calls(calls: Sequence[Call], outputs: Iterable[Source]) -> set[int]:
    """The numbers of the calls that the outputs depend on, and of calls with effects, such as `require`."""
    numbers = {b.call for b in map(base_of, outputs) if isinstance(b, Result)}
    for n in reversed(range(len(calls))):
        if n in numbers or _has_effects(calls[n].compiled.state.program):
            numbers.add(n)
            numbers |= {b.call for b in map(base_of, sources(calls[n])) if isinstance(b, Result)}
    return numbers


def sources(call: Call) -> list[Source]:
    """The arrays that a call reads, in the order of its inputs."""
    return [x for x in call.inputs if isinstance(x, Source)]


def separate_groups(calls: Sequence[Call], outputs: Sequence[Source]) -> Groups:
    """The groups of a graph without fusion: one for each call that is needed."""
    return tuple((n,) for n in sorted(needed_calls(calls, outputs)))


def fuse_elementwise(calls: Sequence[Call], outputs: Sequence[Source]) -> Groups:
    """The groups of a graph with element-wise calls fused into their producers, in an executable order."""
    numbers = sorted(needed_calls(calls, outputs))
    bases = [base_of(s) for n in numbers for s in set(sources(calls[n]))] + [base_of(s) for s in outputs]
    uses = Counter(bases)
    groups: list[list[int]] = []
    group_of: dict[int, int] = {}
    for n in numbers:
        group = _group_to_join(calls, n, group_of, uses)
        if group is None:
            group = len(groups)
            groups.append([])
        groups[group].append(n)
        group_of[n] = group
    return tuple(map(tuple, groups))


def _group_to_join(
    calls: Sequence[Call], n: int, group_of: dict[int, int], uses: Counter[Base]
) -> int | None:
    """The number of the group that call `n` can join; None if it starts a new group."""
    results_read = [s for s in sources(calls[n]) if isinstance(base_of(s), Result)]
    last_group = max((group_of[base_of(s).call] for s in results_read), default=None)  # type: ignore[union-attr]  # Results
    if (
        last_group is None
        or not is_unscheduled(calls[n])
        or not _is_elementwise(calls[n].compiled.state.program)
    ):
        return None
    read_from_group = [s for s in results_read if group_of[base_of(s).call] == last_group]  # type: ignore[union-attr]  # as above
    if any(isinstance(s, View) for s in read_from_group):
        return None
    joins = any(
        isinstance(s, Result)
        and uses[s] == 1
        and is_unscheduled(calls[s.call])
        and _reads_elementwise(calls[n], s)
        for s in read_from_group
    )
    return last_group if joins else None


def is_unscheduled(call: Call) -> bool:
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


def _reads_elementwise(call: Call, source: Source) -> bool:
    """True if each point of the outputs reads the element of `source` at the same index, and no other."""
    names = {
        arg.name
        for arg, argument in zip(call.compiled.signature.inputs, call.inputs, strict=True)
        if argument == source
    }
    program = call.compiled.state.program
    reads = [(f, r) for f in program.funcs for r in reads_in(f.definitions[0].values) if r.name in names]
    return bool(reads) and all(
        r.index == tuple(Var(v) for v in f.variables) and f.name in program.outputs for f, r in reads
    )


def _has_effects(program: Program) -> bool:
    return any(has_effects(d) for f in program.funcs for d in f.definitions)
