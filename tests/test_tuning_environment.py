"""Compiled programs take the schedules of the files in TDSL_TUNING, and graphs are tuned with such files."""

import math
import multiprocessing
import os
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.graph.tune import FusionTrial
from tdsl.records import file as records
from tdsl.records import lookup
from tdsl.records.file import Record, RecordFile
from tdsl.records.lookup import task_of
from tdsl.target import as_target
from tdsl.tuning import tasks
from tdsl.tuning.tasks import Budget, WeightedTask, tune_tasks
from tests.test_tuning_records import SIZES, FakeWorker, product

A, B = np.ones((24, 20), np.float32), np.ones((20, 32), np.float32)
i, j = td.vars("i j")


@td.op
def scaled(x: td.f32["M", "N"]):
    twice, out = td.Func("twice"), td.Func("out")
    twice[i, j] = x[i, j] * 2
    out[i, j] = twice[i, j] + td.sum(twice[i, j], axis=j)
    return out


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    monkeypatch.setattr(tasks, "Worker", FakeWorker)
    monkeypatch.setattr(FakeWorker, "compiled", [])
    return FakeWorker


def recorded(path, op=product, label="no cuts", **changes) -> Record:
    """A record in a new file: the func is vectorised in fours, and takes half the time of the default."""
    sizes = changes.pop("sizes", SIZES)
    s = op.schedule(**sizes)
    func = s.program.outputs[0]
    s[func].vectorize(s.state.plan(func).nests[0].loops[-1].name, 4)
    record = Record(
        task_of(op.program, sizes, as_target(None)), label, records.canonical(s.to_json()), 1e-3, 2e-3, "",
        "2026-01-01T00:00:00Z",
    )  # fmt: skip
    record = replace(record, **changes)
    RecordFile(path, writable=True).append(record)
    return record


