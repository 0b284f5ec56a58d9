"""A distributed program specialised to known sizes: its stages, layout, plan and compiled tasks."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import metadata
from typing import Any

import numpy as np

from tdsl.codegen.runtime.arrays import Array
from tdsl.codegen.runtime.fingerprint import fingerprint
from tdsl.communication.distribution import Distribution
from tdsl.communication.stages import Stage
from tdsl.communication.step_costs import cost
from tdsl.communication.steps import PlacedTensor, RankPlan
from tdsl.communication.totals import Volume
from tdsl.distribute import mpi
from tdsl.distribute.bounds import lower_bound_of
from tdsl.distribute.buffer_contents import PlanFault
from tdsl.distribute.check import check
from tdsl.distribute.check_partners import verify_with_partners
from tdsl.distribute.check_placed import check_overlap, check_overwrite
from tdsl.distribute.engine import Buffer, Task, Tasks, fill, merge
from tdsl.distribute.plan import Plan
from tdsl.distribute.plan_rank import plan_rank
from tdsl.distribute.progress import Progress
from tdsl.distribute.task import check_nest
from tdsl.errors import IndexBoundError, PlanningWarning
from tdsl.placement.notation import Copies
from tdsl.placement.ownership import SpanBox, index_within, stored_shape
from tdsl.schedule.state import State

MAX_QUICK_STEPS = 50_000  # iterations that communicate; a rank plans about 2,000 in a second


class SpecialisedProgram:
    """The plan and tasks of a state whose sizes are numbers; `symbolic` is the same state with named sizes.

    `outputs` are the names of the output arrays in calls.
    """

    def __init__(
        self,
        state: State,
        outputs: tuple[str, ...],
        build: Callable[[State], Task],
        symbolic: State,
    ) -> None:
        self.state, self.distribution = state, Distribution.of(state)
        self.stages, self.layout = self.distribution.stages, self.distribution.layout
        for stage in self.stages:
            check_nest(stage)
            check_overwrite(stage, self.layout)
            check_overlap(stage, self.layout)
            _warn_of_many_steps(stage)
        self.inputs, self.outputs = self.distribution.inputs, state.program.outputs
        self.dtypes = self.distribution.dtypes
        self.wholes = {n: self.layout.wholes[n] for n in self.dtypes}
        self.plan = self._plan(symbolic)
        self._verified = self._compared = False
        self.tasks = Tasks({s.name: s for s in self.computed}, self.dtypes, build)
        self.arrays = {name: (name, 0) for name in self.inputs}  # by name in calls
        values = ((name, n) for name in self.outputs for n in range(len(self.dtypes[name])))
        self.arrays |= dict(zip(outputs, values, strict=True))

    def _plan(self, symbolic: State) -> Plan:
        stages, grid = {s.name: s for s in self.computed}, self.layout.grid
        tensors = tuple(
            PlacedTensor(
                n, sum(t.bytes for t in self.dtypes[n]), whole, self.layout.placements[n],
                *(
                    (
                        stages[n].reduction_ranges, stages[n].dims, stages[n].read_boxes,
                        stages[n].partial_axes, stages[n].aliases,
                        tuple(dict.fromkeys(r.tensor for r in stages[n].routes)),
                    )
                    if n in stages else ()
                ),
            )
            for n, whole in self.wholes.items()
        )  # fmt: skip
        idle = 0 if self.state.ranks is None else self.state.ranks - grid.size
        notes, lower_bound = (
            tuple(_notes(self.stages)),
            lower_bound_of(self.stages, tensors, grid.size),
        )
        name = self.state.program.name
        plan = Plan(
            name, grid, tensors, self.outputs, notes, self._rank, lambda: self._volume(plan), symbolic,
            lower_bound, idle,
        )  # fmt: skip
        return plan

    def _volume(self, plan: Plan) -> Volume:
        """What all ranks communicate; of steps in an order of their own the memory is that of the plans."""
        volume = self.distribution.volume()
        order = self.distribution.order
        if not self.state.interleaved and not order.windows and not order.arrivals:
            return volume
        peaks = [cost(rank_plan, plan.sizes).peak_memory for rank_plan in plan]
        return replace(volume, peak_memory=np.array(peaks))

    @property
    def computed(self) -> tuple[Stage, ...]:
        """The stages, and those that compute indices of rows."""
        return (*self.stages, *(r.key for s in self.stages for r in s.routes))

    def _rank(self, rank: int) -> RankPlan:
        return plan_rank(self.distribution, rank)

    def verify(self) -> None:
        """Verify the plan once: IndexBoundError if a stage reads outside of a tensor.

        PlanFault if the plan is incorrect otherwise, which is an internal error.
        """
        if not self._verified:
            try:
                check(self.plan)
            except PlanFault:
                self._check_reads()
                raise
            self._verified = True

    def verify_with_partners(self, comm: Any) -> None:
        """Verify the plan once, on all ranks together, each of which plans its own steps only.

        The errors are those of `verify`, on all ranks.
        """
        if not self._compared:  # the same on all ranks, whatever each has simulated
            try:
                verify_with_partners(self.plan, comm)
            except PlanFault:
                self._check_reads()
                raise
            self._compared = True

    def _check_reads(self) -> None:
        """IndexBoundError if the box that a stage reads exceeds the tensor."""
        for stage in self.computed:
            for name, box in stage.read_boxes(stage.bounds.items()).items():
                axes = enumerate(zip(box, self.layout.wholes[name], strict=True))
                for axis, ((lo, hi), (first, end)) in axes:
                    if lo < first or hi > end:
                        tensor = stage.tensor_of(name)
                        raise IndexBoundError(
                            f"{tensor!r} may be read at {lo if lo < first else hi - 1} in axis {axis}, "
                            f"outside of [{first}, {end})",
                            loc=stage.func.loc,
                            label="this func",
                            hint=f"pad it: td.pad({tensor}, ...), or limit the index with td.clip",
                        ) from None

    @functools.cached_property
    def digest(self) -> str:
        """A hash of program, schedule, sizes and versions, which ranks compare before a call."""
        try:
            version = metadata.version("tdsl")
        except metadata.PackageNotFoundError:  # run from its sources
            version = ""
        return fingerprint(version, np.__version__, self.state)

    @functools.cached_property
    def progress(self) -> Progress:
        """The progress record of this rank, for the launcher."""
        return Progress.create(self.plan.rank(mpi.rank()))

    def block(self, name: str, array: Array, rank: int) -> Array | None:
        """A rank's block of a whole array."""
        box = self.plan.owned(name, rank)
        return None if box is None else array[index_within(box, self.wholes[name])]

    def owners(self, name: str) -> dict[int, SpanBox]:
        """The ranks whose blocks together are the whole tensor, with their boxes; the first of copies."""
        assert self.state.grid is not None
        grid, placement = self.state.grid, dict(self.state.placed)[name]
        firsts = itertools.product(
            *(
                range(1) if isinstance(e, Copies) else range(size)
                for e, size in zip(placement.entries, grid.shape, strict=True)
            )
        )
        owned = ((rank, self.plan.owned(name, rank)) for rank in map(grid.rank, firsts))
        return {rank: box for rank, box in owned if box is not None}

    def assemble(self, name: str, blocks: Mapping[int, tuple[Array, ...]]) -> tuple[Any, ...]:
        """The whole arrays of a tensor, from the blocks of the ranks of `shares`; partial ones are combined.

        For a func of several values, `blocks` may have the arrays of one value only.
        """
        shares = self.owners(name)
        dtypes = (t.numpy for t in self.dtypes[name])
        if shares:
            dtypes = (array.dtype for array in blocks[next(iter(shares))])
        whole = tuple(np.empty(stored_shape(self.wholes[name]), dtype) for dtype in dtypes)
        combine = None
        if dict(self.state.placed)[name].partial and shares:
            combine = self.tasks.stages[name].combine
            assert combine is not None
            fill(combine, whole, {})
        buffer = Buffer(name, self.wholes[name], whole)
        for rank, box in shares.items():
            new = blocks[rank]
            if combine is not None:
                new = tuple(map(np.copy, buffer.part(box)))
                merge(combine, new, blocks[rank], {})
            buffer.put(box, new)
        return tuple(array if array.ndim else array[()] for array in whole)


