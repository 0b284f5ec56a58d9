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

from tdsl.codegen.runtime.call import quick_entries
from tdsl.codegen.runtime.result_memory import new_output
from tdsl.core.node import frozen
from tdsl.errors import TdslError
from tdsl.graph.folded_kernel import Kernel
from tdsl.graph.groups import Groups, is_open, sources
from tdsl.graph.plan import KernelOf, steps_of
from tdsl.graph.steps import Step
from tdsl.graph.values import Argument, Array, Call, Constant, Given, Result, Source, View, base_of
from tdsl.lang.program import Program
from tdsl.tuning import is_close, rounding

CLEARLY = 0.95  # a kernel replaces another if it takes less than this part of its time
SCHEDULES = 6  # schedules timed for each group, the most promising ones
ROUNDS = 5  # rounds of calls; the fastest round counts
ROUND_S = 2e-3  # seconds of a round


@frozen
class Trial:
    """A measured fusion: two groups (the names of their calls), and seconds of separate and fused kernels."""

    first: str
    second: str
    apart_s: float
    joined_s: float

    @property
    def kept(self) -> bool:
        """True if the groups were fused."""
        return self.joined_s < CLEARLY * self.apart_s

    def __str__(self) -> str:
        change = f"{1e6 * self.apart_s:.1f} us apart, {1e6 * self.joined_s:.1f} us as one"
        return f"{'joined' if self.kept else 'apart'}: {self.first} | {self.second}, {change}"


@frozen
class Choice:
    """A schedule chosen for a group (the names of its calls), and the seconds with and without it."""

    calls: str
    label: str
    default_s: float
    best_s: float

    def __str__(self) -> str:
        change = f"{1e6 * self.default_s:.1f} us by default, {1e6 * self.best_s:.1f} us"
        return f"scheduled: {self.calls}, {self.label}, {change}"


@frozen
class Whole:
    """The seconds of a call of the whole graph before tuning, and with the fastest plan."""

    before_s: float
    after_s: float

    @property
    def kept(self) -> bool:
        """True if a tuned plan was faster and replaced the old plan."""
        return self.after_s < self.before_s

    def __str__(self) -> str:
        change = f"{1e6 * self.before_s:.1f} us a call before, {1e6 * self.after_s:.1f} us"
        return f"whole: {change}" if self.kept else f"whole: {change}: it stays as it was"


Others = Callable[[Program], list[tuple[str, Kernel]]]


def better_kernels(
    calls: Sequence[Call],
    groups: Groups,
    steps: Sequence[Step],
    others: Others,
    clock: Clock,
    deadline: float,
) -> tuple[dict[Program, Kernel], tuple[Choice, ...]]:
    """Kernels that are clearly faster than those of the steps, by program, and the choices.

    `others` returns candidate kernels of a program, with labels.
    """
    found: dict[Program, Kernel] = {}
    choices: list[Choice] = []
    tried: set[Program] = set()
    for group, step in zip(groups, steps, strict=True):
        late = time.perf_counter() > deadline
        if late or step.program in tried or not all(is_open(calls[n]) for n in group):
            continue
        tried.add(step.program)
        promising = clock.right(step, others(step.program))
        labels, kernels = zip(("default", step.kernel), *promising, strict=True)
        default, *times = clock.seconds([replace(step, kernel=kernel) for kernel in kernels])
        best = min(times, default=default)
        if best < CLEARLY * default:
            n = 1 + times.index(best)
            found[step.program] = kernels[n]
            choices.append(Choice(_names(calls, group), labels[n], default, best))
    return found, tuple(choices)


def _names(calls: Sequence[Call], group: Sequence[int]) -> str:
    return " + ".join(calls[n].name for n in group)


def better_groups(
    calls: Sequence[Call],
    outputs: Sequence[Source],
    groups: Groups,
    kernel_of: KernelOf,
    clock: Clock,
    deadline: float,
    far: int,
) -> tuple[Groups, tuple[Trial, ...]]:
    """Fuses pairs of groups while a fused kernel is clearly faster; returns the groups and the measurements.

    Stops at `deadline`, a time of `time.perf_counter`. An array that two groups read counts as shared data
    only if it has more than `far` bytes, the size of the last-level cache.
    """
    for step in steps_of(calls, outputs, groups, kernel_of):
        clock.run(step)
    trials: list[Trial] = []
    tried: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    while time.perf_counter() < deadline:
        pair = next((p for p in _pairs(calls, groups, clock, far) if p not in tried), None)
        if pair is None:
            break
        tried.add(pair)
        found = _try(calls, outputs, groups, pair, kernel_of, clock)
        if found is not None:
            trials.append(found[1])
            groups = found[0] if found[1].kept else groups
    return groups, tuple(trials)


Pair = tuple[tuple[int, ...], tuple[int, ...]]


