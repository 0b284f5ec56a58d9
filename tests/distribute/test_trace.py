"""Traces: the model of links against what follows by hand, and files that hold all bytes of a plan."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tests.distribute.matmuls import cube, flat, matmul
from tests.distribute.test_mpi import needs_mpi, ranks
from tests.distribute.test_stencils import heat

i = td.vars("i")
LATENCY, BANDWIDTH = 1e-3, 1e3


def moved(source: str, target: str, grid: td.Grid | list[td.Grid], extent: int = 12) -> Any:
    """A copy from one layout to another: nothing to speak of but messages."""
    a, f = td.Tensor("a", (extent,), td.f64), td.Func("f")
    f[i] = a[i]
    s = td.Schedule(f)
    td.recipes.redistribute(s[f], source, target, grid)
    return td.compile(s, target="python")


def events(p: Any, path: Path, **options: Any) -> tuple[float, list[Any]]:
    """The seconds of a modelled run, and the slices of its trace."""
    fast = {"operations": 1e30, "memory": 1e30, "latency": LATENCY, "bandwidth": BANDWIDTH}
    seconds = p.trace(path, **{**fast, **options})
    events = json.loads(path.read_text())["traceEvents"]
    return seconds, [e for e in events if e["ph"] == "X"]


def test_a_message_takes_a_latency_and_its_bytes(tmp_path: Path) -> None:
    seconds, slices = events(moved("r -> 0", "r -> r", td.Grid(x=2)), tmp_path / "trace.json")
    assert seconds == pytest.approx(LATENCY + 8 * 6 / BANDWIDTH)
    assert [(e["pid"], e["cat"], e["args"]["bytes"]) for e in slices if e["dur"] > 1] == [
        (0, "send", 48), (1, "receive", 48),
    ]  # fmt: skip


def test_messages_to_one_rank_wait_for_each_other(tmp_path: Path) -> None:
    """Three ranks send a quarter each: their links are free, that of the receiver is not."""
    seconds, slices = events(moved("r -> r", "r -> 0", td.Grid(x=4)), tmp_path / "trace.json")
    assert seconds == pytest.approx(LATENCY + 3 * 8 * 3 / BANDWIDTH)
    arrivals = sorted(e["ts"] for e in slices if e["cat"] == "receive")
    np.testing.assert_allclose(np.diff(arrivals), 1e6 * 8 * 3 / BANDWIDTH)


def test_ranks_of_a_node_share_its_link(tmp_path: Path) -> None:
    """Both ranks of a node send to the other node; within nodes links are a thousand times as fast."""
    machine = [td.Grid(node=2), td.Grid(x=2)]
    p = moved("r -> 0 r", "r -> 1 r", machine)
    seconds, _ = events(p, tmp_path / "trace.json", bandwidth=(BANDWIDTH, 1e3 * BANDWIDTH))
    assert seconds == pytest.approx(LATENCY + 2 * 8 * 6 / BANDWIDTH)
    p = moved("r -> r 0", "r -> r r", machine)
    seconds, _ = events(p, tmp_path / "trace.json", bandwidth=(BANDWIDTH, 1e3 * BANDWIDTH))
    assert seconds == pytest.approx(LATENCY + 8 * 3 / (1e3 * BANDWIDTH))


def test_tasks_take_their_operations(tmp_path: Path) -> None:
    seconds, slices = events(
        td.compile(flat(td.Grid(x=1, y=1), "", M=4, N=5, K=6), target="python"),
        tmp_path / "trace.json",
        operations=1e3,
    )
    (task,) = (e for e in slices if e["cat"] == "compute" and e["dur"] > 1)
    assert task["dur"] == pytest.approx(1e6 * 2 * 4 * 5 * 6 / 1e3)
    assert seconds >= 1e-6 * task["dur"]


PROGRAMS = {
    "cannon": lambda: flat(td.Grid(x=3, y=3), "ij", M=11, N=7, K=13),
    "summa": lambda: flat(td.Grid(x=2, y=4), "", M=11, N=7, K=13),
    "johnson": lambda: cube(td.Grid(x=2, y=2, z=3), M=11, N=7, K=13),
    "halos": lambda: heat(2, 1, td.Grid(x=2, y=2)),
}


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_trace_has_all_bytes_and_its_tracks_have_no_overlaps(make: Any, tmp_path: Path) -> None:
    p = td.compile(make(), target="python")
    seconds, slices = events(p, tmp_path / "trace.json", operations=1e9, memory=1e9)
    plan = p.plan()
    totals: defaultdict[tuple[int, str], int] = defaultdict(int)
    tracks: defaultdict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for e in slices:
        totals[e["pid"], e["cat"]] += e["args"].get("bytes", 0)
        tracks[e["pid"], e["cat"]].append((e["ts"], e["ts"] + e["dur"]))
    for rank in range(plan.grid.size):
        assert totals[rank, "receive"] == plan.received[rank]
        assert totals[rank, "send"] == plan.sent[rank]
    for spans in tracks.values():
        spans.sort()
        assert all(end <= begin + 1e-3 for (_, end), (begin, _) in itertools.pairwise(spans))
        assert spans[-1][1] <= 1e6 * seconds + 1e-3


def test_prefetches_overlap_computation(tmp_path: Path) -> None:
    """Cannon's algorithm on 3 x 3 ranks: two tiles come while one product is computed, four times as long."""
    seconds = []
    for prefetch in (0, 1):
        s = matmul.schedule(M=60, N=60, K=60)
        for name in "ABC":
            s.place(name, "rc -> r c", td.Grid(x=3, y=3))
        C = s["C"]
        rows, columns = C.distribute(("i", "j"), td.Grid(x=3, y=3))
        panel, inside = C.divide("k", 3)
        C.reorder(panel, "i", "j", inside)
        panel = C.rotate(panel, by=(rows, columns))
        C.communicate("C", at=columns).communicate(("A", "B"), at=panel, prefetch=prefetch)
        p = td.compile(s, target="python")
        options = {"operations": 16e3 / 4, "bandwidth": 3200.0, "latency": 1e-9}
        seconds.append(events(p, tmp_path / "trace.json", **options)[0])
    assert seconds == pytest.approx([3 * (4 + 2), 3 * 4 + 2], rel=1e-2)


