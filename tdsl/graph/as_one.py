"""All that a graph calls as one program, for a search over the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tdsl.errors import DefinitionError
from tdsl.graph.groups import is_open, needed, sources
from tdsl.graph.merge import Merged, merge
from tdsl.graph.plan import Plan
from tdsl.graph.values import Argument, Array, Constant, Given, Result, Source, View, base_of
from tdsl.lang.program import Program
from tdsl.source import here


def as_one(plan: Plan, arrays: Sequence[Array]) -> tuple[Program, dict[str, Any]]:
    """The program of everything that a graph calls, and what it is given, where `arrays` are the arguments.

    Its parameters are arguments in order, then constants, then numbers; its outputs are those of the graph.
    DefinitionError where there is no such program.
    """
    calls, outputs = plan.trace.calls, plan.sources
    kept = sorted(needed(calls, outputs))
    inner = [s for n in kept for s in sources(calls[n])]
    if any(isinstance(s, View) and isinstance(base_of(s), Result) for s in inner):
        raise _no_program(plan, "a view of what another call makes is read")
    if not all(isinstance(s, Result) for s in outputs):
        raise _no_program(plan, "a view or an argument is a result")
    if not all(is_open(calls[n]) for n in kept):
        raise _no_program(plan, "a call has a schedule of its own")
    wanted = [s for s in outputs if isinstance(s, Result)]
    merged = merge(calls, kept, wanted, plan.trace.name)
    program = merged.program
    given = dict(zip(program.parameters, merged.inputs, strict=True))
    made = _in_order(merged, wanted)
    if made is None:
        raise _no_program(plan, "a result is there twice, or is one of several that a call gives")
    names = tuple(sorted(given, key=lambda name: _place(given[name])))
    values = {name: _value(given[name], plan, arrays) for name in names}
    return replace(program, parameters=names, outputs=made, output_names=made), values


def _in_order(merged: Merged, wanted: Sequence[Result]) -> tuple[str, ...] | None:
    """The funcs of the outputs in the order of the results; None where that is not all that they give."""
    funcs = {f.name: f for f in merged.program.funcs}
    results = iter(merged.outputs)
    of_func = {o: tuple(next(results) for _ in funcs[o].dtypes) for o in merged.program.outputs}
    func_of = {r: o for o, made in of_func.items() for r in made}
    order = tuple(dict.fromkeys(func_of[r] for r in wanted))
    return order if [r for o in order for r in of_func[o]] == list(wanted) else None


def _place(x: Given) -> tuple[int, int]:
    """Arguments before constants before numbers; views where what they are of is."""
    match base_of(x) if isinstance(x, Source) else None:
        case Argument(position):
            return 0, position
        case Constant(number):
            return 1, number
        case _:
            return 2, 0


def _value(x: Given, plan: Plan, arrays: Sequence[Array]) -> Any:
    if not isinstance(x, Source):
        return x
    base = base_of(x)
    assert not isinstance(base, Result)
    whole = (
        arrays[base.position] if isinstance(base, Argument) else plan.trace.constants[base.number]
    )
    return x.of(whole) if isinstance(x, View) else whole


def _no_program(plan: Plan, why: str) -> DefinitionError:
    return DefinitionError(
        f"graph {plan.trace.name!r} is no single program: {why}",
        loc=here(),
        label="this call",
        hint="tune() of the graph schedules its groups apart; an operator can read at other indices instead",
    )
