"""The `atomic` directive: concurrent updates of one element, and reductions rewritten as such updates."""

from __future__ import annotations

from dataclasses import replace

from tdsl.lang.definition import Definition
from tdsl.lang.expr import TRUE, Var
from tdsl.schedule.new_stage import replace_func
from tdsl.schedule.state import ROUND_UP, SHIFT, At, Illegal, Split, State, fresh_nest, is_ordered

KINDS = ("sum", "prod", "min", "max", "any", "all")


def atomic(state: State, func: str, definition: int) -> State:
    """Allow parallel iterations of a reduction to update the same element, by atomic updates.

    A reduction that initialises and combines in one nest becomes two definitions: initial value and update.
    """
    d = state.program.func(func).definitions[definition]
    if is_ordered(state.program.func(func), definition) or d.combine is None or d.combine.kind not in KINDS:
        raise Illegal(
            f"this definition of {func!r} is not an update by one of {', '.join(KINDS)}",
            "atomic() needs a reduction, or an update such as f[...] += ...",
        )
    if d.init is not None:
        state, definition = _split_initial_value(state, func), definition + 1
    plan = state.plan(func)
    return state.with_plan(func, replace(plan, atomic=plan.atomic | {definition}, scheduled=True))


def _split_initial_value(state: State, func: str) -> State:
    """The state with c[i] = sum(a[i, k]) as c[i] = 0, c[i] += a[i, k]; the loops belong to the update."""
    f, plan = state.program.func(func), state.plan(func)
    first, *updates = f.definitions
    assert first.init is not None
    inside = any(isinstance(p.place, At) and p.place.level.func == func for _, p in state.plans)
    if inside or plan.specializations or plan.tensorizations or plan.prefetches or plan.distributed:
        raise Illegal(
            f"the initial value of {func!r} becomes a definition, and its loops are in use already",
            "atomic() comes before what is computed, replaced or fetched at loops of the reduction",
        )
    for r in plan.nests[0].relations:
        if isinstance(r, Split) and r.tail in (SHIFT, ROUND_UP):
            raise Illegal(
                f"{r.parent!r} is split with tail={r.tail!r}, by which an update would add to points twice",
                "split with tail='guard' or 'peel'",
            )
    initial = Definition(
        tuple(map(Var, f.variables)), f.variables, (), TRUE, first.init, None, None, first.loc
    )
    changed = replace(f, definitions=(initial, replace(first, init=None), *updates))
    shifted = frozenset(n + 1 for n in plan.atomic)
    plan = replace(plan, nests=(fresh_nest(initial), *plan.nests), atomic=shifted)
    return replace_func(state, changed).with_plan(func, plan)
