"""Groups chosen by measurement: whatever is fused, results stay the same."""

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import RequireError, TypeMismatch
from tdsl.graph import planned_function
from tdsl.graph.tune import FusionTrial, WholeGraphTime, topological_order
from tdsl.machine.model import Machine, MemoryLevel
from tests.graph.test_random_graphs import STEPS, Matrix, N, low_bits, prefix_sums, product


def blocks(x, y):
    for name in ("product", "running", "both", "one of a pair", "product"):
        x, y = STEPS[name](x, y), x
    return x, low_bits(y)


@pytest.fixture
def arrays():
    return np.arange(N * N, dtype=np.int32).reshape(N, N), np.eye(N, dtype=np.int32)


def test_a_tuned_graph_computes_the_same_results(arrays):
    graph = td.Graph(blocks, target="python")
    expected = graph(*arrays)
    before = graph.plan(*arrays)
    plan = graph.tune(*arrays)
    assert plan.trials
    assert graph.plan(*arrays) is plan
    assert len(plan.groups) == len(before.groups) - sum(
        t.kept for t in plan.trials if isinstance(t, FusionTrial)
    )
    for result, expected_result in zip(graph(*arrays), expected, strict=True):
        np.testing.assert_array_equal(result, expected_result)
    assert all(str(t) in str(plan) for t in plan.trials)


def test_results_are_the_same_whichever_pairs_are_fused(arrays, monkeypatch):
    monkeypatch.setattr(FusionTrial, "kept", True)
    monkeypatch.setattr(
        planned_function, "fastest_in_turns", lambda calls: [9.0 - n for n in range(len(calls))]
    )
    graph = td.Graph(blocks, target="python", fuse=False)
    expected = graph(*arrays)
    plan = graph.tune(*arrays, seconds=1000)
    assert len(plan.groups) < 5
    for result, expected_result in zip(graph(*arrays), expected, strict=True):
        np.testing.assert_array_equal(result, expected_result)


@td.op
def rows(x: td.i32["M", "N"]):
    i, j = td.vars("i j")
    out = td.Func("out")
    out[i] = td.sum(x[i, j], axis=j, dtype=td.i32)
    return out


def test_groups_that_read_an_array_larger_than_the_cache_are_fused(arrays, monkeypatch):
    small = Machine(levels=(MemoryLevel("L1", 16), MemoryLevel("memory", None, managed=True)))
    monkeypatch.setattr(FusionTrial, "kept", True)
    monkeypatch.setattr(
        planned_function, "fastest_in_turns", lambda calls: [9.0 - n for n in range(len(calls))]
    )

    def both(x, y):
        return rows(x), low_bits(x), rows(y[1:])

    for machine, groups in ((Machine(), 3), (small, 2)):
        monkeypatch.setattr(td.Target, "machine", lambda _, machine=machine: machine)
        graph = td.Graph(both, target="python")
        assert len(graph.tune(*arrays, seconds=1000).groups) == groups
        for result, expected_result in zip(graph(*arrays), both(*arrays), strict=True):
            np.testing.assert_array_equal(result, expected_result)


def test_a_plan_that_makes_the_whole_graph_no_faster_is_dropped(arrays, monkeypatch):
    monkeypatch.setattr(FusionTrial, "kept", True)
    monkeypatch.setattr(
        planned_function,
        "fastest_in_turns",
        lambda calls: [float(n) for n in range(1, len(calls) + 1)],
    )
    graph = td.Graph(blocks, target="python", fuse=False)
    before = graph.plan(*arrays).groups
    plan = graph.tune(*arrays, seconds=1000)
    assert plan.groups == before
    assert plan.trials == (WholeGraphTime(1.0, 1.0),)
    assert "the plan before tuning is kept" in str(plan)


def test_without_time_nothing_is_tried(arrays):
    graph = td.Graph(blocks, target="python")
    before = graph.plan(*arrays).groups
    assert graph.tune(*arrays, seconds=0).groups == before


@pytest.mark.parametrize("seconds", [-1, float("nan"), "10", True])
def test_an_invalid_time_is_refused(arrays, seconds):
    with pytest.raises(TypeMismatch, match="a budget is a time"):
        td.Graph(blocks, target="python").tune(*arrays, seconds=seconds)


def test_groups_with_cyclic_dependences_have_no_topological_order(arrays):
    def f(x, y):
        h = prefix_sums(x)
        return product(h, prefix_sums(prefix_sums(h).T))

    calls = td.Graph(f, target="python", fuse=False).plan(*arrays).trace.calls
    assert topological_order(calls, ((0, 3), (1,), (2,))) is None
    assert topological_order(calls, ((2,), (3,), (0, 1))) == ((0, 1), (2,), (3,))


def test_errors_of_the_call_are_raised(arrays):
    @td.op
    def checked(x: Matrix):
        i, j = td.vars("i j")
        out = td.Func("out")
        out[i, j] = td.require(x[i, j] < 5, x[i, j], "{} is large", x[i, j])
        return out

    with pytest.raises(RequireError, match="5 is large"):
        td.Graph(lambda x: prefix_sums(checked(x)), target="python").tune(arrays[0])


def test_a_graph_is_tuned_and_called_with_arrays():
    """Types stand for arrays where nothing runs."""
    graph = td.Graph(lambda x: x.sum(axis=0))
    for call in (graph.tune, graph):
        with pytest.raises(TypeMismatch, match=r"(?s)f32\[3, 4\] has no values.*pass arrays"):
            call(td.f32[3, 4])
    assert graph.plan(td.f32[3, 4]).outputs.specs[0].shape == (4,)
