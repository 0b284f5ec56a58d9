"""What all parts of lowering share: the state, its boxes, buffers and names, and the loops that are open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tdsl.codegen.ir.loops import Stmt
from tdsl.codegen.ir.names import Names
from tdsl.codegen.lowering.access import Messages
from tdsl.codegen.lowering.buffers import (
    Buffer,
    Ring,
)  # fmt: skip
from tdsl.lang.bounds import NOTHING, Facts
from tdsl.lang.expr import ZERO, Binary, Expr
from tdsl.lang.program import Program
from tdsl.lang.regions import Box, Interval, interval_of, tighten
from tdsl.lang.simplify import (
    conjunction,
    simplify,
)  # fmt: skip
from tdsl.schedule.instructions.layout import Layout
from tdsl.schedule.nest import (
    Level,
    State,
)
from tdsl.schedule.tree import Tree


@dataclass(frozen=True, slots=True)
class Planes:
    """The dimension `axis` of a func, along which its last update steps: at index `step` + `ahead`.

    `alive` is the number of planes in use at a time.
    """

    axis: int
    step: str
    ahead: int
    alive: int


@dataclass(frozen=True, slots=True)
class Open:
    """What is around the statement being made.

    `loop` is the innermost loop's variable, `first` its first value; `steady` says that it is serial and
    that nothing but the tails of splits skips iterations of it. `threads` are the open loops over threads
    of a GPU, and those that each thread runs elsewhere: the kind of each, its variable, and the first and
    last value. Only where all `held` conditions do, threads have points: what they make together is made by
    all, the rest is not.
    """

    facts: Facts = NOTHING
    loop: str | None = None
    first: Expr = ZERO
    steady: bool = False
    threads: tuple[tuple[str, str, Interval], ...] = ()
    held: tuple[Expr, ...] = ()

    def where_held(self) -> Open:
        """The same for threads that have points: the ranges of these are smaller."""
        if not self.held:
            return self
        runs = {name: run for _, name, run in self.threads}
        runs = tighten(runs, conjunction(self.held), self.facts)
        facts = self.facts
        for name, (lo, hi) in runs.items():
            if lo is not None and hi is not None:
                facts = facts.knowing(name, lo, hi)
        threads = tuple((kind, name, runs[name]) for kind, name, _ in self.threads)
        return replace(self, facts=facts, threads=threads)

    def some_thread_has_points(self) -> Expr:
        """The condition, the same for all threads, under which the ranges of `where_held` are not empty.

        Boxes that follow from these ranges are those of an iteration in which it is true.
        """
        runs: dict[str, Interval] = {}
        conditions: list[Expr] = []
        for _, name, (first, last) in self.where_held().threads if self.held else ():
            if first is not None and last is not None:
                lo, hi = (interval_of(e, runs, self.facts)[n] for n, e in enumerate((first, last)))
                runs[name] = lo, hi
                if lo is not None and hi is not None:
                    conditions.append(Binary("le", lo, hi))
        return simplify(conjunction(conditions), self.facts)


@dataclass(slots=True)
class Lowering:
    """The state that is lowered, what is needed of its funcs, and the buffers and names given so far.

    `lower.py` has the statements of places.
    """

    state: State
    tree: Tree
    names: Names
    messages: Messages
    boxes: dict[str, Box]  # what is needed in all
    buffers: dict[str, Buffer] = field(default_factory=dict)
    stored_at: dict[str, Level] = field(default_factory=dict)
    needed: dict[str, Box] = field(default_factory=dict)  # of each stored func, where it is stored
    rings: dict[str, dict[int, Ring]] = field(default_factory=dict)  # of each func, by axis
    layouts: dict[str, Layout] = field(default_factory=dict)  # of what no instruction lays out
    sizes: dict[str, Expr] = field(default_factory=dict)  # of rings whose funcs are made
    planes: dict[str, Planes] = field(default_factory=dict)  # of funcs computed plane by plane
    around: dict[str, Box] = field(
        default_factory=dict
    )  # what is needed inside of the places around

    @property
    def most(self) -> dict[str, Box]:
        """What is needed of each func in the nearest of the places around, or in all."""
        return {**self.boxes, **self.around}

    @property
    def program(self) -> Program:
        """What is lowered, after directives have added stages."""
        return self.state.program

    def place(
        self, here: Level, boxes: dict[str, Box], around: Open, body: Callable[[], Sequence[Stmt]]
    ) -> list[Stmt]:
        """Allocate and compute what belongs to a place, then its body; `boxes` are needed inside."""
        raise NotImplementedError

    def check_joined_empty(self, name: str) -> None:
        """ScheduleError for an empty func that shares loops with another one."""
        raise NotImplementedError
