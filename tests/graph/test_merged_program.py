"""A graph as one program: the search schedules all of it, and the results stay the same."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import tdsl as td
from tdsl.errors import DefinitionError, ScheduleError, TypeMismatch
from tdsl.graph.merged_program import merge_graph


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


ROOT = Path(__file__).parents[2]
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
    for result, expected in zip(run(w, x, CONSTANT, 2), layers(w, x), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5)
    assert "taken" in schedule.explain()


def test_arguments_that_nothing_reads_are_parameters(arrays):
    x, w = arrays
    graph = td.Graph(lambda unread, x, w: linear(x["here"], w))
    given = np.ones(3, np.int32), {"here": x, "there": w}, w
    for target in ("cpu", "cuda"):
        schedule = graph.autoschedule(*given, target=target)
        assert schedule.program.parameters == ("unread", "x", "x_there", "w")
        run = td.compile(schedule)
        run = run if target == "cpu" else td.emulate(run)
        np.testing.assert_allclose(run(given[0], x, w, w), x @ w, rtol=1e-5, atol=1e-5)


def test_types_stand_for_arrays(arrays):
    x, w = arrays
    run = td.compile(td.Graph(linear).autoschedule(td.f32[8, 5], td.f32[5, 5]))
    np.testing.assert_allclose(run(x, w), x @ w, rtol=1e-5, atol=1e-5)


def test_a_graph_is_measured_on_arrays():
    with pytest.raises(TypeMismatch, match=r"(?s)f32\[8, 5\] has no values.*measure= away"):
        td.Graph(linear).autoschedule(td.f32[8, 5], td.f32[5, 5], measure=2)


def test_pins_name_funcs_of_the_program(arrays):
    x, w = arrays
    graph = td.Graph(lambda x, w: linear(linear(x, w), w))
    run = td.compile(graph.autoschedule(x, w, pin={"y": "memory"}))
    np.testing.assert_allclose(run(x, w), x @ w @ w, rtol=1e-4, atol=1e-4)
    with pytest.raises(ScheduleError, match="no func 'z' to pin"):
        graph.autoschedule(x, w, pin={"z": "memory"})


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: linear(linear(x, w).T, CONSTANT[:, :5].T @ CONSTANT),
        lambda x, w: linear(x.reshape(25)[::-1].reshape(5, 5), w[::-1]),
        lambda x, w: linear(x, w)[1:, ::2],
        lambda x, w: linear(x, w).reshape(-1),
        lambda x, w: (linear(x, w), x, x[2]),
        lambda x, w: split(x)[1],
        lambda x, w: (*split(x), split(w)[0]),
        lambda x, w: split(x)[::-1],
        lambda x, w: (lambda y: (y, y, y.T))(linear(x, w)),
        lambda x, w: scaled(x, linear(x, w)[2, 3]),
        lambda x, w: np.concatenate([linear(x, w).T, x], axis=1),
        lambda x, w: linear(x, w)[:, :0],
        lambda x, w: linear(np.flip(linear(x, w), 0), np.broadcast_to(linear(x, w)[0], (5, 5))),
        lambda x, w: np.broadcast_to(linear(x, w)[:, None], (5, 2, 5)),
        lambda x, w: sliding_window_view(linear(x, w), 3, axis=0)[:, 1] * x[:3, :3],
    ],
)
def test_views_copies_and_tuples_are_results(arrays, function):
    x, w = arrays[0][:5].copy(), arrays[1]
    graph = td.Graph(function)
    merged = merge_graph(graph.plan(x, w), (x, w))
    run = td.compile(td.Schedule.of_program(merged.program), target="python")
    expected = function(x, w)
    for results in (run(**merged.values), graph(x, w)):
        for result, expected_result in zip(
            results if isinstance(expected, tuple) else (results,),
            expected if isinstance(expected, tuple) else (expected,),
            strict=True,
        ):
            np.testing.assert_allclose(result, expected_result, rtol=1e-4, atol=1e-4)


def test_arguments_are_passed_as_base_arrays_of_their_views(arrays):
    x, w = arrays
    schedule = td.Graph(lambda x, w: linear(x.T[:, ::2], linear(w.T, w)[:4])).autoschedule(x, w)
    np.testing.assert_allclose(td.compile(schedule)(x, w), x.T[:, ::2] @ (w.T @ w)[:4], rtol=1e-4, atol=1e-4)


def test_the_schedules_of_the_calls_compete(arrays):
    x, w = arrays
    schedule = td.Graph(lambda x, w: linear(np.maximum(linear(x, w), 0).T, x)).autoschedule(x, w)
    assert "calls apart" in schedule.explain()


def test_a_call_with_a_user_schedule_is_not_merged(arrays):
    x, w = arrays
    schedule = linear.schedule()
    schedule["y"].parallel("t")
    compiled = td.compile(schedule)
    with pytest.raises(DefinitionError, match="schedule of its own"):
        td.Graph(lambda x, w: compiled(x, w)).autoschedule(x, w)


def test_counts_and_times_of_a_search_are_checked(arrays):
    with pytest.raises(TypeMismatch, match="number of candidates"):
        td.Graph(linear).autoschedule(*arrays, measure=-1)


@pytest.mark.in_part(1)
@pytest.mark.parametrize("name", ["swin", "bsrn"])
def test_blocks_of_networks_are_one_program(name):
    """Rolled windows, and heads side by side in one array; results put side by side, and pixels shuffled."""
    model = runpy.run_path(str(ROOT / "examples" / "models" / f"{name}.py"))
    block, x, w = (model[n] for n in ("block", "x", "w"))
    graph = td.Graph(block)
    run, expected = td.compile(graph.autoschedule(x, w)), block(x, w)
    leaves = [
        x,
        *(array for part in w.values() for array in (part if isinstance(part, tuple) else [part])),
    ]
    assert len(run.signature.inputs) == len(leaves)
    np.testing.assert_allclose(run(*leaves), expected, rtol=1e-3, atol=1e-3)
