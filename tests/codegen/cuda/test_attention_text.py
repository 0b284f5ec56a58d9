"""Emitted CUDA text of attention by tensor cores: right on the CPU, with the machine code it should have."""

import re

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.gpu.launches import launches_of
from tests.autoschedule.recipes.test_online_tensor_cores import attention, expected, operands
from tests.codegen.cuda import programs

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
from tdsl.codegen.cuda import module
from tests.codegen.cuda.shim import HAS_COMPILER, run_text
from tests.codegen.cuda.test_module import count, sass
from tests.codegen.cuda.test_tensor_text import loop_of

GROUPS = {"rows": 128, "terms": 64, "warpgroups": True}


def scheduled(*sizes, dtype=td.f16, mask=False, arch="sm_80", **choices):
    s = td.Schedule(attention(*sizes, mask=mask, dtype=dtype), target=f"cuda:{arch}")
    assert td.recipes.online_tensor_cores(s["out_sum"], **choices) is not None
    return programs.kernel_of(s)


@pytest.mark.skipif(not HAS_COMPILER, reason="g++ runs the text")
@pytest.mark.parametrize("mask", [False, True])
def test_text_is_right_and_reads_shared_memory_without_conflicts_of_banks(mask, tmp_path):
    sizes = 1, 40, 72, 64
    given = operands(*sizes, td.f16)
    got = np.zeros((1, 40, 64), np.float16)
    launches = launches_of(scheduled(*sizes, mask=mask, rows=32))
    library = run_text(launches, [*given, got], tmp_path)
    assert np.abs(got - expected(*given, mask=mask)).max() < 0.002
    assert library.bank_ways() == 1


@pytest.mark.parametrize(
    "arch, depth, dtype",
    [("sm_80", 64, td.f16), ("sm_80", 128, td.bf16), ("sm_90a", 128, td.bf16)],
)
def test_machine_code_has_each_product_once_and_spills_nothing(arch, depth, dtype, tmp_path):
    kernel = scheduled(16, 8192, 8192, depth, dtype=dtype, arch=arch, warpgroups=False)
    m = module.build(launches_of(kernel), arch)
    (record,) = m.kernels
    assert (record.grid, record.block) == ((1024, 1, 1), (32, 8, 1))
    assert (record.spills, record.stack) == (0, 0)
    assert record.used_shared == (128 + 2 * 2 * 64) * depth * 2
    lines = loop_of(sass(m, tmp_path), "HMMA").splitlines()
    inner = "\n".join(x for x in lines if "@!PT" not in x)  # what never runs
    steps, tiles = depth // 16, 64 // 8  # of an instruction: along the depth, along the terms
    products = steps * tiles + 64 // 16 * (depth // 8)
    loads = steps * tiles // 2 + 64 // 16 * (depth // 16) + (steps if depth > 64 else 0)
    assert count(inner, r"\bHMMA\b") == products
    assert count(inner, r"\bLDSM\b") == loads
    assert count(inner, r"\bLDGSTS\b") == 2 * 64 * depth * 2 // 16 // 256
    assert count(inner, r"\bSHFL") == 2 * 2 * 2  # distances, rows of a thread, maximum and sum
    assert count(inner, r"\bFMNMX") == 64 // 2 + 2 * 2 + 2  # a thread's scores, shuffles, what was before
    assert count(inner, r"\bBAR\.SYNC") == 1
    assert not re.search(r"\b(LDG|STS|LDS|LDL|STL)\b", inner)


@pytest.mark.skipif(not HAS_COMPILER, reason="g++ runs the text")
@pytest.mark.parametrize(
    "mask, sizes",
    [(False, (1, 128, 128, 64)), (True, (1, 100, 128, 32)), (False, (1, 64, 72, 128))],
)
def test_text_of_groups_is_right(mask, sizes, tmp_path):
    given = operands(*sizes, td.f16)
    got = np.zeros((1, sizes[1], sizes[3]), np.float16)
    launches = launches_of(scheduled(*sizes, mask=mask, arch="sm_90a", **GROUPS))
    run_text(launches, [*given, got], tmp_path)
    assert np.abs(got - expected(*given, mask=mask)).max() < 0.002


@pytest.mark.in_part(2)
@pytest.mark.parametrize("depth, mask", [(64, False), (128, False), (128, True), (256, False)])
def test_machine_code_of_groups_has_each_product_once(depth, mask, tmp_path):
    kernel = scheduled(16, 8192, 8192, depth, dtype=td.bf16, mask=mask, arch="sm_90a")
    m = module.build(launches_of(kernel), "sm_90a")
    (record,) = m.kernels
    assert (record.grid, record.block) == ((1024, 1, 1), (128, 2 + 1, 1))
    assert (record.spills, record.stack, m.warnings) == (0, 0, ())
    text = sass(m, tmp_path)
    inner = loop_of(text, "HGMMA")
    terms, parts = (128, 1) if depth <= 128 else (64, depth // 64)
    products = depth // 16 + terms // 16 * parts
    assert count(inner, r"\bHGMMA\b") == products
    assert count(text, r"\bHGMMA\b") == products * (1 if depth == 128 else 2)  # with scores ahead
    assert count(text, r"\bUTMALDG\b") == 2 * depth // 64  # keys and values, by panels
    assert count(text, r"\bUSETMAXREG\b") == 2
    assert count(inner, r"\bSHFL") == 2 * 2 * 2  # distances, rows of a thread, maximum and sum
    assert count(inner, r"\bBAR\b") == 0
    assert not re.search(r"\b(LDG|LDGSTS|STS|LDS|LDL|STL)\b", inner)


def test_weights_are_powers_of_two(tmp_path):
    """An exponential is the unit for powers of two, after one operation with fast arithmetic, else two."""
    counts = []
    for fast in (False, True):
        out = attention(16, 8192, 8192, 128, dtype=td.bf16, fast=fast)
        s = td.Schedule(out, target="cuda:sm_90a")
        td.recipes.online_tensor_cores(s["out_sum"])
        m = module.build(launches_of(programs.kernel_of(s)), "sm_90a")
        assert (m.kernels[0].spills, m.warnings) == (0, ())
        inner = loop_of(sass(m, tmp_path), "HGMMA")
        counts.append([count(inner, word) for word in (r"\bMUFU\.EX2", r"\bF(FMA|MUL|ADD)\b")])
    (_, exact), (powers, fast_) = counts
    assert powers <= counts[0][0] < 64 + 16
    assert 64 - 16 < exact - fast_ <= 64
    assert exact < 64 * 9


def test_a_scaled_score_is_one_multiply_add(tmp_path):
    """A thread has 32 scores of a tile: none is multiplied by the scale before its exponent is computed."""
    s = td.Schedule(attention(16, 8192, 8192, 64, fast=True), target="cuda:sm_80")
    td.recipes.online_tensor_cores(s["out_sum"])
    inner = loop_of(sass(module.build(launches_of(programs.kernel_of(s)), "sm_80"), tmp_path), "HMMA")
    assert count(inner, r"\bFMUL") < 32 + 32
    assert count(inner, r"\bFFMA") >= 32 + 64  # exponents, and sums of values that are rescaled
