"""The default schedule: by recipes, or by nested tiling or loop fusion if predicted to be faster."""

from __future__ import annotations

from tdsl.autoschedule.by_recipes import complete_by_recipes
from tdsl.autoschedule.explain import BY_HAND, INLINE, Decision
from tdsl.machine.model import Machine
from tdsl.schedule.state import State


def complete(state: State, machine: Machine) -> State:
    """The state with a place and loops for every func; inlined funcs are replaced by their definitions."""
    return decide(state, machine)[0]


def decide(state: State, machine: Machine) -> tuple[State, tuple[Decision, ...]]:
    """The state of `complete`, and the decision for each func, in the order of the program."""
    completed, decisions = complete_by_recipes(state, machine)
    if len(state.program.funcs) == 1 or not machine.has_vectors:
        return completed, decisions
    # importing the search takes longer than compiling a program of one func, for which it has nothing
    from tdsl.tilegraph.alternatives import faster_alternative

    better = faster_alternative(state, machine, completed)
    if better is None:
        return completed, decisions
    tiled, of_tiles = better
    completed, rest = complete_by_recipes(tiled, machine)
    order = {f.name: n for n, f in enumerate(state.program.funcs)}
    inlined = [d for d in decisions if d.how == INLINE]
    all_ = [*inlined, *of_tiles, *(d for d in rest if d.how not in (BY_HAND, INLINE))]
    return completed, tuple(sorted(all_, key=lambda d: order.get(d.func, len(order))))