def test_a_network_of_another_depth_is_refused(tmp_path: Path) -> None:
    p = moved("r -> 0", "r -> 1", td.Grid(x=2))
    with pytest.raises(td.TypeMismatch, match="latency is a positive number, or one for each level"):
        p.trace(tmp_path / "trace.json", latency=(1e-6, 1e-7))
    with pytest.raises(td.TypeMismatch, match="bandwidth is a positive number"):
        p.trace(tmp_path / "trace.json", bandwidth=0)
    with pytest.raises(td.TypeMismatch, match="operations is a positive number a second, not 0"):
        p.trace(tmp_path / "trace.json", operations=0)


PROGRAM = """
import sys
import numpy as np, tdsl as td
from tests.distribute.matmuls import flat
a, b = np.ones((40, 50)), np.ones((50, 60))
p = td.compile(flat(td.Grid(x=2, y=2), "ij", M=40, N=60, K=50))
p(p.block("A", a), p.block("B", b))
assert p.trace(sys.argv[1]) > 0
"""


@needs_mpi
def test_a_run_writes_a_trace_of_its_last_call(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    done = ranks(4, "-c", PROGRAM, str(path))
    assert done.returncode == 0, done.stderr
    slices = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    plan = td.compile(flat(td.Grid(x=2, y=2), "ij", M=40, N=60, K=50)).plan()
    for rank in range(4):
        events_of_rank = [e for e in slices if e["pid"] == rank]
        assert sum(e["args"]["bytes"] for e in events_of_rank if e["cat"] == "receive") == plan.received[rank]
        assert sum(e["args"]["bytes"] for e in events_of_rank if e["cat"] == "send") == plan.sent[rank]
        assert any(e["cat"] == "compute" and e["name"] == "C" for e in events_of_rank)
