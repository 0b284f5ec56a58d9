"""Attention by products of groups of four warps: right for any sizes and layouts, and when it is chosen."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.recipes.online_tensor_cores import OnlineTensorCores
from tests.autoschedule.recipes.test_online_tensor_cores import attention, expected, operands

b, h, i, j, d, e = td.vars("b h i j d e")
TARGET = "cuda:sm_90a"

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any], dict[str, Any]]] = {
    "even": ((2, 128, 128, 32), {}, {"rows": 128, "terms": 64}),
    "tails": ((1, 70, 72, 32), {}, {"rows": 128, "terms": 32}),
    "masked": ((1, 128, 128, 16), {"mask": True}, {"rows": 64, "terms": 32}),
    "bf16, columns in parts": ((1, 64, 64, 64), {"dtype": td.bf16}, {"columns": 32, "terms": 32}),
    "three slots": ((1, 64, 160, 32), {}, {"terms": 32, "stages": 3}),
    "no scores ahead": ((1, 64, 96, 16), {"mask": True}, {"terms": 32, "early": False}),
    "one tile": ((1, 64, 30, 16), {}, {"terms": 32}),
    "copies by all threads": ((1, 64, 64, 32), {}, {"terms": 32, "stages": 1}),
}


def scheduled(f: td.Func, **choices: Any) -> td.Schedule:
    s = td.Schedule(f, target=TARGET)
    assert td.recipes.online_tensor_cores(s["out_sum"], warpgroups=True, **choices).warpgroups
    return s


@pytest.mark.in_part(3)
@pytest.mark.parametrize("name", CASES)
def test_groups_give_attention(name: str) -> None:
    sizes, kind, choices = CASES[name]
    dtype = kind.get("dtype", td.f16)
    given = operands(*sizes, dtype)
    compiled = td.compile(scheduled(attention(*sizes, **kind), **choices))
    got = td.emulate(compiled)(*given)
    error = np.abs(got.astype(np.float64) - expected(*given, mask=kind.get("mask", False)))
    assert error.max() < (0.002 if dtype == td.f16 else 0.016)  # half a digit of results up to 4
    text = compiled.loops("final")
    assert len(set(re.findall(r"wgmma_m64n\w+", text))) == 2
    assert ("warps:" in text) == (choices.get("stages") != 1)


def test_the_next_scores_are_computed_during_the_softmax() -> None:
    text = td.compile(scheduled(attention(1, 64, 128, 32), terms=32)).loops("final")
    loop = text[text.index("for out_sum_online_j_o in") :]
    marks = [loop.index(x) for x in ("score", "mk_nk(", "max(", "exp2(", "rk_kn(")]
    assert marks == sorted(marks)
    behind = loop[marks[1] : marks[-1]]  # from scores to the products with weights
    assert "commit(mma)" in behind and "wait(0, mma)" not in behind


def laid_out(order: str, heads: int = 1, depth: int = 32, terms: int = 64) -> td.Func:
    """Attention of arrays whose axes lie in another order, with fewer heads of keys and values."""
    sizes = {"b": 1, "h": 2, "i": 64, "d": depth}

    def array(name: str, changed: dict[str, int]) -> td.Tensor:
        return td.Tensor(name, tuple({**sizes, **changed}[x] for x in order), td.f16)

    def at(t: td.Tensor, **index: Any) -> td.Value:
        return td.cast(t[tuple(index[x] for x in order)], td.f32)

    few = {"h": 2 // heads, "i": terms}
    q, k, v = array("q", {}), array("k", few), array("v", few)
    raw, top, p, total, out = (td.Func(n) for n in ("raw", "top", "p", "total", "out"))
    raw[b, h, i, j] = td.sum(at(q, b=b, h=h, i=i, d=d) * at(k, b=b, h=h // heads, i=j, d=d), axis=d)
    top[b, h, i] = td.max(raw[b, h, i, j], axis=j)
    p[b, h, i, j] = td.exp(raw[b, h, i, j] - top[b, h, i])
    total[b, h, i] = td.sum(p[b, h, i, j], axis=j)
    weight = td.cast(td.cast(p[b, h, i, j], td.f16), td.f32)
    value = at(v, b=b, h=h // heads, i=j, d=e)
    out[b, h, i, e] = td.sum(weight * value, axis=j) / total[b, h, i]
    return out


@pytest.mark.parametrize("order, heads, depth", [("bhid", 2, 32), ("bihd", 1, 128), ("bhdi", 1, 32)])
def test_operands_may_lie_in_any_order(order: str, heads: int, depth: int) -> None:
    out = laid_out(order, heads, depth)
    s = scheduled(out, terms=64)
    rng = np.random.default_rng(0)
    shapes = [tuple(int(n.value) for n in t.shape) for t in s.program.inputs]
    given = {
        t.name: rng.standard_normal(shape).astype(np.float16) / 4
        for t, shape in zip(s.program.inputs, shapes, strict=True)
    }
    (want,) = td.lang.interp.interpret(s.program, given)
    np.testing.assert_allclose(td.emulate(td.compile(s))(**given), want, atol=0.002)


def test_the_schedule_replays() -> None:
    out = attention(1, 64, 64, 16)
    s = scheduled(out, terms=32)
    again = td.Schedule(attention(1, 64, 64, 16), target=TARGET).replay(s.to_json())
    assert td.compile(again).loops("final") == td.compile(s).loops("final")


def chosen(*sizes: int, arch: str = "sm_90a", **choices: Any) -> OnlineTensorCores:
    s = td.Schedule(attention(*sizes, dtype=td.bf16), target=f"cuda:{arch}")
    return td.recipes.online_tensor_cores(s["out_sum"], **choices)


def test_warpgroups_are_used_where_they_fill_a_gpu_that_has_them() -> None:
    assert chosen(16, 8192, 8192, 128) == OnlineTensorCores(128, 64, 128, 128, 2, held=False, warpgroups=True)
    assert chosen(16, 8192, 8192, 256) == OnlineTensorCores(
        128, 64, 64, 64, 2, held=False, warpgroups=True, early=True
    )
    assert chosen(16, 8192, 8192, 160).columns == 32
    assert chosen(16, 512, 512, 64).rows == 64
    assert not chosen(1, 512, 512, 64).warpgroups
    assert not chosen(16, 8192, 8192, 128, arch="sm_80").warpgroups
    assert not chosen(16, 8192, 8192, 128, warpgroups=False).warpgroups
    assert not chosen(16, 8192, 8192, 128, warp=16).warpgroups
    assert not chosen(16, 8192, 8192, 512).warpgroups


def test_the_default_schedule_takes_them() -> None:
    s = td.Schedule(attention(16, 2048, 2048, 64), target=TARGET)
    text = td.compile(s).loops("final")
    assert text.count("def ") == 1
    assert "wgmma_m64n128k16_f16_mk_nk(" in text and "wgmma_m64n64k16_f16_rk_kn(" in text


@pytest.mark.parametrize(
    "sizes, arch, choices, message",
    [
        ((1, 64, 64, 64), "sm_80", {}, "wgmma needs sm_90a, and the schedule is for sm_80"),
        ((1, 64, 64, 64), "sm_90a", {"rows": 100}, "rows cannot be 100"),
        ((1, 64, 64, 64), "sm_90a", {"warp": 16}, "warp cannot be 16"),
        ((1, 64, 64, 64), "sm_90a", {"terms": 40}, "terms cannot be 40"),
        ((1, 64, 64, 512), "sm_90a", {}, "512 columns, and registers hold 256"),
        ((1, 64, 64, 128), "sm_90a", {"stages": 9}, r"take \d+ bytes of shared memory"),
    ],
)
def test_what_groups_cannot_do_is_refused(
    sizes: tuple[int, ...], arch: str, choices: dict[str, Any], message: str
) -> None:
    s = td.Schedule(attention(*sizes), target=f"cuda:{arch}")
    with pytest.raises(td.ScheduleError, match=message):
        td.recipes.online_tensor_cores(s["out_sum"], warpgroups=True, **choices)
    assert not s.directives


def test_arrays_that_are_not_fetched_in_tiles_are_refused() -> None:
    """Lines of keys of 40 bytes, which are no multiple of 16."""
    with pytest.raises(td.ScheduleError, match="'k' cannot be fetched in tiles that wgmma reads"):
        scheduled(laid_out("bhdi", terms=20))
