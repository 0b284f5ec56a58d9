"""Attention over long rows on the CPU: right for any sizes, and with scores that stay in a cache."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td
from tests.schedule.recipes.test_online_blocks import attention


@pytest.mark.parametrize(
    "sizes", [(2, 100, 777, 64), (1, 7, 300, 20), (3, 64, 256, 5), (1, 1, 1, 1), (1, 33, 513, 8)]
)
@pytest.mark.parametrize("mask", [False, True])
def test_bands_over_tiles_give_attention(sizes: tuple[int, ...], mask: bool) -> None:
    batches, rows, terms, depth = sizes
    s = td.Schedule(attention(*sizes, mask=mask))
    assert td.recipes.online_bands(s["out_sum"]) is not None
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal((batches, n, depth)).astype(np.float32) for n in (rows, terms, terms)
    )
    z = np.einsum("bid,bjd->bij", q, k)
    z = np.where(np.arange(terms) <= np.arange(rows)[:, None], z, -np.inf) if mask else z
    z = np.exp(z - z.max(-1, keepdims=True))
    want = np.einsum("bij,bje->bie", z / z.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(td.compile(s)(q, k, v), want, rtol=1e-3, atol=1e-5)


def test_scores_of_long_rows_never_leave_the_cache() -> None:
    s = td.Schedule(attention(1, 64, 50_000, 64))
    td.recipes.online_bands(s["out_sum"])
    prediction = s.prediction()
    cache = prediction.machine.caches[1].name
    for name in ("score", "p"):
        assert prediction.home(name).name in (prediction.machine.caches[0].name, cache)


def test_the_default_schedule_reads_long_rows_in_tiles_and_short_ones_whole() -> None:
    def how(terms: int) -> str:
        made = td.compile(attention(1, 64, terms, 32))
        return str(made.explain())

    assert "online_bands" in how(60_000)
    assert "online_bands" not in how(2_000)


def test_what_is_scheduled_by_hand_is_left_alone() -> None:
    s = td.Schedule(attention(1, 64, 60_000, 32))
    s["p"].compute_root()
    assert "online" not in str(td.compile(s).explain())
