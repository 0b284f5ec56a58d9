"""Tuning searches parameters of schedules, records each trial, and resumes; records are kept by sizes."""

import json
import multiprocessing
import os
import warnings
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.runtime.fingerprint import fingerprint
from tdsl.records import file as records
from tdsl.records.file import Record, RecordFile, Task
from tdsl.records.lookup import CLEARLY_FASTER, task_of
from tdsl.target import as_target
from tdsl.tools.operators import operator_of, sizes_of
from tdsl.tuning import tasks, tuner
from tdsl.tuning.neighbours import neighbours

TASK = Task("p", {"M": 64}, "cpu", "zen", 2)


@td.op
def product(A: td.f32["M", "K"], B: td.f32["K", "N"]):
    i, j, k = td.vars("i j k")
    C = td.Func("C")
    C[i, j] = td.maximum(td.sum(A[i, k] * B[k, j], axis=k), 0)
    return C


SIZES = {"M": 24, "K": 20, "N": 32}


def record(n: int = 0, **changes) -> Record:
    rows = json.dumps([{"do": "unroll", "func": "f", "definition": 0, "loop": f"i{n}"}])
    made = Record(TASK, f"trial {n}", records.canonical(rows), 1e-3, 2e-3, "", "2026-01-01T00:00:00Z")
    return replace(made, **changes)


class FakeWorker:
    """A worker that answers at once: each schedule takes a time that its directives determine."""

    problem = ""
    compiled: list[object] = []

    def __init__(self, *_) -> None:
        self.job: tuple = ()

    def use(self, setup) -> None:
        pass

    def send(self, job, limit) -> None:
        assert limit > 0
        self.job = job
        if job[0] == "compile":
            self.compiled.append(job[1])

    def answer(self):
        if self.job[0] == "compile":
            return {"problem": self.problem} if self.problem else {}
        contents = fingerprint(self.compiled[-1])
        return {"seconds": 1e-3 * (50 + int(contents, 16) % 97), "default_seconds": 0.1}

    def close(self) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    monkeypatch.setattr(tasks, "Worker", FakeWorker)
    monkeypatch.setattr(FakeWorker, "compiled", [])
    return FakeWorker


