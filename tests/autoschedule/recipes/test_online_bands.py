"""Attention over long rows on the CPU: right for any sizes, and with scores that stay in a cache."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td
from tests.autoschedule.recipes.test_online_blocks import attention


@pytest.mark.in_part(4)
@pytest.mark.parametrize(
    "sizes", [(2, 100, 777, 64), (1, 7, 300, 20), (3, 64, 256, 5), (1, 1, 1, 1), (1, 33, 513, 8)]
)
@pytest.mark.parametrize("mask", [False, True])
def test_bands_over_tiles_give_attention(sizes: tuple[int, ...], mask: bool) -> None:
    batches, rows, terms, depth = sizes
    s = td.Schedule(attention(*sizes, mask=mask))
    assert td.recipes.online_bands(s["out_sum"]) is not None
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((batches, n, depth)).astype(np.float32) for n in (rows, terms, terms))
    z = np.einsum("bid,bjd->bij", q, k)
    z = np.where(np.arange(terms) <= np.arange(rows)[:, None], z, -np.inf) if mask else z
    z = np.exp(z - z.max(-1, keepdims=True))
    want = np.einsum("bij,bje->bie", z / z.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(td.compile(s)(q, k, v), want, rtol=1e-3, atol=1e-5)


def test_results_with_readers_are_computed_in_the_same_bands() -> None:
    """Attention that also says to which key each query attends most, and the logarithm of its sums."""
    i, j, d, e = td.vars("i j d e")
    q, k, v = (td.Tensor(n, (r, 16), td.f32) for n, r in (("q", 41), ("k", 777), ("v", 777)))
    names = "score", "top", "p", "total", "out", "logs", "best"
    score, top, p, total, out, logs, best = (td.Func(n) for n in names)
    score[i, j] = td.sum(q[i, d] * k[j, d], axis=d)
    top[i] = td.max(score[i, j], axis=j)
    p[i, j] = td.exp(score[i, j] - top[i])
    total[i] = td.sum(p[i, j], axis=j)
    out[i, e] = td.sum(p[i, j] * v[j, e], axis=j) / total[i]
    logs[i] = td.log(total[i]) + top[i]
    best[i] = td.argmax(p[i, j] / total[i], axis=j)
    s = td.Schedule(out, logs, best)
    td.recipes.online_bands(s["out_sum"])
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((n, 16)).astype(np.float32) for n in (41, 777, 777)]
    z = (given[0] @ given[1].T).astype(np.float64)
    w = np.exp(z - z.max(1, keepdims=True))
    results = td.compile(s)(*given)
    np.testing.assert_allclose(results[0], w @ given[2] / w.sum(1, keepdims=True), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(results[1], np.log(w.sum(1)) + z.max(1), rtol=1e-4)
    np.testing.assert_array_equal(results[2], z.argmax(1))
    prediction = s.prediction()
    assert prediction.home("score") != prediction.machine.levels[-1]


def test_scores_of_long_rows_never_leave_the_cache() -> None:
    s = td.Schedule(attention(1, 64, 50_000, 64))
    td.recipes.online_bands(s["out_sum"])
    prediction = s.prediction()
    cache = prediction.machine.caches[1].name
    for name in ("score", "p"):
        assert prediction.home(name).name in (prediction.machine.caches[0].name, cache)


def test_the_default_schedule_reads_long_rows_in_tiles_and_short_ones_whole() -> None:
    def how(terms: int) -> str:
        program = td.compile(attention(1, 64, terms, 32))
        return str(program.explain())

    assert "online_bands" in how(60_000)
    assert "online_bands" not in how(2_000)


def test_what_is_scheduled_by_hand_is_left_alone() -> None:
    s = td.Schedule(attention(1, 64, 60_000, 32))
    s["p"].compute_root()
    assert "online" not in str(td.compile(s).explain())


@pytest.mark.parametrize("more", ["rows", "columns"])
def test_scores_with_other_readers_are_computed_before(more: str) -> None:
    """By another result, which needs all of them."""
    i, j, d, e = td.vars("i j d e")
    q, k, v = (td.Tensor(n, (r, 16), td.f32) for n, r in (("q", 41), ("k", 300), ("v", 300)))
    score, p, out, other = (td.Func(n) for n in ("score", "p", "out", "other"))
    score[i, j] = td.sum(q[i, d] * k[j, d], axis=d)
    p[i, j] = td.exp(score[i, j] - td.max(score[i, j], axis=j))
    out[i, e] = td.sum(p[i, j] * v[j, e], axis=j)
    if more == "rows":
        other[i, j] = score[i, j] * 2
    else:
        other[j] = td.sum(score[i, j], axis=i)
    s = td.Schedule(out, other)
    td.recipes.online_bands(s["out"])
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((n, 16)).astype(np.float32) for n in (41, 300, 300)]
    z = given[0] @ given[1].T
    results = td.compile(s)(*given)
    np.testing.assert_allclose(
        results[0], np.exp(z - z.max(1, keepdims=True)) @ given[2], rtol=1e-3, atol=1e-4
    )
    np.testing.assert_allclose(results[1], z * 2 if more == "rows" else z.sum(0), rtol=1e-3, atol=1e-3)