def _pairs(calls: Sequence[Call], groups: Groups, clock: Clock, far: int) -> Iterator[Pair]:
    """The pairs of groups that may be fused, in descending order of the bytes that they share."""
    found: list[tuple[int, int, Pair]] = []
    for n, second in enumerate(groups):
        for first in groups[:n]:
            read, other = (
                {s for c in group for s in sources(calls[c])} for group in (second, first)
            )
            made = {s for s in read if _made_by(s, first)}
            same = {s for s in read & other - made if clock.value(s).nbytes > far}
            if made | same and all(is_open(calls[c]) for c in (*first, *second)):
                flow = sum(clock.value(s).nbytes for s in made | same)
                found.append((-flow, n, (first, second)))
    return (pair for _, _, pair in sorted(found, key=lambda x: x[:2]))


def _made_by(source: Source, group: tuple[int, ...]) -> bool:
    base = base_of(source)
    return isinstance(base, Result) and base.call in group


def _try(
    calls: Sequence[Call],
    outputs: Sequence[Source],
    groups: Groups,
    pair: Pair,
    kernel_of: KernelOf,
    clock: Clock,
) -> tuple[Groups, Trial] | None:
    """The groups with a pair fused, and the times; None if the pair cannot be fused or its kernel fails."""
    one = tuple(sorted((*pair[0], *pair[1])))
    joined = in_order(calls, (*(g for g in groups if g not in pair), one))
    if joined is None:
        return None
    before = dict(zip(groups, steps_of(calls, outputs, groups, kernel_of), strict=True))
    after = dict(zip(joined, steps_of(calls, outputs, joined, kernel_of), strict=True))
    try:
        a, b, both = clock.seconds([before[pair[0]], before[pair[1]], after[one]])
    except TdslError:
        return None
    return joined, Trial(_names(calls, pair[0]), _names(calls, pair[1]), a + b, both)


def in_order(calls: Sequence[Call], groups: Groups) -> Groups | None:
    """The groups in topological order; None if their dependences have a cycle."""
    group_of = {c: n for n, group in enumerate(groups) for c in group}
    needs = [
        {
            group_of[base.call]
            for c in group
            for base in map(base_of, sources(calls[c]))
            if isinstance(base, Result) and group_of[base.call] != n
        }
        for n, group in enumerate(groups)
    ]
    done: list[int] = []
    while len(done) < len(groups):
        ready = [n for n in range(len(groups)) if n not in done and needs[n] <= {*done}]
        if not ready:
            return None
        done.append(min(ready, key=lambda n: groups[n]))
    return tuple(groups[n] for n in done)


def in_turns(calls: Sequence[Callable[[], object]]) -> list[float]:
    """The seconds of each call in its fastest round; rounds alternate, so that slow phases hit all."""
    counts, best = [1] * len(calls), [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for n, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(counts[n]):
                call()
            best[n] = min(best[n], (time.perf_counter() - start) / counts[n])
            counts[n] = max(1, int(ROUND_S / max(best[n], 1e-9)))
    return best


class Clock:
    """Holds the arrays of a graph, inputs and computed results, and times kernels on them.

    `given` returns the array of an argument or of a constant.
    """

    def __init__(self, given: Callable[[Argument | Constant], Array]) -> None:
        self._given = given
        self._made: dict[Result, Array] = {}

    def value(self, source: Source) -> Array:
        """The array of an argument, constant, computed result or view."""
        base = base_of(source)
        array = self._made[base] if isinstance(base, Result) else self._given(base)
        return source.of(array) if isinstance(source, View) else array

    def run(self, step: Step) -> None:
        """Run the kernel of a step and store its results."""
        self._made |= dict(zip(step.outputs, self._results(step), strict=True))

    def right(self, step: Step, others: Sequence[tuple[str, Kernel]]) -> list[tuple[str, Kernel]]:
        """The kernels among `others`, with labels, whose results agree with those of the step's kernel."""
        wanted, bound = self._results(step), rounding(step.program, {})
        return [
            (label, kernel)
            for label, kernel in others
            if all(
                map(
                    partial(is_close, bound=bound),
                    self._results(replace(step, kernel=kernel)),
                    wanted,
                )
            )
        ]

    def _results(self, step: Step) -> tuple[Any, ...]:
        made = step.kernel.each(*self._inputs(step))
        return made if len(step.outputs) > 1 else (made,)

    def seconds(self, steps: Sequence[Step]) -> list[float]:
        """The seconds of a call of each step's kernel, measured in alternating rounds."""
        return in_turns([self._call(step) for step in steps])

    def _call(self, step: Step) -> Callable[[], object]:
        """A function that calls the machine code of a kernel, or the kernel if no code fits these arrays."""
        inputs, kernel = self._inputs(step), step.kernel.each
        made = kernel(*inputs)
        several = made if len(step.outputs) > 1 else (made,)
        outputs = [new_output(x.shape, x.dtype) for x in several]
        for fast in quick_entries(kernel):
            if fast(*inputs, *outputs) is True:
                return lambda: fast(*inputs, *outputs)
        out = outputs[0] if len(outputs) == 1 else tuple(outputs)
        return lambda: kernel(*inputs, out=out)

    def _inputs(self, step: Step) -> list[Any]:
        """The arguments of the step's kernel, those computed once from constants included."""
        given = [self._input(x) for x in step.inputs]
        return [*step.kernel.taken(given), *step.kernel.prepared(given)]

    def _input(self, x: Given) -> Any:
        return self.value(x) if isinstance(x, Source) else x.item()
