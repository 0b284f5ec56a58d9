"""`PlannedFunction`: a plan, with the flattening of its arguments and the nesting of its outputs."""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tdsl.codegen.runtime.arrays import stand_in, view_of
from tdsl.codegen.runtime.signature import ArrayArg
from tdsl.compile import Compiled, compile
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import DefinitionError
from tdsl.graph.folded_kernel import Kernel, split
from tdsl.graph.functions import NUMPY
from tdsl.graph.groups import each_alone, join_elementwise
from tdsl.graph.plan import Plan, steps_of
from tdsl.graph.structure import (
    Leaf,
    Nested,
    Read,
    Structure,
    paths,
    put_together,
    reader,
    take_apart,
)
from tdsl.graph.symbol import Symbol
from tdsl.graph.trace import Trace
from tdsl.graph.traced_function import TracedFunction
from tdsl.graph.tune import SCHEDULES, Clock, Whole, better_groups, better_kernels, in_turns
from tdsl.graph.values import Argument, Array, Constant, Spec
from tdsl.lang.program import Program
from tdsl.lang.types import f32
from tdsl.target import Target
from tdsl.tilegraph.search import candidates


@frozen
class PlannedFunction:
    """A plan, the function that extracts its arrays from arguments, and the structure of its results.

    `plain` is True if the function returns an array or a flat tuple of arrays, as the plan does.
    """

    plan: Plan
    read: Read
    structure: Structure
    plain: bool

    def results(self, made: Any) -> Any:
        """The outputs of the plan, nested as the function returns them."""
        if self.plain:
            return made
        single = len(self.plan.outputs.specs) == 1
        return put_together(self.structure, iter((made,) if single else made))


def trace(
    graph: TracedFunction, args: Structure, kwargs: Structure, specs: tuple[Spec, ...]
) -> PlannedFunction:
    """Traces the function of a graph on symbols of these specs, and compiles the recorded calls to a plan."""
    made = Trace(graph.name, specs, NUMPY)
    symbols = iter([made.argument(n) for n in range(len(specs))])
    result = graph.run(put_together(args, symbols), put_together(kwargs, symbols))
    outputs: list[Any] = []
    structure = take_apart(result, lambda x: isinstance(x, Symbol | np.ndarray), outputs)
    _check(result, outputs, made)
    outputs = [x if isinstance(x, Symbol) else made.known(x) for x in outputs]
    groups = join_elementwise if graph.fuse else each_alone
    sources = [symbol.source for symbol in outputs]
    names = _paths(graph, args, kwargs)
    plan = Plan(made, sources, groups(made.calls, sources), names, graph.kernel)
    several = Nested(tuple, (), (Leaf(),) * max(len(outputs), 2))
    return PlannedFunction(plan, reader(args, kwargs), structure, structure in (Leaf(), several))


def tuned(
    graph: TracedFunction, known: PlannedFunction, arrays: tuple[Array, ...], seconds: float
) -> PlannedFunction:
    """`known` with groups and schedules that are measured to be faster on these arrays.

    Single kernels are timed with warm caches, which can mislead; so in the end calls of the whole graph are
    timed, and the old plan is kept unless a new plan is faster.
    """
    plan = known.plan
    made = plan.trace

    def given(base: Argument | Constant) -> Array:
        return arrays[base.position] if isinstance(base, Argument) else made.constants[base.number]

    start, clock = time.perf_counter(), Clock(given)
    far = graph.target.machine().last_bytes
    groups, trials = better_groups(
        made.calls, plan.sources, plan.groups, graph.kernel, clock, start + seconds / 2, far
    )
    steps = steps_of(made.calls, plan.sources, groups, graph.kernel)
    others = partial(_promising, target=graph.target)
    kernels, choices = better_kernels(made.calls, groups, steps, others, clock, start + seconds)
    names = [arg.name for arg in plan.signature.inputs]

    def planned(used: Mapping[Program, Kernel], shown: Sequence[object]) -> Plan:
        def kernel_of(program: Program, own: Compiled | None) -> Kernel:
            return used.get(program) or graph.kernel(program, own)

        return Plan(made, plan.sources, groups, names, kernel_of, (*plan.trials, *shown))

    found = [(plan, dict[Program, Kernel]())]
    if groups != plan.groups:
        found.append((planned({}, trials), {}))
    if kernels:
        found.append((planned(kernels, (*trials, *choices)), kernels))
    if len(found) == 1:
        return replace(known, plan=planned({}, trials))
    times = in_turns([partial(p.call, arrays) for p, _ in found])
    best, used = found[times.index(min(times))]
    graph.use(used)
    best.trials = (*best.trials, Whole(times[0], min(times)))
    return replace(known, plan=best)


def _promising(program: Program, target: Target) -> list[tuple[str, Kernel]]:
    """Kernels for the best schedules of the tile-graph search, with labels; none if the target is not cpu."""
    if target.name != "cpu":
        return []
    found = candidates(program, {}, target)[:SCHEDULES]
    chosen = [c for c in found if c.label != "default"]
    return [(c.label, split(compile(c.schedule, target=target))) for c in chosen]


def _check(result: Any, outputs: list[Any], made: Trace) -> None:
    symbols = [x for x in outputs if isinstance(x, Symbol)]
    if not symbols:
        raise DefinitionError(
            f"graph {made.name!r} gives no array that depends on its arguments, but {result!r}",
            loc=here(),
            label="traced in this call",
            hint="return what an operator gives, or a tuple, list or dict of such results",
        )
    for symbol in symbols:
        made.check_own(symbol)


def _paths(graph: TracedFunction, args: Structure, kwargs: Structure) -> list[str]:
    """The name of each array in the arguments as an access path, such as `p[0]`."""
    assert isinstance(args, Nested) and isinstance(kwargs, Nested)
    parameters = [*inspect.signature(graph.function).parameters]
    parameters += [f"argument {n}" for n in range(len(parameters), len(args.parts))]
    named = [*zip(parameters, args.parts, strict=False)]
    named += [(str(key), part) for key, part in zip(kwargs.keys, kwargs.parts, strict=True)]
    return [path for name, part in named for path in paths(part, name)]


def as_array(x: Any) -> Array:
    """A NumPy array over the memory of `x`; for a type an array of its shape in the memory of one element."""
    array = stand_in(x)
    return array if type(array) is np.ndarray else view_of(ArrayArg("an argument", f32, ()), array)