def test_a_program_takes_the_record_of_its_sizes(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.jsonl"
    recorded(path)
    before = str(td.compile(product, **SIZES).loops())
    monkeypatch.setenv("TDSL_TUNING", str(path))
    for compiled in (td.compile(product, **SIZES), td.compile(product)):
        np.testing.assert_array_equal(compiled(A, B), A @ B)
        assert "taken: no cuts, record of 2026-01-01T00:00:00Z" in str(compiled.explain())
        assert str(compiled.loops(**({} if compiled.sizes else SIZES))) != before
    scheduled = product.schedule(**SIZES)
    scheduled[scheduled.program.outputs[0]].vectorize("j", 8)
    assert "taken" not in str(td.compile(scheduled).explain())
    assert "taken" not in str(td.compile(product, dynamic="M").explain(K=20, N=32))


def test_files_are_read_in_their_order_as_they_grow(tmp_path, monkeypatch) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_bytes(b"damaged\n")
    recorded(second, seconds=1.5e-3)
    monkeypatch.setenv("TDSL_TUNING", f"{first}{os.pathsep}{second}")
    with pytest.warns(UserWarning, match="1 damaged"):
        assert "taken: no cuts" in str(td.compile(product, **SIZES).explain())
    recorded(first, label="faster")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of the damaged line it was told once
        assert "taken: faster" in str(td.compile(product, **SIZES).explain())
    first.unlink()
    with pytest.raises(td.TypeMismatch, match=r"(?s)cannot be opened: No such file.*TDSL_TUNING="):
        td.compile(product, **SIZES).explain()


def test_the_record_of_the_nearest_sizes_is_taken_unless_it_is_predicted_to_be_slow(
    tmp_path, monkeypatch
) -> None:
    path, x = tmp_path / "a.jsonl", np.ones((44, 64), np.float32)
    recorded(path, scaled, sizes={"M": 40, "N": 60}, label="near")
    recorded(path, scaled, sizes={"M": 400, "N": 600}, label="far")
    monkeypatch.setenv("TDSL_TUNING", str(path))
    compiled = td.compile(scaled, M=44, N=64)
    np.testing.assert_array_equal(compiled(x), 2 * x + 128)
    assert "taken: near, record of 2026-01-01T00:00:00Z for M=40, N=60 on" in str(compiled.explain())
    monkeypatch.setattr(lookup, "MAX_PREDICTED", 0.0)
    assert "taken" not in str(td.compile(scaled, M=44, N=64).explain())


def test_a_schedule_that_cannot_be_compiled_is_replaced_by_the_default(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.jsonl"
    recorded(path)
    monkeypatch.setenv("TDSL_TUNING", str(path))
    compiled = td.compile(product, **SIZES)
    module, failed = sys.modules["tdsl.compile"], []
    build = module.build

    def failing(variant):
        if not failed:
            failed.append(variant)
            raise td.ScheduleError("too large", loc=None, label="", hint="")
        return build(variant)

    monkeypatch.setattr(module, "build", failing)
    with pytest.warns(UserWarning, match=r"default schedule replaces .*no cuts.*too large"):
        np.testing.assert_array_equal(compiled(A, B), A @ B)
    assert "taken" not in str(compiled.explain())


def network(x):
    return scaled(scaled(x) + 1).sum(axis=0)


def test_a_graph_is_tuned_with_records_and_repeats_none(tmp_path, fake, monkeypatch) -> None:
    monkeypatch.setattr(FusionTrial, "kept", False)
    path, x = tmp_path / "a.jsonl", np.ones((30, 40), np.float32)
    graph = td.Graph(network)
    expected = graph(x)
    graph.tune(x, seconds=60, trials=9, records=path, workers=2)
    first = path.read_bytes().splitlines()
    assert len(first) == 9
    td.Graph(network).tune(x, seconds=60, trials=7, records=path, workers=2)
    written = records.read(path)
    assert path.read_bytes().splitlines()[:9] == first
    assert len(written) == len({(r.task.program, r.directives) for r in written}) == 16
    assert len({r.task.program for r in written}) > 1
    np.testing.assert_allclose(graph(x), expected, rtol=1e-5)


def test_calls_of_a_graph_take_the_records_of_their_operators(tmp_path, monkeypatch) -> None:
    path, x = tmp_path / "a.jsonl", np.ones((31, 41), np.float32)
    recorded(path, scaled, sizes={"M": 31, "N": 41})
    monkeypatch.setenv("TDSL_TUNING", str(path))
    graph = td.Graph(lambda x: scaled(scaled(x)))
    np.testing.assert_array_equal(graph(x), scaled(scaled(x)))
    assert str(graph.explain()).count("taken: no cuts") == 1


class FakeTuner:
    """A tuner whose best time falls by a factor with each measurement, down to a limit."""

    def __init__(self, start: float, factor: float, count: int = 10**9) -> None:
        self.best, self.factor, self.count = start, factor, count
        self.mine: list[str] = []
        self.known, self.is_complete = 0, False

    def setup(self, folder):
        return ()

    def fastest(self):
        return self.mine

    def seconds(self):
        return self.best, 1.0

    def measure_next(self, pool, judge, folder, end, on_trial) -> None:
        self.mine.append("trial")
        self.best *= self.factor
        self.is_complete = len(self.mine) >= self.count


def measured(monkeypatch, *weighted: WeightedTask, trials: int) -> list[int]:
    monkeypatch.setattr(tasks, "Worker", FakeWorker)
    clock = iter(range(10**6))
    monkeypatch.setattr(tasks.time, "monotonic", lambda: next(clock))
    tune_tasks("tasks", weighted, Budget(1e9, trials, 1))
    return [len(t.tuner.mine) for t in weighted]


def test_the_budget_goes_where_a_second_gains_most(monkeypatch) -> None:
    slow, fast, often = FakeTuner(1.0, 1.0), FakeTuner(1e-3, 1.0), FakeTuner(0.02, 1.0)
    counts = measured(
        monkeypatch, WeightedTask(slow), WeightedTask(fast), WeightedTask(often, 25.0), trials=100
    )
    assert counts[0] > 10 * counts[1]
    assert counts[2] > 10 * counts[1]
    improving, level = WeightedTask(FakeTuner(1.0, 0.9)), WeightedTask(FakeTuner(0.9, 1.0))
    for task in (improving, level):
        task.tuner.measure_next((), None, "", 0.0, None)
        task.add_measurement(1.0)
        task.tuner.measure_next((), None, "", 0.0, None)
        task.add_measurement(1.0)
    assert improving.gain() > level.gain()  # whose time is longer by now
    after_failures = WeightedTask(FakeTuner(1.0, 1.0), history=[(0.0, math.nan), (1.0, math.nan), (2.0, 1.0)])
    assert 0 < after_failures.gain() < math.inf
    assert WeightedTask(FakeTuner(1.0, 1.0), history=[(0.0, math.nan), (1.0, math.nan)]).gain() == 0


def test_a_task_with_no_schedule_left_gets_no_more_of_the_budget(monkeypatch) -> None:
    one, other = FakeTuner(1.0, 1.0, count=3), FakeTuner(1e-9, 1.0, count=5)
    assert measured(monkeypatch, WeightedTask(one), WeightedTask(other), trials=100) == [3, 5]


def _tune_until_killed(path: str, told: int) -> None:
    """Tunes with workers that answer at once; for each trial that it is told of, writes a byte to `told`."""
    tasks.Worker = FakeWorker
    product.tune(
        **SIZES, seconds=100, workers=1, records=path, on_trial=lambda _: os.write(told, b"."),
    )  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the tuners are forked")
def test_a_killed_tuner_loses_no_trial_that_it_told_of_and_two_tuners_share_a_file(tmp_path, fake) -> None:
    path = tmp_path / "a.jsonl"
    reader, told = os.pipe()
    context = multiprocessing.get_context("fork")
    tuners = [context.Process(target=_tune_until_killed, args=(str(path), told)) for _ in range(2)]
    for tuner in tuners:
        tuner.start()
    count = sum(len(os.read(reader, 1)) for _ in range(8))
    for tuner in tuners:
        assert tuner.is_alive()
        tuner.kill()
        tuner.join()
    os.close(told)
    while data := os.read(reader, 1 << 16):
        count += len(data)
    os.close(reader)
    written = records.read(path)
    assert count <= len(written) <= count + 2  # a trial may be recorded and not told
    known = {r.directives for r in written}
    report = product.tune(**SIZES, seconds=100, trials=2, workers=1, records=path)
    assert (report.trials, report.repeated, report.known) == (2, 0, len(known))
    added = [r.directives for r in records.read(path)[len(written) :]]
    assert known.isdisjoint(added)
