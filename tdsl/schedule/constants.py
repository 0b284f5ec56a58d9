"""Constant folding of whole nests: funcs of constant inputs alone are moved to a program that runs once.

A nest at the root whose funcs all depend on constant inputs only has the same result in every call:
weights packed in panels, a transposed filter, norms of columns. `split_constants` removes such nests from a
complete state; those of their funcs that the rest reads become inputs of the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tdsl.core.node import Node, frozen, post_order, transform
from tdsl.lang.bounds import upper
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Param, Read, const
from tdsl.lang.program import Axis, FuncDef, Input, Program
from tdsl.lang.regions import Box, reads_in
from tdsl.lang.simplify import subtract
from tdsl.schedule.properties import extent, has_effects, root_boxes, shape_of
from tdsl.schedule.state import AfterProducer, At, State, WithStage


@frozen
class ConstantSplit:
    """`once`, the state that computes constants; `per_call`, which takes these as its last inputs."""

    once: State
    per_call: State


def constant_names(program: Program) -> set[str]:
    """The constant inputs, and the funcs that depend on constant inputs only."""
    names = {t.name for t in program.inputs if t.constant}
    if names:
        names |= _derived_constants(program, names)
    return names


def _derived_constants(program: Program, inputs: set[str]) -> set[str]:
    derived: set[str] = set()
    for f in program.funcs:  # producers first
        known = inputs | derived | {f.name}
        if all(_is_constant(d, known) for d in f.definitions):
            derived.add(f.name)
    return derived


def _is_constant(d: Definition, known: set[str]) -> bool:
    bounds = [e for _, lo, hi in d.ranges for e in (lo, hi) if e is not None]
    nodes = list(post_order(*d.expressions(), *bounds))
    scalars = any(isinstance(n, Param) for n in nodes) or (d.combine and d.combine.scalars())
    read = {n.name for n in nodes if isinstance(n, Read)}
    return not scalars and not has_effects(d) and read <= known


def split_constants(state: State) -> ConstantSplit | None:
    """A complete state with known sizes, split in two; None if no nest depends on constants only.

    >>> import tdsl as td
    >>> from dataclasses import replace
    >>> from tdsl.schedule.properties import unplaced_at_root
    >>> i, a, w, f, g = td.vars("i"), *(td.Tensor(n, (8,), td.f32) for n in "aw"), td.Func("f"), td.Func("g")
    >>> f[i] = td.exp(w[i])
    >>> g[i] = a[i] * f[i]
    >>> state = unplaced_at_root(td.Schedule(g).state)
    >>> inputs = tuple(replace(t, constant=t.name == "w") for t in state.program.inputs)
    >>> split = split_constants(replace(state, program=replace(state.program, inputs=inputs)))
    >>> print(split.per_call.program)
    g(a: f32[8], f: f32[8]) -> g
    g: f32 on 0 <= i < 8
      g[i] = a[i] * f[i]
    """
    program = state.program
    known = constant_names(program)
    if not known:
        return None
    boxes, nests = root_boxes(state), _nests(state)
    once: set[str] = set()
    for members in nests:  # producers first
        read = {r.name for n in members for r in _reads(program.func(n))}
        inside = members | once | {t.name for t in program.inputs}
        if members <= known and read <= inside and not members & {*program.outputs}:
            used = [n for n in members if {c.name for c, _ in state.consumers(n)} - members]
            if used and all(_can_be_passed(state, n, boxes.get(n)) for n in used):
                once |= members
    used_outside = {r.name for f in program.funcs if f.name not in once for r in _reads(f) if r.name in once}
    passed = [f.name for f in program.funcs if f.name in used_outside]
    if not passed:
        return None
    passed_boxes = {n: boxes[n] for n in passed}
    return ConstantSplit(
        _state_of_constants(state, once, passed_boxes), _state_of_calls(state, once, passed_boxes)
    )


def independent_parts(once: State) -> tuple[State, ...]:
    """The nests of the state `once` as independent states, which share no funcs.

    Equal parts of equal constants can then be computed once for several programs.
    """
    program, parts = once.program, list[set[str]]()
    nests = [members | {r.name for n in members for r in _reads(program.func(n))} for members in _nests(once)]
    for nest in nests:
        computed = nest & {f.name for f in program.funcs}
        joined = [part for part in parts if part & computed]
        parts = [part for part in parts if part not in joined] + [computed.union(*joined)]
    states = []
    for part in parts:
        funcs = tuple(f for f in program.funcs if f.name in part)
        inputs, names = _read_by(program, funcs), tuple(n for n in program.outputs if n in part)
        part_program = Program(
            "_".join(names), inputs, (), funcs, names, tuple(t.name for t in inputs), names
        )
        states.append(State(part_program, tuple((n, p) for n, p in once.plans if n in part)))
    return tuple(states)


def _nests(state: State) -> list[set[str]]:
    """The sets of funcs that share a nest at the root, in the order of the program."""

    def leader(name: str) -> str:
        match state.plan(name).place:
            case At(level) | AfterProducer(level) | WithStage(level):
                return leader(level.func)
            case _:
                return name

    nests: dict[str, set[str]] = {}
    for f in state.program.funcs:
        nests.setdefault(leader(f.name), set()).add(f.name)
    return list(nests.values())


def _reads(f: FuncDef) -> list[Read]:
    return [r for d in f.definitions for r in reads_in(d.expressions()) if r.name != f.name]


def _can_be_passed(state: State, name: str, box: Box | None) -> bool:
    """True for a func with one value per point that is stored as a plain array of known, nonzero extents."""
    plan = state.plan(name)
    if box is None or len(state.program.func(name).dtypes) > 1 or plan.store or plan.fold:
        return False
    return all(shape_of(box))


def _storage_order(state: State, name: str) -> tuple[int, ...]:
    """The dimensions of a func in the order of their strides, largest first."""
    return state.plan(name).order or tuple(range(len(state.program.func(name).variables)))


def _state_of_constants(state: State, once: set[str], passed: dict[str, Box]) -> State:
    """The state of the nests that run once; `passed`, the funcs that other nests read, are its outputs."""
    program = state.program
    funcs = tuple(
        replace(f, natural=passed[f.name], array=tuple(map(Axis, _storage_order(state, f.name))))
        if f.name in passed
        else f
        for f in program.funcs
        if f.name in once
    )
    inputs = _read_by(program, funcs)
    names = tuple(passed)
    constant_program = Program(
        f"{program.name}_once", inputs, (), funcs, names, tuple(t.name for t in inputs), names
    )
    plans = [
        (n, replace(p, order=None, align=(), scope="auto") if n in passed else p)
        for n, p in state.plans
        if n in once
    ]
    return _all_scheduled(State(constant_program, tuple(plans)))


def _state_of_calls(state: State, once: set[str], passed: dict[str, Box]) -> State:
    """The state of the other nests, with the funcs in `passed` as constant inputs."""
    program = state.program
    firsts = {n: tuple(upper(lo) or 0 for lo, _ in box if lo is not None) for n, box in passed.items()}

    def reindexed(n: Node) -> Node:
        if not isinstance(n, Read) or n.name not in passed:
            return n
        order, first = _storage_order(state, n.name), firsts[n.name]
        return replace(n, index=tuple(subtract(n.index[k], const(first[k])) for k in order))

    funcs = tuple(
        f.map_expressions(lambda e: transform(e, reindexed)) for f in program.funcs if f.name not in once
    )
    read = {t.name for t in _read_by(program, funcs)}
    kept = tuple(t for t in program.inputs if t.name in read or not t.constant)
    gone = {t.name for t in program.inputs} - {t.name for t in kept}
    new = tuple(
        Input(
            n,
            tuple(const(extent(box, k) or 0) for k in _storage_order(state, n)),
            dtype,
            constant=True,
        )
        for n, box in passed.items()
        for dtype in program.func(n).dtypes
    )
    parameters = (*(p for p in program.parameters if p not in gone), *passed)
    call_program = replace(program, inputs=(*kept, *new), funcs=funcs, parameters=parameters)
    plans = tuple((n, p) for n, p in state.plans if n not in once)
    return _all_scheduled(replace(state, program=call_program, plans=plans))


def _read_by(program: Program, funcs: Iterable[FuncDef]) -> tuple[Input, ...]:
    names = {r.name for f in funcs for r in _reads(f)}
    return tuple(t for t in program.inputs if t.name in names)


def _all_scheduled(state: State) -> State:
    """The state with every plan marked as scheduled, so that no default schedule changes it."""
    return replace(state, plans=tuple((n, replace(p, scheduled=True)) for n, p in state.plans))
