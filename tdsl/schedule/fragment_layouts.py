"""Layout inference of fragments: from the instructions that use them, or from the fragments they read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tdsl.lang.affine import as_sum, variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Expr, Read, Var
from tdsl.lang.regions import reads_in
from tdsl.machine.instructions.instruction import INSTRUCTIONS, Instruction
from tdsl.machine.instructions.layout import Layout
from tdsl.schedule.state import (
    FRAGMENT,
    Illegal,
    Nest,
    State,
    Tensorization,
    roots_of,
)  # fmt: skip


def widest_read(state: State, func: str, below: frozenset[str]) -> Read | None:
    """The read of the largest fragment, by whose layout the points of a stage are distributed to threads."""
    found: list[tuple[int, Read]] = []
    for r in state.program.func(func).definitions[0].reads:
        if r.name != func and r.name not in below and r.name in fragments_of(state):
            layout = layout_of_fragment(state, r.name, below | {func})
            if layout is not None:
                found.append((prod(layout.shape), r))
    return max(found, key=lambda x: x[0])[1] if found else None


def fragments_of(state: State) -> set[str]:
    """The names of the funcs that are stored in fragments."""
    return {name for name, plan in state.plans if plan.scope == FRAGMENT}


def axes_of(index: tuple[Expr, ...]) -> dict[int, str]:
    """The variable along each axis of an index: the only one with coefficient 1."""
    found = {}
    for axis, e in enumerate(index):
        steps = as_sum(e).terms.items()
        moving = [x.name for x, step in steps if isinstance(x, Var) and step == 1]
        if len(moving) == 1:
            (found[axis],) = moving
    return found


def known_layout(state: State, name: str) -> Layout:
    """The layout of a fragment; raises Illegal if no instruction determines it yet."""
    found = layout_of_fragment(state, name)
    if found is None:
        raise Illegal(
            f"no instruction says yet how the fragment {name!r} is laid out",
            "tensorize the stage that computes with it first",
        )
    return found


def layout_of_fragment(
    state: State, name: str, below: frozenset[str] = frozenset()
) -> Layout | None:
    """The layout of a fragment over the axes of its func, by instructions or by fragments that it reads."""
    return _by_instructions(state, name) or derived_layout(state, name, below)


def _by_instructions(state: State, name: str) -> Layout | None:
    for func, plan in state.plans:
        for t in plan.tensorizations:
            for layout in _layouts(state, func, t, name):
                return layout
    return None


def derived_layout(state: State, name: str, below: frozenset[str] = frozenset()) -> Layout | None:
    """The layout of a fragment that no instruction uses: that of the largest fragment that it reads.

    Along axes that it lacks, because they are reduced or absent, all threads store a replica.
    """
    if _by_instructions(state, name) is not None:
        return None
    read = widest_read(state, name, below)
    layout = None if read is None else layout_of_fragment(state, read.name, below | {name})
    if read is None or layout is None:
        return None
    index, names = state.program.func(name).definitions[0].index, axes_of(read.index)
    axes = [
        index.index(Var(names[n])) if n in names and Var(names[n]) in index else None
        for n in range(len(read.index))
    ]
    return layout.along(axes, len(index))


def _layouts(state: State, func: str, t: Tensorization, name: str) -> Iterator[Layout]:
    """The layouts of a fragment that one instruction in the loops of a func requires."""
    chosen = INSTRUCTIONS[t.instruction]
    d = state.program.func(func).definitions[t.definition]
    theirs = chosen.meaning.funcs[0].definitions[-1]
    nest = state.plan(func).nests[t.definition]
    matched = _matched(nest, t, theirs)
    if func == name:
        yield from _over_axes(chosen, chosen.operands()[0], theirs.index, d.index, matched)
    for r in reads_in(d.values):
        if r.name == name:
            for other in reads_in(theirs.values):
                yield from _over_axes(chosen, other.name, other.index, r.index, matched)


def _matched(nest: Nest, t: Tensorization, theirs: Definition) -> dict[str, str]:
    """The variable of a definition for each variable of the instruction's semantics."""
    inner = nest.names()[nest.position(t.loop) :]
    found = {}
    for v, loop in zip((*theirs.free, *(r[0] for r in theirs.ranges)), inner, strict=False):
        roots = roots_of(nest, loop)
        if len(roots) == 1:
            (found[v],) = roots
    return found


def _over_axes(
    chosen: Instruction, operand: str, theirs: tuple[Expr, ...], mine: tuple[Expr, ...],
    matched: dict[str, str],
) -> Iterator[Layout]:  # fmt: skip
    """The layout of an operand over the axes of the tensor read or written, if their variables match."""
    layout = dict(chosen.fragments).get(operand)
    wanted = [matched.get(e.name, "") for e in theirs if isinstance(e, Var)]
    along = [variables(e) & set(matched.values()) for e in mine]
    if layout is None or sorted(wanted) != sorted(v for used in along for v in used):
        return
    axes = [next(n for n, used in enumerate(along) if v in used) for v in wanted]
    shape = [1] * len(mine)
    for axis, extent in zip(axes, layout.shape, strict=True):
        shape[axis] = extent
    digits = tuple(replace(d, axis=axes[d.axis]) for d in layout.digits)
    yield Layout(tuple(shape), layout.threads, digits)
