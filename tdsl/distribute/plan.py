"""The plan of a distributed program: the steps of every rank, their costs, and their text."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tdsl.communication.steps import (
    Allocate,
    Exchange,
    PlacedTensor,
    RankPlan,
    Reduce,
    Route,
    Start,
)
from tdsl.communication.totals import Volume
from tdsl.core.source import here
from tdsl.errors import TypeMismatch, counted, did_you_mean, is_one_of
from tdsl.placement.grid import Grid
from tdsl.placement.ownership import SpanBox, owned

if TYPE_CHECKING:
    from tdsl.schedule.state import State

SHOWN = 16  # ranks in a table


class Plan:
    """The plans of all ranks, each computed at its first use.

    `received`, `sent`, `messages` and `peak_memory` have a number for each rank, in bytes except `messages`.
    Where data select which elements move, bytes are expected ones: those of uniform indices, rounded.
    `least` maps a rank's memory in bytes to a lower bound of the bytes that the busiest rank receives in any
    plan with an even distribution; None if no bound is known. `idle` is the number of ranks of a run that are
    not in the grid.
    """

    def __init__(
        self, name: str, grid: Grid, tensors: tuple[PlacedTensor, ...], outputs: tuple[str, ...],
        notes: tuple[str, ...], plan_rank: Callable[[int], RankPlan], volume: Callable[[], Volume],
        symbolic: State | None = None, least: Callable[[float], float] | None = None, idle: int = 0,
    ) -> None:  # fmt: skip
        self.name, self.grid, self.tensors, self.notes = name, grid, tensors, notes
        self.outputs, self.least, self.idle = outputs, least, idle
        self._plan_rank, self._volume, self._symbolic = plan_rank, volume, symbolic
        self._ranks: dict[int, RankPlan] = {}

    def rank(self, rank: int) -> RankPlan:
        """The plan of one rank; ShapeError where a run has no such rank."""
        if rank in range(self.grid.size, self.grid.size + self.idle):
            return RankPlan(rank, (), ())
        if rank not in self._ranks:
            self._ranks[rank] = self._plan_rank(rank)
        return self._ranks[rank]

    def __iter__(self) -> Iterator[RankPlan]:
        return (self.rank(r) for r in range(self.grid.size))

    def owned(self, name: str, rank: int) -> SpanBox | None:
        """The box of a tensor that a rank owns; None for no elements."""
        if rank >= self.grid.size:
            return None
        placed = self._placed_tensor(name)
        return owned(placed.placement, self.grid, placed.whole, self.grid.coordinates(rank))

    def _placed_tensor(self, name: str) -> PlacedTensor:
        tensors = {h.name: h for h in self.tensors}
        if not is_one_of(name, tensors):
            raise TypeMismatch(
                f"{self.name!r} has no tensor or func {name!r} that ranks own",
                loc=here(),
                label="this call",
                hint=did_you_mean(name, tensors),
            )
        return tensors[name]

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of an element of each tensor."""
        return {h.name: h.bytes for h in self.tensors}

    @functools.cached_property
    def volume(self) -> Volume:
        """What all ranks communicate, and their memory, computed without their plans."""
        return self._volume()

    @property
    def received(self) -> tuple[int, ...]:
        """The bytes that each rank receives."""
        return tuple(self.volume.received.tolist())

    @property
    def sent(self) -> tuple[int, ...]:
        """The bytes that each rank sends."""
        return tuple(self.volume.sent.tolist())

    @property
    def messages(self) -> tuple[int, ...]:
        """The messages that each rank receives."""
        return tuple(self.volume.messages.tolist())

    @property
    def peak_memory(self) -> tuple[int, ...]:
        """The most bytes of buffers allocated at a time on each rank, its own blocks included."""
        return tuple(self.volume.peak_memory.tolist())

    @functools.cached_property
    def bound(self) -> float | None:
        """A lower bound of the bytes that the busiest rank receives with this memory; None if unknown."""
        return None if self.least is None else self.least(max(self.peak_memory))

    @property
    def total_received(self) -> int:
        """The bytes that all ranks receive."""
        return sum(self.received)

    def formula(self, rank: int = 0, *, even: bool = False) -> Any:
        """The bytes that a rank receives, as a sympy expression of the sizes that have names.

        It holds for all sizes; with `even` for those that every block divides, and is short. TypeMismatch
        where the number of steps depends on sizes, for hierarchical reductions to several ranks, for reads
        that wrap around the ends of a dimension, for reads of several boxes of one tensor, and of elements
        that data select.
        """
        from tdsl.distribute.formula import formula, no_formula

        assert self._symbolic is not None, "a plan of a program"
        for t in self.tensors:
            if t.routed:
                raise no_formula(f"{t.name!r} reads what data select of {', '.join(map(repr, t.routed))}")
            if t.aliases:
                read = ", ".join(repr(name) for name in dict.fromkeys(t.aliases.values()))
                raise no_formula(f"{t.name!r} reads several boxes of {read}")
        return formula(self._symbolic, rank, even=even)

    def moved(self, tensor: str) -> int:
        """The bytes of a tensor or func that all ranks receive."""
        name = self._placed_tensor(tensor).name
        return int(np.sum(self.volume.moved[name]))

    def summary(self) -> str:
        """One line: grid, bytes, messages and memory of the ranks."""
        return summary(self)

    def __str__(self) -> str:
        return show_plan(self)

    __repr__ = __str__


