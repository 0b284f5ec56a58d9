"""`bind_state`: a state with its symbolic sizes replaced by numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tdsl.core.node import Node, transform
from tdsl.lang.expr import FALSE, TRUE, Const, Size
from tdsl.lang.program import bind_sizes
from tdsl.lang.simplify import simplify
from tdsl.lang.types import i64
from tdsl.schedule.state import FuncPlan, State


def bind_state(state: State, sizes: Mapping[str, int]) -> State:
    """The state with named sizes replaced by numbers; specializations decided by them are resolved."""
    plans = tuple((name, _bind_plan(plan, sizes)) for name, plan in state.plans)
    return replace(state, program=bind_sizes(state.program, sizes), plans=plans)


def _bind_plan(plan: FuncPlan, sizes: Mapping[str, int]) -> FuncPlan:
    if not plan.specializations:
        return plan

    def bind(n: Node) -> Node:
        return Const(sizes[n.name], i64) if isinstance(n, Size) and n.name in sizes else n

    kept = []
    decided: set[int] = set()
    for special in plan.specializations:
        cond = simplify(transform(special.cond, bind))
        if special.definition in decided or cond == FALSE:
            continue
        if cond == TRUE:
            plan = plan.with_nest(special.definition, special.nest)
            decided.add(special.definition)
        else:
            kept.append(replace(special, cond=cond))
    return replace(plan, specializations=tuple(kept))
