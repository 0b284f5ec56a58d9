"""What is fetched ahead: in flight while a step is computed, in buffers of its own, with the same result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.communication.steps import Copy, Exchange, Finish, Run, Start
from tdsl.distribute.buffer_contents import PlanFault
from tdsl.distribute.check import check
from tdsl.distribute.plan import Plan
from tests.distribute.matmuls import matmul
from tests.distribute.test_check import changed
from tests.distribute.test_simulate import simulate_as_planned

SHAPES = {"M": 11, "N": 7, "K": 13}


def product(name: str, prefetch: int, grid: td.Grid, **sizes: int) -> Any:
    s = matmul.schedule(**sizes)
    getattr(td.recipes, name)(s["C"], grid, prefetch=prefetch)
    return s


@pytest.mark.in_part(9)
@pytest.mark.parametrize("prefetch", [0, 1, 2, 9])
@pytest.mark.parametrize("grid", [(2, 2), (3, 4), (5, 1)])
@pytest.mark.parametrize("name", ["summa", "pumma", "cannon"])
def test_products_are_the_same(name: str, grid: tuple[int, int], prefetch: int) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, s).astype(float) for s in ((11, 13), (13, 7)))
    s = product(name, prefetch, td.Grid(x=grid[0], y=grid[1]))
    np.testing.assert_array_equal(simulate_as_planned(s, a, b), a @ b)
    check(td.compile(s).plan(**SHAPES))


def test_the_next_step_is_in_flight_during_a_task() -> None:
    plan = td.compile(product("cannon", 1, td.Grid(x=4, y=4), M=8, N=8, K=8)).plan()
    steps = [s for s in plan.rank(5).steps if isinstance(s, Start | Finish | Run)]
    kinds = "".join({Start: "s", Finish: "f", Run: "r"}[type(s)] for s in steps)
    assert kinds == "ssfrsfrfrr"  # the last of four steps needs only what the rank has
    assert not any(isinstance(s, Exchange) for s in plan.rank(5).steps)


def test_memory_has_the_buffers_of_two_steps() -> None:
    """Of each panel 2 x 2 elements of 8 bytes more."""
    plans = [td.compile(product("cannon", n, td.Grid(x=4, y=4), M=8, N=8, K=8)).plan() for n in (0, 1)]
    assert max(plans[1].peak_memory) - max(plans[0].peak_memory) == 2 * (2 * 2 * 8)
    assert plans[0].received == plans[1].received


def test_directives_print_and_replay() -> None:
    s = product("summa", 2, td.Grid(x=2, y=2), **SHAPES)
    assert "prefetch=2" in str(s)
    again = matmul.schedule(**SHAPES)
    assert str(again.replay(s.to_json())) == str(s)


def without_first(plan: Plan, kind: type, rank: int) -> Plan:
    """The plan in which a rank leaves its first step of a kind away."""
    steps = list(plan.rank(rank).steps)
    del steps[next(n for n, s in enumerate(steps) if isinstance(s, kind))]
    return changed(plan, rank, steps)


def with_late_finish(plan: Plan, rank: int) -> Plan:
    """The plan in which a rank computes its first step before what it reads of others is there."""
    steps: list[Any] = list(plan.rank(rank).steps)
    at = next(n for n, s in enumerate(steps) if isinstance(s, Finish))
    run = next(n for n, s in enumerate(steps) if isinstance(s, Run))
    steps.insert(run + 1, steps.pop(at))
    return changed(plan, rank, steps)


def test_accesses_to_messages_in_flight_are_rejected() -> None:
    plan = td.compile(product("cannon", 1, td.Grid(x=4, y=4), M=8, N=8, K=8)).plan()
    for wrong in (
        without_first(plan, Finish, 5),
        without_first(plan, Start, 5),
        with_late_finish(plan, 5),
    ):
        with pytest.raises(PlanFault):
            check(wrong)
    steps: list[Any] = list(plan.rank(5).steps)
    at = next(n for n, s in enumerate(steps) if isinstance(s, Start))
    message = steps[at].exchange.receives[0]
    steps.insert(at + 1, Copy(message.buffer, message.buffer, message.box))
    with pytest.raises(PlanFault, match="on its way"):
        check(changed(plan, 5, steps))
