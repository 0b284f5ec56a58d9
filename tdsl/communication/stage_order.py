"""The order of stages: producers first, and a stage that overwrites an input after all of its readers.

Stages of interleaved loops follow each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tdsl.communication.execution_order import interleaving_of
from tdsl.communication.stages import Stage
from tdsl.errors import ScheduleError
from tdsl.schedule.state import State


def in_order(state: State, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Stages, which are given producers first, such that those that overwrite an input follow its readers.

    ScheduleError if a reader of the input itself reads, directly or not, what overwrites it, and if a stage
    is both after one of several interleaved stages and before another one.
    """
    names = {s.name for s in stages}
    before = {s.name: names.intersection(s.sources) for s in stages}
    for v, w in state.overwrites:
        if v in names:
            before[v] |= {s.name for s in stages if w in s.sources} - {v}
    keys = dict.fromkeys(interleaving_of(s) or s.name for s in stages)
    left = [tuple(s for s in stages if x in (interleaving_of(s), s.name)) for x in keys]
    for group in left:
        for v, w in (x for s in group for x in state.overwrites if x[0] == s.name):
            if any(w in s.sources for s in group if s.name != v):
                raise _read_after(state, group)
    ordered: list[Stage] = []
    while left:
        computed = {s.name for s in ordered}
        ready = (g for g in left if all(before[s.name] <= computed.union(t.name for t in g) for s in g))
        group = next(ready, ())
        if not group:
            raise _in_between(left, before) or _read_after(state, [s for g in left for s in g])
        left.remove(group)
        ordered += group
    return tuple(ordered)


def _in_between(left: Iterable[tuple[Stage, ...]], before: Mapping[str, set[str]]) -> ScheduleError | None:
    """The error for a stage that comes between interleaved stages; None if there is none."""
    after: dict[str, set[str]] = {}
    for name, direct in before.items():  # producers first
        after[name] = direct.union(*(after.get(n, set()) for n in direct))
    for group in (g for g in left if len(g) > 1):
        names = {s.name for s in group}
        for reader in group:
            for name in before[reader.name] - names:
                if producers := after[name] & names:
                    return ScheduleError(
                        f"{name!r} reads {min(producers)!r} and is read by {reader.name!r}, whose steps are "
                        "interleaved",
                        loc=reader.state.plan(reader.name).loc or reader.func.loc,
                        label="scheduled here",
                        hint=f"interleave a loop of {name!r}, too",
                    )
    return None


def _read_after(state: State, left: Iterable[Stage]) -> ScheduleError:
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
