"""The default schedule for a GPU: kernels on tensor cores, and one kernel for each other func at the root."""

from __future__ import annotations

from collections.abc import Collection

from tdsl.autoschedule.explain import ROOT, Decision, recipe_decision
from tdsl.autoschedule.recipes.blocks import on_blocks
from tdsl.autoschedule.recipes.choices import if_suited
from tdsl.autoschedule.recipes.online_tensor_cores import online_tensor_cores
from tdsl.autoschedule.recipes.tensor_cores import on_tensor_cores
from tdsl.errors import ScheduleError
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule
from tdsl.schedule.state import State


def schedule_online(state: State, machine: Machine) -> tuple[State, list[Decision]]:
    """The state with tensor-core schedules for sums whose weights read other reductions; the decisions."""
    decisions: list[Decision] = []
    if any(plan.scheduled for _, plan in state.plans):
        return state, decisions
    for name in [f.name for f in state.program.funcs if f.definitions[0].init is not None]:
        schedule = BaseSchedule.of_state(state)
        if not state.program.has_func(name) or state.plan(name).scheduled:
            continue
        try:
            plan = if_suited(online_tensor_cores, schedule[name], machine=machine)
        except ScheduleError:
            continue  # its terms need nothing, or nothing that can be corrected
        if plan is not None:
            state = schedule.state
            inside = tuple(n for n, p in state.plans if p.scheduled and n != name)
            decisions.append(Decision(name, "tensor cores, in one pass", (plan,), inside))
    return state, decisions


def schedule_on_gpu(state: State, open_: Collection[str], machine: Machine) -> tuple[State, list[Decision]]:
    """The state with kernels for the funcs `open_`, on tensor cores where these suit; the decisions."""
    decisions: list[Decision] = []
    for name in [f.name for f in state.program.funcs if f.name in open_]:
        schedule = BaseSchedule.of_state(state)
        plan = on_tensor_cores(schedule[name], hopper="wgmma" in machine.features)
        if plan is not None:
            decisions.append(recipe_decision(state, schedule.state, name, "tensor cores", plan))
            state = schedule.state
    for name in [f.name for f in reversed(state.program.funcs) if f.name in open_]:
        if not state.plan(name).scheduled:
            state, decision = _schedule_kernel(state, name, machine)
            decisions.append(decision)
    return state, decisions


def _schedule_kernel(state: State, name: str, machine: Machine) -> tuple[State, Decision]:
    """The state with a func at the root as a kernel, with funcs that only its rows read; the decision."""
    schedule = BaseSchedule.of_state(state)
    plan = on_blocks(schedule[name], threads=machine.block_threads)
    if plan is None:
        return state, Decision(name, ROOT, why=("it has one point",))
    return schedule.state, recipe_decision(state, schedule.state, name, "blocks", plan)
