"""Empirical tuning of a graph: fuses groups, and selects their schedules, by measured times.

1. Candidates for fusion are pairs of groups of which one reads a result of the other, or that read the same
   array, if that array exceeds the last-level cache; unless a third group must run between the two, or the
   user has scheduled one of them.
2. Pairs are tried in descending order of the bytes that one passes to the other or that both read. The fused
   group is compiled as one program, and timed against the two separate kernels on the arrays of the call.
3. A fused group that is clearly faster is kept, and is a candidate for further pairs, until all pairs are
   tried or half of the time budget is used.
4. Schedules of the groups are tuned in the rest of the time, as by `Operator.tune`: recorded, in separate
   processes, and for the group whose share of the time of a call is expected to fall fastest.
5. Calls of the whole graph are timed: before tuning, with the fused groups, and with the new schedules as
   well. The fastest plan is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tdsl.codegen.runtime.call import fast_entries
from tdsl.codegen.runtime.result_memory import new_output
from tdsl.compile import compile
from tdsl.core.node import frozen
from tdsl.errors import TdslError
from tdsl.folded_kernel import FoldedKernel, fold_constants
from tdsl.graph.groups import Groups, is_unscheduled, sources
from tdsl.graph.plan import KernelCompiler, build_steps
from tdsl.graph.steps import Step
from tdsl.graph.values import (
    Argument,
    Array,
    Call,
    Constant,
    Operand,
    Result,
    Source,
    View,
    base_of,
)
from tdsl.lang.program import Program
from tdsl.records.file import Record
from tdsl.records.lookup import replayed
from tdsl.target import Target
from tdsl.tuning.tasks import Budget, WeightedTask, tune_tasks
from tdsl.tuning.times_in_turns import fastest_in_turns
from tdsl.tuning.tuner import Tuner

MAX_TIME_RATIO = 0.95  # a kernel replaces another if it takes less than this part of its time


@frozen
class FusionTrial:
    """A measured fusion: two groups (the names of their calls), and seconds of separate and fused kernels."""

    first: str
    second: str
    separate_s: float
    fused_s: float

    @property
    def kept(self) -> bool:
        """True if the groups were fused."""
        return self.fused_s < MAX_TIME_RATIO * self.separate_s

    def __str__(self) -> str:
        change = f"{1e6 * self.separate_s:.1f} us separate, {1e6 * self.fused_s:.1f} us fused"
        return f"{'fused' if self.kept else 'separate'}: {self.first} | {self.second}, {change}"


@frozen
class ScheduleChoice:
    """A schedule chosen for a group (the names of its calls), the seconds without and with it, and trials."""

    calls: str
    label: str
    default_s: float
    best_s: float
    trials: int

    def __str__(self) -> str:
        change = f"{1e6 * self.default_s:.1f} us by default, {1e6 * self.best_s:.1f} us, {self.trials} trials"
        return f"scheduled: {self.calls}, {self.label}, {change}"


@frozen
class WholeGraphTime:
    """The seconds of a call of the whole graph before tuning, and with the fastest plan."""

    before_s: float
    after_s: float

    @property
    def kept(self) -> bool:
        """True if a tuned plan was faster and replaced the old plan."""
        return self.after_s < self.before_s

    def __str__(self) -> str:
        change = f"{1e6 * self.before_s:.1f} us a call before, {1e6 * self.after_s:.1f} us"
        return f"whole: {change}" if self.kept else f"whole: {change}: the plan before tuning is kept"


def tune_schedules(
    calls: Sequence[Call], groups: Groups, steps: Sequence[Step], timer: KernelTimer, budget: Budget,
    name: str, target: Target, path: Any, on_trial: Callable[[Record], None] | None,
) -> tuple[dict[Program, FoldedKernel], tuple[ScheduleChoice, ...]]:  # fmt: skip
    """Kernels that are clearly faster than those of the steps, by program, and the choices.

    The programs of the steps are the tasks of one tuning, each weighed by the number of its steps; see
    `tdsl.tuning.tasks`. `path` is a file of records, or None.
    """
    tasks: dict[Program, WeightedTask] = {}
    names: dict[Program, str] = {}
    for group, step in zip(groups, steps, strict=True):
        if step.program in tasks:
            tasks[step.program].weight += 1
        elif target.name == "cpu" and all(is_unscheduled(calls[n]) for n in group):
            program, sizes = _symbolic(calls, group, step)
            values = dict(zip(program.parameters, timer.inputs(step), strict=True))
            tuner = Tuner(program, sizes, target, path, values, folds=bool(step.kernel.once))
            tasks[step.program], names[step.program] = WeightedTask(tuner), _names(calls, group)
    if tasks:
        tune_tasks(name, [*tasks.values()], budget, on_trial)
    faster: dict[Program, FoldedKernel] = {}
    choices: list[ScheduleChoice] = []
    for program, task in tasks.items():
        best, tuner = task.tuner.best(), task.tuner
        if best is not None:
            schedule = replayed(tuner.program, tuner.sizes, target, best.directives)
            compiled = compile(schedule, target=target)
            whole = FoldedKernel(program.parameters, compiled)
            faster[program] = fold_constants(compiled) if tuner.folds else whole
            trials = tuner.known + len(tuner.mine)
            times = best.default_seconds, best.seconds
            choices.append(ScheduleChoice(names[program], best.label, *times, trials))
    return faster, tuple(choices)


def _symbolic(calls: Sequence[Call], group: Sequence[int], step: Step) -> tuple[Program, dict[str, int]]:
    """The program of a step and its sizes: that of the operator, as its other calls have it, if it is one."""
    compiled = calls[group[0]].compiled
    if len(group) > 1 or step.kernel.per_call is not compiled:
        return step.program, {}
    return compiled.schedule.program, {**compiled.sizes, **calls[group[0]].sizes}


def _names(calls: Sequence[Call], group: Sequence[int]) -> str:
    return " + ".join(calls[n].name for n in group)


def tune_groups(
    calls: Sequence[Call],
    outputs: Sequence[Source],
    groups: Groups,
    compile_kernel: KernelCompiler,
    timer: KernelTimer,
    deadline: float,
    cache_bytes: int,
) -> tuple[Groups, tuple[FusionTrial, ...]]:
    """Fuses pairs of groups while a fused kernel is clearly faster; returns the groups and the measurements.

    Stops at `deadline`, a time of `time.perf_counter`. An array that two groups read counts as shared data
    only if it has more than `cache_bytes`, the size of the last-level cache.
    """
    for step in build_steps(calls, outputs, groups, compile_kernel):
        timer.run(step)
    trials: list[FusionTrial] = []
    tried: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    while time.perf_counter() < deadline:
        pair = next((p for p in _pairs(calls, groups, timer, cache_bytes) if p not in tried), None)
        if pair is None:
            break
        tried.add(pair)
        trial = _try_fusion(calls, outputs, groups, pair, compile_kernel, timer)
        if trial is not None:
            trials.append(trial[1])
            groups = trial[0] if trial[1].kept else groups
    return groups, tuple(trials)


Pair = tuple[tuple[int, ...], tuple[int, ...]]


def _pairs(calls: Sequence[Call], groups: Groups, timer: KernelTimer, cache_bytes: int) -> Iterator[Pair]:
    """The pairs of groups that may be fused, in descending order of the bytes that they share."""
    pairs: list[tuple[int, int, Pair]] = []
    for n, second in enumerate(groups):
        for first in groups[:n]:
            sources_read, sources_first = (
                {s for c in group for s in sources(calls[c])} for group in (second, first)
            )
            passed = {s for s in sources_read if _is_computed_by(s, first)}
            shared = {s for s in sources_read & sources_first - passed if timer.array(s).nbytes > cache_bytes}
            if passed | shared and all(is_unscheduled(calls[c]) for c in (*first, *second)):
                flow = sum(timer.array(s).nbytes for s in passed | shared)
                pairs.append((-flow, n, (first, second)))
    return (pair for _, _, pair in sorted(pairs, key=lambda x: x[:2]))


def _is_computed_by(source: Source, group: tuple[int, ...]) -> bool:
    base = base_of(source)
    return isinstance(base, Result) and base.call in group


def _try_fusion(
    calls: Sequence[Call],
    outputs: Sequence[Source],
    groups: Groups,
    pair: Pair,
    compile_kernel: KernelCompiler,
    timer: KernelTimer,
) -> tuple[Groups, FusionTrial] | None:
    """The groups with a pair fused, and the times; None if the pair cannot be fused or its kernel fails."""
    fused_group = tuple(sorted((*pair[0], *pair[1])))
    fused_groups = topological_order(calls, (*(g for g in groups if g not in pair), fused_group))
    if fused_groups is None:
        return None
    before = dict(zip(groups, build_steps(calls, outputs, groups, compile_kernel), strict=True))
    after = dict(zip(fused_groups, build_steps(calls, outputs, fused_groups, compile_kernel), strict=True))
    try:
        a, b, fused = timer.seconds([before[pair[0]], before[pair[1]], after[fused_group]])
    except TdslError:
        return None
    return fused_groups, FusionTrial(_names(calls, pair[0]), _names(calls, pair[1]), a + b, fused)


def topological_order(calls: Sequence[Call], groups: Groups) -> Groups | None:
    """The groups in topological order; None if their dependences have a cycle."""
    group_of = {c: n for n, group in enumerate(groups) for c in group}
    dependences = [
        {
            group_of[base.call]
            for c in group
            for base in map(base_of, sources(calls[c]))
            if isinstance(base, Result) and group_of[base.call] != n
        }
        for n, group in enumerate(groups)
    ]
    order: list[int] = []
    while len(order) < len(groups):
        ready = [n for n in range(len(groups)) if n not in order and dependences[n] <= {*order}]
        if not ready:
            return None
        order.append(min(ready, key=lambda n: groups[n]))
    return tuple(groups[n] for n in order)


class KernelTimer:
    """Holds the arrays of a graph, inputs and computed results, and times kernels on them.

    `array_of` returns the array of an argument or of a constant.
    """

    def __init__(self, array_of: Callable[[Argument | Constant], Array]) -> None:
        self._array_of = array_of
        self._arrays: dict[Result, Array] = {}

    def array(self, source: Source) -> Array:
        """The array of an argument, constant, computed result or view."""
        base = base_of(source)
        array = self._arrays[base] if isinstance(base, Result) else self._array_of(base)
        return source.apply(array) if isinstance(source, View) else array

    def run(self, step: Step) -> None:
        """Run the kernel of a step and store its results."""
        self._arrays |= dict(zip(step.outputs, self._call_kernel(step), strict=True))

    def _call_kernel(self, step: Step) -> tuple[Any, ...]:
        result = step.kernel.per_call(*self._inputs(step))
        return result if len(step.outputs) > 1 else (result,)

    def seconds(self, steps: Sequence[Step]) -> list[float]:
        """The seconds of a call of each step's kernel, measured in alternating rounds."""
        return fastest_in_turns([self._call(step) for step in steps])

    def _call(self, step: Step) -> Callable[[], object]:
        """A function that calls the machine code of a kernel, or the kernel if no code fits these arrays."""
        inputs, kernel = self._inputs(step), step.kernel.per_call
        result = kernel(*inputs)
        results = result if len(step.outputs) > 1 else (result,)
        outputs = [new_output(x.shape, x.dtype) for x in results]
        for fast in fast_entries(kernel):
            if fast(*inputs, *outputs) is True:
                return lambda: fast(*inputs, *outputs)
        out = outputs[0] if len(outputs) == 1 else tuple(outputs)
        return lambda: kernel(*inputs, out=out)

    def _inputs(self, step: Step) -> list[Any]:
        """The arguments of the step's kernel, those computed once from constants included."""
        values = self.inputs(step)
        return [*step.kernel.select_inputs(values), *step.kernel.folded_arrays(values)]

    def inputs(self, step: Step) -> list[Any]:
        """The arguments of the step's program."""
        return [self._input(x) for x in step.inputs]

    def _input(self, x: Operand) -> Any:
        return self.array(x) if isinstance(x, Source) else x.item()
