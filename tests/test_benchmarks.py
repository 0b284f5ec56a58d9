"""The mechanics of the benchmarks: peers are checked before they are timed, and compared in turns."""

import io
import json
import subprocess
import sys
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from rich.console import Console

import tdsl as td
from benchmarks import cases, goals, page, report, rounds, torch_peers, worker
from benchmarks.case import Case, Converted, PeerMissing, function, within
from benchmarks.cases import local_laplacian


def total(a):
    return a.sum(axis=1)


def absent(arrays):
    raise PeerMissing("pip install absent")


CASE = Case(
    name="total",
    title="sums of rows",
    inputs=lambda: (np.ones((3, 4), np.float32),),
    is_right=within(4 * np.finfo(np.float32).eps, total),
    peers={"numpy": function(total), "wrong": function(lambda a: total(a) + 1), "absent": absent},
)


def test_worker_checks_the_result_first():
    first, call = worker.prepare(CASE, "numpy")
    assert first["right"]
    assert len(worker.times_ms(call, 3)) == 3
    assert not worker.prepare(CASE, "wrong")[0]["right"]
    assert worker.prepare(CASE, "absent")[0] == {"missing": "pip install absent"}


def test_converting_a_result_to_an_array_is_checked_but_not_timed():
    def convert(result):
        results.append(result)
        return np.asarray(result)

    results = []
    peers = {"lists": lambda arrays: Converted(lambda: total(arrays[0]).tolist(), convert)}
    first, call = worker.prepare(replace(CASE, peers=peers), "lists")
    assert first["right"]
    assert len(results) == 1
    worker.times_ms(call, 2)
    assert len(results) == 1


def test_tensors_share_the_memory_of_arrays():
    torch = pytest.importorskip("torch")
    for dtype in (np.float32, np.int8, ml_dtypes.bfloat16):
        a = np.arange(6).astype(dtype).reshape(2, 3)
        b = torch_peers.array(torch, torch_peers.tensor(torch, a))
        assert b.dtype == a.dtype
        assert np.shares_memory(a, b)


def test_a_result_of_another_shape_is_wrong():
    arrays = CASE.inputs()
    assert not CASE.is_right(total(arrays[0])[:2], arrays)


def test_each_peer_runs_in_a_process_and_in_every_round():
    case = cases.find("equalize")
    timings = rounds.compare(case, ["numpy", "numpy"], rounds=2, threads=1)
    assert [len(t.turns) for t in timings] == [2, 2]
    assert all(ms > 0 for t in timings for ms in t.turns)


def test_a_peer_that_dies_is_reported():
    timings = rounds.compare(cases.find("equalize"), ["no such peer"], rounds=1, threads=1)
    assert timings[0].note
    assert not timings[0].turns


def test_without_rounds_results_are_checked_only():
    (timing,) = rounds.compare(cases.find("equalize"), ["numpy"], rounds=0, threads=1)
    assert not timing.turns
    console = Console(record=True, file=io.StringIO(), width=200)
    console.print(report.table(CASE, [timing, rounds.Timing("numba", note="WRONG result")]))
    text = console.export_text()
    assert "right, not timed" in text
    assert "WRONG result" in text


def test_ratios_are_computed_round_by_round():
    slow, fast = rounds.Timing("a", turns=[2.0, 6.0]), rounds.Timing("tdsl", turns=[1.0, 2.0])
    assert report.against([slow, fast]) is fast
    assert report.ratios(slow, fast) == [2.0, 3.0]


def test_record_has_every_turn_and_the_reason_of_a_missing_peer():
    timings = [rounds.Timing("tdsl", turns=[1.0, 3.0]), rounds.Timing("numba", note="pip install")]
    record = report.record(CASE, timings)
    assert record["peers"]["tdsl"]["median_ms"] == 2.0
    assert record["peers"]["numba"]["note"] == "pip install"
    assert json.loads(json.dumps(record)) == record
    assert report.table(CASE, timings).row_count == 2


def test_rates_are_in_flops_or_bytes():
    assert report.rate(2e9, 0, ms=1000) == "2.0 GFLOP/s"
    assert report.rate(0, 1e6, ms=0.5) == "2.0 GB/s"


def timed(name, group, **peers):
    """The record of a case from the turns of its peers."""
    case = replace(CASE, name=name, group=group)
    return report.record(case, [rounds.Timing(peer, turns=turns) for peer, turns in peers.items()])


