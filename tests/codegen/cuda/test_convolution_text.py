"""Emitted CUDA text of convolutions on tensor cores: right on the CPU, and its machine code."""

import re

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.gpu.launches import launches_of
from tests.codegen.cuda import programs
from tests.codegen.cuda.convolutions import Conv

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
from tdsl.codegen.cuda import module
from tests.codegen.cuda.shim import HAS_COMPILER, text_of
from tests.codegen.cuda.test_module import count, sass
from tests.codegen.cuda.test_tensor_text import loop_of


@pytest.mark.skipif(not HAS_COMPILER, reason="g++ runs the text")
@pytest.mark.parametrize(
    "case, warpgroups",
    [
        (Conv(stride=2, channels=24, filter_count=40), False),
        (Conv(batch=1, size=(6, 6), points="ncyx", filters="ocpq", channels=4), False),
        (Conv(batch=1, size=(6, 7), channels=16), True),
    ],
)
def test_text(rng, case, warpgroups):
    result, sums = case.funcs()
    s = td.Schedule(result)
    tiles = (
        {"block": (64, 64, 64), "warp": (64, 64)} if warpgroups else {"block": (64, 32, 32), "warp": (32, 32)}
    )
    td.recipes.tensor_core_matmul(s[sums], **tiles, warpgroups=warpgroups)
    given, want = case.arrays(rng)
    arch = "cuda:sm_90a" if warpgroups else "cuda:sm_80"
    np.testing.assert_array_equal(text_of(td.compile(s, target=arch))(*given), want, strict=True)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("stride", [1, 2])
def test_machine_code_copies_sixteen_bytes_and_has_each_product_once(arch, stride, tmp_path):
    result, sums = Conv(batch=4, size=(28, 28), channels=64, stride=stride).funcs()
    s = td.Schedule(result)
    td.recipes.tensor_core_matmul(s[sums], block=(128, 64, 32), warp=(64, 32), stages=3)
    m = module.build(launches_of(programs.kernel_of(s)), arch)
    (record,) = m.kernels
    assert (record.spills, record.stack) == (0, 0)
    inner = loop_of(sass(m, tmp_path), "HMMA")
    products = 64 // 16 * (32 // 8) * (32 // 16)
    times = count(inner, r"\bHMMA\b") // products  # the loop may be unrolled
    assert times and count(inner, r"\bHMMA\b") == times * products
    assert count(inner, r"\bLDGSTS\b.*\.128") == times * (128 * 32 + 32 * 64) * 2 // 16 // 128
    assert not re.search(r"\bLDG\b|\bSTS\b|\bLDL\b|\bSTL\b", inner)
    # where a point lies is known before the loop: what is left of divisions is of the place in the window
    assert count(inner, r"\bIMAD\.HI\b|\bIMAD\.WIDE\.U32\b") <= times * 16
