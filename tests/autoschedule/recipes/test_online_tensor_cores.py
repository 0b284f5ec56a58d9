"""Attention by tensor cores: right for any sizes, masked or not, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.recipes.online_tensor_cores import OnlineTensorCores
from tdsl.codegen.cuda.sass import disassemble, instruction_mix
from tdsl.tilegraph.search import candidates

b, i, j, d, e = td.vars("b i j d e")


def attention(
    batches: int, rows: int, terms: int, depth: int, mask: bool = False, dtype: td.DType = td.f16,
    weights: td.DType | None = None, fast: bool = False,
) -> td.Func:  # fmt: skip
    """softmax(q k' / 8) v for each batch, with weights rounded to the type of the operands."""
    q = td.Tensor("q", (batches, rows, depth), dtype)
    k, v = (td.Tensor(n, (batches, terms, depth), dtype) for n in "kv")
    raw, score, top, p, total, out = (td.Func(n) for n in ("raw", "score", "top", "p", "total", "out"))
    raw[b, i, j] = td.sum(td.cast(q[b, i, d], td.f32) * td.cast(k[b, j, d], td.f32), axis=d)
    scaled = raw[b, i, j] / 8
    score[b, i, j] = td.where(j <= i, scaled, -np.inf) if mask else scaled
    top[b, i] = td.max(score[b, i, j], axis=j)
    p[b, i, j] = td.exp(score[b, i, j] - top[b, i])
    if fast:
        td.fast_math(p)
    total[b, i] = td.sum(p[b, i, j], axis=j)
    weight = td.cast(td.cast(p[b, i, j], weights or dtype), td.f32)
    sums = td.sum(weight * td.cast(v[b, j, e], td.f32), axis=j)
    out[b, i, e] = td.cast(sums / total[b, i], dtype)
    return out


def operands(batches: int, rows: int, terms: int, depth: int, dtype: td.DType) -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = [(batches, n, depth) for n in (rows, terms, terms)]
    return [rng.standard_normal(shape).astype(dtype.numpy) for shape in shapes]


def expected(q: Any, k: Any, v: Any, mask: bool = False) -> Any:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    z = np.einsum("bid,bjd->bij", q, k) / 8
    if mask:
        z = np.where(np.arange(z.shape[2]) <= np.arange(z.shape[1])[:, None], z, -np.inf)
    z = np.exp(z - z.max(-1, keepdims=True))
    return np.einsum("bij,bje->bie", z / z.sum(-1, keepdims=True), v)


CASES: dict[str, tuple[tuple[int, ...], dict[str, Any], dict[str, Any]]] = {
    "even": ((2, 64, 128, 32), {}, {"rows": 32}),
    "tails": ((1, 40, 72, 16), {}, {"rows": 32, "terms": 32}),
    "tails of instructions": ((1, 37, 71, 32), {}, {"rows": 32}),
    "fewer terms than a tile": ((1, 17, 30, 16), {}, {}),
    "masked": ((1, 32, 48, 16), {"mask": True}, {"terms": 16}),
    "bf16, columns in parts": ((1, 16, 32, 64), {"dtype": td.bf16}, {"columns": 16}),
    "warps of 32 rows": ((1, 64, 32, 32), {}, {"rows": 64, "warp": 32, "terms": 16}),
    "rows from memory, no tiles ahead": ((1, 16, 64, 32), {}, {"held": False, "stages": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_tensor_cores_give_attention(name: str) -> None:
    sizes, kind, choices = CASES[name]
    dtype = kind.get("dtype", td.f16)
    s = td.Schedule(attention(*sizes, **kind), target="cuda:sm_80")
    assert td.recipes.online_tensor_cores(s["out_sum"], **choices) is not None
    given = operands(*sizes, dtype)
    got = td.emulate(td.compile(s))(*given)
    error = np.abs(got.astype(np.float64) - expected(*given, mask=kind.get("mask", False)))
    assert got.dtype == dtype.numpy
    assert error.max() < (0.002 if dtype == td.f16 else 0.016)  # half a digit of results up to 4


@pytest.mark.parametrize("dtype", [td.f16, td.bf16], ids=lambda t: t.name)
def test_attention_without_casts_is_one_kernel(dtype: td.DType) -> None:
    """Scores, weights and their sums are of the type of the operands; sums are in f32 all the same."""
    q, k, v = (td.Tensor(n, (m, 64), dtype) for n, m in (("q", 80), ("k", 96), ("v", 96)))
    score, top, p, total, out = (td.Func(n) for n in ("score", "top", "p", "total", "out"))
    score[i, j] = td.sum(q[i, d] * k[j, d], axis=d) / 8
    top[i] = td.max(score[i, j], axis=j)
    p[i, j] = td.exp(score[i, j] - top[i])
    total[i] = td.sum(p[i, j], axis=j)
    out[i, e] = td.sum(p[i, j] * v[j, e], axis=j) / total[i]
    f = td.compile(td.Schedule(out, target="cuda:sm_80"))
    assert str(f.source("cuda")).count("__global__") == 1
    arrays = [operands(1, m, m, 64, dtype)[0][0] for m in (80, 96, 96)]
    (right,) = expected(*(x[None] for x in arrays))
    np.testing.assert_allclose(td.emulate(f)(*arrays).astype(float), right, atol=8 * spacing(dtype))


def spacing(dtype: td.DType) -> float:
    """The distance from 1 to the next number of a type."""
    return 2.0**-10 if dtype is td.f16 else 2.0**-7


def loop_over_tiles(f: td.Func, **choices: Any) -> tuple[str, Any]:
    """The range of the loop over tiles of terms, and the compiled schedule."""
    s = td.Schedule(f, target="cuda:sm_80")
    td.recipes.online_tensor_cores(s["out_sum"], **choices)
    compiled = td.compile(s)
    line = next(x for x in compiled.loops("final").splitlines() if "for out_sum_online_j_o" in x)
    return line.partition(" in ")[2], compiled


@pytest.mark.parametrize(
    "scale, factored", [(lambda e: e / 8, True), (lambda e: e * 0.3, True), (lambda e: e / 11, False)]
)
def test_products_of_scores_are_scaled_in_exponents(scale: Any, factored: bool) -> None:
    q, k, v = (td.Tensor(n, (64, 32), td.f16) for n in "qkv")
    raw, score, top, p, out = (td.Func(n) for n in ("raw", "score", "top", "p", "out"))
    raw[i, j] = td.sum(td.cast(q[i, d], td.f32) * td.cast(k[j, d], td.f32), axis=d)
    score[i, j] = scale(raw[i, j])
    top[i] = td.max(score[i, j], axis=j)
    p[i, j] = td.exp(score[i, j] - top[i])
    out[i, e] = td.sum(td.cast(td.cast(p[i, j], td.f16), td.f32) * td.cast(v[j, e], td.f32), axis=j)
    s = td.Schedule(out, target="cuda:sm_80")
    td.recipes.online_tensor_cores(s[out])
    assert (".factor_out()" in str(s)) == factored


def test_fully_masked_tiles_are_skipped() -> None:
    sizes = 1, 128, 128, 16
    run, compiled = loop_over_tiles(attention(*sizes, mask=True), rows=32, terms=16)
    assert run == "range(0, out_b_i_o * 2 + 2):"
    given = operands(*sizes, td.f16)
    error = np.abs(td.emulate(compiled)(*given) - expected(*given, mask=True))
    assert error.max() < 0.002
    assert loop_over_tiles(attention(*sizes), rows=32, terms=16)[0] == "range(0, 8):"


def test_a_window_begins_with_the_first_tile_that_it_needs() -> None:
    q, k, v = (td.Tensor(n, (128, 16), td.f16) for n in "qkv")
    raw, score, top, p, total, out = (td.Func(n) for n in ("raw", "score", "top", "p", "total", "out"))
    raw[i, j] = td.sum(td.cast(q[i, d], td.f32) * td.cast(k[j, d], td.f32), axis=d)
    score[i, j] = td.where((j <= i) & (j > i - 20), raw[i, j] / 8, -np.inf)
    top[i] = td.max(score[i, j], axis=j)
    p[i, j] = td.exp(score[i, j] - top[i])
    total[i] = td.sum(p[i, j], axis=j)
    weight = td.cast(td.cast(p[i, j], td.f16), td.f32)
    out[i, e] = td.sum(weight * td.cast(v[j, e], td.f32), axis=j) / total[i]
    run, compiled = loop_over_tiles(out, rows=16, terms=16)
    assert run == "range(0, min(out_i_o + 1, 3)):"
    given = [x[0] for x in operands(1, 128, 128, 16, td.f16)]
    z = given[0].astype(np.float64) @ given[1].astype(np.float64).T / 8
    at = np.arange(128)
    z = np.where((at <= at[:, None]) & (at > at[:, None] - 20), z, -np.inf)
    z = np.exp(z - z.max(-1, keepdims=True))
    want = z @ given[2].astype(np.float64) / z.sum(-1, keepdims=True)
    assert np.abs(td.emulate(compiled)(*given) - want).max() < 0.002


def test_the_schedule_replays() -> None:
    s = td.Schedule(attention(1, 32, 40, 16), target="cuda:sm_80")
    td.recipes.online_tensor_cores(s["out_sum"])
    again = td.Schedule(attention(1, 32, 40, 16), target="cuda:sm_80").replay(s.to_json())
    given = operands(1, 32, 40, 16, td.f16)
    compiled = td.compile(again)
    assert "mma_m16n8k16" in compiled.loops("final")
    np.testing.assert_array_equal(td.emulate(compiled)(*given), td.emulate(td.compile(s))(*given))


@pytest.mark.parametrize("weights", [td.f32, td.bf16])
def test_weights_of_another_type_than_values_are_refused(weights: td.DType) -> None:
    s = td.Schedule(attention(1, 64, 64, 64, weights=weights), target="cuda:sm_80")
    with pytest.raises(td.ScheduleError, match="round weights to the type of the values"):
        td.recipes.online_tensor_cores(s["out_sum"])
    assert not s.directives


def test_columns_that_instructions_do_not_divide_are_refused() -> None:
    s = td.Schedule(attention(1, 64, 64, 24), target="cuda:sm_80")
    with pytest.raises(td.ScheduleError, match="24 columns, which are no multiple of 16"):
        td.recipes.online_tensor_cores(s["out_sum"])


def test_the_default_schedule_takes_tensor_cores() -> None:
    out = attention(2, 64, 40, 32)
    compiled = td.compile(td.Schedule(out, target="cuda:sm_80"))
    text = compiled.loops("final")
    assert text.count("def ") == 1
    assert text.count("mma_m16n8k16_f16_f16(") == 2
    given = operands(2, 64, 40, 32, td.f16)
    assert np.abs(td.emulate(compiled)(*given) - expected(*given)).max() < 0.002


def test_autoschedule_takes_tensor_cores() -> None:
    program = td.Schedule(attention(16, 2048, 2048, 64)).state.program
    target = td.Target("cuda", arch="sm_80")
    s = candidates(program, {}, target)[0].schedule
    assert "mma_m16n8k16_f16_f16" in str(s)


def test_tiles_have_fewer_terms_where_blocks_have_little_shared_memory() -> None:
    s = td.Schedule(attention(4, 1024, 1024, 256), target="cuda:sm_89")
    plan = td.recipes.online_tensor_cores(s["out_sum"])
    assert plan.terms < 64
    assert s.footprint("shared") <= (td.Target("cuda", arch="sm_89").capacity("shared") or 0)


def test_large_heads_keep_all_multiprocessors_at_work() -> None:
    s = td.Schedule(attention(16, 8192, 8192, 128, dtype=td.bf16), target="cuda:sm_80")
    plan = td.recipes.online_tensor_cores(s["out_sum"])
    assert plan == OnlineTensorCores(128, 16, 64, 128, 2, held=False)
    tiles = 16 * 8192 // 128  # blocks, each of which reads all keys and values of its head
    least = 2 * (2 * 16 * 8192 * 128 + tiles * 2 * 8192 * 128)
    assert s.traffic("global") < 1.05 * least


@pytest.mark.parametrize("fast, most", [(False, 830), (True, 770)])
def test_the_arithmetic_of_a_tile_is_short(fast: bool, most: int) -> None:
    """64 rows by 128 terms: an exponential is a power of two, whose exponent may be one operation."""
    f = attention(16, 8192, 8192, 64, dtype=td.bf16, fast=fast)
    code = td.compile(f, target=td.Target("cuda", arch="sm_90a")).launch.code
    (mix,) = instruction_mix(disassemble(code))
    assert mix.count("HGMMA", in_loop=True) == 12
    assert sum(n for _, n in mix.loop) < most
    assert mix.count("MUFU", in_loop=True) < 80
