"""`PlannedFunction`: a plan, with the flattening of its arguments and the nesting of its outputs."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np

from tdsl.compile import Compiled
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import DefinitionError, TargetError, TypeMismatch
from tdsl.folded_kernel import FoldedKernel
from tdsl.graph.functions import NUMPY
from tdsl.graph.groups import fuse_elementwise, separate_groups
from tdsl.graph.plan import Plan, build_steps
from tdsl.graph.selection import Selection, unknown_size_error
from tdsl.graph.structure import (
    Extractor,
    Leaf,
    Nested,
    Structure,
    flatten,
    is_array,
    make_extractor,
    paths,
    unflatten,
)
from tdsl.graph.symbol import Symbol
from tdsl.graph.trace import Trace
from tdsl.graph.traced_function import TracedFunction
from tdsl.graph.tune import (
    KernelTimer,
    WholeGraphTime,
    tune_groups,
    tune_schedules,
)
from tdsl.graph.values import Argument, Array, Constant, Spec, as_array
from tdsl.lang.program import Program
from tdsl.records.file import Record
from tdsl.tuning.tasks import Budget
from tdsl.tuning.times_in_turns import fastest_in_turns


@frozen
class PlannedFunction:
    """A plan, the function that extracts its arrays from arguments, and the structure of its results.

    `is_flat` is True if the function returns an array or a flat tuple of arrays, as the plan does. The last
    outputs of the plan are the new values of the arguments that the function writes to, by their positions
    `written`; `returned` has the position of a written argument for the number of each result that is one.
    """

    plan: Plan
    extract: Extractor
    structure: Structure
    is_flat: bool
    written: tuple[int, ...] = ()
    returned: Mapping[int, int] = field(default_factory=dict)

    def results(self, outputs: Any, arguments: Sequence[Any]) -> Any:
        """The outputs of the plan, nested as the function returns them, for these array arguments.

        Writes to the arguments that the function writes to; TypeMismatch if one is read-only, or shares
        memory with another.
        """
        if self.is_flat:
            return outputs
        single = len(self.plan.outputs.specs) == 1
        leaves = [outputs] if single else [*outputs]
        if self.written:
            arrays = self._written_arrays(arguments)
            for array, values in zip(arrays, leaves[-len(arrays) :], strict=True):
                array[...] = values
            for number, position in self.returned.items():
                leaves[number] = arguments[position]
        return unflatten(self.structure, iter(leaves))

    def _written_arrays(self, arguments: Sequence[Any]) -> list[Array]:
        """The arguments to write to, as arrays of NumPy."""
        arrays = [as_array(x) for x in arguments]
        for n in self.written:
            name = self.plan.signature.inputs[n].name
            others = (m for m in range(len(arrays)) if m != n and np.may_share_memory(arrays[n], arrays[m]))
            if not arrays[n].flags.writeable or isinstance(arguments[n], np.generic):
                raise TypeMismatch(
                    f"graph {self.plan.signature.name!r} writes to {name}, which is read-only",
                    loc=here(),
                    label="this call",
                    hint="pass a copy of the array",
                )
            for m in others:
                raise TypeMismatch(
                    f"graph {self.plan.signature.name!r} writes to {name}, which shares memory with "
                    f"{self.plan.signature.inputs[m].name}",
                    loc=here(),
                    label="this call",
                    hint="pass a copy of one of them",
                )
        return [arrays[n] for n in self.written]

    def check_unchanged_arguments(self) -> None:
        """Raises TypeMismatch if the function writes to arguments, whose calls take no `out=`."""
        if self.written:
            name = self.plan.signature.inputs[self.written[0]].name
            raise TypeMismatch(
                f"graph {self.plan.signature.name!r} writes to {name}: its calls take no out=",
                loc=here(),
                label="this call",
                hint="leave out= away, or return new arrays from the function",
            )


def trace_graph(
    graph: TracedFunction, args: Structure, kwargs: Structure, specs: tuple[Spec, ...]
) -> PlannedFunction:
    """Traces the function of a graph on symbols of these specs, and compiles the recorded calls to a plan."""
    trace = Trace(graph.name, specs, NUMPY)
    symbols = [trace.argument(n) for n in range(len(specs))]
    given = iter(symbols)
    result = graph.run(trace, unflatten(args, given), unflatten(kwargs, given))
    written = tuple(n for n, x in enumerate(symbols) if x.source != Argument(n))
    outputs: list[Any] = []
    structure = flatten(result, lambda x: isinstance(x, Symbol | np.ndarray | Selection), outputs)
    _check_outputs(result, outputs, trace, bool(written))
    returned = {n: m for n, x in enumerate(outputs) for m in written if x is symbols[m]}
    outputs = [x if isinstance(x, Symbol) else trace.constant_symbol(x) for x in outputs]
    outputs += [symbols[n] for n in written]
    groups = fuse_elementwise if graph.fuse else separate_groups
    sources = [symbol.source for symbol in outputs]
    names = _argument_paths(graph, args, kwargs)
    plan: Plan
    if graph.target.name == "cuda":
        from tdsl.graph.gpu_plan import GpuPlan, with_copies

        if written:
            raise TargetError(
                f"graph {graph.name!r} for a GPU writes to its argument {names[written[0]]}",
                loc=here(),
                label="this call",
                hint="write to a copy, and return it: a = a.copy()",
            )
        sources = with_copies(trace, sources)
        chosen = groups(trace.calls, sources)
        plan = GpuPlan(trace, sources, chosen, names, graph.kernel, graph.target, graph.capture)
    else:
        plan = Plan(trace, sources, groups(trace.calls, sources), names, graph.kernel)
    several = Nested(tuple, (), (Leaf(),) * max(len(outputs), 2))
    is_flat = not written and structure in (Leaf(), several)
    extract = make_extractor(args, kwargs, is_array if graph.target.name == "cuda" else None)
    return PlannedFunction(plan, extract, structure, is_flat, written, returned)


def tune_plan(
    graph: TracedFunction, planned: PlannedFunction, arrays: tuple[Array, ...], budget: Budget, path: Any,
    on_trial: Callable[[Record], None] | None,
) -> PlannedFunction:  # fmt: skip
    """`planned` with groups and schedules that are measured to be faster on these arrays.

    Single kernels are timed with warm caches, which can mislead; so in the end calls of the whole graph are
    timed, and the old plan is kept unless a new plan is faster.
    """
    plan = planned.plan
    trace = plan.trace

    def array_of(base: Argument | Constant) -> Array:
        return arrays[base.position] if isinstance(base, Argument) else trace.constants[base.number]

    start, timer = time.perf_counter(), KernelTimer(array_of)
    cache_bytes = graph.target.machine().llc_bytes
    groups, trials = tune_groups(
        trace.calls,
        plan.sources,
        plan.groups,
        graph.kernel,
        timer,
        start + budget.seconds / 2,
        cache_bytes,
    )
    steps = build_steps(trace.calls, plan.sources, groups, graph.kernel)
    rest = replace(budget, seconds=start + budget.seconds - time.perf_counter())
    kernels, choices = tune_schedules(
        trace.calls, groups, steps, timer, rest, graph.name, graph.target, path, on_trial
    )
    names = [arg.name for arg in plan.signature.inputs]

    def make_plan(kernels_used: Mapping[Program, FoldedKernel], shown: Sequence[object]) -> Plan:
        def kernel_of(program: Program, compiled: Compiled | None) -> FoldedKernel:
            return kernels_used.get(program) or graph.kernel(program, compiled)

        return Plan(trace, plan.sources, groups, names, kernel_of, (*plan.trials, *shown))

    plans = [(plan, dict[Program, FoldedKernel]())]
    if groups != plan.groups:
        plans.append((make_plan({}, trials), {}))
    if kernels:
        plans.append((make_plan(kernels, (*trials, *choices)), kernels))
    if len(plans) == 1:
        return replace(planned, plan=make_plan({}, trials))
    times = fastest_in_turns([partial(p.call, arrays) for p, _ in plans])
    best, kernels_used = plans[times.index(min(times))]
    graph.use(kernels_used)
    best.trials = (*best.trials, WholeGraphTime(times[0], min(times)))
    return replace(planned, plan=best)


def _check_outputs(result: Any, outputs: list[Any], trace: Trace, has_written: bool) -> None:
    symbols = [x for x in outputs if isinstance(x, Symbol)]
    for x in outputs:
        if isinstance(x, Selection):
            raise unknown_size_error(x.mask.dtype)
    if not symbols and not has_written:
        raise DefinitionError(
            f"graph {trace.name!r} gives no array that depends on its arguments, but {result!r}",
            loc=here(),
            label="traced in this call",
            hint="return what an operator gives, or a tuple, list or dict of such results",
        )
    for symbol in symbols:
        trace.check_trace(symbol)


def _argument_paths(graph: TracedFunction, args: Structure, kwargs: Structure) -> list[str]:
    """The name of each array in the arguments as an access path, such as `p[0]`."""
    assert isinstance(args, Nested) and isinstance(kwargs, Nested)
    parameters = [*inspect.signature(graph.function).parameters]
    parameters += [f"argument {n}" for n in range(len(parameters), len(args.parts))]
    named = [*zip(parameters, args.parts, strict=False)]
    named += [(str(key), part) for key, part in zip(kwargs.keys, kwargs.parts, strict=True)]
    return [path for name, part in named for path in paths(part, name)]
