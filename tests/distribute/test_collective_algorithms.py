"""Algorithms of collectives: the bytes and messages of each, and which one the clock takes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import tdsl as td
from tdsl.distribute.collective_algorithms import ALGORITHMS, NAMES, Collective, rounds_of
from tests.distribute.test_trace import all_reduce, events

SIZE = 960.0


def collective(kind: str, count: int) -> Collective:
    """A collective of even parts among ranks 3, 5, 7, ..."""
    ranks = tuple(range(3, 3 + 2 * count, 2))
    most = SIZE if kind in ("broadcast", "reduce") else SIZE * (count - 1) / count
    if kind == "all-reduce":
        most *= 2
    return Collective(kind, ranks, SIZE, most, ranks[count // 2])


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 8, 12, 16])
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_no_rank_sends_or_receives_more_than_the_bytes_of_the_rounds(kind: str, count: int) -> None:
    """And each receives at least what it lacks: all of the result, or all parts but its own."""
    c = collective(kind, count)
    for rounds in rounds_of(c, switch=True):
        sent, received = Counter[int](), Counter[int]()
        for source, target, size in rounds.edges:
            sent[source] += size
            received[target] += size
        assert set(sent) | set(received) == set(c.ranks)
        assert max((sent | received).values()) <= rounds.bytes * (1 + 1e-12)
        assert rounds.algorithm in NAMES
        lacking = {"reduce": {c.root}, "broadcast": {*c.ranks} - {c.root}}.get(kind, {*c.ranks})
        least = SIZE / count if kind == "reduce-scatter" else SIZE * (count - 1) / count
        if rounds.algorithm != "in-switch":
            assert min(received[r] for r in lacking) >= least * (1 - 1e-12)


@pytest.mark.parametrize(
    "count, hops",
    [(4, {"ring": 6, "halving and doubling": 4, "doubling": 2}),
     (6, {"ring": 10, "halving and doubling": 6, "doubling": 4}),
     (32, {"ring": 62, "halving and doubling": 10, "doubling": 5})],
)  # fmt: skip
def test_messages_that_follow_each_other_in_an_all_reduce(count: int, hops: dict[str, int]) -> None:
    rounds = rounds_of(collective("all-reduce", count), switch=False)
    assert {r.algorithm: r.hops for r in rounds} == hops
    ring, halving, _ = rounds
    if count in (4, 32):
        assert ring.bytes == halving.bytes == 2 * SIZE * (count - 1) / count


def names_of(slices: list[dict[str, str]]) -> set[str]:
    return {e["name"] for e in slices if e["name"].startswith("all-reduce")}


def test_the_fastest_algorithm_is_taken_and_named(tmp_path: Path) -> None:
    """On 32 ranks: 5 messages if latency decides, else as few bytes as a ring in 10; the ring without any."""
    p, path = all_reduce(td.Grid(rank=32)), tmp_path / "trace.json"
    size = 8192
    seconds, slices = events(p, path, latency=1.0, bandwidth=1e9)
    assert names_of(slices) == {"all-reduce f, doubling"}
    assert seconds == pytest.approx(5 + 5 * size / 1e9)
    seconds, slices = events(p, path, latency=1e-3, bandwidth=1e5)
    assert names_of(slices) == {"all-reduce f, halving and doubling"}
    assert seconds == pytest.approx(10e-3 + 2 * 31 / 32 * size / 1e5)
    _, slices = events(p, path, latency=0, bandwidth=1e5)
    assert names_of(slices) == {"all-reduce f, ring"}
    seconds, slices = events(p, path, latency=1e-3, bandwidth=1e5, in_switch=True)
    assert names_of(slices) == {"all-reduce f, in-switch"}
    assert seconds == pytest.approx(2e-3 + size / 1e5)


def test_halving_sends_less_between_nodes_than_a_ring() -> None:
    """On 2 nodes of 2 ranks: a quarter of each rank, twice, against one and a half of one rank."""
    c = Collective("all-reduce", (0, 1, 2, 3), SIZE, SIZE * 1.5)
    ring, halving, _ = rounds_of(c, switch=False)
    between = {
        r.algorithm: sum(size for a, b, size in r.edges if a // 2 == 0 and b // 2 == 1) / SIZE
        for r in (ring, halving)
    }
    assert between == {"ring": 1.5, "halving and doubling": 1.0}
