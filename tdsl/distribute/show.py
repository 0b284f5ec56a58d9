"""The steps of a rank as text."""

from __future__ import annotations

from typing import assert_never

from tdsl.communication.steps import (
    Allocate,
    Copy,
    Exchange,
    Fill,
    Finish,
    Free,
    Merge,
    RankPlan,
    Reduce,
    Route,
    Run,
    Start,
    Step,
)
from tdsl.placement.ownership import SpanBox
from tdsl.placement.spans import PeriodicSpan, Span


def show_rank(plan: RankPlan) -> str:
    """The steps of one rank, one a line."""
    owned = [f"own {name}[{show_box(box)}]" for name, box in plan.owned]
    return "\n".join((f"rank {plan.rank}", *owned, *map(show_step, plan.steps)))


def show_box(box: SpanBox) -> str:
    """A box as slices; of a span with gaps how many elements of how many each are meant.

    >>> from tdsl.placement.spans import block_cyclic
    >>> show_box(((0, 5), (3, 4))), show_box((block_cyclic((0, 9), 2, 4, 0),))
    ('0:5, 3:4', '0:9 (2 of 4)')
    """
    return ", ".join(map(_span, box))


def _span(span: Span) -> str:
    gaps = f" ({span.block} of {span.period})" if isinstance(span, PeriodicSpan) else ""
    return f"{span[0]}:{span[1]}{gaps}"


def show_step(step: Step) -> str:
    """A step in one line, an exchange in one line for each message."""
    match step:
        case Allocate(buffer, tensor, box, str() as over):
            return f"make {buffer!r} for {tensor}[{show_box(box)}] over {over!r}"
        case Allocate(buffer, tensor, box):
            return f"make {buffer!r} for {tensor}[{show_box(box)}]"
        case Fill(buffer):
            return f"fill {buffer!r} with the identity"
        case Copy(source, target, box):
            return f"copy [{show_box(box)}] of {source!r} to {target!r}"
        case Merge(source, target, box):
            return f"merge [{show_box(box)}] of {source!r} into {target!r}"
        case Exchange(sends, receives, collective, ranks):
            among = f", {collective} among {', '.join(map(str, ranks))}" if collective else ""
            lines = [f"send {m.buffer!r}[{show_box(m.box)}] to {m.rank}, tag {m.tag}{among}" for m in sends]
            lines += [
                f"receive {m.buffer!r}[{show_box(m.box)}] from {m.rank}, tag {m.tag}{among}" for m in receives
            ]
            return "\n".join(lines)
        case Start(exchange, handle):
            return "\n".join(f"start {handle}: {line}" for line in show_step(exchange).splitlines())
        case Finish(handle):
            return f"finish {handle}"
        case Reduce(ranks, tag, source, into):
            target = "" if into is None else f" into {into!r}"
            among = ", ".join(map(str, ranks))
            return f"{step.collective} {source!r}[{show_box(step.box)}]{target}, tag {tag}, among {among}"
        case Route(ranks=ranks):
            among, rows = ", ".join(map(str, ranks)), f"rows of {step.tensor!r}"
            at = f" at {step.index!r}" if step.index else ""
            into = f" into {step.target!r}" if step.target else ""
            what = (f"numbers of {rows}", f"offsets of {rows}{at}", f"{rows}{into}")
            return "\n".join(
                f"all-to-all of {x}, tag {step.tag + n}, among {among}" for n, x in enumerate(what)
            )
        case Run(func, ranges, reads, target, box):
            where = ", ".join(f"{name} in {lo}:{hi}" for name, (lo, hi) in ranges)
            of = ", ".join(repr(buffer) for _, buffer in reads)
            return f"run {func} for {where} of {of or 'nothing'} into {target!r}[{show_box(box)}]"
        case Free(buffer):
            return f"drop {buffer!r}"
        case _:
            assert_never(step)
