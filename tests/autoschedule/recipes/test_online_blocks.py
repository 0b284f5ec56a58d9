"""Attention on a GPU by blocks of rows: right for any sizes, and within what a block has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.recipes.online_blocks import OnlineBlocks

b, i, j, d, e = td.vars("b i j d e")


def attention(batches: int, rows: int, terms: int, depth: int, mask: bool = False) -> td.Func:
    q = td.Tensor("q", (batches, rows, depth), td.f32)
    k, v = (td.Tensor(n, (batches, terms, depth), td.f32) for n in "kv")
    score, top, p, total, out = (td.Func(n) for n in ("score", "top", "p", "total", "out"))
    dot = td.sum(q[b, i, d] * k[b, j, d], axis=d)
    score[b, i, j] = td.where(j <= i, dot, -np.inf) if mask else dot
    top[b, i] = td.max(score[b, i, j], axis=j)
    p[b, i, j] = td.exp(score[b, i, j] - top[b, i])
    total[b, i] = td.sum(p[b, i, j], axis=j)
    out[b, i, e] = td.sum(p[b, i, j] * v[b, j, e], axis=j) / total[b, i]
    return out


CASES: dict[str, tuple[tuple[int, ...], bool, dict[str, Any]]] = {
    "even": ((2, 64, 96, 32), False, {}),
    "tails": ((1, 37, 45, 12), False, {"rows": 16, "terms": 16, "each": (2, 2)}),
    "parts": ((1, 24, 70, 16), False, {"rows": 16, "terms": 8, "each": (4, 4), "parts": 3}),
    "odd": ((1, 31, 29, 13), False, {"rows": 16, "terms": 16, "each": (2, 1)}),
    "masked": ((1, 32, 32, 16), True, {"rows": 16, "terms": 16}),
}


@pytest.mark.parametrize("name", CASES)
def test_blocks_of_rows_give_attention(name: str) -> None:
    sizes, mask, choices = CASES[name]
    out = attention(*sizes, mask=mask)
    s = td.Schedule(out, target="cuda")
    assert td.recipes.online_blocks(s["out_sum"], **choices) is not None
    batches, rows, terms, depth = sizes
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((batches, n, depth)).astype(np.float32) for n in (rows, terms, terms))
    z = np.einsum("bid,bjd->bij", q, k)
    z = np.where(np.arange(terms) <= np.arange(rows)[:, None], z, -np.inf) if mask else z
    z = np.exp(z - z.max(-1, keepdims=True))
    want = np.einsum("bij,bje->bie", z / z.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(td.emulate(td.compile(s))(q, k, v), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("arch, depth", [("sm_80", 128), ("sm_86", 64), ("sm_90a", 64)])
def test_shared_memory_is_read_without_bank_conflicts(arch: str, depth: int) -> None:
    s = td.Schedule(attention(1, 256, 256, depth), target=td.Target("cuda", arch=arch))
    td.recipes.online_blocks(s["out_sum"])
    arrays = [np.zeros((1, 256, depth), np.float32) for _ in range(3)]
    counts = td.count_memory(td.compile(s), *arrays, blocks=1, iterations=2)
    assert counts.conflict_degree < 1.05
    assert any(a.site.space == "shared" and a.site.width == 16 for a in counts.accesses)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a"])
@pytest.mark.parametrize("depth", [64, 128])
def test_rows_of_any_length_read_keys_as_often_as_there_are_blocks(depth: int, arch: str) -> None:
    target = td.Target("cuda", arch=arch)
    s = td.Schedule(attention(1, 256, 1_000_000, depth), target=target)
    plan = td.recipes.online_blocks(s["out_sum"])
    assert isinstance(plan, OnlineBlocks)
    least = 4 * (2 * 256 * depth + 256 // plan.rows * 2 * 1_000_000 * depth)
    assert s.traffic("global") < 1.2 * least
    assert s.footprint("shared") <= (target.capacity("shared") or 0)


@pytest.mark.parametrize("depth", [64, 128])
def test_nothing_is_spilled(depth: int) -> None:
    s = td.Schedule(attention(2, 1024, 1024, depth), target="cuda")
    td.recipes.online_blocks(s["out_sum"])
    assert all((k.spills, k.stack) == (0, 0) for k in td.compile(s).launch.kernels)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_rows_that_a_mask_cuts_short_stay_in_registers(arch: str) -> None:
    s = td.Schedule(attention(1, 64, 64, 16, mask=True), target=f"cuda:{arch}")
    td.recipes.online_blocks(s["out_sum"], rows=32, terms=16, parts=2)
    assert all((k.spills, k.stack) == (0, 0) for k in td.compile(s).launch.kernels)


def test_tiles_that_exceed_the_memory_of_a_block_are_refused() -> None:
    s = td.Schedule(attention(1, 512, 512, 64), target="cuda:sm_80")
    with pytest.raises(td.ScheduleError, match=r"take \d+ bytes of shared memory, and a block has 166912"):
        td.recipes.online_blocks(s["out_sum"], rows=512, terms=512)
    assert not s.directives


def test_another_kind_of_sum_is_left_alone() -> None:
    x, f = td.Tensor("x", (64, 64), td.f32), td.Func("f")
    f[i] = td.sum(x[i, j], axis=j)
    s = td.Schedule(f, target="cuda")
    with pytest.raises(td.ScheduleError, match="online_blocks is not for"):
        td.recipes.online_blocks(s[f])
    assert not s.directives


@pytest.mark.parametrize("recipe", [td.recipes.online_blocks, td.recipes.online_tensor_cores])
def test_sums_that_are_for_more_than_the_end_have_no_blocks(recipe):
    """As the mean of channels, by which the norm and its variance are made."""
    i, j, d, e = td.vars("i j d e")
    t = td.f32 if recipe is td.recipes.online_blocks else td.f16
    q, k, v = (td.Tensor(n, (64, 32), t) for n in "qkv")
    score, top, p, out, shown = (td.Func(n) for n in ("score", "top", "p", "out", "shown"))
    score[i, j] = td.sum(td.cast(q[i, d], td.f32) * td.cast(k[j, d], td.f32), axis=d)
    top[i] = td.max(score[i, j], axis=j)
    p[i, j] = td.exp(score[i, j] - top[i])
    out[i, e] = td.sum(td.cast(td.cast(p[i, j], t), td.f32) * td.cast(v[j, e], td.f32), axis=j)
    shown[i] = top[i] + 1
    s = td.Schedule(out, shown, target="cuda")
    before = str(s)
    with pytest.raises(td.ScheduleError, match="is not for 'out': 'shown' is made of"):
        recipe(s[out])
    assert str(s) == before
