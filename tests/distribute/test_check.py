"""The proof of a plan accepts what the planner makes, and nothing that was changed for the worse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.communication.steps import (
    Allocate,
    Copy,
    Exchange,
    Fill,
    Finish,
    Free,
    Merge,
    Message,
    RankPlan,
    Reduce,
    Route,
    Run,
    Start,
)
from tdsl.distribute.buffer_contents import PlanFault
from tdsl.distribute.check import check
from tdsl.distribute.plan import Plan
from tests.distribute.matmuls import cube, flat, matmul, two_and_a_half
from tests.distribute.pipelined import chain
from tests.distribute.test_entries import product_of_sums, two_products
from tests.distribute.test_overwrite import training_step
from tests.distribute.test_results import histogram

SIZES = {"M": 11, "N": 7, "K": 13}


def heat() -> Plan:
    """Two steps of a stencil, halos exchanged."""
    y, x = td.vars("y x")
    u, one, two = td.Tensor("u", (9, 8), td.f64), td.Func("one"), td.Func("two")
    edge = td.pad(u, mode="edge")
    one[y, x] = edge[y - 1, x] + edge[y, x + 1]
    inner = td.pad(one, mode="edge", shape=u.shape)
    two[y, x] = inner[y + 1, x] + inner[y, x - 1]
    grid = td.Grid(x=2, y=2)
    s = td.Schedule(two)
    for name in ("u", "one", "two"):
        s.place(name, "rc -> r c", grid)
    for f in (one, two):
        s[f].distribute((y, x), grid)
    return td.compile(s).plan()


def ahead() -> Plan:
    """Panels that are fetched while others are multiplied."""
    s = matmul.schedule(**SIZES)
    td.recipes.summa(s["C"], td.Grid(x=2, y=3), prefetch=1)
    return td.compile(s).plan()


def ring() -> Plan:
    """Parts of a sum, merged where they are read around the ends."""
    i, k = td.vars("i k")
    x, f, h, grid = td.Tensor("x", (9, 8), td.f64), td.Func("f"), td.Func("h"), td.Grid(x=4)
    f[i] = td.sum(x[i, k], axis=k)
    h[i] = f[(i + 2) % 9] + f[(i - 1) % 9]
    s = td.Schedule(h.with_shape(9)).place("x", "ik -> k", grid).place("h", "i -> i", grid)
    s.place("f", "i -> partial(sum)", grid)[f].distribute(k, grid)
    s[h].distribute(i, grid)
    return td.compile(s).plan()


def distant() -> Plan:
    """Two boxes of one tensor: a rank's own, and the mirrored one."""
    i = td.vars("i")
    x, f, grid = td.Tensor("x", (13,), td.f64), td.Func("f"), td.Grid(x=4)
    f[i] = x[i] - x[12 - i]
    s = td.Schedule(f).place(x, "i -> i", grid).place(f, "i -> i", grid)
    s[f].distribute(i, grid)
    return td.compile(s).plan()


def routed() -> Plan:
    """Rows that data select, in steps."""
    t, d = td.vars("t d")
    x, at, y = td.Tensor("x", (9, 4), td.f64), td.Tensor("at", (11,), td.i64), td.Func("y")
    y[t, d] = x[at[t], d]
    grid = td.Grid(p=2, q=2)
    s = td.Schedule(y).place(x, "rd -> r d", grid).place(at, "t -> t *", grid).place(y, "td -> t d", grid)
    s[y].distribute((t, d), grid)
    steps, _ = s[y].split(t, 2)
    s[y].communicate(x, at=steps, routed=True)
    return td.compile(s).plan()


PLANS = {
    "cannon": lambda: td.compile(flat(td.Grid(x=3, y=2), "ij")).plan(**SIZES),
    "johnson": lambda: td.compile(cube(td.Grid(x=2, y=2, z=2))).plan(**SIZES),
    "2.5d": lambda: td.compile(two_and_a_half(td.Grid(x=2, y=2, z=2))).plan(**SIZES),
    "summa": lambda: td.compile(flat(td.Grid(x=3, y=4), "")).plan(**SIZES),
    "rows": lambda: td.compile(flat(td.Grid(x=4, y=1), "")).plan(**SIZES),
    "layers": lambda: td.compile(cube(td.Grid(x=1, y=1, z=4))).plan(**SIZES),
    "ahead": ahead,
    "heat": heat,
    "ring": ring,
    "distant": distant,
    "routed": routed,
    "histogram": lambda: td.compile(histogram("r -> r")).plan(),
    "from parts": lambda: td.compile(two_products("partial", "ij -> *", lambda p, q: p - q)).plan(),
    "of parts": lambda: td.compile(product_of_sums("ij -> i *")).plan(),
    "on all": lambda: td.compile(two_products("*", "ij -> *", lambda p, q: p * q)).plan(),
    "overwritten": lambda: td.compile(training_step(3)).plan(),
    "parts": lambda: td.compile(histogram("r -> partial(sum)")).plan(),
    "steps": lambda: td.compile(chain(3, 4, order=td.recipes.one_f_one_b(3, 4), windows=False)).plan(),
    "steps with windows": lambda: td.compile(chain(3, 4, order=td.recipes.one_f_one_b(3, 4))).plan(),
}


