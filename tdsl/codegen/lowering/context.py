"""The context of lowering: the state, the boxes, buffers and names of its funcs, and the open loops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tdsl.codegen.ir.kernel_names import KernelNames
from tdsl.codegen.ir.loops import Stmt
from tdsl.codegen.lowering.bounds_checks import KernelTables
from tdsl.codegen.lowering.buffers import Buffer, Ring
from tdsl.core.node import frozen
from tdsl.lang.affine import variables
from tdsl.lang.bounds import NO_FACTS, Facts
from tdsl.lang.expr import ZERO, Binary, Expr
from tdsl.lang.program import Axis, Program
from tdsl.lang.regions import Box, Interval, interval_of, restrict_ranges
from tdsl.lang.simplify import conjunction
from tdsl.machine.instructions.layout import Layout
from tdsl.schedule.state import Level, State
from tdsl.schedule.tree import ScheduleTree


@frozen
class FoldedAxis:
    """The dimension `axis` along which the last update of a func steps: it writes index `step` + `ahead`.

    `step` is the variable of the update, `live` the number of planes in use at a time.
    """

    axis: int
    step: str
    ahead: int
    live: int


@frozen
class LoopContext:
    """The loops open at the statement being lowered, with the facts known of their variables.

    `loop` is the variable of the innermost loop, `first` its first value; `in_order`: the loop is serial and
    only the tails of splits skip iterations of it. `threads` has (kind, variable, (first, last)) of the open
    loops over GPU threads, and of loops whose range differs from thread to thread. `pending_guards`:
    untested guards; a thread is active only if all hold. Statements that threads execute collectively are run
    by all threads, others under these guards, except for the funcs `copied` (`read_by_block`).
    """

    facts: Facts = NO_FACTS
    loop: str | None = None
    first: Expr = ZERO
    in_order: bool = False
    threads: tuple[tuple[str, str, Interval], ...] = ()
    pending_guards: tuple[Expr, ...] = ()
    copied: frozenset[str] = frozenset()

    def narrowed(self) -> LoopContext:
        """The context of the threads that have points: their ranges narrowed by `pending_guards`."""
        if not self.pending_guards:
            return self
        intervals = {name: interval for _, name, interval in self.threads}
        intervals = restrict_ranges(intervals, conjunction(self.pending_guards), self.facts)
        facts = self.facts
        for name, (lo, hi) in intervals.items():
            if lo is not None and hi is not None:
                facts = facts.with_range(name, lo, hi)
        threads = tuple((kind, name, intervals[name]) for kind, name, _ in self.threads)
        return replace(self, facts=facts, threads=threads)

    def some_thread_has_points(self) -> list[Expr]:
        """Conditions, equal in all threads, of which all hold if a thread has points; to be tested in order.

        Boxes computed from the ranges of `narrowed` are valid in iterations in which the conditions are true.
        """
        intervals: dict[str, Interval] = {}
        varying = {name for _, name, _ in self.threads}
        conditions = [g for g in self.pending_guards if varying.isdisjoint(variables(g))]
        for _, name, (first, last) in self.narrowed().threads if self.pending_guards else ():
            if first is not None and last is not None:
                lo, hi = (interval_of(e, intervals, self.facts)[n] for n, e in enumerate((first, last)))
                intervals[name] = lo, hi
                if lo is not None and hi is not None:
                    conditions.append(Binary("le", lo, hi))
        return conditions


@dataclass(slots=True)
class Lowering(ABC):
    """The state being lowered, the boxes needed of its funcs, and the buffers and names assigned so far.

    The subclass in `lower.py` implements `lower_level`.
    """

    state: State
    tree: ScheduleTree
    names: KernelNames
    tables: KernelTables
    boxes: dict[str, Box]  # by func, what the whole program needs
    buffers: dict[str, Buffer] = field(default_factory=dict)
    stored_at: dict[str, Level] = field(default_factory=dict)
    stored_boxes: dict[str, Box] = field(default_factory=dict)  # by func, what is needed where it is stored
    rings: dict[str, dict[int, Ring]] = field(default_factory=dict)  # by func and axis
    layouts: dict[str, Layout] = field(default_factory=dict)  # by fragment that no instruction lays out
    sizes: dict[str, Expr] = field(default_factory=dict)  # of rings by size name, once lowered
    planes: dict[str, FoldedAxis] = field(default_factory=dict)  # by func, of those computed plane by plane
    level_boxes: dict[str, Box] = field(default_factory=dict)  # by func, what the open levels need
    input_axes: dict[str, tuple[Axis, ...]] = field(default_factory=dict)  # of arrays with other dimensions

    @property
    def limits(self) -> dict[str, Box]:
        """The box needed of each func at the innermost enclosing level that has one, or in the program."""
        return {**self.boxes, **self.level_boxes}

    @property
    def program(self) -> Program:
        """The program being lowered, with the stages that directives have added."""
        return self.state.program

    @abstractmethod
    def lower_level(
        self,
        level: Level,
        boxes: dict[str, Box],
        ctx: LoopContext,
        body: Callable[[], Sequence[Stmt]],
    ) -> list[Stmt]:
        """Allocate and compute the funcs of a level, then its body; `boxes` are the boxes needed inside."""

    @abstractmethod
    def check_joined_empty(self, name: str) -> None:
        """ScheduleError for an empty func that shares loops with another one."""
