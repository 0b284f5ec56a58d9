"""Predictions for schedules that leave something open: the default schedule completes them first."""

from __future__ import annotations

from collections.abc import Mapping

from tdsl.autoschedule.explain import Decision
from tdsl.core.source import here
from tdsl.cost.network import Received
from tdsl.cost.predict import Prediction
from tdsl.errors import ShapeError
from tdsl.machine.model import Machine
from tdsl.schedule.bind import bind_state
from tdsl.schedule.state import State
from tdsl.tilegraph.default import decide


def predict(
    state: State, sizes: Mapping[str, int], machine: Machine
) -> tuple[Prediction, tuple[Decision, ...]]:
    """The prediction for a state and its sizes, and what the default schedule decided.

    ShapeError where a size is missing.
    """
    missing = [n for n in state.program.sizes if n not in sizes]
    if missing:
        raise ShapeError(
            f"what {state.program.name!r} moves depends on sizes that are not known: {', '.join(missing)}",
            loc=here(),
            label="this call",
            hint=f"give them to the schedule: op.schedule({missing[0]}=100, ...), or sizes={{...}}",
        )
    bound = bind_state(state, dict(sizes))
    completed, decisions = decide(bound, machine)
    received = None
    if bound.grid is not None:
        from tdsl.communication.distribution import Distribution, distribute_owned  # of ranks only

        distributed = distribute_owned(bound)
        if distributed is not None:
            assert distributed.grid is not None
            received = Received.of(Distribution.of(distributed).volume(), distributed.grid, machine)
    return Prediction.of(completed, machine, received), decisions
