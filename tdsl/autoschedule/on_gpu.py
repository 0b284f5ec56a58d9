"""The default schedule for a GPU: kernels on tensor cores, and one kernel for each other func at the root."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from tdsl.autoschedule.block_tree.rows import rows_together
from tdsl.autoschedule.explain import ROOT, Decision, recipe_decision
from tdsl.autoschedule.recipes.block_scales import on_block_scales
from tdsl.autoschedule.recipes.block_updates import order_of_updates, with_updates
from tdsl.autoschedule.recipes.blocks import on_blocks
from tdsl.autoschedule.recipes.choices import if_suited
from tdsl.autoschedule.recipes.computed_operands import is_product_of_halves
from tdsl.autoschedule.recipes.online_tensor_cores import online_tensor_cores
from tdsl.autoschedule.recipes.reduced_tiles import reduced_tiles
from tdsl.autoschedule.recipes.tensor_cores import TensorCoreMatmul, on_tensor_cores
from tdsl.errors import ScheduleError
from tdsl.machine.model import Machine
from tdsl.schedule.bind import bind_state
from tdsl.schedule.fluent import BaseSchedule
from tdsl.schedule.scans import scan_of
from tdsl.schedule.state import FuncPlan, Root, State

REDUCED = "reduced tiles"


def schedule_online(schedule: BaseSchedule, machine: Machine) -> list[Decision]:
    """Schedule sums whose weights read other reductions on tensor cores; the decisions."""
    decisions: list[Decision] = []
    if "mma" not in machine.features or any(plan.scheduled for _, plan in schedule.state.plans):
        return decisions
    for name in [f.name for f in schedule.program.funcs if f.definitions[0].init is not None]:
        state = schedule.state
        if not state.program.has_func(name) or state.plan(name).scheduled:
            continue
        try:
            plan = if_suited(online_tensor_cores, schedule[name], machine=machine)
        except ScheduleError:
            continue  # its terms need nothing, or nothing that can be corrected
        if plan is not None:
            inside = tuple(n for n, p in schedule.state.plans if p.scheduled and n != name)
            decisions.append(Decision(name, "tensor cores, in one pass", (plan,), inside))
    return decisions


def schedule_on_gpu(schedule: BaseSchedule, open_: Collection[str], machine: Machine) -> list[Decision]:
    """Schedule kernels for the funcs `open_`, on tensor cores where these suit; the decisions."""
    decisions: list[Decision] = []
    given = schedule.state
    for name in [f.name for f in given.program.funcs if f.name in open_ and "mma" in machine.features]:
        before = schedule.state
        plan: object | None = on_tensor_cores(schedule[name], machine)
        if plan is None and is_product_of_halves(before.program.func(name)):
            plan = _without_common_factors(schedule, name, machine)
        if plan is None:
            plan = on_block_scales(schedule[name], machine)
        if plan is not None:
            decisions.append(recipe_decision(before, schedule.state, name, "tensor cores", plan))
    for name in [f.name for f in given.program.funcs if f.name in open_]:
        before = schedule.state
        taken = before.plan(name) != given.plan(name)
        reduced = None if taken else if_suited(reduced_tiles, schedule[name], machine=machine)
        if reduced is not None:
            decisions.append(recipe_decision(before, schedule.state, name, REDUCED, reduced))
    decisions += _share_rows(schedule, open_, machine)
    bound = bind_state(schedule.state, schedule.sizes).program
    names = [f.name for f in reversed(bound.funcs) if f.name in open_]
    names.sort(
        key=lambda name: isinstance(scan_of(bound.func(name)), str)
    )  # what reads a scan is in its kernel
    while names:
        name, before = names.pop(0), schedule.state
        if not before.program.has_func(name):
            continue
        if name in given.by_name and before.plan(name) != given.plan(name):
            continue
        several = len(before.program.func(name).definitions) > 1
        blocks = (
            with_updates(schedule[name], machine) if several else on_blocks(schedule[name], machine=machine)
        )
        if blocks is None:
            decisions.append(Decision(name, ROOT, why=("it has one point",)))
        else:
            decision = recipe_decision(before, schedule.state, name, "blocks", blocks)
            why = order_of_updates(schedule[name])
            decisions.append(replace(decision, why=(*decision.why, *why)))
            names = [*_open_funcs(before, schedule.state), *names]
    for func, given_plan in given.plans:
        _extend_properties(schedule, func, given_plan, given)
    return decisions


def _extend_properties(schedule: BaseSchedule, name: str, plan: FuncPlan, given: State) -> None:
    """Give the kernels that recipes added for a func the properties that directives give its own kernel."""
    state, added = schedule.state, list[str]()
    has_any = bool(plan.policies or plan.min_blocks or plan.grid_sync)
    readers = [name] if has_any and state.program.has_func(name) else []
    while readers:
        sources = {x for d in state.program.func(readers.pop()).definitions for x in d.mentions}
        new = sorted(
            x for x in sources - given.by_name.keys() if state.program.has_func(x) and x not in added
        )
        added += new
        readers += new
    for x in added:
        for source, policy in plan.policies:
            with suppress(ScheduleError):  # it does not read the source
                schedule[x].cache_policy(source, policy)
        if state.plan(x).place not in (None, Root()):
            continue  # it is in the kernel of another stage
        if plan.min_blocks:
            schedule[x].launch_bounds(plan.min_blocks)
        if plan.grid_sync:
            schedule[x].grid_sync()


def _open_funcs(before: State, after: State) -> list[str]:
    """The funcs that a recipe has added and left at the root for others."""
    added = [f.name for f in reversed(after.program.funcs) if f.name not in before.by_name]
    plans = {name: after.plan(name) for name in added}
    return [name for name, plan in plans.items() if not plan.scheduled and plan.place in (None, Root())]


def _share_rows(schedule: BaseSchedule, open_: Collection[str], machine: Machine) -> list[Decision]:
    """Schedule funcs together that read the same rows, element-wise ones around others; the decisions."""
    decisions: list[Decision] = []
    funcs = [f for f in reversed(schedule.state.program.funcs) if f.name in open_]
    for f in sorted(funcs, key=lambda f: bool(f.definitions[0].ranges)):
        before = schedule.state
        if not before.program.has_func(f.name) or before.plan(f.name).scheduled:
            continue
        plan = if_suited(rows_together, schedule[f.name], machine=machine)
        if plan is not None:
            decision = recipe_decision(before, schedule.state, f.name, "blocks", plan)
            inside = tuple(x for x in decision.inside if x not in plan.siblings)
            decisions.append(replace(decision, inside=inside, siblings=plan.siblings))
    return decisions


def _without_common_factors(schedule: BaseSchedule, name: str, machine: Machine) -> TensorCoreMatmul | None:
    """The plan for a sum that its common factors multiply in registers; None where that does not suit."""
    before = schedule.state, schedule.origins, schedule.directives
    terms = schedule[name].factor_out()
    if name not in schedule.state.program.outputs:
        schedule[name].inline()
    plan = on_tensor_cores(terms, machine)
    if plan is None:
        schedule.state, schedule.origins, schedule.directives = before
    return plan
