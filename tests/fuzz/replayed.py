"""The default schedule of a program is a list of directives: these give the same loops, and are complete."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tdsl as td
from tdsl.schedule.bind import bind_state
from tdsl.schedule.state import FuncPlan, State
from tdsl.target import as_target
from tdsl.tilegraph.default import complete


def loops_of(state: State) -> tuple[Any, dict[str, FuncPlan]]:
    """The program and the plans of a state, without what only the default schedule asks."""

    def plain(plan: FuncPlan) -> FuncPlan:
        nests = (
            replace(n, aliases=(), loops=tuple(replace(x, fixed=False) for x in n.loops)) for n in plan.nests
        )
        return replace(plan, nests=tuple(nests), scheduled=False)

    # indices of stages that directives add are simplified with those of the program
    return bind_state(state, {}).program, {name: plain(plan) for name, plan in state.plans}


def check_replays(given: td.Schedule, sizes: dict[str, int]) -> None:
    """Assert that the completed schedule has the loops of the default, prints as Python and stays."""
    s = td.Schedule.of_state(bind_state(given.state, sizes))
    s.target = as_target("cpu") if given.target is None else given.target
    machine = s.target.machine()
    completed = s.completed()
    default, again = (complete(x.state, machine) for x in (s, completed))
    assert loops_of(again) == loops_of(default), f"the completed schedule has other loops:\n{completed}"
    printed = td.Schedule.of_state(s.state)
    exec(str(completed), {"s": printed, "td": td})
    assert printed.state == completed.state, f"the printed schedule has another state:\n{completed}"
    twice = loops_of(completed.completed().state)
    assert twice == loops_of(completed.state), f"the completed schedule is completed further:\n{completed}"