def _warn_of_many_steps(stage: Stage) -> None:
    """Warn at the line that schedules a stage if it communicates in too many iterations to plan at once."""
    steps, plan = math.prod(stage.counts[stage.fixed :]), stage.state.plan(stage.name)
    if steps <= MAX_QUICK_STEPS:
        return
    depth = max(stage.levels.values())
    inner = ", ".join(repr(name) for name, level in stage.levels.items() if level == depth)
    text = (
        f"{stage.name!r} communicates {inner} in {steps} iterations of {stage.outer[depth - 1]!r}, each with "
        "messages of its own: planning them takes long; communicate at a loop further out"
    )
    loc = plan.loc or stage.func.loc
    if loc is None:
        warnings.warn(text, PlanningWarning, stacklevel=2)
    else:
        warnings.warn_explicit(text, PlanningWarning, loc.file, loc.line)


def _notes(stages: tuple[Stage, ...]) -> list[str]:
    notes = []
    for s in stages:
        said = {tensor for tensor, _ in s.state.plan(s.name).communicated}
        silent = [n for n in (*s.sources, s.name) if n not in said and s.tensor_of(n) == n]
        if silent:
            notes.append(
                f"{s.name}: {', '.join(silent)} at {s.outer[s.fixed - 1]}, as no communicate says where"
            )
        notes += [
            f"{s.name}: rows of {r.tensor} that {', '.join(r.key.sources)} selects; their bytes are expected "
            "values, for independent uniform indices"
            for r in s.routes
        ]
    return notes