def test_records_are_read_as_they_were_written(tmp_path) -> None:
    file = RecordFile(tmp_path / "a.jsonl", writable=True)
    written = [record(0), record(1, problem="its results are wrong", seconds=0.0, default_seconds=0.0)]
    for r in written:
        file.append(r)
    assert file.new_records() == written
    assert file.new_records() == []
    file.append(record(2))
    assert file.new_records() == [record(2)]


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b"7", b"\xff\xfe", b"null", b'{"schema":1}', record().to_line()[:-9],
     record().to_line().strip().replace(b'"seconds":0.001', b'"seconds":-1'),
     record().to_line().strip().replace(b'"schema":1', b'"schema":99')],
)  # fmt: skip
def test_lines_that_cannot_be_read_are_skipped_with_a_warning_and_kept(tmp_path, line: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(record(0).to_line() + line + b"\n" + record(1).to_line())
    with pytest.warns(UserWarning, match=r"1 damaged|1 of another version"):
        assert records.read(path) == [record(0), record(1)]
    RecordFile(path, writable=True).append(record(2))
    assert path.read_bytes().splitlines()[1] == line


def test_a_line_after_a_partial_line_is_whole(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(record(0).to_line() + record(1).to_line()[:30])
    file = RecordFile(path, writable=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # another process may be writing the last line
        assert file.new_records() == [record(0)]
    file.append(record(2))
    with pytest.warns(UserWarning, match="1 damaged"):
        assert file.new_records() == [record(2)]


def _append(path: str, first: int) -> None:
    file = RecordFile(path)
    for n in range(first, first + 100):
        file.append(record(n, label="x" * 3000))


def test_processes_that_append_to_one_file_lose_nothing(tmp_path) -> None:
    path = str(tmp_path / "a.jsonl")
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    writers = [context.Process(target=_append, args=(path, n)) for n in (0, 100)]
    for w in writers:
        w.start()
    for w in writers:
        w.join()
    assert len({r.directives for r in records.read(path)}) == 200


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path) -> None:
    for path in (tmp_path, tmp_path / "none" / "a.jsonl"):
        with pytest.raises(td.TypeMismatch, match=r"file of records .* cannot be opened"):
            product.tune(**SIZES, records=path, seconds=1)
    with pytest.raises(td.TypeMismatch, match="cannot be opened"):
        product.schedule(**SIZES, records=tmp_path / "missing.jsonl")


def test_the_nearest_sizes_of_the_same_processor_come_first() -> None:
    def at(m: int, **changes) -> Record:
        return record(m, task=replace(TASK, sizes={"M": m}, **changes))

    others = [at(64, cpu="m1"), at(256), at(72), at(64, threads=4), at(64), at(64, program="q")]
    slow = replace(at(64), seconds=1.9e-3, label="slow")
    failed = replace(at(64), problem="it failed", label="failed")
    ranked = records.by_relevance([*others, slow, failed], TASK)
    assert ranked[:4] == [at(64), slow, at(72), at(256)]
    assert {r.task.cpu for r in ranked[4:]} == {"m1", "zen"}
    assert len(ranked) == 6
    assert records.by_relevance([record(task=replace(TASK, sizes={"N": 64}))], TASK) == []


def test_neighbours_differ_in_one_parameter() -> None:
    (start, *_) = tuner.candidates(product.program, SIZES, as_target(None))
    text = start.schedule.to_json()
    found = dict(neighbours(text))
    assert any("split" in label for label in found)
    assert any("vectorize" in label for label in found)
    assert any("left out" in label for label in found)
    before = json.loads(text)
    for label, changed in found.items():
        rows = json.loads(changed)
        if "left out" in label:
            assert len(rows) == len(before) - 1
        else:
            differing = [(a, b) for a, b in zip(before, rows, strict=True) if a != b]
            assert len(differing) == 1 or "together" in label
            assert all(a.keys() == b.keys() and a["do"] == b["do"] for a, b in differing)


def test_tuning_resumes_and_repeats_no_trial(tmp_path, fake) -> None:
    path = tmp_path / "a.jsonl"
    first = product.tune(**SIZES, records=path, trials=7, seconds=60, workers=2)
    lines = path.read_bytes().splitlines()
    assert (first.trials, first.known, len(lines)) == (7, 0, 7)
    second = product.tune(**SIZES, records=path, trials=6, seconds=60, workers=2)
    assert path.read_bytes().splitlines()[:7] == lines
    assert (second.trials, second.known, second.repeated) == (6, 7, 0)
    directives = [r.directives for r in records.read(path)]
    assert len(directives) == len({*directives}) == 13
    assert second.best_seconds <= first.best_seconds


def test_the_best_record_is_replayed_for_its_sizes_and_is_a_seed_for_others(tmp_path, fake) -> None:
    path = tmp_path / "a.jsonl"
    product.tune(**SIZES, records=path, trials=9, seconds=60, workers=1)
    known = [r for r in records.read(path) if r.ratio <= CLEARLY_FASTER]
    best = min(known, key=lambda r: r.ratio)
    s = product.schedule(**SIZES, records=[path])
    assert records.canonical(s.to_json()) == best.directives
    assert "record of" in s.notes[0]
    x, y = np.ones((24, 20), np.float32), np.ones((20, 32), np.float32)
    np.testing.assert_array_equal(td.compile(s)(x, y), x @ y)
    labels: list[str] = []
    product.tune(
        M=25, K=20, N=32, records=path, trials=1, seconds=60, workers=1,
        on_trial=lambda r: labels.append(r.label),
    )  # fmt: skip
    assert labels == [f"{best.label} of M=24, K=20, N=32"]
    near = product.schedule(M=26, K=20, N=32, records=path)
    x = np.ones((26, 20), np.float32)
    np.testing.assert_array_equal(td.compile(near)(x, y), x @ y)


def test_records_of_directives_that_are_no_longer_legal_are_passed_over(tmp_path) -> None:
    task = task_of(product.program, SIZES, as_target(None))
    path = tmp_path / "a.jsonl"
    RecordFile(path, writable=True).append(record(task=task))
    assert not product.schedule(**SIZES, records=path).directives


def test_failures_are_counted_and_are_never_the_best(tmp_path, fake, monkeypatch) -> None:
    monkeypatch.setattr(fake, "problem", "its results are wrong")
    path = tmp_path / "a.jsonl"
    with pytest.raises(td.ScheduleError, match=r"could be measured: its results are wrong"):
        product.tune(**SIZES, records=path, trials=2, seconds=60)
    assert not product.schedule(**SIZES, records=path).directives
    monkeypatch.setattr(fake, "problem", "")
    report = product.tune(**SIZES, records=path, trials=2, seconds=60)
    assert (report.trials, report.known) == (2, 2)


@pytest.mark.parametrize("first, again", [(0.5, 0.7), (0.7, 0.5)])
def test_of_two_measurements_of_the_fastest_schedule_the_slower_is_recorded(
    first, again, tmp_path, fake, monkeypatch
) -> None:
    def answer(worker):
        seconds = again if worker.job[1] == tuner.AGAIN_S else first
        return {} if worker.job[0] == "compile" else {"seconds": seconds, "default_seconds": 1.0}

    monkeypatch.setattr(fake, "answer", answer)
    report = product.tune(**SIZES, records=tmp_path / "a.jsonl", trials=1, seconds=60)
    assert (report.best_seconds, report.default_seconds) == (0.7, 1.0)


def test_an_interrupt_leaves_the_best_so_far(tmp_path, fake) -> None:
    seen: list[Record] = []

    def stop(r: Record) -> None:
        seen.append(r)
        if len(seen) == 3:
            raise KeyboardInterrupt

    report = product.tune(**SIZES, records=tmp_path / "a.jsonl", seconds=60, on_trial=stop)
    assert report.trials == 3
    assert records.read(tmp_path / "a.jsonl") == seen


def test_schedules_are_measured_in_processes_of_their_own(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    report = product.tune(**SIZES, records=path, trials=2, seconds=60, workers=1)
    assert report.trials == 2
    default, _ = records.read(path)
    assert (default.label, default.ratio) == ("default", 1.0)  # as its code is that of the default
    assert 0 < report.best_seconds <= report.default_seconds < 1
    assert "2 trials, 0 known before" in str(report)


@pytest.mark.parametrize(
    "budget", [{"seconds": 0}, {"trials": 0}, {"workers": True}, {"seconds": "9"}, {"target": "cuda"}]
)
def test_a_budget_that_is_none_is_refused(budget) -> None:
    with pytest.raises(td.TypeMismatch, match=r"a budget is|tuned for CPUs"):
        product.tune(**SIZES, **budget)


def test_words_of_the_command_line_name_operators_and_sizes(tmp_path) -> None:
    program = tmp_path / "two.py"
    text = "import tdsl as td\n" + "".join(
        f"@td.op\ndef {n}(x: td.f32['M']):\n"
        "    y, i = td.Func('y'), td.vars('i')\n    y[i] = x[i]\n    return y\n"
        for n in ("one", "two")
    )
    program.write_text(text)
    assert operator_of(str(program), "two").name == "two"
    for name in ("", "three"):
        with pytest.raises(td.TypeMismatch, match="the operators one, two"):
            operator_of(str(program), name)
    with pytest.raises(td.TypeMismatch, match="no program"):
        operator_of(str(tmp_path / "none.py"))
    with pytest.raises(td.TypeMismatch, match="no size"):
        sizes_of(["M"])
