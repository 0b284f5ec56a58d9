"""Sums of what other sums give, such as a matricised tensor times a Khatri-Rao product.

for rows (threads):
  the sums of products that this row reads, in register tiles
  for blocks of vectors:
    for the terms: one vector of sums
"""

from __future__ import annotations

from math import prod

from tdsl.autoschedule.patterns.rows import vector_variable
from tdsl.autoschedule.recipes.choices import Unsuited, recipe
from tdsl.autoschedule.recipes.conv import compute_inside, contraction_of, inner_reads, known
from tdsl.core.node import frozen
from tdsl.lang.expr import Read, Var
from tdsl.lang.program import FuncDef
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.properties import extents, lanes_for
from tdsl.schedule.state import State, is_ordered
from tdsl.target import as_target

CACHE_SHARE = 0.5  # of the cache next to the first, that the sums of a row may fill


@frozen
class InnerSums:
    """The sums `inside` are made for each value of `row`, whose loop threads share."""

    row: str
    inside: tuple[str, ...]


@recipe
def inner_sums(stage: Stage, *, machine: Machine | None = None) -> InnerSums:
    """Schedule a sum that alone reads sums of products, of which each of its rows needs others.

    Returns what was found. Sizes that the
    schedule does not know count as large.

    >>> import tdsl as td
    >>> x, b, c = (td.Tensor(n, (64,) * r, td.f32) for n, r in (("x", 3), ("b", 2), ("c", 2)))
    >>> s = td.Schedule(td.einsum("ijk,jr,kr->ir", x, b, c))
    >>> td.recipes.inner_sums(s["einsum"])
    InnerSums(row='i', inside=('einsum_0',))
    """
    schedule = stage.schedule
    machine = machine or as_target(schedule.target).machine()
    plan = plan_inner_sums(schedule, stage.func, machine)
    if plan is None:
        raise Unsuited("it is no sum that alone reads sums of products, others for each of its rows")
    write_inner_sums(schedule, stage.func, plan, machine)
    return plan


def plan_inner_sums(schedule: BaseSchedule, func: str, machine: Machine) -> InnerSums | None:
    """The rows of a sum, and the sums of products that can be made for each of them."""
    f = schedule.state.program.func(func)
    d = f.definitions[0]
    if len(f.definitions) > 1 or d.init is None or not d.ranges or is_ordered(f, 0):
        return None
    state, boxes = known(schedule)
    if func not in boxes:
        return None
    f = state.program.func(func)
    d = f.definitions[0]
    sizes = extents(f, d, boxes[func])
    several = [v for v in f.variables if v in d.free and sizes[v] != 1]
    if len(several) < 2:
        return None
    inside = [
        r.name
        for r in inner_reads(state, func)
        if _is_of_a_row(r, several[0], state, sizes, machine) and contraction_of(schedule, r.name) is not None
    ]
    return InnerSums(several[0], tuple(inside)) if inside else None


def _is_of_a_row(r: Read, row: str, state: State, sizes: dict[str, int | None], machine: Machine) -> bool:
    """True if each row reads other values of these, and few enough to stay in a cache."""
    names = [e.name for e in r.index if isinstance(e, Var)]
    others = [sizes[v] for v in names if v != row]
    if len(names) < len(r.index) or len({*names}) < len(names) or row not in names:
        return False
    bytes_ = state.program.func(r.name).dtypes[0].bytes
    return all(others) and bytes_ * prod(n or 0 for n in others) <= CACHE_SHARE * machine.l2_share


def write_inner_sums(schedule: BaseSchedule, func: str, plan: InnerSums, machine: Machine) -> None:
    """The plan as directives."""
    state, boxes = known(schedule)
    f: FuncDef = state.program.func(func)
    d, owner = f.definitions[0], schedule[func]
    along = vector_variable(d)
    lanes = 1
    if along is not None and along != plan.row:
        lanes = lanes_for(d, extents(f, d, boxes[func])[along], machine.vector_bytes)
    ranges = [name for name, _, _ in d.ranges]
    rest = [v for v in d.free if v not in (plan.row, along)]
    if along is not None and lanes > 1:
        block, one = owner.split(along, lanes, tail="peel")
        owner.reorder(plan.row, *rest, block, *ranges, one)
        owner.vectorize(one)
    else:
        owner.reorder(plan.row, *(v for v in d.free if v != plan.row), *ranges)
    if machine.threads > 1:
        owner.parallel(plan.row)
    for name in plan.inside:
        compute_inside(schedule, name, func, (plan.row,), owner, plan.row, machine)
