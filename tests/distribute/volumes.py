"""The communications of each rank of a plan, by tag, and those that `volume` states for them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from tdsl.communication.expected_rows import expected_elements, expected_rows
from tdsl.communication.step_costs import cost
from tdsl.communication.steps import Allocate, Exchange, RankPlan, Reduce, Route, Start, reduction_elements
from tdsl.communication.totals import Communication
from tdsl.communication.volume import volume
from tdsl.distribute.plan import Plan
from tdsl.placement.ownership import element_count

Counts = tuple[int, int, int]  # elements received and sent, messages received


def by_tag(plan: RankPlan) -> dict[int, Counts]:
    """What a rank receives and sends with each tag."""
    counts: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for step in plan.steps:
        match step:
            case Reduce():
                out, into = reduction_elements(step, plan.rank)
                for n, more in enumerate((into, out, min(into, 1))):
                    counts[step.tag][n] += more
            case Route():
                for n, (out, into) in enumerate(expected_elements(step, step.ranks.index(plan.rank))):
                    more = (into, out, min(len(step.ranks) - 1, 1))
                    counts[step.tag + n] = [a + b for a, b in zip(counts[step.tag + n], more, strict=True)]
            case Exchange() as x:
                _add(counts, x)
            case Start(x):
                _add(counts, x)
            case _:
                pass
    return {tag: (a, b, c) for tag, (a, b, c) in counts.items() if a or b or c}


def _add(counts: defaultdict[int, list[int]], x: Exchange) -> None:
    for tag in {m.tag for m in x.sends + x.receives}:
        sends, receives = ([m for m in side if m.tag == tag] for side in (x.sends, x.receives))
        counts[tag][0] += sum(element_count(m.box) for m in receives)
        counts[tag][1] += sum(element_count(m.box) for m in sends)
        counts[tag][2] += min(len(receives), 1) if x.collective else len(receives)


def assert_volume_is_of_plan(program: Any, what: str = "") -> None:
    """For every rank and communication; the sums, memory and bytes by level of the grid, too."""
    plan: Plan = program.plan
    recorded: list[Communication] = []
    v = volume(program.layout, program.stages, program.inputs, program.outputs, plan.sizes, recorded.append)
    has_own_order = (
        program.state.interleaved or program.distribution.order.windows or program.distribution.order.arrivals
    )  # then memory is the plan's
    assert [c.tag for c in recorded] == list(range(len(recorded)))
    for rank in plan:
        n, stated = rank.rank, cost(rank, plan.sizes)
        for c in recorded:
            expected = by_tag(rank).get(c.tag, (0, 0, 0))
            assert (c.received[n], c.sent[n], c.messages[n]) == expected, f"{what}\n{c}\nrank {n}: {expected}"
        peak = plan.peak_memory[n] if has_own_order else v.peak_memory[n]
        sums = v.received[n], v.sent[n], v.messages[n], peak
        assert sums == (stated.received, stated.sent, stated.messages, stated.peak_memory), f"{what}\n{n}"
        moved = {t: sum(int(level[n]) for level in levels) for t, levels in v.moved.items()}
        assert {t: b for t, b in moved.items() if b} == {t: b for t, b in stated.moved if b}, what
        assert [c[n] for c in v.crossing] == bytes_by_level(plan, rank), what


def bytes_by_level(plan: Plan, rank: RankPlan) -> list[int]:
    """The bytes that a rank receives from other groups of each level of the grid, outermost level first."""
    levels = [0] * len(plan.grid.depths)
    tensors = {name: name for name, _ in rank.owned}
    for step in rank.steps:
        match step:
            case Allocate(buffer, tensor, _):
                tensors[buffer] = tensor
            case Reduce():
                size = plan.sizes[tensors[step.source]] * reduction_elements(step, rank.rank)[1]
                levels[plan.grid.crossed_level(step.ranks)] += size
            case Route(ranks=ranks):
                n, (rows, elements) = ranks.index(rank.rank), expected_rows(step)
                crossed = [plan.grid.crossed_level((r, rank.rank)) if r != rank.rank else -1 for r in ranks]
                phases = ((step.key, rows * 0 + 1), (step.key, rows.T), (step.tensor, rows * elements))
                for tensor, moved in phases:
                    ends = [0]
                    for level in range(len(levels)):
                        inside = [moved[n, m] for m, at in enumerate(crossed) if 0 <= at <= level]
                        ends.append(round(float(np.sum(inside))))
                        levels[level] += plan.sizes[tensor] * (ends[-1] - ends[-2])
            case (Exchange() as x) | Start(x):
                for m in x.receives:
                    size = plan.sizes[tensors[m.buffer]] * element_count(m.box)
                    levels[plan.grid.crossed_level((m.rank, rank.rank))] += size
            case _:
                pass
    return levels
