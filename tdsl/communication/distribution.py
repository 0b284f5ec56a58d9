"""The distribution of a program whose sizes are numbers: its stages, and the placement of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tdsl.communication.check_indices import check_indices
from tdsl.communication.collective import Layout
from tdsl.communication.execution_order import ExecutionOrder, execution_order
from tdsl.communication.routed_reads import with_routed_reads
from tdsl.communication.separate_reads import with_separate_reads
from tdsl.communication.stage_order import in_order
from tdsl.communication.stages import Stage, const_value, dtypes_of, stages_of
from tdsl.communication.totals import Communication, Volume
from tdsl.communication.volume import volume
from tdsl.core.node import frozen
from tdsl.lang.expr import Expr
from tdsl.lang.interpreted_boxes import realised_boxes
from tdsl.lang.program import Program
from tdsl.lang.simplify import add, simplify
from tdsl.lang.types import DType
from tdsl.placement.ownership import SpanBox
from tdsl.schedule.distribute_onto import Dealt, loops_onto
from tdsl.schedule.ranks import distribute
from tdsl.schedule.state import Illegal, State, fresh_plan


@frozen
class Distribution:
    """The stages of a state, producers first, the layout of its inputs, stages and outputs, their types,
    and the order in which ranks run them."""

    state: State
    stages: tuple[Stage, ...]
    layout: Layout
    dtypes: Mapping[str, tuple[DType, ...]]
    order: ExecutionOrder

    @staticmethod
    def of(state: State) -> Distribution:
        """The distribution of a state whose inputs, outputs and distributed funcs have a placement.

        IndexBoundError if a stage reads a tensor at an index without bounds, ScheduleError for an
        order of steps or a window in which one would be read before it is computed.
        """
        program = state.program
        computed = {n: tuple((lo, hi + 1) for lo, hi in box) for n, box in realised_boxes(program).items()}
        stages = in_order(state, stages_of(state, computed))
        inputs = (t.name for t in program.inputs)
        named = dict.fromkeys((*inputs, *(s.name for s in stages), *program.outputs))
        boxes = computed | _input_boxes(program, computed)
        assert state.grid is not None, "a placement names a grid"
        layout = Layout(state.grid, dict(state.placed), {n: boxes[n] for n in named})
        dtypes = {n: dtypes_of(program, n) for n in named}
        stages, layout = with_routed_reads(stages, layout, {n: _bytes(types) for n, types in dtypes.items()})
        for stage in stages:
            check_indices(stage)
        stages, layout = with_separate_reads(stages, layout)
        dtypes |= {r.key.name: r.key.func.dtypes for s in stages for r in s.routes}
        return Distribution(state, stages, layout, dtypes, execution_order(layout, stages))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(t.name for t in self.state.program.inputs)

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of an element of each tensor."""
        return {n: _bytes(types) for n, types in self.dtypes.items()}

    def volume(self, record: Callable[[Communication], None] = lambda _: None) -> Volume:
        """What all ranks communicate; `record` is called with each communication, in the order of tags."""
        outputs = self.state.program.outputs
        return volume(self.layout, self.stages, self.inputs, outputs, self.sizes, record)


def _bytes(types: tuple[DType, ...]) -> int:
    return sum(t.bytes for t in types)


def distribute_owned(state: State) -> State | None:
    """A state in which the owners of each placed func compute it, where no `distribute` says who does.

    None without a grid, if an input or an output has no placement, and if blocks of a func say no loops.
    """
    program, placed = state.program, dict(state.placed)
    if state.grid is None or not {t.name for t in program.inputs} | {*program.outputs} <= {*placed}:
        return None
    levels = state.grid.levels
    for f in program.funcs:
        if f.name in placed and not state.plan(f.name).distributed:
            state = state.with_plan(f.name, fresh_plan(f))
            try:
                loops = loops_onto(state, f.name, 0, f.name)
                entries = tuple(x for x in loops if not isinstance(x, Dealt))
                if len(entries) < len(loops):  # its blocks are no blocks of loops
                    return None
                state = distribute(state, f.name, 0, loops=entries, grid=levels)
            except Illegal:
                return None
    return state


def _input_boxes(program: Program, computed: Mapping[str, SpanBox]) -> dict[str, SpanBox]:
    """The boxes of the inputs, and of the empty outputs, which no stage computes."""
    boxes: dict[str, SpanBox] = {t.name: tuple((0, _number(e)) for e in t.shape) for t in program.inputs}
    for name in set(program.outputs) - set(computed):
        box = program.func(name).output_box(None)
        boxes[name] = tuple((_number(lo), _number(add(lo, e))) for lo, e in box)
    return boxes


def _number(e: Expr) -> int:
    return const_value(simplify(e))
