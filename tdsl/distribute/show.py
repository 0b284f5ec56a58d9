"""Plans as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, assert_never

from tdsl.distribute.plan import (
    Copy,
    Drop,
    Exchange,
    Fill,
    Finish,
    Make,
    Merge,
    RankPlan,
    Reduce,
    Run,
    Start,
    Step,
)
from tdsl.errors import counted
from tdsl.placement.ownership import Box
from tdsl.placement.spans import Dealt, Span

if TYPE_CHECKING:
    from tdsl.distribute.plan import Plan

SHOWN = 16  # ranks in a table


def summary(plan: Plan) -> str:
    """One line of what the ranks of a plan receive, and need."""
    least = ""
    if plan.bound is not None:
        far = f", {max(plan.received) / plan.bound:.2f} times that" if plan.bound > 0 else ""
        least = f" (lower bound {math.ceil(plan.bound)}{far})"
    return (
        f"{plan.name} on {plan.grid}: {_range(plan.received)} bytes received a rank{least} in "
        f"{_range(plan.messages)} messages, {plan.total_received} in all; "
        f"peak memory {_range(plan.peak_memory)} bytes"
    )


def _range(numbers: tuple[int, ...]) -> str:
    lo, hi = min(numbers), max(numbers)
    return str(lo) if lo == hi else f"{lo} to {hi}"


def show_plan(plan: Plan) -> str:
    """A table with a line for each rank, and what was decided without being said."""
    lines = [summary(plan), *moves(plan), *plan.notes]
    header = ("rank", "at", "received", "sent", "messages", "peak memory", "steps")
    rows: list[tuple[str, ...]] = [header]
    for r, c in list(enumerate(plan.costs))[:SHOWN]:
        at = " ".join(map(str, plan.grid.coordinates(r)))
        numbers = (c.received, c.sent, c.messages, c.peak_memory, len(plan.rank(r).steps))
        rows.append((str(r), at, *map(str, numbers)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += ["  ".join(x.rjust(w) for x, w in zip(row, widths, strict=True)) for row in rows]
    if plan.grid.size > SHOWN:
        lines.append(f"and {counted(plan.grid.size - SHOWN, 'rank')} more")
    idle = [
        r for r in range(plan.grid.size) if not any(isinstance(s, Run) for s in plan.rank(r).steps)
    ]
    if plan.idle:
        behind = plan.grid.size + plan.idle - 1
        last = f" to {behind}" if plan.idle > 1 else ""
        of = counted(plan.grid.size, "rank")
        lines.append(f"idle, because the grid has {of} only: {plan.grid.size}{last}")
    if idle:
        shown = ", ".join(map(str, idle[:SHOWN])) + (", ..." if len(idle) > SHOWN else "")
        lines.append(f"idle, because their blocks of the loops are empty: {shown}")
    return "\n".join(lines)


def moves(plan: Plan) -> list[str]:
    """A line of what the first ranks do together, and with which tensors."""
    found: dict[str, dict[str, None]] = {}
    for rank in range(min(plan.grid.size, SHOWN)):
        own = plan.rank(rank)
        held = {name: (name, box) for name, box in own.owned}
        for step in own.steps:
            match step:
                case Make(buffer, tensor, box):
                    held[buffer] = tensor, box
                case Reduce():
                    found.setdefault(step.collective, {})[held[step.source][0]] = None
                case (Exchange() as x) | Start(exchange=x):
                    for m in x.sends + x.receives:
                        found.setdefault(_kind(x, m.tag, held), {})[held[m.buffer][0]] = None
                case _:
                    pass
    said = (f"{kind} of {', '.join(sorted(names))}" for kind, names in sorted(found.items()))
    return [f"moved by {'; '.join(said)}"] if found else []


def _kind(x: Exchange, tag: int, held: Mapping[str, tuple[str, Box]]) -> str:
    """What the messages of a tag are: a collective, a shift of whole blocks from rank to rank, or neither."""
    sends, receives = ([m for m in side if m.tag == tag] for side in (x.sends, x.receives))
    blocks = len(sends) <= 1 and all(m.box == held[m.buffer][1] for m in receives)
    return x.collective or ("shift" if blocks and len(receives) == 1 else "messages")


def show_rank(plan: RankPlan) -> str:
    """The steps of one rank, one a line."""
    owned = [f"own {name}[{show_box(box)}]" for name, box in plan.owned]
    return "\n".join((f"rank {plan.rank}", *owned, *map(show_step, plan.steps)))


def show_box(box: Box) -> str:
    """A box as slices; of a span with gaps how many elements of how many each are meant.

    >>> from tdsl.placement.spans import dealt
    >>> show_box(((0, 5), (3, 4))), show_box((dealt((0, 9), 2, 4, 0),))
    ('0:5, 3:4', '0:9 (2 of 4)')
    """
    return ", ".join(map(_span, box))


def _span(span: Span) -> str:
    gaps = f" ({span.block} of {span.period})" if isinstance(span, Dealt) else ""
    return f"{span[0]}:{span[1]}{gaps}"


def show_step(step: Step) -> str:
    """A step in one line, an exchange in one line for each message."""
    match step:
        case Make(buffer, tensor, box):
            return f"make {buffer!r} for {tensor}[{show_box(box)}]"
        case Fill(buffer):
            return f"fill {buffer!r} with the identity"
        case Copy(source, target, box):
            return f"copy [{show_box(box)}] of {source!r} to {target!r}"
        case Merge(source, target, box):
            return f"merge [{show_box(box)}] of {source!r} into {target!r}"
        case Exchange(sends, receives, collective, ranks):
            among = f", {collective} among {', '.join(map(str, ranks))}" if collective else ""
            lines = [
                f"send {m.buffer!r}[{show_box(m.box)}] to {m.rank}, tag {m.tag}{among}"
                for m in sends
            ]
            lines += [
                f"receive {m.buffer!r}[{show_box(m.box)}] from {m.rank}, tag {m.tag}{among}"
                for m in receives
            ]
            return "\n".join(lines)
        case Start(exchange, handle):
            return "\n".join(f"start {handle}: {line}" for line in show_step(exchange).splitlines())
        case Finish(handle):
            return f"finish {handle}"
        case Reduce(ranks, tag, source, into):
            own = "" if into is None else f" into {into!r}"
            among = ", ".join(map(str, ranks))
            return (
                f"{step.collective} {source!r}[{show_box(step.box)}]{own}, tag {tag}, among {among}"
            )
        case Run(func, ranges, reads, target, box):
            where = ", ".join(f"{name} in {lo}:{hi}" for name, (lo, hi) in ranges)
            of = ", ".join(repr(buffer) for _, buffer in reads)
            return f"run {func} for {where} of {of or 'nothing'} into {target!r}[{show_box(box)}]"
        case Drop(buffer):
            return f"drop {buffer!r}"
        case _:
            assert_never(step)
