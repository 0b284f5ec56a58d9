"""Candidates are measured in processes of their own; what fails there is dropped, and said."""

import os
import time
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.runtime import cache
from tdsl.machine.cpu import host
from tdsl.tuning import by_measurement as tuning
from tdsl.tuning import worker
from tdsl.tuning.oracle import is_close
from tdsl.tuning.times_in_turns import MIN_ROUNDS, least_favourable, placed, times_in_turns


@td.op
def shares(x: td.f32["M", "N"]):
    i, j = td.vars("i j")
    total, out = td.Func("total"), td.Func("out")
    total[i] = td.sum(td.exp(x[i, j]), axis=j)
    out[i, j] = td.exp(x[i, j]) / total[i]
    return out


@td.op
def exponentials(x: td.f32["M", "N"]):
    i, j = td.vars("i j")
    out = td.Func("out")
    out[i, j] = td.exp(x[i, j])
    return out


i, j = td.vars("i j")


def scaled(times: float, check: bool = False, target: str = "cpu") -> td.Schedule:
    x, f = td.Tensor("x", (60, 90), td.f32), td.Func("f")
    value = x[i, j] * times
    f[i, j] = td.require(value < 0, value, "too large") if check else value
    return td.Schedule(f, target=target)


class ScheduleWithEffect:
    """A schedule whose process does something as soon as it reads its job."""

    sizes, target = {}, "cpu"

    def __init__(self, effect, *args) -> None:
        self.state = _StateWithEffect(effect, args)


class _StateWithEffect:
    def __init__(self, effect, args) -> None:
        self.call = effect, args

    def __reduce__(self):
        return self.call


INPUTS = {"x": np.ones((60, 90), np.float32)}
BAD_SCHEDULES = {
    "wrong": (scaled(2.5), "its results are wrong"),
    "failing": (scaled(2.0, check=True), "it failed: too large"),
    "crashing": (ScheduleWithEffect(os.abort), "it ended with status -6"),
    "exiting": (ScheduleWithEffect(os._exit, 0), "it ended with status 0"),
}


@pytest.fixture(autouse=True)
def _short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "RUN_S", 0.0)


def test_results_are_compared_with_the_default_schedule_in_any_order() -> None:
    jobs = [(label, schedule) for label, (schedule, _) in BAD_SCHEDULES.items()]
    right = scaled(2.0).replay(scaled(2.0).to_json())
    for place in (1, 4):  # after a wrong one, and in a process that follows one which crashed
        jobs.insert(place, ("right", right))
    trials = tuning.measure(scaled(2.0), jobs, INPUTS, seconds=60)
    assert [t.label for t in trials] == [label for label, _ in jobs]
    for t in trials:
        assert (t.seconds is None) == (t.label != "right")
        assert t.problem.startswith(BAD_SCHEDULES.get(t.label, ("", ""))[1])


def test_a_hanging_schedule_leaves_time_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MAX_LIMIT_S", 4.0)
    monkeypatch.setattr(worker, "GRACE_S", 30.0)  # of a process that starts slowly
    jobs = [("hanging", ScheduleWithEffect(time.sleep, 1000)), ("right", scaled(2.0))]
    hanging, right = tuning.measure(scaled(2.0), jobs, INPUTS, seconds=100)
    assert right.seconds is not None
    assert hanging.problem.startswith("it took longer than")


@pytest.mark.parametrize("reference", [scaled(2.0, check=True), scaled(2.5)], ids=["failing", "other"])
def test_schedules_that_disagree_with_the_default_are_dropped(reference) -> None:
    jobs = [("one", scaled(2.0)), ("another", scaled(2.0))]
    trials = tuning.measure(reference, jobs, INPUTS, seconds=60)
    assert [t.seconds for t in trials] == [None, None]


def test_a_wrong_best_candidate_is_dropped(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path))
    search = tuning.candidates

    def planted(*args):
        favourite, *others = search(*args)
        wrong = exponentials.schedule(**favourite.schedule.sizes)
        return [replace(favourite, label="favourite", schedule=wrong), favourite, *others]

    monkeypatch.setattr(tuning, "candidates", planted)
    monkeypatch.setattr(tuning, "_refuse_reads_outside", lambda *_: None)
    s = shares.autoschedule(M=60, N=90, measure=2, seconds=100)
    assert "dropped: favourite: its results are wrong" in s.notes
    assert s.notes[0] == "taken: default, the fastest that was measured"


def test_a_search_without_time_falls_back_on_the_prediction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "MIN_LIMIT_S", 0.01)
    s = shares.autoschedule(M=65, N=97, measure=3, seconds=0.01)
    choice, *others = s.notes
    assert choice.startswith("taken: default, predicted to take")
    assert choice.endswith("nothing was measured")
    assert "was dropped: it took longer than 0.01 s" in others[0]
    assert others[-1] == "3 of 3 dropped"
    assert str(s) == str(shares.autoschedule(M=65, N=97))


def test_schedules_not_reached_in_time_have_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MIN_LIMIT_S", 30.0)
    jobs = [("a", scaled(2.0)), ("b", scaled(2.0))]
    trials = tuning.measure(scaled(2.0), jobs, INPUTS, seconds=0.5)
    assert [t.label for t in trials] == ["a"]


def test_the_fastest_is_returned_and_cached(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path))
    x = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    s = shares.autoschedule(x, measure=2, seconds=100)
    expected = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(td.compile(s)(x), expected, rtol=1e-5)
    assert sum(n.startswith("measured: ") for n in s.notes) == 2
    assert s.notes[0].startswith("taken: ")
    again = shares.autoschedule(M=64, N=96, measure=2)
    assert "measured before" in again.notes[0]
    assert str(again) == str(s)
    assert cache.info().entries > 0


