"""A graph as one program: the search schedules all of it, and the results stay the same."""

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import DefinitionError, ScheduleError, TypeMismatch


@td.op
def linear(x: td.f32["T", "K"], w: td.f32["K", "N"]):
    t, k, n = td.vars("t k n")
    y = td.Func("y")
    y[t, n] = td.sum(x[t, k] * w[k, n], axis=k)
    return y


@td.op
def scaled(x: td.f32["T", "N"], factor: td.f32):
    t, n = td.vars("t n")
    y = td.Func("y")
    y[t, n] = x[t, n] * factor
    return y


@td.op
def split(x: td.f32["T", "N"]):
    t, n = td.vars("t n")
    both = td.Func("both")
    both[t, n] = x[t, n] + 1, x[t, n] - 1
    return both


CONSTANT = np.full((5, 7), 3, np.float32)


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(s, dtype=np.float32) for s in ((8, 5), (5, 5)))


def layers(w, x):
    return scaled(np.maximum(linear(x, w), 0), 2), linear(linear(x, w), CONSTANT)


def test_the_program_takes_arguments_then_constants_then_numbers(arrays):
    x, w = arrays
    schedule = td.Graph(layers).autoschedule(w, x)
    run = td.compile(schedule)
    assert [a.name for a in run.signature.inputs] == ["w", "x", "w_1", "factor"]
    for made, wanted in zip(run(w, x, CONSTANT, 2), layers(w, x), strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-5)
    assert "taken" in schedule.explain()


def test_types_stand_for_arrays(arrays):
    x, w = arrays
    run = td.compile(td.Graph(linear).autoschedule(td.f32[8, 5], td.f32[5, 5]))
    np.testing.assert_allclose(run(x, w), x @ w, rtol=1e-5, atol=1e-5)


def test_pins_name_funcs_of_the_program(arrays):
    x, w = arrays
    graph = td.Graph(lambda x, w: linear(linear(x, w), w))
    run = td.compile(graph.autoschedule(x, w, pin={"y": "memory"}))
    np.testing.assert_allclose(run(x, w), x @ w @ w, rtol=1e-4, atol=1e-4)
    with pytest.raises(ScheduleError, match="no func 'z' to pin"):
        graph.autoschedule(x, w, pin={"z": "memory"})


@pytest.mark.parametrize(
    "function, why",
    [
        (lambda x, w: linear(linear(x, w).T, CONSTANT[:, :5].T @ CONSTANT), "a view of what"),
        (lambda x, w: linear(x, w)[0], "a view or an argument"),
        (lambda x, w: (linear(x, w), x), "a view or an argument"),
        (lambda x, w: split(x)[1], "one of several"),
    ],
)
def test_what_is_no_single_program_is_refused(arrays, function, why):
    x, w = arrays
    square = x[:5]
    with pytest.raises(DefinitionError, match=why):
        td.Graph(function).autoschedule(square, w)


def test_a_schedule_of_ones_own_is_not_merged(arrays):
    x, w = arrays
    own = linear.schedule()
    own["y"].parallel("t")
    mine = td.compile(own)
    with pytest.raises(DefinitionError, match="schedule of its own"):
        td.Graph(lambda x, w: mine(x, w)).autoschedule(x, w)


def test_counts_and_times_of_a_search_are_checked(arrays):
    with pytest.raises(TypeMismatch, match="number of candidates"):
        td.Graph(linear).autoschedule(*arrays, measure=-1)
