"""Layout inference of fragments: from the instructions that use them, or from the fragments they read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod

from tdsl.lang.affine import as_sum, variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Expr, Read, Var
from tdsl.lang.regions import reads_in
from tdsl.machine.instructions.instruction import INSTRUCTIONS, Instruction
from tdsl.machine.instructions.layout import Layout
from tdsl.schedule.inlining import is_inlined, value_at
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
    candidates: list[tuple[int, Read]] = []
    for r in _stored_reads(state, state.program.func(func).definitions[0].reads):
        if r.name != func and r.name not in below and r.name in fragment_funcs(state):
            layout = layout_of_fragment(state, r.name, below | {func})
            if layout is not None:
                candidates.append((prod(layout.shape), r))
    return max(candidates, key=lambda x: x[0])[1] if candidates else None


def _stored_reads(state: State, reads: Iterable[Read]) -> Iterator[Read]:
    """The reads of an expression whose inlined funcs are replaced by their definitions."""
    for r in reads:
        if is_inlined(state, r.name):
            yield from _stored_reads(
                state, reads_in((value_at(state.program.func(r.name).definitions[0], r),))
            )
        else:
            yield r


def fragment_funcs(state: State) -> set[str]:
    """The names of the funcs that are stored in fragments."""
    return {name for name, plan in state.plans if plan.scope == FRAGMENT}


def variables_by_axis(index: tuple[Expr, ...]) -> dict[int, str]:
    """The variable along each axis of an index: the only one with coefficient 1."""
    by_axis = {}
    for axis, e in enumerate(index):
        steps = as_sum(e).terms.items()
        moving = [x.name for x, step in steps if isinstance(x, Var) and step == 1]
        if len(moving) == 1:
            (by_axis[axis],) = moving
    return by_axis


def known_layout(state: State, name: str) -> Layout:
    """The layout of a fragment; raises Illegal if no instruction determines it yet."""
    layout = layout_of_fragment(state, name)
    if layout is None:
        raise Illegal(
            f"no instruction says yet how the fragment {name!r} is laid out",
            "tensorize the stage that computes with it first",
        )
    return layout


def layout_of_fragment(state: State, name: str, below: frozenset[str] = frozenset()) -> Layout | None:
    """The layout of a fragment over the axes of its func, by instructions or by fragments that it reads."""
    return _layout_by_instructions(state, name) or derived_layout(state, name, below)


def _layout_by_instructions(state: State, name: str) -> Layout | None:
    for func, plan in state.plans:
        for t in plan.tensorizations:
            for layout in _required_layouts(state, func, t, name):
                return layout
    return None


def derived_layout(state: State, name: str, below: frozenset[str] = frozenset()) -> Layout | None:
    """The layout of a fragment that no instruction uses: that of the largest fragment that it reads.

    Along axes that it lacks, because they are reduced or absent, all threads store a replica.
    """
    if _layout_by_instructions(state, name) is not None:
        return None
    read = widest_read(state, name, below)
    layout = None if read is None else layout_of_fragment(state, read.name, below | {name})
    if read is None or layout is None:
        return None
    index, names = state.program.func(name).definitions[0].index, variables_by_axis(read.index)
    axes = [
        index.index(Var(names[n])) if n in names and Var(names[n]) in index else None
        for n in range(len(read.index))
    ]
    return layout.along(axes, len(index))


def _required_layouts(state: State, func: str, t: Tensorization, name: str) -> Iterator[Layout]:
    """The layouts of a fragment that one instruction in the loops of a func requires."""
    instruction = INSTRUCTIONS[t.instruction]
    d = state.program.func(func).definitions[t.definition]
    semantics = instruction.meaning.funcs[0].definitions[-1]
    nest = state.plan(func).nests[t.definition]
    matched = _matched_variables(nest, t, semantics)
    if func == name:
        yield from _layout_over_axes(
            instruction, instruction.operands()[0], semantics.index, d.index, matched
        )
    for r in reads_in(d.values):
        if r.name == name:
            for other in reads_in(semantics.values):
                yield from _layout_over_axes(instruction, other.name, other.index, r.index, matched)


def _matched_variables(nest: Nest, t: Tensorization, semantics: Definition) -> dict[str, str]:
    """The variable of a definition for each variable of the instruction's semantics."""
    inner = nest.names()[nest.position(t.loop) :]
    matched = {}
    for v, loop in zip((*semantics.free, *(r[0] for r in semantics.ranges)), inner, strict=False):
        roots = roots_of(nest, loop)
        if len(roots) == 1:
            (matched[v],) = roots
    return matched


def _layout_over_axes(
    instruction: Instruction, operand: str, semantics: tuple[Expr, ...], index: tuple[Expr, ...],
    matched: dict[str, str],
) -> Iterator[Layout]:  # fmt: skip
    """The layout of an operand over the axes of the tensor read or written, if their variables match."""
    layout = dict(instruction.fragments).get(operand)
    names = [matched.get(v, "") for e in semantics for v in variables(e)]
    along = [variables(e) & set(matched.values()) for e in index]
    if layout is None or sorted(names) != sorted(v for used in along for v in used):
        return
    axes = [next(n for n, used in enumerate(along) if v in used) for v in names]
    shape = [1] * len(index)
    for axis, extent in zip(axes, layout.shape, strict=True):
        shape[axis] = extent
    digits = tuple(replace(d, axis=axes[d.axis]) for d in layout.digits)
    yield Layout(tuple(shape), layout.threads, digits)
