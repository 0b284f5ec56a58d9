"""Emitted CUDA text for tensor cores: right on the CPU, and with the machine code that it should have."""

import re

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.gpu.launches import launches_of
from tests.codegen.cuda import programs
from tests.codegen.cuda.tensor_products import by_warps, product

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
from tdsl.codegen.cuda import module
from tests.codegen.cuda.shim import HAS_COMPILER, run_text, text_of
from tests.codegen.cuda.test_fragments import FORMS, operands
from tests.codegen.cuda.test_module import count, sass

LOADS = {
    "f16": ("ldmatrix_x4_a_f16", "ldmatrix_x4_trans_b_f16"),
    "bf16": ("ldmatrix_x4_a_bf16", None),
    "tf32": ("ldmatrix_x4_a_f32", None),
    "i8": ("ldmatrix_x4_a_i8", None),
    "u8": (None, None),
    "f8e4m3": ("ldmatrix_x4_a_f8e4m3", None),
    "f8e5m2": ("ldmatrix_x4_a_f8e5m2", None),
}


@pytest.mark.skipif(not HAS_COMPILER, reason="g++ runs the text")
@pytest.mark.parametrize("kind", LOADS)
def test_text_of_each_type(kind):
    name = next(x for x in FORMS if x.endswith(f"_{kind}_{kind}"))
    form = FORMS[name]
    s = by_warps(*product(form.left, form.right, form.acc_type), name, LOADS[kind])
    x, y = operands(64, 64, 64, form.left.numpy, form.right.numpy)
    got = text_of(td.compile(s, target="cuda:sm_80"))(x, y)
    want = x.astype(form.acc_type.numpy) @ y.astype(form.acc_type.numpy)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.skipif(not HAS_COMPILER, reason="g++ runs the text")
@pytest.mark.parametrize("turned", [False, True])
def test_text_of_operands_the_other_way_in_memory(turned):
    loads = (f"ldmatrix_x4{'_trans' * turned}_a_f16", f"ldmatrix_x{4 - 2 * turned}_b_f16")
    s = by_warps(*product(turned_a=turned, turned_b=True), "mma_m16n8k16_f16_f16", loads)
    x, y = operands(64, 64, 64)
    got = text_of(td.compile(s, target="cuda:sm_80"))(x.T.copy() if turned else x, y.T.copy())
    np.testing.assert_array_equal(got, x.astype(np.float32) @ y.astype(np.float32))


@pytest.mark.parametrize("kind", [k for k in LOADS if k != "u8"])
def test_machine_code_has_each_product_once(kind, tmp_path):
    form = FORMS[next(x for x in FORMS if x.endswith(f"_{kind}_{kind}"))]
    s = by_warps(*product(form.left, form.right, form.acc_type), form.name, LOADS[kind])
    kernel = programs.kernel_of(s, M=64, K=32, N=32)
    m = module.build(launches_of(kernel), f"sm_{form.arch}")
    (record,) = m.kernels
    assert (record.block, record.spills, record.stack) == ((32, 2, 2), 0, 0)
    text = sass(m, tmp_path)
    tiles, steps = 2 * 2, 32 // form.k  # of a warp, of a block's terms
    assert count(text, r"\b[HIQ]MMA\b") == tiles * steps
    assert count(text, r"\bLDSM\b") == 2 * steps + (1 * steps if kind == "f16" else 0)


def test_loads_of_tiles_need_no_other_access_of_shared_memory(tmp_path):
    kernel = programs.kernel_of(by_warps(*product(), "mma_m16n8k16_f16_f16", LOADS["f16"]), M=64, K=32, N=32)
    text = sass(module.build(launches_of(kernel), "sm_80"), tmp_path)
    assert not re.search(r"\bLDS\b", text)
    assert count(text, r"\bSTS\.128") == 3
    assert count(text, r"\bSTG\.E\.64") == 8


def test_the_recipe_fetches_past_registers_and_spills_nothing(tmp_path):
    c, *_ = product()
    s = td.Schedule(c, sizes={"M": 256, "K": 4096, "N": 128})
    td.recipes.tensor_core_matmul(s[c], block=(128, 64, 32), warp=(64, 32), stages=3)
    m = module.build(launches_of(programs.kernel_of(s, M=256, K=4096, N=128)), "sm_80")
    (record,) = m.kernels
    assert (record.grid, record.block) == ((2, 2, 1), (32, 2, 2))
    assert (record.spills, record.stack) == (0, 0)
    assert record.used_shared == 3 * (128 * 32 + 32 * 64) * 2
    text = sass(m, tmp_path)
    inner = loop_of(text, "HMMA")
    products, steps = 64 // 16 * (32 // 8) * (32 // 16), 32 // 16
    copies = (128 * 32 + 32 * 64) * 2 // 16 // 128
    assert count(inner, r"\bHMMA\b") % products == 0
    times = count(inner, r"\bHMMA\b") // products  # the loop may be unrolled
    assert count(inner, r"\bLDSM\b") == times * steps * (64 // 16 + 32 // 16)
    assert count(inner, r"\bLDGSTS\b") == times * copies
    assert count(inner, r"\bBAR\.SYNC") == times
    assert not re.search(r"\bLDG\b|\bSTS\b|\bLDL\b|\bSTL\b", inner)


def loop_of(text: str, instruction: str) -> str:
    """The innermost loop of machine code that has an instruction: from a label to a branch back to it."""
    lines = text.splitlines()
    labels = {x.strip()[:-1]: n for n, x in enumerate(lines) if x.strip().endswith(":")}
    loops = []
    for n, line in enumerate(lines):
        branch = re.search(r"\bBRA\b.*`\((\.L\S+)\)", line)
        if branch and labels.get(branch[1], n) < n:
            body = "\n".join(lines[labels[branch[1]] : n + 1])
            if re.search(rf"\b{instruction}\b", body):
                loops.append(body)
    return min(loops, key=len)


@pytest.mark.skipif(not HAS_COMPILER, reason="g++ runs the text")
@pytest.mark.parametrize("swizzle, ways", [(0, 4), (64, 1)])
def test_swizzled_tiles_are_loaded_without_conflicts_of_banks(swizzle, ways, tmp_path):
    s = by_warps(
        *product(), "mma_m16n8k16_f16_f16", ("ldmatrix_x4_a_f16", "ldmatrix_x4_trans_b_f16"),
        swizzle=swizzle,
    )  # fmt: skip
    x, y = operands(64, 32, 32)
    got = np.zeros((64, 32), np.float32)
    launches = launches_of(programs.kernel_of(s, M=64, K=32, N=32))
    library = run_text(launches, [x, y, got], tmp_path)
    np.testing.assert_array_equal(got, x.astype(np.float32) @ y.astype(np.float32))
    assert library.bank_ways() == ways
