"""The order of stages: producers first, and a stage that overwrites an input after all of its readers."""

from __future__ import annotations

from tdsl.communication.stages import Stage
from tdsl.errors import ScheduleError
from tdsl.schedule.state import State


def in_order(state: State, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Stages, which are given producers first, such that those that overwrite an input follow its readers.

    ScheduleError if a reader of the input itself reads, directly or not, what overwrites it.
    """
    left = list(stages)
    names = {s.name for s in stages}
    before = {s.name: names.intersection(s.sources) for s in stages}
    for v, w in state.overwrites:
        if v in names:
            before[v] |= {s.name for s in stages if w in s.sources} - {v}
    ordered: list[Stage] = []
    while left:
        computed = {s.name for s in ordered}
        stage = next((s for s in left if before[s.name] <= computed), None)
        if stage is None:
            raise _read_after(state, left)
        left.remove(stage)
        ordered.append(stage)
    return tuple(ordered)


def _read_after(state: State, left: list[Stage]) -> ScheduleError:
    """The error for an input that is read after it is overwritten; `left` are stages that wait for others."""
    v, w, reader = next(
        (v, w, s) for v, w in state.overwrites for s in left if w in s.sources and s.name != v
    )
    return ScheduleError(
        f"{v!r} overwrites {w!r}, which {reader.name!r} still reads",
        loc=reader.func.loc,
        label="read here",
        related=((state.plan(v).loc, "overwritten here"),),
        hint=f"compute {reader.name!r} from what does not depend on {v!r}, or keep {w!r}",
    )
