"""The schedule of what the user left open."""

from __future__ import annotations

from dataclasses import replace

from tdsl.schedule.nest import Root, State


def complete(state: State) -> State:
    for name, plan in state.plans:
        if plan.place is None:
            state = state.with_plan(name, replace(plan, place=Root()))
    return state