def summary(plan: Plan) -> str:
    """One line with the bytes received, the messages and the peak memory of the ranks of a plan."""
    least = ""
    if plan.bound is not None and plan.bound <= max(plan.received):  # others do not divide data evenly
        far = f", {max(plan.received) / plan.bound:.2f} times that" if plan.bound > 0 else ""
        least = f" (lower bound {math.ceil(plan.bound)}{far})"
    return (
        f"{plan.name} on {plan.grid}: {_range(plan.received)} bytes received a rank{least} in "
        f"{_range(plan.messages)} messages, {plan.total_received} in all; "
        f"peak memory {_range(plan.peak_memory)} bytes"
    )


def _range(numbers: tuple[int, ...]) -> str:
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"


def show_plan(plan: Plan) -> str:
    """A table with a line for each rank, after the notes on decisions beyond the directives."""
    lines = [summary(plan), *show_communication(plan), *plan.notes]
    header = ("rank", "at", "received", "sent", "messages", "peak memory", "steps")
    rows: list[tuple[str, ...]] = [header]
    columns = (plan.received, plan.sent, plan.messages, plan.peak_memory)
    for r, numbers in enumerate(itertools.islice(zip(*columns, strict=True), SHOWN)):
        at = " ".join(map(str, plan.grid.coordinates(r)))
        rows.append((str(r), at, *map(str, (*numbers, len(plan.rank(r).steps)))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += ["  ".join(x.rjust(w) for x, w in zip(row, widths, strict=True)) for row in rows]
    if plan.grid.size > SHOWN:
        lines.append(f"and {counted(plan.grid.size - SHOWN, 'rank')} more")
    computed = np.sum(list(plan.volume.computed.values()), axis=0) + np.zeros(plan.grid.size)
    idle = np.flatnonzero(computed == 0).tolist()
    if plan.idle:
        behind = plan.grid.size + plan.idle - 1
        last = f" to {behind}" if plan.idle > 1 else ""
        of = counted(plan.grid.size, "rank")
        lines.append(f"idle, because the grid has {of} only: {plan.grid.size}{last}")
    if idle:
        shown = ", ".join(map(str, idle[:SHOWN])) + (", ..." if len(idle) > SHOWN else "")
        lines.append(f"idle, because their blocks of the loops are empty: {shown}")
    return "\n".join(lines)


def show_communication(plan: Plan) -> list[str]:
    """A line with the kinds of communication of the first ranks, and the tensors of each; [] if none."""
    tensors_by_kind: dict[str, dict[str, None]] = {}
    for rank in range(min(plan.grid.size, SHOWN)):
        rank_plan = plan.rank(rank)
        buffers = {name: (name, box) for name, box in rank_plan.owned}
        for step in rank_plan.steps:
            match step:
                case Allocate(buffer, tensor, box):
                    buffers[buffer] = tensor, box
                case Reduce():
                    tensors_by_kind.setdefault(step.collective, {})[buffers[step.source][0]] = None
                case Route():
                    tensors_by_kind.setdefault("all-to-all of rows", {})[step.tensor] = None
                case (Exchange() as x) | Start(exchange=x):
                    for m in x.sends + x.receives:
                        tensors_by_kind.setdefault(_message_kind(x, m.tag, buffers), {})[
                            buffers[m.buffer][0]
                        ] = None
                case _:
                    pass
    phrases = (f"{kind} of {', '.join(sorted(names))}" for kind, names in sorted(tensors_by_kind.items()))
    return [f"moved by {'; '.join(phrases)}"] if tensors_by_kind else []


def _message_kind(x: Exchange, tag: int, buffers: Mapping[str, tuple[str, SpanBox]]) -> str:
    """The kind of the messages with a tag: a collective, a "shift" of whole blocks, or "messages"."""
    sends, receives = ([m for m in side if m.tag == tag] for side in (x.sends, x.receives))
    blocks = len(sends) <= 1 and all(m.box == buffers[m.buffer][1] for m in receives)
    return x.collective or ("shift" if blocks and len(receives) == 1 else "messages")
