"""The default schedule: by recipes, or the alternative that is predicted to be faster (`alternatives`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tdsl.autoschedule.by_recipes import Completed, complete_by_recipes
from tdsl.autoschedule.explain import BY_HAND, INLINE, Decision
from tdsl.autoschedule.merge_dimensions import merge_dimensions
from tdsl.lang.program import FuncDef
from tdsl.machine.model import Machine
from tdsl.schedule.state import State

if TYPE_CHECKING:
    from tdsl.schedule.fluent import BaseSchedule

NEARLY = 0.95  # of the time of a schedule, from which another is taken instead


def complete(state: State, machine: Machine) -> State:
    """The state with a place and loops for every func; inlined funcs are replaced by their definitions."""
    return decide(state, machine)[0]


def decide(state: State, machine: Machine) -> tuple[State, tuple[Decision, ...]]:
    """The state of `complete`, and the decision for each func, in the order of the program."""
    completed = completion(state, machine)
    return completed.state, completed.decisions


def completion(state: State, machine: Machine) -> Completed:
    """The state of `complete`, the decisions, and the directives that make it of the given state."""
    merged = merge_dimensions(state, machine)
    if merged is not None and _is_faster(merged.state, state, machine):
        completed = _completion(merged.state, machine)
        return completed._replace(directives=(*merged.directives, *completed.directives))
    return _completion(state, machine)


def _is_faster(state: State, other: State, machine: Machine) -> bool:
    """True if the completion of a state is faster, for one thread, than that of another.

    The number of threads does not decide, since merged sums add in another order.
    """
    from tdsl.cost.predict import Prediction

    one = replace(machine, threads=1)
    first, second = (Prediction.of(_completion(x, one).state, one).seconds for x in (state, other))
    return first < NEARLY * second


def _completion(state: State, machine: Machine) -> Completed:
    """The completion of a state whose dimensions stay as they are."""
    by_recipes = complete_by_recipes(state, machine)
    funcs = state.program.funcs
    if machine.block_threads:
        if len(funcs) == 1:
            return by_recipes
        from tdsl.tilegraph.kernels_together import faster_kernels

        return _with_alternative(by_recipes, faster_kernels(state, by_recipes, machine), machine)
    if not machine.has_vectors or (len(funcs) == 1 and _is_streamed(funcs[0])):
        return by_recipes
    # importing the search takes longer than compiling such a program, for which it has nothing
    from tdsl.tilegraph.alternatives import faster_alternative
    from tdsl.tilegraph.open_tiles import fill_tiles

    filled = fill_tiles(state, by_recipes, machine)
    if filled is None:
        return _with_alternative(by_recipes, faster_alternative(state, by_recipes, machine), machine)
    schedule = filled[0]
    in_tiles = _with_alternative(by_recipes, filled, machine)
    rest = Completed(in_tiles.state, in_tiles.decisions, in_tiles.directives[len(schedule.directives) :])
    better = faster_alternative(schedule.state, rest, machine)
    completed = _with_alternative(rest, better, machine)
    return completed._replace(directives=(*schedule.directives, *completed.directives))


def _with_alternative(
    by_recipes: Completed, better: tuple[BaseSchedule, list[Decision]] | None, machine: Machine
) -> Completed:
    """What an alternative makes of the loops it leaves open, or recipes alone if there is none."""
    if better is None:
        return by_recipes
    schedule, of_tiles = better
    rest = complete_by_recipes(schedule.state, machine)
    placed = {d.func for d in schedule.directives if d.name == "compute_root"}
    decisions = {d.func: d for d in by_recipes.decisions if d.how in (BY_HAND, INLINE)}
    for d in rest.decisions:
        if d.func in placed:
            decisions[d.func] = _at_root(d)
        elif d.how not in (BY_HAND, INLINE):
            decisions[d.func] = d
    decisions |= {d.func: d for d in of_tiles}
    order = {f.name: n for n, f in enumerate(by_recipes.state.program.funcs)}
    in_order = sorted(decisions.values(), key=lambda d: order.get(d.func, len(order)))
    return Completed(rest.state, tuple(in_order), (*schedule.directives, *rest.directives))


def _at_root(d: Decision) -> Decision:
    """The decision for a func that the search placed at the root."""
    why = (text for text in d.why if not text.startswith("by hand"))
    return replace(d, why=(*why, "at the root: predicted to be faster than in the loops of its readers"))


def _is_streamed(f: FuncDef) -> bool:
    """True for a func without reductions and updates that is read and written along the same axis."""
    d = f.definitions[0]
    last = d.index[-1:]
    return len(f.definitions) == 1 and not d.ranges and all(r.index[-1:] in (last, ()) for r in d.reads)
