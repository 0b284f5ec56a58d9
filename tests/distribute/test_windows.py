"""Windows of messages: priorities, results in flight, and times of published systems, exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.communication.steps import Finish, Merge, Run, Start
from tdsl.distribute.check import check
from tests.distribute.random_programs import Chooser
from tests.distribute.volumes import assert_volume_is_of_plan

b, i = td.vars("b i")
UNIT = 10  # elements of a message of one unit of time
WORK = 6  # operations for each of them, of a computation of one unit


def seconds(s: td.Schedule, path: Path) -> float:
    """The time of the model in units, after a proof of the plan."""
    p = td.compile(s, target="python")
    check(p.plan())
    rates = {"bandwidth": 8 * UNIT, "operations": UNIT * WORK, "memory": 1e30}
    return p.trace(path / "trace", latency=0, **rates)


def doubled(value: Any, times: int) -> Any:
    """A value after some operations."""
    for _ in range(times):
        value = value * 2
    return value


def on_two_ranks(
    outputs: Sequence[td.Func],
    received: Mapping[str, Sequence[str]],
    behind: Mapping[str, str],
) -> td.Schedule:
    """Funcs with names in `received` on rank 1, with what each receives in a window; others on rank 0."""
    grid, s = td.Grid(x=2, y=1), td.Schedule(*outputs)
    for t in s.program.inputs:
        s.place(t.name, f"i -> {int(t.name == 'x' and 'start' in received)} i", grid)
    for f in s.program.funcs:
        rank = int(f.name in received)
        s.place(f.name, f"i -> {rank} i", grid)
        (loop,) = s[f.name].distribute((rank, i), grid)
        for name in received.get(f.name, ()):
            since = name if s.program.has_func(name) else s.program.funcs[0].name
            s[f.name].communicate(name, at=loop, since=since, behind=behind.get(name))
    return s


def at(value: td.Func | td.Tensor, size: int, other: int) -> Any:
    """A value of so many elements at the index of a func of another number of them."""
    return value[i // (other // size) if other >= size else i * (size // other)]


def training(units: Sequence[int], behind: Mapping[str, str], slices: int = 1) -> td.Schedule:
    """Gradients of layers n, ..., 1 on one rank, then layers 1, ..., n on another, which needs them.

    A layer takes a unit of time each way, the messages of a gradient so many `units`, which are 1 or a
    multiple of `slices`. `behind` has the gradients that are sent after others.
    """
    layer, size = td.Tensor("x", (UNIT,), td.f64), UNIT
    gradients: list[list[td.Func]] = []
    for n in reversed(range(len(units))):
        parts = min(slices, units[n])
        gradients.insert(0, [])
        for k in range(parts):
            width = UNIT * units[n] // parts
            g = td.Func(f"g{n + 1}{'abcdef'[k]}", shape=(width,))
            g[i] = doubled(at(layer, size, width), WORK // units[n])
            layer, size = g, width
            gradients[0].append(g)
    outputs, received = list[td.Func](), {}
    for n, parts in enumerate(gradients):
        width = UNIT * units[n] // len(parts)
        f = td.Func(f"f{n + 1}", shape=(width,))
        total, *terms = [at(outputs[-1], size, width) if n else 0.0, *(g[i] for g in parts)]
        for term in terms:
            total = total + term
        f[i] = doubled(total, WORK * UNIT // width - len(terms))
        outputs.append(f)
        size, received[f.name] = width, [g.name for g in parts]
    return on_two_ranks(outputs, received, behind)


@pytest.mark.parametrize(
    "units, behind, slices, time",
    [
        ((1, 1, 6), {}, 1, 12),
        ((1, 1, 6), {"g2a": "g1a"}, 1, 11),
        ((1, 1, 6), {f"g3{k}": "g1a" for k in "bcdef"}, 6, 10),
        ((2, 2, 2), {}, 1, 10),
        ((2, 2, 2), {"g2a": "g1a"}, 1, 9),
    ],
)
def test_gradients_of_first_layers_are_sent_first(
    units: Sequence[int], behind: Mapping[str, str], slices: int, time: float, tmp_path: Path
) -> None:
    """P3, ByteScheduler and TicTac: in the order of computation, by priority, in slices of one unit."""
    assert seconds(training(units, behind, slices), tmp_path) == pytest.approx(time)


@pytest.mark.parametrize("seed", range(6))
def test_priorities_change_no_result(seed: int) -> None:
    c = Chooser(seed)
    units = [c.of([1, 2, 6]) for _ in range(c.number(2, 5))]
    behind = {f"g{n}a": f"g{c.number(1, n - 1)}a" for n in range(2, len(units) + 1) if c.yes()}
    x = np.arange(float(UNIT))
    plain, ordered = (td.compile(training(units, b), target="python") for b in ({}, behind))
    for got, expected in zip(ordered.simulate(x), plain.simulate(x), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert ordered.plan().received == plain.plan().received
    check(ordered.plan())


@pytest.mark.parametrize("groups, overhead, time", [([1] * 6, 0, 7), ([2, 2, 1, 1], 0.5, 9), ([4, 2], 3, 14)])
def test_layers_are_loaded_in_groups(
    groups: Sequence[int], overhead: float, time: float, tmp_path: Path
) -> None:
    """PipeSwitch: six layers of one unit to load and one to compute; the overhead of a call is data, too."""
    x, start = td.Tensor("x", (1,), td.f64), td.Func("start")
    start[i] = x[i] * 2
    outputs, received, more = [start], {"start": list[str]()}, int(overhead * UNIT)
    for n, count in enumerate(groups):
        w, f = td.Tensor(f"w{n}", (UNIT * count + more,), td.f64), td.Func(f"f{n}", shape=(UNIT * count,))
        offsets = range(0, more + 1, min(UNIT, more) or 1)
        f[i] = doubled(sum((w[i + k] for k in offsets), outputs[-1][i * 0]), WORK - len(offsets))
        outputs.append(f)
        received[f.name] = [w.name]
    assert seconds(on_two_ranks(outputs, received, {}), tmp_path) == pytest.approx(time)


def gradients_in_flight(until: str, entry: str) -> td.Schedule:
    """Two sums over four ranks; the first one is in flight until a func begins."""
    x, g, h, v = td.Tensor("x", (8, 7), td.i64), td.Func("g"), td.Func("h"), td.Func("v")
    g[i], h[i] = td.sum(x[b, i], axis=b), td.sum(x[b, i] * 2, axis=b)
    v[i] = g[i] - h[i]
    grid, s = td.Grid(x=4), td.Schedule(v)
    s.place(x, "bi -> b", grid)
    for f in (g, h):
        (loop,) = s.place(f, f"i -> {entry}", grid)[f].distribute(b, grid)
        if f is g:
            s[f].communicate(f, at=loop, until=until)
    s.place(v, "i -> i", grid)[v].distribute(i, grid)
    return s


@pytest.mark.parametrize("entry", ["i", "*", "2", "i/2"])
@pytest.mark.parametrize("until", ["h", "v"])
def test_results_are_in_flight_until_a_func_begins(until: str, entry: str) -> None:
    s, x = gradients_in_flight(until, entry), np.arange(56).reshape(8, 7)
    p = td.compile(s, target="python")
    got, counted = p.simulate(x, count=True)
    np.testing.assert_array_equal(got, -x.sum(0))
    plan = p.plan()
    planned = (plan.received, plan.sent, plan.messages)
    assert (counted.received, counted.sent, counted.messages) == planned
    check(plan)
    assert_volume_is_of_plan(p._specialise({}))
    kinds = {Start: "s", Finish: "f", Merge: "m", Run: "r"}
    steps = "".join(kinds.get(type(step), "") for step in plan.rank(2).steps)
    assert steps.startswith("rsrf" if until == "v" else "rsfmmm")  # it computes h meanwhile
    assert f'until="{until}"' in str(s)
    assert td.Schedule.of_program(s.program).replay(s.to_json()).state == s.state


def stepped(until: str | None, order: Any = None) -> td.Schedule:
    """A func whose steps go to another rank, a second one meanwhile, and a reader of both."""
    x, f, g, h = td.Tensor("x", (8,), td.i64), td.Func("f"), td.Func("g"), td.Func("h")
    f[i], g[i] = x[i] + 1, x[i] * 3
    h[i] = f[i] - g[i]
    grid, s = td.Grid(x=2), td.Schedule(h)
    s.place(x, "i -> 0", grid).place(f, "i -> 1", grid).place(g, "i -> 0", grid).place(h, "i -> 1", grid)
    loops = []
    for func, rank in ((f, 0), (g, 0), (h, 1)):
        s[func].distribute(rank, grid)
        loops.append(s[func].divide(i, 4)[0])
    s[f].communicate(f, at=loops[0], until=until)
    s[h].communicate(g, at=loops[2])
    return s.interleave(loops, order=order)


@pytest.mark.parametrize("until", [None, "g", "h"])
def test_steps_are_in_flight_until_a_step_of_the_same_number(until: str | None) -> None:
    s, x = stepped(until), np.arange(8)
    p = td.compile(s, target="python")
    got, counted = p.simulate(x, count=True)
    np.testing.assert_array_equal(got, x + 1 - 3 * x)
    assert (counted.received, counted.messages) == (p.plan().received, p.plan().messages)
    check(p.plan())
    steps = [type(step) for step in p.plan().rank(0).steps]
    assert steps.count(Start) == (4 if until else 0)


def three(until: Mapping[str, str]) -> td.Schedule:
    """A chain of three funcs on two ranks, some of them in flight until others begin."""
    x, g, h, v = td.Tensor("x", (8,), td.i64), td.Func("g"), td.Func("h"), td.Func("v")
    g[i] = x[i] + 1
    h[i] = g[i] * 2
    v[i] = h[i] - g[i]
    grid, s = td.Grid(x=2), td.Schedule(v)
    s.place(x, "i -> i", grid)
    for f in (g, h, v):
        (loop,) = s.place(f, "i -> i/1", grid)[f].distribute(i, grid)
        if f.name in until:
            s[f].communicate(f, at=loop, until=until[f.name])
    return s


def test_a_window_that_ends_before_its_data_are_computed_is_refused() -> None:
    for until, message in (
        ({"h": "g"}, "results of 'h' cannot arrive until then: 'g' begins before it is computed"),
        ({"g": "v"}, "results of 'g' cannot arrive until then: 'h' reads them before"),
    ):
        with pytest.raises(td.ScheduleError, match=message):
            td.compile(three(until)).plan()
    check(td.compile(three({"g": "h", "h": "v"})).plan())
    order = [(k, n) for n in range(4) for k in (1, 0, 2)]
    with pytest.raises(td.ScheduleError, match="'g' begins before step 0 is computed"):
        td.compile(stepped("g", order)).plan()
    with pytest.raises(td.ScheduleError, match="step 0 of 'h' reads them before"):
        td.compile(reader_before_the_end()).plan()


def reader_before_the_end() -> td.Schedule:
    """Steps that arrive before those of a func that is computed after their reader."""
    x, f, h, v = td.Tensor("x", (8,), td.i64), td.Func("f"), td.Func("h"), td.Func("v")
    f[i] = x[i] + 1
    h[i] = f[i] * 2
    v[i] = h[i] + 1
    grid, s = td.Grid(x=2), td.Schedule(v)
    s.place(x, "i -> 0", grid)
    loops = []
    for func, rank in ((f, 0), (h, 1), (v, 1)):
        s.place(func, "i -> 1", grid)[func].distribute(rank, grid)
        loops.append(s[func].divide(i, 4)[0])
    s[f].communicate(f, at=loops[0], until=v)
    return s.interleave(loops)


def test_wrong_windows_are_refused() -> None:
    s = gradients_in_flight("v", "i")
    with pytest.raises(td.ScheduleError, match="only results of a func are sent until"):
        s["h"].communicate(("x", "h"), at="b_o", until="v")
    with pytest.raises(td.ScheduleError, match="'w'"):
        s["h"].communicate("h", at="b_o", until="w")
    with pytest.raises(td.ScheduleError, match="'h' cannot be received behind 'g'"):
        s["v"].communicate("h", at="i_o", behind="g")
    s["v"].communicate("h", at="i_o", since="h", behind="g")
    with pytest.raises(td.ScheduleError, match="'g' is received in no window"):
        td.compile(s).plan()


def test_messages_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(td.ScheduleError, match="each of them waits for the other"):
        td.compile(training((1, 1), {"g1a": "g2a", "g2a": "g1a"})).plan()
    s = three({})
    s["h"].communicate("g", at="i_o", since="g", behind="h")
    s["v"].communicate("h", at="i_o", since="h")
    with pytest.raises(td.ScheduleError, match="behind 'h': their messages start after 'h' begins"):
        td.compile(s).plan()