def test_measuring_needs_a_device_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(td.cuda, "is_available", lambda: False)
    with pytest.raises(td.TargetError, match=r"(?s)no GPU here.*measure= away"):
        shares.autoschedule(M=64, N=64, target="cuda", measure=3)
    elsewhere = "cpu:avx2" if host().architecture == "aarch64" else "cpu:aarch64"
    with pytest.raises(td.TargetError, match=r"(?s)cannot run here.*measure= away"):
        shares.autoschedule(M=64, N=64, target=elsewhere, measure=3)
    with pytest.raises(td.TypeMismatch, match=r"measure=10"):
        shares.autoschedule(M=64, N=64, measure="all")
    with pytest.raises(td.TypeMismatch, match=r"seconds= a time"):
        shares.autoschedule(M=64, N=64, measure=1, seconds=0)


def test_results_agree_as_far_as_rounding_explains() -> None:
    x = np.linspace(-1, 1, 11, dtype=np.float32)
    assert is_close(x, x + np.float32(1e-5), 2e-5)
    assert not is_close(x, x + np.float32(1e-4), 2e-5)
    assert not is_close(x, x.astype(np.float64), 2e-5)
    infinite = np.float32([np.inf, 1])
    assert is_close(infinite, infinite, 2e-5)
    assert not is_close(infinite, -infinite, 2e-5)
    assert not is_close(np.float32([5, 1]), infinite, 2e-5)
    assert not is_close(infinite, np.float32([5, 1]), 2e-5)


def test_rounding_grows_with_terms_and_with_the_coarseness_of_types() -> None:
    def tolerance(t: td.DType, n: int, u: td.DType) -> float:
        a, s, f = td.Tensor("a", (4, n), t), td.Func("s"), td.Func("f")
        s[i] = td.sum(a[i, j] * 2, axis=j)
        f[i] = td.cast(s[i], u) + 1
        return tuning.rounding_tolerance(td.Schedule(f).program, {})

    assert (
        tolerance(td.f32, 1, td.f32) < tolerance(td.f32, 100, td.f32) < tolerance(td.f32, 200, td.f32) < 1e-4
    )
    assert tolerance(td.f32, 1 << 30, td.f32) == 2.0**-12  # half of the digits
    assert tolerance(td.f64, 100, td.f64) < 1e-13
    assert tolerance(td.f64, 100, td.f32) > tolerance(td.f32, 50, td.f32)
    assert tolerance(td.i32, 100, td.i32) == 0


@td.op
def sized(x: td.f32["M", 3], factor: td.f32):
    out = td.Func("out")
    out[i, j] = x[i, j] * factor
    return out


def test_types_stand_for_arrays_and_numbers() -> None:
    for s in (
        sized.autoschedule(td.f32[49, 3], td.f32),
        sized.autoschedule(x=td.f32[49, 3], factor=2),
        sized.autoschedule(np.ones((49, 3), np.float32), td.f32),
    ):
        assert s.sizes == {"M": 49}
    assert shares.autoschedule(td.f32[1 << 20, 1 << 20]).sizes == {"M": 1 << 20, "N": 1 << 20}
    with pytest.raises(td.ShapeError, match="has an element type and known extents"):
        sized.autoschedule(td.f32["M", 3], td.f32)
    with pytest.raises(td.ShapeError, match="expected"):
        sized.autoschedule(td.f32[49, 4], td.f32)
    with pytest.raises(td.TypeMismatch, match="float16"):
        sized.autoschedule(td.f16[49, 3], td.f32)


def test_calls_take_turns_in_alternating_order() -> None:
    seen: list[str] = []
    times = times_in_turns([lambda: seen.append("a"), lambda: seen.append("b"), lambda: time.sleep(1e-3)])
    assert [len(t) for t in times] == [MIN_ROUNDS] * 3
    assert min(times[2]) >= 1e-3 > max(times[0])
    runs = [name for n, name in enumerate(seen) if n == 0 or seen[n - 1] != name]
    assert "".join(runs) == ("ab" * MIN_ROUNDS)[: MIN_ROUNDS + 1]


def test_calls_much_slower_than_the_first_are_measured_in_fewer_rounds() -> None:
    start = time.monotonic()
    times = times_in_turns([lambda: None, lambda: time.sleep(1e-3)], seconds=2)
    assert time.monotonic() - start < 1.9
    assert len(times[0]) == len(times[1]) >= MIN_ROUNDS


def test_a_schedule_is_compared_where_it_does_worst() -> None:
    default = [1.0] * 10
    assert least_favourable([0.5] * 10, default) == (0.5, 1.0)
    assert least_favourable([0.5] * 4 + [1.25] * 6, default) == (1.25, 1.0)
    slower_alone = [0.9] * 4 + [5.0] * 6
    assert least_favourable(slower_alone, [0.8] * 4 + [10.0] * 6) == (0.9, 0.8)


@pytest.mark.parametrize(
    "x", [np.arange(60.0).reshape(3, 4, 5).T, np.zeros((0, 3), np.int8), np.arange(9)[::2]]
)
def test_arrays_are_copied_to_other_places_with_the_order_of_their_axes(x) -> None:
    copies = [placed(x) for _ in range(20)]
    for copy in copies:
        np.testing.assert_array_equal(copy, x)
        assert copy.strides == x.copy("K").strides
        assert copy.ctypes.data % 16 == 0
    assert len({copy.ctypes.data % 4096 for copy in copies}) > 1
