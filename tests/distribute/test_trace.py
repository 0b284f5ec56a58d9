"""Traces: the model of links against what follows by hand, and files that hold all bytes of a plan."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import tdsl as td
from tdsl.cost.network import links_of
from tdsl.target import as_target
from tests.distribute.matmuls import cube, flat, matmul
from tests.distribute.pipelined import chain
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


def test_a_picture_has_a_row_for_each_rank_and_the_steps_of_its_tasks(tmp_path: Path) -> None:
    p = td.compile(chain(2, 3, order=td.recipes.gpipe(2, 3)), target="python")
    options = {"latency": 0.5, "bandwidth": 80.0, "operations": 10, "memory": 1e30}
    seconds = p.trace(tmp_path / "steps.svg", **options)
    assert seconds == p.trace(tmp_path / "steps.json", **options)
    root = ElementTree.parse(tmp_path / "steps.svg").getroot()
    texts = ["".join(e.itertext()) for e in root.iter() if e.tag.endswith("text")]
    assert {"rank 0", "rank 1", "h0 0", "h0 1", "h0 2", "d1 2"} <= {*texts}
    about = ["".join(e.itertext()) for e in root.iter() if e.tag.endswith("title")]
    assert "compute h0 1: 1.00 s to 2.00 s" in about
    assert sum(text.startswith("send h0 from 0 to 1, 80 B: ") for text in about) == 3
    td.compile(flat(td.Grid(x=1, y=1), "", M=0, N=5, K=6), target="python").trace(tmp_path / "nothing.svg")
    assert ElementTree.parse(tmp_path / "nothing.svg").getroot().tag.endswith("svg")


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
    with pytest.raises(td.TypeMismatch, match="shared_by is a number of ranks"):
        p.trace(tmp_path / "trace.json", shared_by=0)
    with pytest.raises(td.TypeMismatch, match="no algorithm 'rings' of collectives"):
        p.trace(tmp_path / "trace.json", collectives="rings")
    with pytest.raises(td.TypeMismatch, match="in_switch is True or False"):
        p.trace(tmp_path / "trace.json", in_switch=2)


GIB, SCALE = 2**30, 2**17  # bytes of the sum, and how many times fewer the program has


def all_reduce(*levels: td.Grid) -> Any:
    """A vector of 1,024 doubles that all ranks add to and all get."""
    k = td.vars("k")
    ranks = int(np.prod([g.size for g in levels]))
    x, f = td.Tensor("x", (ranks, GIB // SCALE // 8), td.f64), td.Func("f")
    f[i] = td.sum(x[k, i], axis=k)
    axes = sum(len(g.axes) for g in levels)
    s = td.Schedule(f).place(x, "ki -> " + "k " * axes, list(levels))
    s.place(f, "i -> " + "* " * axes, list(levels))[f].distribute(("k",) * axes, list(levels))
    return td.compile(s, target="python")


NODES, GPUS = td.Grid(node=4), td.Grid(gpu=8)


@pytest.mark.parametrize(
    "levels, bandwidth, shared_by, milliseconds",
    [
        ((NODES, GPUS), (25e9, 300e9), 1, 14.3166),  # a network interface for each rank
        ((NODES, GPUS), (25e9, 300e9), None, 70.688),  # one for a node: its 8 rings share it
        ((NODES, GPUS), (25e9, 300e9), (2, None), 14.3166 + 8.0531),  # one for two ranks
        ((GPUS, NODES), (300e9, 25e9), 1, 65.990),  # the slow links first, with all of the data
        ((td.Grid(rank=32),), (25e9,), None, 83.215),  # one ring over all ranks
    ],
)
def test_all_reduces_on_nodes_take_what_blueconnect_says(
    levels: tuple[td.Grid, ...], bandwidth: tuple[float, ...], shared_by: Any, milliseconds: float,
    tmp_path: Path,
) -> None:  # fmt: skip
    """1 GiB on 4 nodes of 8 ranks (Cho et al., BlueConnect, MLSys 2019); the program has 2**17 times less."""
    seconds, _ = events(
        all_reduce(*levels), tmp_path / "trace.json", latency=0, shared_by=shared_by,
        bandwidth=tuple(b / SCALE for b in bandwidth),
    )  # fmt: skip
    assert 1e3 * seconds == pytest.approx(milliseconds, rel=1e-4)


@pytest.mark.parametrize(
    "levels, steps, sent",
    [((td.Grid(x=4), td.Grid(y=4), td.Grid(z=2)), 14, [6, 24, 32]), ((td.Grid(x=32),), 62, [62])],
)
def test_all_reduces_by_levels_send_as_much_in_fewer_steps(
    levels: tuple[td.Grid, ...], steps: int, sent: list[int], tmp_path: Path
) -> None:
    """Of 32 elements: 2 * (1 + 3 + 3) latencies in place of 2 * 31, and 62 elements by both ways."""
    p = all_reduce(*levels)
    seconds, _ = events(p, tmp_path / "trace.json", latency=1.0, bandwidth=1e30, collectives="ring")
    assert seconds == pytest.approx(steps)
    each = GIB // SCALE // 32  # bytes of an element of 32
    for level, expected in zip(p.plan().volume.crossing, sent, strict=True):
        assert set(level.tolist()) == {expected * each}


def test_a_ring_sends_two_parts_less_one_of_each(tmp_path: Path) -> None:
    """All-reduce of 8 elements on 4 ranks: 12 sent by each, 2 * 3 / 4 of the bytes over the bandwidth."""
    k = td.vars("k")
    x, f, g = td.Tensor("x", (4, 8), td.f64), td.Func("f"), td.Grid(x=4)
    f[i] = td.sum(x[k, i], axis=k)
    s = td.Schedule(f).place(x, "ki -> k", g).place(f, "i -> *", g)
    s[f].distribute(k, g)
    p = td.compile(s, target="python")
    assert set(p.plan().sent) == {12 * 8}
    seconds, _ = events(p, tmp_path / "trace.json", collectives="ring")
    assert seconds == pytest.approx(6 * LATENCY + 2 * 3 / 4 * 64 / BANDWIDTH)


def test_links_are_those_of_the_machine_if_none_are_given(tmp_path: Path) -> None:
    """As in predictions: the latency and the bandwidth of the outermost link of its description."""
    p = moved("r -> 0", "r -> r", td.Grid(x=2))
    (link,) = links_of(as_target("python").machine(), 1)
    seconds = p.trace(tmp_path / "trace.json", operations=1e30, memory=1e30)
    assert seconds == pytest.approx(link.latency + 8 * 6 / link.bytes_per_second(1))


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
