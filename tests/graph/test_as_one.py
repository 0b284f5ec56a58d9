"""A graph as one program: the search schedules all of it, and the results stay the same."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import tdsl as td
from tdsl.errors import DefinitionError, ScheduleError, TypeMismatch
from tdsl.graph.merged_program import as_one


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
    for made, wanted in zip(run(w, x, CONSTANT, 2), layers(w, x), strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-5)
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
def test_views_copies_and_several_values_are_results_like_others(arrays, function):
    x, w = arrays[0][:5].copy(), arrays[1]
    graph = td.Graph(function)
    whole = as_one(graph.plan(x, w), (x, w))
    run = td.compile(td.Schedule.of_program(whole.program), target="python")
    wanted = function(x, w)
    for made in (run(**whole.values), graph(x, w)):
        for mine, theirs in zip(
            made if isinstance(wanted, tuple) else (made,),
            wanted if isinstance(wanted, tuple) else (wanted,),
            strict=True,
        ):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def test_arguments_are_taken_whole_however_they_are_viewed(arrays):
    x, w = arrays
    schedule = td.Graph(lambda x, w: linear(x.T[:, ::2], linear(w.T, w)[:4])).autoschedule(x, w)
    np.testing.assert_allclose(
        td.compile(schedule)(x, w), x.T[:, ::2] @ (w.T @ w)[:4], rtol=1e-4, atol=1e-4
    )


def test_the_schedules_of_the_calls_compete(arrays):
    x, w = arrays
    schedule = td.Graph(lambda x, w: linear(np.maximum(linear(x, w), 0).T, x)).autoschedule(x, w)
    assert "calls apart" in schedule.explain()


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


@pytest.mark.parametrize("name", ["swin", "bsrn"])
def test_blocks_of_networks_are_one_program(name):
    """Rolled windows, and heads side by side in one array; results put side by side, and pixels shuffled."""
    model = runpy.run_path(str(ROOT / "examples" / "models" / f"{name}.py"))
    block, x, w = (model[n] for n in ("block", "x", "w"))
    graph = td.Graph(block)
    run, wanted = td.compile(graph.autoschedule(x, w)), block(x, w)
    leaves = [
        x,
        *(array for part in w.values() for array in (part if isinstance(part, tuple) else [part])),
    ]
    assert len(run.signature.inputs) == len(leaves)
    np.testing.assert_allclose(run(*leaves), wanted, rtol=1e-3, atol=1e-3)
