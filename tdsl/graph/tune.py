"""Empirical tuning of a graph: fuses groups, and selects their schedules, by measured times.

1. Candidates for fusion are pairs of groups of which one reads a result of the other, or that read the same
   array, if that array exceeds the last-level cache; unless a third group must run between the two, or the
   user has scheduled one of them.
2. Pairs are tried in descending order of the bytes that one passes to the other or that both read. The fused
   group is compiled as one program, and timed against the two separate kernels on the arrays of the call.
3. A fused group that is clearly faster is kept, and is a candidate for further pairs, until all pairs are
   tried or half of the time budget is used.
4. For each group the most promising schedules of the tile-graph search are compiled; those whose results
   agree with the default schedule are timed against it.
5. Calls of the whole graph are timed: before tuning, with the fused groups, and with the new schedules as
   well. The fastest plan is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tdsl.codegen.runtime.call import fast_entries
from tdsl.codegen.runtime.result_memory import new_output
from tdsl.core.node import frozen
from tdsl.errors import TdslError
from tdsl.graph.folded_kernel import FoldedKernel
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
from tdsl.tuning.fastest_in_turns import fastest_in_turns
from tdsl.tuning.oracle import is_close, rounding_tolerance

MAX_TIME_RATIO = 0.95  # a kernel replaces another if it takes less than this part of its time
MAX_SCHEDULES = 6  # schedules timed for each group, the most promising ones


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
    """A schedule chosen for a group (the names of its calls), and the seconds with and without it."""

    calls: str
    label: str
    default_s: float
    best_s: float

    def __str__(self) -> str:
        change = f"{1e6 * self.default_s:.1f} us by default, {1e6 * self.best_s:.1f} us"
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


KernelCandidates = Callable[[Program], list[tuple[str, FoldedKernel]]]


def tune_kernels(
    calls: Sequence[Call],
    groups: Groups,
    steps: Sequence[Step],
    candidates_of: KernelCandidates,
    timer: KernelTimer,
    deadline: float,
) -> tuple[dict[Program, FoldedKernel], tuple[ScheduleChoice, ...]]:
    """Kernels that are clearly faster than those of the steps, by program, and the choices.

    `candidates_of` returns candidate kernels of a program, with labels.
    """
    faster: dict[Program, FoldedKernel] = {}
    choices: list[ScheduleChoice] = []
    tried: set[Program] = set()
    for group, step in zip(groups, steps, strict=True):
        late = time.perf_counter() > deadline
        if late or step.program in tried or not all(is_unscheduled(calls[n]) for n in group):
            continue
        tried.add(step.program)
        agreeing = timer.agreeing(step, candidates_of(step.program))
        labels, kernels = zip(("default", step.kernel), *agreeing, strict=True)
        default, *times = timer.seconds([replace(step, kernel=kernel) for kernel in kernels])
        best = min(times, default=default)
        if best < MAX_TIME_RATIO * default:
            n = 1 + times.index(best)
            faster[step.program] = kernels[n]
            choices.append(ScheduleChoice(_names(calls, group), labels[n], default, best))
    return faster, tuple(choices)


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

    def agreeing(
        self, step: Step, candidates: Sequence[tuple[str, FoldedKernel]]
    ) -> list[tuple[str, FoldedKernel]]:
        """The labelled kernels among `candidates` whose results agree with those of the step's kernel."""
        expected, tolerance = self._call_kernel(step), rounding_tolerance(step.program, {})
        return [
            (label, kernel)
            for label, kernel in candidates
            if all(
                map(
                    partial(is_close, bound=tolerance),
                    self._call_kernel(replace(step, kernel=kernel)),
                    expected,
                )
            )
        ]

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
        values = [self._input(x) for x in step.inputs]
        return [*step.kernel.select_inputs(values), *step.kernel.folded_arrays(values)]

    def _input(self, x: Operand) -> Any:
        return self.array(x) if isinstance(x, Source) else x.item()
