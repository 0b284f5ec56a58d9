"""Separates an output that is needed beyond its array: computed in a temporary, then copied to the output."""

from __future__ import annotations

from dataclasses import replace

from tdsl.lang.bounds import NO_FACTS, at_most
from tdsl.lang.definition import Definition
from tdsl.lang.expr import TRUE, Read, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box
from tdsl.schedule.bounds_inference import required_boxes
from tdsl.schedule.new_stage import fresh_name
from tdsl.schedule.state import Inline, Root, State, fresh_plan
from tdsl.schedule.tree import ROOT, build_tree


def separate_outputs(state: State) -> State:
    """The state in which each output that a consumer or an update needs beyond the returned array is computed
    in a temporary and copied to a new output."""
    program = state.program
    read = {n for n in program.outputs if any(True for _ in state.consumers(n))}
    suspects = [n for n in program.outputs if n in read or len(program.func(n).definitions) > 1]
    if not suspects:
        return state
    start: dict[str, Box] = {n: _natural_box(program.func(n)) for n in program.outputs}
    rooted = State(
        program,
        tuple(
            (
                n,
                p if isinstance(p.place, Inline) else replace(fresh_plan(program.func(n)), place=Root()),
            )
            for n, p in state.plans
        ),
    )
    boxes = required_boxes(build_tree(rooted), rooted, (ROOT,), start, [], NO_FACTS)
    for name in suspects:
        f = program.func(name)
        if not f.declared and not _is_within(boxes[name], f):
            state = _add_copy(state, f)
    return state


def _natural_box(f: FuncDef) -> Box:
    f.output_box(None)
    return f.natural


def _is_within(box: Box, f: FuncDef) -> bool:
    for (lo, hi), (first, last) in zip(box, f.natural, strict=True):
        if lo is None or hi is None or first is None or last is None:
            return True  # `check_boxes` reports an unbounded index
        if not (at_most(first, lo) and at_most(hi, last)):
            return False
    return True


def _add_copy(state: State, f: FuncDef) -> State:
    program = state.program
    copy_name = fresh_name(program, f"{f.name}_out")
    index = tuple(Var(v) for v in f.variables)
    values = tuple(Read(f.name, index, c, t) for c, t in enumerate(f.dtypes))
    copy = replace(
        f,
        name=copy_name,
        definitions=(Definition(index, f.variables, (), TRUE, values, None, None),),
    )
    at = program.funcs.index(f)
    funcs = (*program.funcs[: at + 1], copy, *program.funcs[at + 1 :])
    outputs = tuple(copy_name if o == f.name else o for o in program.outputs)
    changed = replace(program, funcs=funcs, outputs=outputs)
    return replace(state, program=changed, plans=(*state.plans, (copy_name, fresh_plan(copy))))
