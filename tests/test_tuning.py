"""Candidates are measured in processes of their own; what fails there is dropped, and said."""

import numpy as np
import pytest

import tdsl as td
from tdsl import tuning
from tdsl.codegen import cache
from tdsl.codegen.cpu.machine import host


@td.op
def shares(x: td.f32["M", "N"]):
    i, j = td.vars("i j")
    total, out = td.Func("total"), td.Func("out")
    total[i] = td.sum(td.exp(x[i, j]), axis=j)
    out[i, j] = td.exp(x[i, j]) / total[i]
    return out


i, j = td.vars("i j")


def scaled(times: float, check: bool = False, target: str = "cpu") -> td.Schedule:
    x, f = td.Tensor("x", (600, 900), td.f32), td.Func("f")
    value = x[i, j] * times
    f[i, j] = td.require(value < 0, value, "too large") if check else value
    return td.Schedule(f, target=target)


def test_what_fails_hangs_or_is_wrong_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"x": np.ones((600, 900), np.float32)}
    jobs = [
        ("first", scaled(2.0)),
        ("again", scaled(2.0)),
        ("wrong", scaled(2.5)),
        ("failing", scaled(2.0, check=True)),
    ]
    trials = {t.label: t for t in tuning.measure(jobs, given, seconds=60)}
    assert trials["first"].seconds is not None
    assert trials["again"].seconds is not None
    assert trials["wrong"].problem == "its results are wrong"
    assert "too large" in trials["failing"].problem
    monkeypatch.setattr(tuning, "LEAST", 0.01)  # shorter than a process needs to begin
    (slow,) = tuning.measure([("slow", scaled(2.0))], given, seconds=0.01)
    assert slow.seconds is None
    assert slow.problem == "it took longer than 0.01 s"


def test_a_search_without_time_gives_what_the_model_takes_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "LEAST", 0.01)
    s = shares.autoschedule(M=65, N=97, measure=3, seconds=0.01)
    taken, *others = s.notes
    assert taken.startswith("taken: default, predicted to take")
    assert taken.endswith("nothing was measured")
    assert "dropped: default: it took longer than 0.01 s" in others
    assert others[-1] == "stopped when 0.01 s were over: 2 of 3 not measured"
    assert str(s) == str(shares.autoschedule(M=65, N=97))


def test_no_time_is_left_for_some() -> None:
    given = {"x": np.ones((600, 900), np.float32)}
    trials = tuning.measure([("a", scaled(2.0)), ("b", scaled(2.0))], given, seconds=0.5)
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


def test_results_agree_as_far_as_sums_do() -> None:
    x = np.linspace(-1, 1, 11, dtype=np.float32)
    assert tuning.is_close(x, x + np.float32(1e-5))
    assert not tuning.is_close(x, x + np.float32(1e-2))
    assert not tuning.is_close(x, x.astype(np.float64))
    assert tuning.is_close(np.float32([np.inf]), np.float32([np.inf]))


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
