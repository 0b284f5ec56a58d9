"""Candidates are measured in processes of their own; what fails there is dropped, and said."""

import os
import time
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl import tuning
from tdsl.codegen.runtime import cache
from tdsl.machine.cpu import host


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
    x, f = td.Tensor("x", (600, 900), td.f32), td.Func("f")
    value = x[i, j] * times
    f[i, j] = td.require(value < 0, value, "too large") if check else value
    return td.Schedule(f, target=target)


class Planted:
    """A schedule whose process does something as soon as it reads its job."""

    sizes, target = {}, "cpu"

    def __init__(self, does, *args) -> None:
        self.state = _Does(does, args)


class _Does:
    def __init__(self, does, args) -> None:
        self.call = does, args

    def __reduce__(self):
        return self.call


GIVEN = {"x": np.ones((600, 900), np.float32)}
PLANTED = {
    "wrong": (scaled(2.5), "its results are wrong"),
    "failing": (scaled(2.0, check=True), "it failed: too large"),
    "crashing": (Planted(os.abort), "it ended with status -6"),
    "silent": (Planted(os._exit, 0), "it ended without an answer"),
}


@pytest.mark.parametrize("place", [0, 2])
def test_results_are_judged_by_the_default_schedule_wherever_bad_ones_stand(
    place, monkeypatch
) -> None:
    monkeypatch.setattr(tuning, "ROUNDS", 0.0)
    labels = [*PLANTED][place:] + [*PLANTED][:place]
    jobs = [(label, PLANTED[label][0]) for label in labels]
    jobs.insert(2, ("right", scaled(2.0).replay(scaled(2.0).to_json())))
    for t in tuning.measure(scaled(2.0), jobs, GIVEN, seconds=60):
        assert (t.seconds is None) == (t.label != "right")
        assert t.problem.startswith(PLANTED.get(t.label, ("", ""))[1])


def test_one_that_hangs_leaves_time_for_others() -> None:
    jobs = [("hanging", Planted(time.sleep, 1000)), ("right", scaled(2.0))]
    hanging, right = tuning.measure(scaled(2.0), jobs, GIVEN, seconds=12)
    assert right.seconds is not None
    assert hanging.problem.startswith("it took longer than")


@pytest.mark.parametrize("judge", [scaled(2.0, check=True), scaled(2.5)], ids=["failing", "other"])
def test_nothing_is_taken_that_the_default_schedule_does_not_confirm(judge) -> None:
    jobs = [("one", scaled(2.0)), ("another", scaled(2.0))]
    trials = tuning.measure(judge, jobs, GIVEN, seconds=60)
    assert [t.seconds for t in trials] == [None, None]


def test_a_wrong_favourite_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path))
    found = tuning.candidates

    def planted(*args):
        favourite, *others = found(*args)
        wrong = exponentials.schedule(**favourite.schedule.sizes)
        return [replace(favourite, label="favourite", schedule=wrong), favourite, *others]

    monkeypatch.setattr(tuning, "candidates", planted)
    monkeypatch.setattr(tuning, "_refuse_reads_outside", lambda *_: None)
    s = shares.autoschedule(M=600, N=900, measure=2, seconds=100)
    assert "dropped: favourite: its results are wrong" in s.notes
    assert s.notes[0] == "taken: default, the fastest that was measured"


def test_a_search_without_time_gives_what_the_model_takes_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "LEAST", 0.01)
    s = shares.autoschedule(M=65, N=97, measure=3, seconds=0.01)
    taken, *others = s.notes
    assert taken.startswith("taken: default, predicted to take")
    assert taken.endswith("nothing was measured")
    assert "was dropped: it took longer than 0.01 s" in others[0]
    assert others[-1] == "3 of 3 dropped"
    assert str(s) == str(shares.autoschedule(M=65, N=97))


def test_no_time_is_left_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "LEAST", 30.0)
    jobs = [("a", scaled(2.0)), ("b", scaled(2.0))]
    trials = tuning.measure(scaled(2.0), jobs, GIVEN, seconds=0.5)
    assert [t.label for t in trials] == ["a"]


def test_the_fastest_is_taken_and_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path))
    x = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    s = shares.autoschedule(x, measure=2, seconds=100)
    want = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(td.compile(s)(x), want, rtol=1e-5)
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
    assert tuning.is_close(x, x + np.float32(1e-5), 2e-5)
    assert not tuning.is_close(x, x + np.float32(1e-4), 2e-5)
    assert not tuning.is_close(x, x.astype(np.float64), 2e-5)
    infinite = np.float32([np.inf, 1])
    assert tuning.is_close(infinite, infinite, 2e-5)
    assert not tuning.is_close(infinite, -infinite, 2e-5)
    assert not tuning.is_close(np.float32([5, 1]), infinite, 2e-5)
    assert not tuning.is_close(infinite, np.float32([5, 1]), 2e-5)


def test_rounding_grows_with_terms_and_with_the_coarseness_of_types() -> None:
    def of(t: td.DType, n: int, u: td.DType) -> float:
        a, s, f = td.Tensor("a", (4, n), t), td.Func("s"), td.Func("f")
        s[i] = td.sum(a[i, j] * 2, axis=j)
        f[i] = td.cast(s[i], u) + 1
        return tuning.rounding(td.Schedule(f).program, {})

    assert of(td.f32, 1, td.f32) < of(td.f32, 100, td.f32) < of(td.f32, 200, td.f32) < 1e-4
    assert of(td.f32, 1 << 30, td.f32) == 2.0**-12  # half of the digits
    assert of(td.f64, 100, td.f64) < 1e-13
    assert of(td.f64, 100, td.f32) > of(td.f32, 50, td.f32)
    assert of(td.i32, 100, td.i32) == 0


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
    with pytest.raises(td.ShapeError, match="has known extents"):
        sized.autoschedule(td.f32["M", 3], td.f32)
    with pytest.raises(td.ShapeError, match="expected"):
        sized.autoschedule(td.f32[49, 4], td.f32)
    with pytest.raises(td.TypeMismatch, match="float16"):
        sized.autoschedule(td.f16[49, 3], td.f32)