@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS.keys())
def test_plans_of_the_planner_are_verified(make: Any) -> None:
    check(make())


def changed(plan: Plan, rank: int, steps: list[Any]) -> Plan:
    """The plan with other steps of one rank."""

    def make(r: int) -> RankPlan:
        return replace(plan.rank(r), steps=tuple(steps)) if r == rank else plan.rank(r)

    return Plan(plan.name, plan.grid, plan.tensors, plan.outputs, plan.notes, make, lambda: plan.volume)


def faults(plan: Plan, rng: np.random.Generator) -> Iterator[tuple[str, Plan]]:
    """Changes that no plan survives."""
    while True:
        rank = int(rng.integers(plan.grid.size))
        steps: list[Any] = list(plan.rank(rank).steps)
        at = int(rng.integers(len(steps)))
        match steps[at]:
            case Start() | Finish() as step if isinstance(step, Finish) or rng.integers(2):
                what = f"no {type(step).__name__}"
                del steps[at]
            case Start(Exchange(sends, receives), handle):
                messages = [replace(m, tag=m.tag + 1000) for m in sends + receives]
                parts = tuple(messages[: len(sends)]), tuple(messages[len(sends) :])
                x = replace(steps[at].exchange, sends=parts[0], receives=parts[1])
                what, steps[at] = "other tags", Start(x, handle)
            case Exchange() as step if step.collective and rng.integers(2):
                what, steps[at] = _other_group(step, rng)
            case Exchange(sends, receives):
                messages = list(sends + receives)
                n = int(rng.integers(len(messages)))
                what, replacement = _other_message(messages[n], plan, rank, rng)
                new_messages = [*messages[:n], *replacement, *messages[n + 1 :]]
                count = len(sends) - (1 if n < len(sends) and not replacement else 0)
                count += 1 if n < len(sends) and len(replacement) == 2 else 0
                parts = tuple(new_messages[:count]), tuple(new_messages[count:])
                steps[at] = replace(steps[at], sends=parts[0], receives=parts[1])
            case Reduce() as step:
                what, steps[at] = _other_reduction(step, rng)
            case Route() as step:
                what, steps[at] = _other_route(step, rng)
            case Run() as run:
                what, steps[at] = _other_run(run, plan, rng)
            case Allocate() as step if step.box:
                what, steps[at] = "memory for less", replace(step, box=_smaller(step.box))
            case Merge() as step if (others := _other_sources(step, steps)) and rng.integers(2):
                what, source = "one part twice for another", str(rng.choice(others))
                steps[at] = replace(step, source=source)
            case Merge() as step if step.box and rng.integers(2):
                what, steps[at] = "less is merged", replace(step, box=_smaller(step.box))
            case Free() | Copy() | Merge() | Allocate() as step:
                what = f"no {type(step).__name__}"
                del steps[at]
            case Fill() as step:
                if any(isinstance(s, Run | Reduce) and s.target == step.buffer for s in steps):
                    continue  # the run overwrites it
                what = "no Fill"
                del steps[at]
        yield f"{what} at {at} of rank {rank}", changed(plan, rank, steps)


def _other_group(x: Exchange, rng: np.random.Generator) -> tuple[str, Exchange]:
    match rng.integers(3):
        case 0:
            others = [k for k in ("broadcast", "all-gather", "all-to-all", "") if k != x.collective]
            return "another collective", replace(x, collective=str(rng.choice(others)))
        case 1:
            return "one rank fewer", replace(x, ranks=x.ranks[1:])
        case _:
            return "messages alone", replace(x, collective="", ranks=())


def _other_reduction(x: Reduce, rng: np.random.Generator) -> tuple[str, Reduce]:
    match rng.integers(5):
        case 0:
            return "another reduction", replace(x, tag=x.tag + 1000)
        case 1:
            return "one rank fewer", replace(x, ranks=x.ranks[1:], parts=x.parts[1:])
        case 2:
            return "no memory for the result", replace(x, target=None if x.target else "?")
        case 3 if x.box:
            return "a smaller box", replace(x, box=_smaller(x.box))
        case _:
            return "all parts for the next", replace(x, parts=(*x.parts[1:], x.parts[0]), target="?")


def _other_route(x: Route, rng: np.random.Generator) -> tuple[str, Route]:
    match rng.integers(5):
        case 0:
            return "another route", replace(x, tag=x.tag + 1000)
        case 1:
            return "one rank fewer", replace(x, ranks=x.ranks[1:], boxes=x.boxes[1:], blocks=x.blocks[1:])
        case 2:
            return "no memory for the rows", replace(x, target=None if x.target else "?")
        case 3:
            return "no indices", replace(x, index=None if x.index else "?")
        case _:
            return "all blocks for the next", replace(x, blocks=(*x.blocks[1:], x.blocks[0]))