def test_a_goal_takes_the_fastest_peer_of_each_case():
    records = [
        timed("soft", "rows", tdsl=[1.0, 2.0], torch=[4.0, 8.0], jax=[2.0, 4.0]),
        timed("norm", "rows", tdsl=[1.0], numba=[8.0], numpy=[0.1]),
        timed("lone", "rows", tdsl=[1.0], numpy=[0.1]),
    ]
    (line,) = goals.summarize(records)
    assert {name: (c["peer"], c["ratio"]) for name, c in line["cases"].items()} == {
        "soft": ("jax", 2.0),
        "norm": ("numba", 8.0),
    }
    assert line["mean"] == pytest.approx(4.0)
    assert line["least"] == 2.0
    assert line["met"]


def test_one_slow_case_fails_a_goal_that_says_so():
    peers = {"tdsl": [1.0], "numpy": [3.0]}
    records = [timed("a", "sgemm", **peers), timed("b", "sgemm", tdsl=[1.0], numpy=[0.9])]
    assert not goals.summarize(records)[0]["met"]
    assert goals.summarize(records[:1])[0]["met"]


def test_every_group_of_cases_has_a_goal_and_a_peer_of_it():
    for case in cases.ALL.values():
        goals_of_group = [goal for goal in goals.GOALS if goal.group == case.group]
        assert goals_of_group or not case.group
        assert all(goal.ours in case.peers and set(goal.peers) & set(case.peers) for goal in goals_of_group)


def test_the_page_names_the_peers_that_are_faster():
    records = [
        timed("a", "sgemm", tdsl=[1.0], numpy=[0.5]),
        timed("b", "sgemm", tdsl=[1.0], jax=[2.0]),
    ]
    head = report.machine() | {"threads": 1, "rounds": 1, "command": "run"}
    text = page.markdown([head | {"results": records}])
    losses = text.partition("## Where tdsl loses")[2].partition("## Group")[0]
    assert "| a | numpy | 0.50 |" in losses
    assert "| b |" not in losses


def test_unknown_case_lists_the_known_ones():
    with pytest.raises(KeyError, match="sgemm"):
        cases.find("sgem")


def test_command_line_lists_cases():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "list"], capture_output=True, text=True, check=True
    )
    assert all(name in done.stdout for name in cases.ALL)


@pytest.mark.parametrize("shape", [(67, 45), (96, 128)])
def test_the_local_laplacian_filter_gives_what_numpy_gives(rng, shape):
    image = rng.random((3, *shape), dtype=np.float32)
    result = td.compile(local_laplacian.program(*shape))(image)
    expected = local_laplacian.expected(image.astype(np.float64))
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)


def test_products_on_ranks_are_compared_where_mpi_is(tmp_path, monkeypatch):
    """Peers that are missing say what to install; what is there is right, counted, and on the page."""
    pytest.importorskip("mpi4py")
    from benchmarks.mpi import page as mpi_page
    from benchmarks.mpi import suite

    monkeypatch.setattr(suite, "PRODUCTS", {"small": (24, 32, 40)})
    monkeypatch.setattr(suite, "RANKS", (2,))
    (record,) = suite.run(Console(quiet=True), ["small"], 1)
    ours, theirs = record["peers"]["tdsl"], record["peers"]["scalapack"]
    assert (ours["note"], len(ours["turns_ms"])) == ("", 1)
    assert ours["bytes"] == 8 * 24 * 32
    assert theirs["turns_ms"] or "apt-get install" in theirs["note"]
    head = report.machine() | {"command": "", "rounds": 1, "suite": "mpi"}
    text = mpi_page.markdown([head | {"results": [record]}])
    assert "| 24 32 40 | 2 |" in text


def test_the_simulator_is_timed_by_ranks(monkeypatch):
    from benchmarks.mpi import page as mpi_page
    from benchmarks.mpi import suite

    monkeypatch.setattr(suite, "SIMULATED_RANKS", (4,))
    (record,) = suite.run(Console(quiet=True), ["heat"], 1)
    assert record["simulated"]["received"] > 0
    head = report.machine() | {"command": "", "rounds": 1, "suite": "mpi"}
    assert "| heat | 4 |" in mpi_page.markdown([head | {"results": [record]}])
