"""The calls of a graph merged into one program, so that the autoscheduler can search over all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from tdsl.core.node import Node, frozen, transform
from tdsl.errors import DefinitionError
from tdsl.graph.elementwise import record_copy
from tdsl.graph.groups import is_unscheduled, needed_calls, sources
from tdsl.graph.merge import merge
from tdsl.graph.plan import Plan
from tdsl.graph.symbol import Symbol
from tdsl.graph.trace import Trace
from tdsl.graph.values import Argument, Array, Call, Constant, Operand, Result, View, base_of
from tdsl.lang.expr import Const, Expr, Read, const
from tdsl.lang.program import Input, Program
from tdsl.lang.types import from_numpy


@frozen
class MergedGraph:
    """The merged program of a graph, its arguments by name, and the funcs whose results groups exchange."""

    program: Program
    values: dict[str, Any]
    results: frozenset[str]


def merge_graph(plan: Plan, arrays: Sequence[Array]) -> MergedGraph:
    """Merges all calls of a graph into one program; `arrays` are the arguments of the graph.

    The parameters are the arguments in order, then constants with dimensions, then numbers; the outputs are
    those of the graph. DefinitionError if the user has scheduled one of the calls.
    """
    trace, outputs = _with_copies(plan)
    numbers = sorted(needed_calls(trace.calls, outputs))
    for n in numbers:
        if not is_unscheduled(trace.calls[n]):
            raise _scheduled_call_error(plan, trace.calls[n])
    merged = merge(trace.calls, numbers, outputs, trace.name, trace.spec_of)
    program, arguments = _with_numbers(merged.program, merged.inputs, trace)
    funcs = tuple(dict.fromkeys(merged.funcs[r] for r in outputs))
    unread = _unread_arguments(plan, trace, program, arguments)
    names = tuple(sorted(arguments, key=lambda name: _parameter_order(arguments[name])))
    values = {name: _argument_value(arguments[name], trace, arrays) for name in names}
    inputs = (*program.inputs, *unread)
    program = replace(program, inputs=inputs, parameters=names, outputs=funcs, output_names=funcs)
    exchanged = frozenset(merged.funcs[r] for r in _exchanged_results(plan, trace, outputs))
    return MergedGraph(program, values, exchanged - {*funcs})


def _with_numbers(
    program: Program, inputs: Sequence[Operand], trace: Trace
) -> tuple[Program, dict[str, Operand]]:
    """The program with numbers for constants without dimensions, and its other arguments by name."""
    arguments = dict(zip(program.parameters, inputs, strict=True))
    numbers: dict[str, Expr] = {}
    for t in program.inputs:
        source = arguments[t.name]
        if isinstance(source, Constant) and not t.shape:
            numbers[t.name] = Const(np.asarray(trace.constants[source.number]).item(), t.dtype)

    def as_number(n: Node) -> Node:
        return numbers.get(n.name, n) if isinstance(n, Read) else n

    def rewritten(e: Expr) -> Expr:
        return transform(e, as_number)

    funcs = tuple(f.map_expressions(rewritten) for f in program.funcs) if numbers else program.funcs
    left = tuple(t for t in program.inputs if t.name not in numbers)
    names = tuple(n for n in program.parameters if n not in numbers)
    program = replace(program, funcs=funcs, inputs=left, parameters=names)
    return program, {n: arguments[n] for n in names}


def _with_copies(plan: Plan) -> tuple[Trace, list[Result]]:
    """The trace with a copy added for each output that is not the complete result of a func; the outputs."""
    trace, outputs = plan.trace.copy(), list[Result]()
    while len(outputs) < len(plan.sources):
        source = plan.sources[len(outputs)]
        results = _func_results(trace, source) if isinstance(source, Result) else ()
        if results and results == plan.sources[len(outputs) :][: len(results)] and source not in outputs:
            outputs += results
        else:
            spec = source.spec if isinstance(source, View) else trace.spec_of(source)
            copy = record_copy(Symbol(trace, source, spec)).source
            assert isinstance(copy, Result)
            outputs.append(copy)
    return trace, outputs


def _func_results(trace: Trace, result: Result) -> tuple[Result, ...]:
    """The results of all values of a func, if `result` is its first value; empty otherwise."""
    program = trace.calls[result.call].compiled.state.program
    first = 0
    for name in program.outputs:
        count = len(program.func(name).dtypes)
        if first == result.output:
            return tuple(Result(result.call, first + n) for n in range(count))
        first += count
    return ()


def _exchanged_results(plan: Plan, trace: Trace, outputs: Sequence[Result]) -> set[Result]:
    """The results that one group of the plan computes and another group reads."""
    group_of = {n: group for group in plan.groups for n in group}
    numbers = sorted(needed_calls(trace.calls, outputs))
    reads = {(group_of.get(n), base_of(s)) for n in numbers for s in sources(trace.calls[n])}
    return {base for group, base in reads if isinstance(base, Result) and group_of[base.call] != group}


def _unread_arguments(
    plan: Plan, trace: Trace, program: Program, arguments: dict[str, Operand]
) -> list[Input]:
    """Inputs for arguments that nothing reads, since calls pass these, too; adds them to `arguments`."""
    used_names = {*arguments, *program.sizes, *(f.name for f in program.funcs)}
    inputs = list[Input]()
    for position, arg in enumerate(plan.signature.inputs):
        if Argument(position) in arguments.values():
            continue
        stem = name = re.sub(r"\W+", "_", arg.name).strip("_")
        for n in count(1):
            if name not in used_names:
                break
            name = f"{stem}_{n}"
        used_names.add(name)
        spec = trace.arguments[position]
        inputs.append(Input(name, tuple(map(const, spec.shape)), from_numpy(spec.dtype), None))
        arguments[name] = Argument(position)
    return inputs


def _parameter_order(x: Operand) -> tuple[int, int]:
    """The sort key of a parameter: arguments before constants before numbers."""
    match x:
        case Argument(position):
            return 0, position
        case Constant(number):
            return 1, number
        case _:
            return 2, 0


def _argument_value(x: Operand, trace: Trace, arrays: Sequence[Array]) -> Any:
    match x:
        case Argument(position):
            return arrays[position]
        case Constant(number):
            return trace.constants[number]
        case _:
            return x


def _scheduled_call_error(plan: Plan, call: Call) -> DefinitionError:
    return DefinitionError(
        f"graph {plan.trace.name!r} is no single program: {call.name} has a schedule of its own",
        loc=call.loc,
        label="this call",
        hint="tune() of the graph schedules its groups separately; or call the operator as it is",
    )
