"""Orders of the steps of a pipeline: which stage computes which micro-batch after which.

A pipeline has a forward and a backward part of each stage. `Schedule.interleave` takes their loops in the
order of the data: those of the forward parts, first stage first, then those of the backward parts, last stage
first. Loop k of 2 n loops is the forward part of stage k, or the backward part of stage 2 n - 1 - k. Each
stage computes its steps in an order of its own; all of them are merged into one, in which a step comes after
the one that it waits for, as if all steps took equally long.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from tdsl.core.source import here
from tdsl.errors import ScheduleError

Order = tuple[tuple[int, int], ...]  # the number of a loop and of a step, for each step


def gpipe(stages: int, steps: int) -> Order:
    """The order in which each stage computes all steps forward, then all backward.

    Every stage keeps what all steps computed until the backward part. Source: Huang et al., GPipe, NeurIPS
    2019.

    >>> gpipe(2, 2)
    ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1))
    """
    stages, steps = _checked(stages=stages, steps=steps)
    return _merged([_alternating(1, stage, stages, steps, steps) for stage in range(stages)])


def one_f_one_b(stages: int, steps: int) -> Order:
    """The order in which stage k of n computes n - k - 1 steps forward, then one forward and one backward.

    Stage k keeps what at most n - k steps computed. It takes as long as `gpipe` where messages take no time.
    Source: Narayanan et al., PipeDream, SOSP 2019 (with a flush after the last step).

    >>> one_f_one_b(2, 3)
    ((0, 0), (1, 0), (0, 1), (2, 0), (3, 0), (1, 1), (2, 1), (0, 2), (3, 1), (1, 2), (2, 2), (3, 2))
    """
    stages, steps = _checked(stages=stages, steps=steps)
    return _merged([_alternating(1, stage, stages, steps, stages - 1 - stage) for stage in range(stages)])


def eager_one_f_one_b(stages: int, steps: int) -> Order:
    """The order of `one_f_one_b` with twice as many steps forward first, which hide the time of messages.

    Stage k of n keeps what at most 2 (n - k) - 1 steps computed. Messages are hidden if two of them take no
    longer than a step forward and one backward. Source: Zhuang et al., On Optimizing the Communication of
    Model Parallelism, MLSys 2023.
    """
    stages, steps = _checked(stages=stages, steps=steps)
    return _merged(
        [_alternating(1, stage, stages, steps, 2 * (stages - 1 - stage)) for stage in range(stages)]
    )


def interleaved_one_f_one_b(stages: int, steps: int, chunks: int) -> Order:
    """The order of `one_f_one_b` for ranks that have several stages each: rank r the stages r, r + ranks, ...

    `stages` is the number of ranks, each with `chunks` stages, so that there are loops of stages * chunks
    forward and as many backward parts. ScheduleError unless `stages` divides `steps`. Source: Narayanan et
    al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC 2021.
    """
    stages, steps, chunks = _checked(stages=stages, steps=steps, chunks=chunks)
    if steps % stages:
        raise ScheduleError(
            f"{steps} steps are no multiple of {stages} stages, as interleaved stages need",
            loc=here(),
            label="this order",
            hint="divide the batch into a multiple, or use one_f_one_b",
        )
    warm_up = [2 * (stages - 1 - rank) + (chunks - 1) * stages for rank in range(stages)]
    return _merged([_alternating(chunks, rank, stages, steps, n) for rank, n in enumerate(warm_up)])


def _checked(**counts: int) -> tuple[int, ...]:
    """The counts as integers; ScheduleError unless they are positive ones."""
    for name, count in counts.items():
        if isinstance(count, bool) or not hasattr(count, "__index__") or count < 1:
            raise ScheduleError(
                f"a pipeline has a positive number of {name}, not {count!r}",
                loc=here(),
                label="this order",
                hint=f"{name}=4",
            )
    return tuple(operator.index(count) for count in counts.values())


def _alternating(chunks: int, rank: int, ranks: int, steps: int, warm_up: int) -> Order:
    """The steps of a rank: some forward first, then one forward and one backward in turn.

    Of several chunks it computes as many steps as there are ranks before it goes on to the next chunk.
    """
    loops = 2 * ranks * chunks
    groups = [range(first, min(first + ranks, steps)) for first in range(0, steps, ranks)]
    if chunks == 1:
        groups = [range(steps)]
    forward = [(c * ranks + rank, n) for group in groups for c in range(chunks) for n in group]
    backward = [(loops - 1 - k, n) for group in groups for c in reversed(range(chunks))
                for k in [c * ranks + rank] for n in group]  # fmt: skip
    order = forward[:warm_up]
    for n, step in enumerate(backward):
        order += [*forward[warm_up + n : warm_up + n + 1], step]
    return tuple(order)


def _merged(orders: Sequence[Order]) -> Order:
    """One order of the steps of all ranks, each of which waits for the loop before; all take equally long."""
    left = [list(order) for order in orders]
    done: set[tuple[int, int]] = set()
    merged: list[tuple[int, int]] = []
    while any(left):
        ready = [
            order[0]
            for order in left
            if order and (order[0][0] == 0 or (order[0][0] - 1, order[0][1]) in done)
        ]
        assert ready, "each step waits for one that comes before"
        merged += sorted(ready, reverse=True)  # those that receive first
        done.update(ready)
        left = [order[1:] if order and order[0] in done else order for order in left]
    return tuple(merged)
