"""Transfers on links that ranks share: times by hand, and rates that are max-min fair."""

from __future__ import annotations

import numpy as np
import pytest

from tdsl.distribute.contention import Links, Port, Transfer, fair_rates


def times(*transfers: tuple[float, float, tuple[int, ...], dict[int, float]]) -> list[tuple[float, float]]:
    """Begin and end of transfers (ready, bytes, ports, loads) on shared links of 2 bytes a second."""
    links, ended = Links(lambda port: 2.0), {}
    for n, (at, size, ports, loads) in enumerate(transfers):
        links.add(at, Transfer(
            (at, n, n), tuple(Port("send", -1, p) for p in ports),
            {Port("send", 0, p): load for p, load in loads.items()}, size, 2.0, 0.0,
            lambda begin, end, n=n: ended.update({n: (begin, end)}),
        ))  # fmt: skip
    links.run()
    return [ended[n] for n in range(len(transfers))]


def test_two_transfers_have_half_of_a_link_until_the_shorter_one_ends() -> None:
    assert times((0.0, 2.0, (0,), {0: 1}), (0.0, 6.0, (1,), {0: 1})) == [(0, 2), (0, 4)]


def test_a_transfer_that_comes_later_slows_the_first_one() -> None:
    assert times((0.0, 6.0, (0,), {0: 1}), (1.0, 2.0, (1,), {0: 1})) == [(0, 4), (1, 3)]


def test_a_transfer_waits_for_its_own_port_and_has_a_link_alone_then() -> None:
    assert times((0.0, 4.0, (0,), {0: 1}), (0.0, 4.0, (0,), {0: 1})) == [(0, 2), (2, 4)]


def test_a_collective_that_loads_a_link_twice_has_half_of_its_rate() -> None:
    assert times((0.0, 4.0, (0, 1), {0: 2}), (5.0, 0.0, (0,), {})) == [(0, 4), (5, 5)]


@pytest.mark.parametrize("seed", range(20))
def test_rates_are_max_min_fair(seed: int) -> None:
    """No link is over-full; each transfer has its limit, or a full link on which none has a higher rate."""
    rng = np.random.default_rng(seed)
    ports = [Port("send", 0, n) for n in range(4)]
    capacity = {p: float(rng.integers(1, 9)) for p in ports}
    transfers = [
        Transfer(
            (0.0, n, n), (), {p: float(rng.integers(1, 4)) for p in ports if rng.random() < 0.5},
            1.0, float(rng.integers(1, 9)), 0.0, print,
        )
        for n in range(int(rng.integers(1, 9)))
    ]  # fmt: skip
    rates = fair_rates(transfers, capacity.__getitem__)
    used = {p: sum(rates[t] * t.loads.get(p, 0.0) for t in transfers) for p in ports}
    assert all(used[p] <= capacity[p] * (1 + 1e-9) for p in ports)
    for t in transfers:
        full = [p for p in t.loads if used[p] >= capacity[p] * (1 - 1e-9)]
        highest = (max(rates[x] for x in transfers if p in x.loads) for p in full)
        assert rates[t] == t.limit or any(rates[t] >= rate * (1 - 1e-9) for rate in highest)
