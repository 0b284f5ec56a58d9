"""What the default schedule computes inside the loops of its reader is not computed again and again."""

from collections.abc import Callable

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.by_recipes import Machine
from tdsl.cost.price import times_computed
from tdsl.schedule.bind import bind_state
from tdsl.schedule.properties import root_boxes, unplaced_at_root
from tdsl.schedule.state import Root, State
from tdsl.tilegraph.default import complete

WIDE = Machine(vector_bytes=64, threads=2, registers=32)
N = 96


def placed(out: td.Func) -> State:
    return complete(bind_state(td.Schedule(out).state, {"N": N}), WIDE)


def table() -> tuple[td.Tensor, td.Func]:
    y, x = td.vars("y x")
    t, a = td.Tensor("t", ("N", "N"), td.f32), td.Func("a")
    a[y, x] = td.sin(t[y, x]) + t[y, x]
    return t, a


def sums_of_rows() -> tuple[td.Tensor, td.Func]:
    i, k = td.vars("i k")
    t, a = td.Tensor("t", ("N", "N"), td.f32), td.Func("a")
    a[i] = td.sum(t[i, k] * t[i, k], axis=k)
    return t, a


def product() -> tuple[td.Tensor, td.Func]:
    i, j, k = td.vars("i j k")
    t, a = td.Tensor("t", ("N", "N"), td.f32), td.Func("a")
    a[i, j] = td.sum(t[k, i] * t[k, j], axis=k)
    return t, a


def outer_product() -> td.Func:
    i, j = td.vars("i j")
    (t, a), out = sums_of_rows(), td.Func("out")
    out[i, j] = t[i, j] * a[i] * a[j]
    return out


def difference() -> td.Func:
    i, j = td.vars("i j")
    (_, a), out = sums_of_rows(), td.Func("out")
    out[i, j] = a[i] - a[j]
    return out


def transposed() -> td.Func:
    y, x = td.vars("y x")
    (_, a), out = table(), td.Func("out")
    out[y, x] = a[y, x] + a[x, y]
    return out


def symmetric() -> td.Func:
    i, j = td.vars("i j")
    (_, a), out = product(), td.Func("out")
    out[i, j] = a[i, j] + a[j, i]
    return out


def correlation() -> td.Func:
    i, j = td.vars("i j")
    (_, a), out = product(), td.Func("out")
    out[i, j] = a[i, j] / td.sqrt(a[i, i] * a[j, j])
    return out


def flipped() -> td.Func:
    y, x = td.vars("y x")
    (t, a), out = table(), td.Func("out")
    out[y, x] = a[y, x] + a[t.shape[0] - 1 - y, x]
    return out


def next_line() -> td.Func:
    y, x = td.vars("y x")
    (t, a), out = table(), td.Func("out")
    out[y, x] = a[(y + 1) % t.shape[0], x] + a[y, x]
    return out


def last_line() -> td.Func:
    y, x = td.vars("y x")
    (t, a), out = table(), td.Func("out")
    out[y, x] = a[y, x] / a[t.shape[0] - 1, x]
    return out


def half_further() -> td.Func:
    y, x = td.vars("y x")
    (t, a), out = table(), td.Func("out")
    out[y, x] = a[y, x] + a[y + t.shape[0] // 2, x]
    return out


def gram() -> td.Func:
    i, j, k = td.vars("i j k")
    (_, a), out = table(), td.Func("out")
    out[i, j] = td.sum(a[k, i] * a[k, j], axis=k)
    return out


def far_stencil() -> td.Func:
    y, x = td.vars("y x")
    (_, a), out = table(), td.Func("out")
    padded = td.pad(a, mode="edge", shape=("N", "N"))
    out[y, x] = padded[y - 50, x] + padded[y + 50, x]
    return out.with_shape("N", "N")


def periodic() -> td.Func:
    y, x = td.vars("y x")
    (_, a), out = table(), td.Func("out")
    padded = td.pad(a, mode="wrap", shape=("N", "N"))
    out[y, x] = padded[y - 1, x] + padded[y + 1, x] - 2 * padded[y, x]
    return out.with_shape("N", "N")


APART = [
    outer_product, difference, transposed, symmetric, correlation, flipped, next_line, last_line,
    half_further, far_stencil, periodic, gram,
]  # fmt: skip


@pytest.mark.parametrize("make", APART)
def test_funcs_read_at_distant_places_are_computed_first(make: Callable[[], td.Func]):
    state = placed(make())
    assert isinstance(state.plan("a").place, Root)


@pytest.mark.parametrize("make", [correlation, flipped, periodic])
def test_values_are_those_of_the_definitions(make: Callable[[], td.Func], rng):
    t = rng.random((N, N), dtype=np.float32)
    out = make()
    s = td.Schedule(make())
    s["a"].compute_root()
    np.testing.assert_allclose(td.compile(out)(t), td.compile(s)(t), rtol=1e-5)


def test_steps_of_a_periodic_grid_are_computed_one_after_the_other():
    y, x = td.vars("y x")
    last: td.Tensor | td.Func = td.Tensor("t", ("N", "N"), td.f32)
    for n in range(3):
        padded, step = td.pad(last, mode="wrap", shape=("N", "N")), td.Func(f"step{n}")
        step[y, x] = padded[y, x] + 0.1 * (padded[y - 1, x] + padded[y + 1, x] - 2 * padded[y, x])
        last = step
    assert isinstance(last, td.Func)
    state = placed(last)
    assert all(isinstance(plan.place, Root) for _, plan in state.plans)


def test_a_line_computes_all_between_its_reads():
    state = unplaced_at_root(bind_state(td.Schedule(flipped()).state, {"N": N}))
    boxes = root_boxes(state)
    lines = times_computed(state, "out", (), "y", ["a"], boxes)["a"]
    strips = times_computed(state, "out", (), "y", ["a"], boxes, height=16)["a"]
    assert N / 4 < lines < 3 * N / 4  # half of all lines in the mean
    assert strips == lines  # what grows and shrinks does not slide


def test_what_slides_is_computed_once_but_for_the_edges_of_strips():
    y, x = td.vars("y x")
    (_, a), out = table(), td.Func("out")
    out[y, x] = a[y, x] + a[y + 8, x]
    state = unplaced_at_root(bind_state(td.Schedule(out).state, {"N": N}))
    boxes = root_boxes(state)
    lines = N - 8
    assert times_computed(state, "out", (), "y", ["a"], boxes)["a"] == pytest.approx(9 * lines / N)
    strips = times_computed(state, "out", (), "y", ["a"], boxes, height=16)
    assert strips == {"a": pytest.approx((16 + 8) / 16 * lines / N)}


def test_sizes_that_are_not_known_count_as_many():
    state = unplaced_at_root(td.Schedule(periodic()).state)
    again = times_computed(state, "out", (), "y", ["a"], root_boxes(state))
    assert again["a"] > 1000