def _other_message(m: Message, plan: Plan, rank: int, rng: np.random.Generator) -> tuple[str, list[Message]]:
    match rng.integers(5):
        case 0:
            return "no message", []
        case 1:
            return "another tag", [replace(m, tag=m.tag + 1000)]
        case 2:
            return "another rank", [replace(m, rank=(m.rank + 1) % plan.grid.size)]
        case 3 if m.box:
            return "a smaller box", [replace(m, box=_smaller(m.box))]
        case _:
            return "twice", [m, m]


def _other_sources(m: Merge, steps: list[Any]) -> list[str]:
    """What else is merged into the same."""
    like = [s for s in steps if isinstance(s, Merge) and (s.target, s.box) == (m.target, m.box)]
    return [s.source for s in like if s.source != m.source]


def _other_run(run: Run, plan: Plan, rng: np.random.Generator) -> tuple[str, Run]:
    (home,) = (h for h in plan.tensors if h.name == run.func)
    reduced = dict(home.points)
    match rng.integers(4):
        case 0:
            return "a smaller result", replace(run, box=_smaller(run.box))
        case 1:
            (name, (lo, hi)), *rest = reversed(run.ranges)
            return "points twice", replace(run, ranges=(*reversed(rest), (name, (lo, 2 * hi - lo))))
        case 2 if any(part != reduced.get(x, part) for x, part in run.ranges):
            moved = tuple((x, _shifted(r, reduced.get(x, r))) for x, r in run.ranges)
            return "as many other points", replace(run, ranges=moved)
        case _:
            return "another buffer", replace(run, reads=tuple((t, "?") for t, _ in run.reads))


def _shifted(part: tuple[int, int], whole: tuple[int, int]) -> tuple[int, int]:
    """As long a part of a range, moved by one."""
    lo, hi = part
    return (lo + 1, hi + 1) if hi < whole[1] else (lo - 1, hi - 1) if lo > whole[0] else part


def _smaller(box: Any) -> Any:
    (lo, hi), *rest = box
    return ((lo, hi - 1), *rest)


@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS.keys())
def test_faulty_plans_are_rejected(make: Any, rng: np.random.Generator) -> None:
    plan = make()
    for _, (what, wrong) in zip(range(250), faults(plan, rng), strict=False):
        try:
            check(wrong)
        except PlanFault:
            continue
        pytest.fail(f"{what} was not seen")


@pytest.mark.parametrize("swapped", ["p", "q", "pq"])
def test_parts_of_a_factor_are_equal_along_the_axis_of_the_other(swapped: str) -> None:
    """Ranks of one line have each other's parts: every sum is complete, but p0 may meet q0 twice."""
    plan = td.compile(product_of_sums("ij -> * *", terms=8)).plan()
    run = {(s.func, r): s for r in range(4) for s in plan.rank(r).steps if isinstance(s, Run)}
    wrong = plan
    for rank in range(4):
        x, y = plan.grid.coordinates(rank)
        other = {"p": (1 - x, y) if y else (x, y), "q": (x, 1 - y) if x else (x, y)}
        steps = [
            replace(s, ranges=run[s.func, plan.grid.rank(other[s.func])].ranges)
            if isinstance(s, Run) and s.func in swapped
            else s
            for s in plan.rank(rank).steps
        ]
        wrong = changed(wrong, rank, steps)
    check(plan)
    with pytest.raises(PlanFault, match=r"reads other parts of .* on ranks \d and \d"):
        check(wrong)


def with_cross_exchange(plan: Plan, rank: int, sends_first: bool) -> Plan:
    """The plan where a rank first exchanges a block of A with the other one, one way after the other."""
    other = 1 - rank
    mine, theirs = plan.owned("A", rank), plan.owned("A", other)
    send = Exchange((Message(other, 70 + rank, "A", mine),), ())
    receive = Exchange((), (Message(other, 70 + other, "copy", theirs),))
    both = (send, receive) if sends_first else (receive, send)
    steps = [Allocate("copy", "A", theirs), *both, Free("copy"), *plan.rank(rank).steps]
    return changed(plan, rank, steps)


def test_two_ranks_that_both_send_first_deadlock() -> None:
    plan = td.compile(flat(td.Grid(x=1, y=2), "")).plan(**SIZES)
    check(with_cross_exchange(with_cross_exchange(plan, 0, True), 1, False))
    with pytest.raises(PlanFault, match="is never received"):
        check(with_cross_exchange(with_cross_exchange(plan, 0, True), 1, True))


def test_an_exceeded_memory_limit_is_reported_in_bytes() -> None:
    p = td.compile(flat(td.Grid(x=3, y=2), "ij", **SIZES))
    most = max(p.plan().peak_memory)
    assert p.plan(memory=most) is p.plan()
    said = f"needs {most} bytes, 10 more than the limit, at step \\d+ to make 'C of a step'"
    with pytest.raises(td.ScheduleError, match=said):
        p.plan(memory=most - 10)
