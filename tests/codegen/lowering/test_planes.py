"""Memory for the planes that are alive of a func that an update steps along a dimension."""

import re

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import ScheduleError
from tdsl.lang.interp import interpret

T, H, W = 7, 6, 9
t, y, x = td.vars("t y x")
DATA = {
    "a": np.random.default_rng(0).integers(-3, 4, (H, W)).astype(np.int32),
    "b": np.random.default_rng(1).integers(-3, 4, (T, H, W)).astype(np.int32),
}
a, b = td.Tensor("a", (H, W), td.i32), td.Tensor("b", (T, H, W), td.i32)


def stepped(first=None, distance=1, where=None, source=False):
    """u[t, y, x], whose inner points follow from those of planes before."""
    u = td.Func("u", shape=(T, H, W))
    u[t, y, x] = a[y, x] if first is None else first
    if source:
        q = td.range("q", 0, W)
        u[0, 2, q] = u[0, 2, q] + 100
    r = td.range("r", distance, T, where=where)
    p, q = td.range("p", 1, H - 1), td.range("q", 1, W - 1)
    u[r, p, q] = u[r - 1, p - 1, q] + u[r - distance, p, q + 1] * 2 + b[r, p, q]
    return u


def planes(schedule):
    """How many planes of u are in memory."""
    return int(re.search(r"u = alloc\(i32, \[(\d+), ", str(td.compile(schedule).loops())).group(1))


def check(*outputs, schedule=None):
    schedule = schedule or td.Schedule(*outputs)
    given = {i.name: DATA[i.name] for i in schedule.program.inputs}
    expected = interpret(schedule.program, given)
    for target in ("cpu", "python"):
        actual = td.compile(schedule, target=target)(**given)
        for one, other in zip(actual if len(outputs) > 1 else [actual], expected, strict=True):
            np.testing.assert_array_equal(one, other)
    return schedule


CASES = {
    "as it is": ({}, 2),
    "start by time": ({"first": a[y, x] + t * 10}, 2),
    "only the first plane": ({"first": td.where(t == 0, a[y, x], -1)}, 2),
    "two steps back": ({"distance": 2}, 3),
    "some steps": ({"where": lambda r: r != 3}, 2),
    "another update of a plane": ({"source": True}, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_ring_size_is_planes_read_by_a_step(case):
    arguments, alive = CASES[case]
    u, o = stepped(**arguments), td.Func("o")
    o[y, x] = u[T - 1, y, x]
    assert planes(check(o)) == alive


def test_planes_read_by_consumers_are_kept():
    u, o, z = stepped(), td.Func("o"), td.Func("z")
    k = td.range("k", T - 3, T)
    o[y, x] = td.sum(u[k, y, x], axis=k, dtype=td.i32)
    assert planes(check(o)) == 3
    z[t, y, x] = u[t, y, x] + 1
    assert planes(check(z)) == T
    first = td.Func("first")
    first[y, x] = u[0, y, x] - u[T - 1, y, x]
    assert planes(check(first)) == T


def test_step_that_reads_later_planes_is_not_folded():
    u = td.Func("u", shape=(T, H, W))
    u[t, y, x] = a[y, x] + t
    r, p = td.range("r", 1, T - 1), td.range("p", 0, H)
    u[r, p, x] = u[r - 1, p, x] + u[r + 1, p, x]
    o = td.Func("o")
    o[y, x] = u[T - 2, y, x]
    assert planes(check(o)) == T


def test_step_loop_must_be_outermost():
    u, o = td.Func("u", shape=(T, H, W)), td.Func("o")
    u[t, y, x] = a[y, x]
    r, p, q = td.range("r", 1, T), td.range("p", 1, H - 1), td.range("q", 0, W)
    u[r, p, q] = u[r - 1, p, q] + b[r, p, q]
    o[y, x] = u[T - 1, y, x]
    s = td.Schedule(o)
    s[u].update(0).reorder("p", "r", "q")
    assert planes(check(o, schedule=s)) == T


@pytest.mark.parametrize("free", [False, True])
def test_planes_are_parallel_and_vectorized(free):
    u, o = td.Func("u", shape=(T, H, W)), td.Func("o")
    u[t, y, x] = a[y, x]
    r, p, q = td.range("r", 1, T), y, x
    if not free:
        p, q = td.range("p", 0, H), td.range("q", 0, W)
    left, right = td.clip(q - 1, 0, W - 1), td.clip(q + 1, 0, W - 1)
    u[r, p, q] = u[r - 1, p, left] - u[r - 1, td.clip(p - 1, 0, H - 1), right] + b[r, p, q]
    o[y, x] = u[T - 1, y, x]
    s = td.Schedule(o)
    s[u].update(0).parallel(p).vectorize(q, 4)
    with pytest.raises(ScheduleError, match="iterations of 'r'"):
        s[u].update(0).parallel(r)
    assert planes(check(o, schedule=s)) == 2


def test_fold_storage_smaller_than_live_planes_raises():
    u, o = stepped(distance=2), td.Func("o")
    o[y, x] = u[T - 1, y, x]
    s = td.Schedule(o)
    s[u].fold_storage(t, 4)
    assert planes(check(o, schedule=s)) == 4
    s = td.Schedule(o)
    s[u].fold_storage(t, 2)
    with pytest.raises(ScheduleError, match="needs 3 elements at a time, not 2"):
        td.compile(s)(DATA["a"], DATA["b"])
