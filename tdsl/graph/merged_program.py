"""The calls of a graph merged into one program, so that the autoscheduler can search over all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from tdsl.core.node import frozen
from tdsl.errors import DefinitionError
from tdsl.graph.elementwise import copied
from tdsl.graph.groups import is_open, needed, sources
from tdsl.graph.merge import merge
from tdsl.graph.plan import Plan
from tdsl.graph.symbol import Symbol
from tdsl.graph.trace import Trace
from tdsl.graph.values import Argument, Array, Call, Constant, Given, Result, View, base_of
from tdsl.lang.expr import const
from tdsl.lang.program import Input, Program
from tdsl.lang.types import from_numpy


@frozen
class Whole:
    """The merged program of a graph, its arguments by name, and the funcs whose results groups exchange."""

    program: Program
    values: dict[str, Any]
    results: frozenset[str]


def as_one(plan: Plan, arrays: Sequence[Array]) -> Whole:
    """Merges all calls of a graph into one program; `arrays` are the arguments of the graph.

    The parameters are the arguments in order, then constants, then numbers; the outputs are those of the
    graph. DefinitionError if the user has scheduled one of the calls.
    """
    trace, outputs = _with_copies(plan)
    kept = sorted(needed(trace.calls, outputs))
    for n in kept:
        if not is_open(trace.calls[n]):
            raise _scheduled(plan, trace.calls[n])
    merged = merge(trace.calls, kept, outputs, trace.name, trace.spec_of)
    program = merged.program
    given = dict(zip(program.parameters, merged.inputs, strict=True))
    made = tuple(dict.fromkeys(merged.funcs[r] for r in outputs))
    unread = _unread(plan, trace, program, given)
    names = tuple(sorted(given, key=lambda name: _place(given[name])))
    values = {name: _value(given[name], trace, arrays) for name in names}
    inputs = (*program.inputs, *unread)
    program = replace(program, inputs=inputs, parameters=names, outputs=made, output_names=made)
    apart = frozenset(merged.funcs[r] for r in _apart(plan, trace, outputs))
    return Whole(program, values, apart - {*made})


def _with_copies(plan: Plan) -> tuple[Trace, list[Result]]:
    """The trace with a copy added for each output that is not the complete result of a func; the outputs."""
    trace, outputs = plan.trace.copy(), list[Result]()
    while len(outputs) < len(plan.sources):
        source = plan.sources[len(outputs)]
        same = _of_its_func(trace, source) if isinstance(source, Result) else ()
        if same and same == plan.sources[len(outputs) :][: len(same)] and source not in outputs:
            outputs += same
        else:
            spec = source.spec if isinstance(source, View) else trace.spec_of(source)
            made = copied(Symbol(trace, source, spec)).source
            assert isinstance(made, Result)
            outputs.append(made)
    return trace, outputs


def _of_its_func(trace: Trace, result: Result) -> tuple[Result, ...]:
    """The results of all values of a func, if `result` is its first value; empty otherwise."""
    program = trace.calls[result.call].compiled.state.program
    first = 0
    for name in program.outputs:
        count = len(program.func(name).dtypes)
        if first == result.output:
            return tuple(Result(result.call, first + n) for n in range(count))
        first += count
    return ()


def _apart(plan: Plan, trace: Trace, outputs: Sequence[Result]) -> set[Result]:
    """The results that one group of the plan computes and another group reads."""
    group_of = {n: group for group in plan.groups for n in group}
    kept = sorted(needed(trace.calls, outputs))
    read = {(group_of.get(n), base_of(s)) for n in kept for s in sources(trace.calls[n])}
    return {
        base for group, base in read if isinstance(base, Result) and group_of[base.call] != group
    }


def _unread(plan: Plan, trace: Trace, program: Program, given: dict[str, Given]) -> list[Input]:
    """Program inputs for arguments that nothing reads, since calls pass these, too; adds them to `given`."""
    used = {*given, *program.sizes, *(f.name for f in program.funcs)}
    made = list[Input]()
    for position, arg in enumerate(plan.signature.inputs):
        if Argument(position) in given.values():
            continue
        wanted = name = re.sub(r"\W+", "_", arg.name).strip("_")
        for n in count(1):
            if name not in used:
                break
            name = f"{wanted}_{n}"
        used.add(name)
        spec = trace.arguments[position]
        made.append(Input(name, tuple(map(const, spec.shape)), from_numpy(spec.dtype), None))
        given[name] = Argument(position)
    return made


def _place(x: Given) -> tuple[int, int]:
    """The sort key of a parameter: arguments before constants before numbers."""
    match x:
        case Argument(position):
            return 0, position
        case Constant(number):
            return 1, number
        case _:
            return 2, 0


def _value(x: Given, trace: Trace, arrays: Sequence[Array]) -> Any:
    match x:
        case Argument(position):
            return arrays[position]
        case Constant(number):
            return trace.constants[number]
        case _:
            return x


def _scheduled(plan: Plan, call: Call) -> DefinitionError:
    return DefinitionError(
        f"graph {plan.trace.name!r} is no single program: {call.name} has a schedule of its own",
        loc=call.loc,
        label="this call",
        hint="tune() of the graph schedules its groups apart; or call the operator as it is",
    )
