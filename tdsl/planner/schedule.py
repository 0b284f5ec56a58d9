"""`Schedule`: a schedule that places and distributes what no directive does: `plan`, `propagate`."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from tdsl.core.notebook import Listing
from tdsl.core.source import here
from tdsl.errors import ScheduleError, ShapeError, TypeMismatch
from tdsl.lang.tensor import Func, Tensor
from tdsl.schedule.bind import bind_state
from tdsl.schedule.fluent import Stage
from tdsl.schedule.state import Illegal, State
from tdsl.target import as_target
from tdsl.tilegraph import schedule as unplanned

if TYPE_CHECKING:  # a program on one rank does not load the planner
    from tdsl.planner.cluster import Cluster
    from tdsl.planner.planned import Planned

TensorLike = Tensor | Func | Stage | str
KINDS = ("gather", "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "halo", "copies")


class Schedule(unplanned.Schedule):
    """How the funcs of a program run: `s[f]` is a stage, and its methods are directives.

    Each directive is checked when it is called and raises ScheduleError if it would change the meaning of
    the program or names an unknown func or loop. `print(s)` shows Python code that rebuilds the schedule;
    `to_json` and `replay` store and restore it. What no directive says is as in the default schedule.
    """

    _planned: Planned | None = None
    _planned_state: State | None = None

    @classmethod
    def of(cls, schedule: unplanned.Schedule) -> Self:
        """A schedule with the directives, notes and reasons of one that cannot plan."""
        same = cls.__new__(cls)
        vars(same).update(vars(schedule))
        return same

    def plan(
        self, cluster: Cluster, *, fix: Mapping[TensorLike, str | Sequence[str]] | None = None,
        memory: int | None = None, forbid: str | Iterable[str] = (), rewrites: bool | Iterable[str] = False,
    ) -> Planned:  # fmt: skip
        """Place all tensors and distribute all funcs on a cluster, where no directive does; returns the plan.

        What is added are ordinary directives, which `print` shows. `fix` has placements of tensors, with one
        entry for each level of the cluster or for each axis of a grid of it; or the name of a tensor that is
        placed in the same way. A rank has at most `memory`
        bytes, by default those of the cluster. Communication of the kinds `forbid` ("all-gather",
        "all-reduce", "reduce-scatter", "all-to-all", "halo") is not used; with "copies" each element of a
        tensor is stored once.

        With `rewrites` the program is rewritten where a plan of the result takes less time: by directives of
        the kinds named, or of all kinds ("merge_products", "add_first", "reassociate", "inline", "clone_in")
        with True. Floats are then rounded in another order.

        ScheduleError if memory does not suffice: it names the lines that conflict and the bytes missing.
        """
        from tdsl.planner.cluster import Cluster
        from tdsl.planner.infeasible import conflict
        from tdsl.planner.rewrites import KINDS as REWRITES
        from tdsl.planner.rewrites import Request, rewritten

        if not isinstance(cluster, Cluster):
            raise TypeMismatch(
                f"a plan is for a td.Cluster, not {cluster!r}",
                loc=here(), label="this call", hint="s.plan(td.Cluster(ranks=4))",
            )  # fmt: skip
        named = {self.source_name(t): text for t, text in (fix or {}).items()}
        state = self._known_sizes()
        limit = cluster.memory if memory is None else memory
        machine = as_target(self.target).machine()
        kinds = _forbidden(forbid)
        self._check_fixed(named, cluster)
        request = Request(cluster, machine, named, limit, kinds)
        chosen = _rewrites(rewrites, tuple(REWRITES))
        with collections_paused():
            try:
                steps, planned, before = rewritten(state, request, chosen)
                if planned is None:
                    raise conflict(state, cluster, machine, named, limit, kinds)
            except Illegal as reason:
                raise self._error("plan", reason) from None
            planned = planned.after(steps, before)
            self._follow(planned)
        return planned

    def propagate(self) -> Planned:
        """Place and distribute all that no directive does, with the fewest bytes received; returns the plan.

        A tensor that is cut is not gathered: ScheduleError names those that would have to be. Any other
        communication that the placements need is in the text of the plan; there may be none.
        """
        from tdsl.planner.propagate import propagate

        state = self._known_sizes()
        try:
            planned = propagate(state, as_target(self.target).machine())
        except Illegal as reason:
            raise self._error("propagate", reason) from None
        self._follow(planned)
        return planned

    def _error(self, what: str, reason: Illegal) -> ScheduleError:
        return ScheduleError(
            f"{what} of {self.program.name!r}: {reason.reason}",
            loc=here(), label=f"this {what}", related=reason.related, hint=reason.hint,
        )  # fmt: skip

    def _known_sizes(self) -> State:
        missing = [n for n in self.program.sizes if n not in self.sizes]
        if missing:
            raise ShapeError(
                f"a plan depends on sizes that are not known: {', '.join(missing)}",
                loc=here(), label="this plan",
                hint=f"give them to the schedule: op.schedule({missing[0]}=100, ...), or sizes={{...}}",
            )  # fmt: skip
        return bind_state(self.state, self.sizes)

    def _check_fixed(self, fix: Mapping[str, Any], cluster: Cluster) -> None:
        """ScheduleError for placements of what is unknown or placed already, or for a grid of other ranks."""
        program, placed = self.state.program, dict(self.state.placed)
        names = [*(t.name for t in program.inputs), *(f.name for f in program.funcs)]
        reason = ""
        for name, text in fix.items():
            if name not in names:
                reason = f"there is no tensor or func {name!r}: {', '.join(names)}"
            elif name in placed:
                reason = f"{name!r} is placed by a directive and by fix"
            elif "->" not in (text if isinstance(text, str) else "->") and text not in names:
                reason = f"{name!r} is to be placed as {text!r}, which is neither a placement nor a tensor"
        grid = self.state.grid
        if grid is not None and (grid.size != cluster.ranks or len(grid.depths) != len(cluster.levels)):
            reason = f"the directives are for {grid}, the cluster has {cluster.ranks} ranks"
        if reason:
            raise ScheduleError(
                f"plan of {program.name!r}: {reason}",
                loc=here(), label="this plan", hint="place each tensor once, on a grid of the cluster",
            )  # fmt: skip

    def _follow(self, planned: Planned) -> None:
        """Add the directives of a plan."""
        from tdsl.planner.cluster import grid_argument

        grid = grid_argument(planned.grid)
        with self.all_or_nothing():
            for step in planned.rewrites:
                self.do(replace(step, loc=here()))
            placed = dict(self.state.placed)
            for tensor in planned.space.tensors:
                if tensor not in placed:
                    self.place(tensor, str(planned.placement(tensor)), grid)
            for f in planned.space.funcs:
                if not self.state.plan(f.name).distributed:
                    definition, entries = planned.loops(f.name)
                    Stage(self, f.name, definition).distribute(entries, grid)
            for f in self.state.program.funcs:  # outputs without elements
                if f.name in self.state.program.outputs and not self.state.plan(f.name).distributed:
                    everywhere = ("*",) * len(planned.grid.axes)
                    if f.name not in dict(self.state.placed):
                        letters = "abcdefghijklmnopqrstuvwxyz"[: len(f.variables)]
                        self.place(f.name, f"{letters} -> {' '.join(everywhere)}", grid)
                    Stage(self, f.name, 0).distribute(everywhere, grid)
        self._planned, self._planned_state = planned, self.state

    def explain(self) -> Listing:
        """A line for each producer-consumer edge (its memory level, what that saves or costs), bytes, time.

        For a schedule that a search chose, also why other candidates were rejected; for one that `plan`
        completed, each communication with its bytes, seconds and the runner-up.
        """
        text = super().explain()
        if self._planned is None:
            return text
        changed = "" if self._planned_state is self.state else "directives were given since this plan:\n"
        return Listing(f"{text}\n{changed}{self._planned.explain()}")


@contextmanager
def collections_paused() -> Iterator[None]:
    """Run a block without collections of cyclic garbage, of which it leaves little.

    A plan of a whole model is millions of objects; to go through them takes a quarter of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _rewrites(kinds: bool | str | Iterable[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """The kinds of rewrites of an argument: all, none, or those that are named."""
    if isinstance(kinds, bool):
        return known if kinds else ()
    named = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    for kind in named:
        if kind not in known:
            raise TypeMismatch(
                f"{kind!r} is no kind of rewrite",
                loc=here(),
                label="this plan",
                hint=f"one of {', '.join(known)}",
            )
    return named


def _forbidden(forbid: str | Iterable[str]) -> frozenset[str]:
    kinds = (forbid,) if isinstance(forbid, str) else tuple(forbid)
    wrong = [k for k in kinds if k not in KINDS]
    if wrong:
        raise TypeMismatch(
            f"{wrong[0]!r} is no kind of communication",
            loc=here(), label="this plan", hint=f"one of {', '.join(KINDS)}",
        )  # fmt: skip
    return frozenset("all-gather" if k == "gather" else k for k in kinds)
