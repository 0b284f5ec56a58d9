"""`Graph`: a function of arrays that calls operators, traced, planned and compiled as a whole."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tdsl.core.by_name import reduce_by_name
from tdsl.core.source import here
from tdsl.errors import ShapeError, Suggesting, TargetError, TypeMismatch, checked_call, counted
from tdsl.graph.traced_function import TracedFunction
from tdsl.target import Target, as_target

if TYPE_CHECKING:  # importing tdsl does not import tracing and planning
    from tdsl.codegen.emulation.memory_counts import MemoryCounts
    from tdsl.core.notebook import Listing
    from tdsl.graph.memory import MemoryPlan
    from tdsl.graph.plan import Plan
    from tdsl.graph.planned_function import PlannedFunction
    from tdsl.graph.values import Array, Result
    from tdsl.planner.cluster import Cluster
    from tdsl.records.file import Record
    from tdsl.tilegraph.schedule import Schedule
    from tdsl.viewer.schedule import Schedule as PlannedSchedule
    from tdsl.viewer.view import View

_MAX_PLANS = 16  # plans in the cache; each owns memory for its results
_MAX_RECENT = 4  # plans used last, which a call tries before it looks up its arguments in the cache


class Graph(TracedFunction, Suggesting):
    """A function of arrays that calls operators, as one callable.

    The first call for given shapes and types of arguments traces the function on symbols in place of arrays,
    and compiles the recorded calls to a plan: equal operators are compiled once, element-wise calls are fused
    with the calls whose results they read, and intermediate results reuse memory. Further calls with such
    arguments run the plan. The results are those of the function itself, in newly allocated arrays.

    Arguments are arrays, also nested in tuples, lists and dicts; all other values, such as numbers, are part
    of the plan, as static arguments are in JAX. Arrays that the function captures are constants: they must
    not be changed.

    >>> import numpy as np, tdsl as td
    >>> @td.op
    ... def scale(x: td.f32["N"], factor: td.f32):
    ...     i, y = td.vars("i"), td.Func("y")
    ...     y[i] = x[i] * factor
    ...     return y
    >>> graph = td.Graph(lambda x: scale(x, 2) + scale(x, 3))
    >>> graph(np.arange(3, dtype=np.float32))
    array([ 0.,  5., 10.], dtype=float32)

    `target` is that of `td.compile`. With `fuse=False` every call is compiled to a separate kernel. Several
    threads may call one graph at once. `print` shows the newest plan.

    For the target cuda arrays may be on a GPU or not, as for `td.compile`; captured arrays are copied to it
    once. The first call captures the launches of all kernels as a CUDA graph, which is launched as one by
    later calls: with other arrays, the arguments in it are replaced. With `capture=False` each call launches
    the kernels one by one. `emulate` runs the plan on the CPU.
    """

    def __init__(
        self, function: Callable[..., Any], *, target: Target | str | None = None, fuse: bool = True,
        capture: bool = True,
    ) -> None:  # fmt: skip
        if not callable(function):
            raise TypeMismatch(
                f"a graph is defined by a function, not by {function!r}",
                loc=here(),
                label="this graph",
                hint="pass a function of arrays that calls operators",
            )
        super().__init__(function, as_target(target), fuse, capture)
        with suppress(ValueError):  # a function written in C may have none
            self.__signature__ = inspect.signature(function)
        self._plans: dict[Any, PlannedFunction] = {}
        self._recent: tuple[PlannedFunction, ...] = ()
        self._lock = threading.RLock()  # the function may call this graph

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """The results of the function for arrays; `out=` has output arrays in the order of the results."""
        if out is None:
            for planned in self._recent:
                leaves = planned.extract(args, kwargs)
                if leaves is not None and (result := planned.plan.call(leaves)) is not None:
                    return planned.results(result, leaves)
        return self._slow_call(args, kwargs, out)

    @checked_call
    def _slow_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """The slow path of a call: looks up or makes the plan for the arguments, and handles `out=`."""
        from tdsl.graph.structure import is_array, trace_in

        trace = trace_in((args, kwargs))
        if trace is not None:  # called while another graph is traced
            return self.run(trace, args, kwargs)
        planned, arrays = self._plan_for(args, kwargs, is_array)
        with self._lock:
            other_plans = [k for k in self._recent if k is not planned]
            self._recent = (planned, *other_plans[: _MAX_RECENT - 1])
        if out is None:
            return planned.results(planned.plan.call(arrays), arrays)
        planned.check_unchanged_arguments()
        results = planned.plan.write(arrays, out)
        return results[0] if len(results) == 1 else results

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for the arguments of a call; types such as `td.f32[64, 128]` may replace arrays."""
        from tdsl.graph.structure import is_array_or_type

        return self._plan_for(args, kwargs, is_array_or_type)[0].plan

    def tune(
        self, *args: Any, seconds: float = 10.0, trials: int | None = None,
        records: str | os.PathLike[str] | None = None, workers: int | None = None,
        on_trial: Callable[[Record], None] | None = None, **kwargs: Any,
    ) -> Plan:  # fmt: skip
        """Tunes the plan for the arguments of a call by measurement; returns the plan that later calls use.

        Pairs of groups that share data are fused, and timed on these arrays against the separate kernels;
        then schedules of the groups are tuned as by `Operator.tune`, those first whose share of the time is
        expected to fall fastest. Clearly faster kernels are kept. Takes about `seconds` seconds, or less;
        `trials`, `records`, `workers` and `on_trial` are those of `Operator.tune`. `print` of the plan shows
        the measurements.

        Raises the errors of the call, TargetError for a GPU, and TypeMismatch for an invalid budget or a file
        that cannot be opened.
        """
        from tdsl.graph.planned_function import tune_plan
        from tdsl.graph.structure import is_array
        from tdsl.tuning.tasks import Budget, default_workers
        from tdsl.tuning.tune import check_budget

        check_budget(seconds, trials, workers, zero=True)
        if self.target.name == "cuda":
            raise TargetError(
                "plans for a GPU are not tuned",
                loc=here(),
                label="this call",
                hint="graph.autoschedule(..., measure=10) measures schedules of the whole graph",
            )
        planned, arrays = self._plan_for(args, kwargs, is_array)
        budget = Budget(seconds, trials, workers or default_workers(self.target))
        tuned = tune_plan(self, planned, arrays, budget, records, on_trial)
        with self._lock:
            self._plans = {k: tuned if v is planned else v for k, v in self._plans.items()}
            self._recent = (tuned, *(k for k in self._recent if k is not planned))
        return tuned.plan

    def autoschedule(
        self, *args: Any, target: Target | str | None = None, pin: object = None, measure: int = 0,
        seconds: float = 60.0, **kwargs: Any,
    ) -> Schedule:  # fmt: skip
        """A schedule of the whole graph as one program, for the arguments of a call.

        The result is a schedule as from `Operator.autoschedule`, to be compiled, printed and edited in the
        same way. The program takes the array arguments in order, then the captured arrays and the numbers
        passed to operators, and returns the results of the function. Views are read by index from their base
        arrays, without copies. The baseline of the search is the graph with each call scheduled separately.
        Types such as `td.f32[64, 128]` may replace arrays if `measure` is 0.
        `target` is by default that of the graph; it may be cuda.
        Raises DefinitionError if a call has its own schedule.
        """
        from tdsl.graph.merged_program import merge_graph
        from tdsl.graph.structure import is_array_or_type
        from tdsl.tuning.by_measurement import autoschedule, check_measure

        resolved = self.target if target is None else as_target(target)
        check_measure(measure, seconds, resolved)
        if measure:
            _check_arrays((args, kwargs), "measured", "leave measure= away: the model decides")
        planned, arrays = self._plan_for(args, kwargs, is_array_or_type)
        merged = merge_graph(planned.plan, arrays)
        return autoschedule(
            merged.program, {}, resolved, merged.values, pin=pin, tries=measure, seconds=seconds,
            results=merged.results,
        )  # fmt: skip

    def distribute(
        self, cluster: Cluster, *args: Any, fix: Mapping[Any, str | Sequence[str]] | None = None,
        memory: int | None = None, forbid: str | Iterable[str] = (), **kwargs: Any,
    ) -> PlannedSchedule:  # fmt: skip
        """A schedule of the whole graph as one program on a cluster, for the arguments of a call.

        Types such as `td.f32[64, 128]` may replace arrays. `fix`, `memory` and `forbid` are those of
        `Schedule.plan`, which places all tensors and distributes all funcs; the parameters of the program are
        those of `autoschedule`. The program of `td.compile` takes and returns blocks of ranks.

        >>> import numpy as np, tdsl as td
        >>> @td.op
        ... def double(x: td.f32["N"]):
        ...     i, y = td.vars("i"), td.Func("y")
        ...     y[i] = x[i] * 2
        ...     return y
        >>> s = td.Graph(lambda x: double(x) + 1).distribute(td.Cluster(ranks=2), td.f32[8])
        >>> td.compile(s).simulate(np.arange(8, dtype=np.float32))
        array([ 1.,  3.,  5.,  7.,  9., 11., 13., 15.], dtype=float32)

        Raises DefinitionError if a call has its own schedule, and the errors of `Schedule.plan`.
        """
        from tdsl.graph.merged_program import merge_graph
        from tdsl.graph.structure import is_array_or_type
        from tdsl.viewer.schedule import Schedule

        planned, arrays = self._plan_for(args, kwargs, is_array_or_type)
        schedule = Schedule.of_program(merge_graph(planned.plan, arrays).program, target=self.target)
        schedule.plan(cluster, fix=fix, memory=memory, forbid=forbid)
        return schedule

    def emulate(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """The results of a call, by emulation of the kernels on the CPU; see `td.emulate`.

        Results between kernels are in one block of memory, as planned: Hazard if a kernel reads one that
        another kernel has overwritten. TypeMismatch unless the target is cuda.
        """
        from tdsl.emulation import check_for_gpu
        from tdsl.graph.emulated_plan import emulate_plan
        from tdsl.graph.gpu_plan import GpuPlan
        from tdsl.graph.structure import is_array

        check_for_gpu(self)
        planned, arrays = self._plan_for(args, kwargs, is_array)
        assert isinstance(planned.plan, GpuPlan)
        results = emulate_plan(planned.plan, arrays, out)
        return results if out is not None else planned.results(results, arrays)

    def count_memory(
        self, *args: Any, blocks: int | None = None, iterations: int | None = None, **kwargs: Any
    ) -> MemoryCounts:
        """The memory transactions of a call of all kernels; see `td.count_memory`.

        Types such as `td.f32[64, 128]` may replace arrays. Without arguments the newest plan is counted.
        Results between kernels are zeros. TypeMismatch unless the target is cuda.
        """
        from tdsl.emulation import check_for_gpu
        from tdsl.graph.emulated_plan import count_plan
        from tdsl.graph.gpu_plan import GpuPlan
        from tdsl.graph.structure import is_array_or_type

        check_for_gpu(self)
        if args or kwargs:
            planned, arrays = self._plan_for(args, kwargs, is_array_or_type)
            plan = planned.plan
        else:
            plan, arrays = self._newest_plan(), ()
        assert isinstance(plan, GpuPlan)
        return count_plan(plan, arrays, blocks, iterations)

    def source(self, kind: str = "") -> Listing:
        """The code of the newest plan's kernels, in order; `kind` as in `source` of a compiled program."""
        return self._newest_plan().listing(lambda kernel: str(kernel.source(kind)))

    def explain(self) -> Listing:
        """The schedule of each kernel of the newest plan, with reasons; for a GPU its launches, too."""
        return self._newest_plan().listing(lambda kernel: str(kernel.explain()))

    def loops(self, step: int | None = None) -> Listing:
        """The loops of each kernel of the newest plan, in order; with `step` those of one step.

        ShapeError if no plan exists, or it has no such step.
        """
        plan = self._newest_plan()
        if step is None:
            return plan.listing(lambda kernel: str(kernel.loops()))
        if step not in range(len(plan.steps)):
            raise ShapeError(
                f"graph {self.name!r} has {counted(len(plan.steps), 'step')}, and no step {step!r}",
                loc=here(),
                label="this call",
                hint="print(graph) numbers them from 0",
            )
        return plan.steps[step].kernel.per_call.loops()

    def view(self, *args: Any, **kwargs: Any) -> View:
        """A page of the plan, and of the loops, machine code and price of each kernel, linked by pointing.

        The plan is that for the arguments of a call, arrays or types such as `td.f32[64, 128]`; without
        arguments the newest one. See `Schedule.view`. ShapeError if no plan exists.
        """
        from tdsl.graph.structure import is_array_or_type

        if args or kwargs:
            return self._plan_for(args, kwargs, is_array_or_type)[0].plan.view()
        return self._newest_plan().view()

    def _repr_html_(self) -> str:
        from tdsl.core.notebook import page

        if self._plans:
            return self._newest_plan()._repr_html_()
        return page(repr(self).strip("<>"), [("plan", "none yet: call it, or graph.plan(td.f32[64, 128])")])

    @property
    def memory(self) -> MemoryPlan[Result]:
        """The memory plan of the newest plan: offsets of results, and sizes; ShapeError if no plan exists."""
        return self._newest_plan().memory

    def __tdsl_gradient__(self, wrt: Any, has_seeds: bool, has_value: bool = False) -> Graph:
        """The graph of the derivatives: `td.vjp`, `td.grad` and `td.value_and_grad` of a graph."""
        from tdsl.graph.gradients import gradient_of

        gradient = gradient_of(self.function, self.name, wrt, has_seeds=has_seeds, has_value=has_value)
        return Graph(gradient, target=self.target, fuse=self.fuse, capture=self.capture)

    def _newest_plan(self) -> Plan:
        if not self._plans:
            raise ShapeError(
                f"graph {self.name!r} has no plan: the shapes of its arguments are not known yet",
                loc=here(),
                label="needed here",
                hint="call it first, or plan it: graph.plan(td.f32[64, 128])",
            )
        return list(self._plans.values())[-1].plan

    def __reduce__(self) -> Any:
        """For pickle: the function and the options, without plans."""
        options = self.function, self.target, self.fuse, self.capture
        return reduce_by_name(self, self.function) or (_unpickle, options)

    def _attribute_hint(self, name: str) -> str:
        from tdsl.tilegraph.schedule import Schedule

        hint = "schedules have it: autoschedule of a graph gives one for all of it"
        return hint if hasattr(Schedule, name) else ""

    def __str__(self) -> str:
        return str(self._newest_plan()) if self._plans else repr(self)

    def __repr__(self) -> str:
        return f"<graph {self.name}{inspect.signature(self.function)}>"

    def _plan_for(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], is_leaf: Callable[[Any], bool]
    ) -> tuple[PlannedFunction, tuple[Array, ...]]:
        """The plan for the arguments, traced if it is not in the cache, and the arrays in the arguments."""
        from tdsl.graph.planned_function import trace_graph
        from tdsl.graph.structure import flatten, is_array
        from tdsl.graph.values import Spec, as_array

        leaves: list[Any] = []
        structures = flatten(args, is_leaf, leaves), flatten(kwargs, is_leaf, leaves)
        if self.target.name == "cuda":
            from tdsl.graph.gpu_plan import array_and_spec

            arrays, specs = zip(*map(array_and_spec, leaves), strict=True) if leaves else ((), ())
        else:
            arrays = tuple(as_array(x) for x in leaves)
            specs = tuple(Spec(array.shape, array.dtype) for array in arrays)
        key = structures, specs
        with self._lock:
            if key not in self._plans:
                if is_leaf is is_array:
                    _check_arrays((args, kwargs), "run", "types to plan() and autoschedule()")
                self._plans[key] = trace_graph(self, *key[0], key[1])
                if len(self._plans) > _MAX_PLANS:
                    del self._plans[next(iter(self._plans))]
            return self._plans[key], arrays


def _unpickle(function: Callable[..., Any], target: Target, fuse: bool, capture: bool) -> Graph:
    return Graph(function, target=target, fuse=fuse, capture=capture)


def _check_arrays(arguments: Any, action: str, alternative: str) -> None:
    """Raises TypeMismatch if the arguments contain a type in place of an array."""
    from tdsl.graph.structure import flatten, is_array, is_array_or_type

    leaves: list[Any] = []
    flatten(arguments, is_array_or_type, leaves)
    for x in leaves:
        if not is_array(x):
            raise TypeMismatch(
                f"a graph is {action} on arrays, and {x} has no values",
                loc=here(),
                label="this call",
                hint=f"pass arrays, or {alternative}",
            )
