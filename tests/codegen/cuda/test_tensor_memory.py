"""Products with sums in tensor memory (tcgen05): right under emulation and as text, assembled for sm_100a."""

import re

import numpy as np
import pytest

import tdsl as td
from tdsl.machine.instructions.tcgen05 import ROWS, instruction_descriptor
from tdsl.machine.instructions.warpgroups import GroupMma
from tests.codegen.cuda.tensor_products import i, j, k, product

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
from tests.codegen.cuda.shim import HAS_COMPILER, text_of
from tests.codegen.cuda.test_fragments import operands
from tests.codegen.cuda.test_warpgroups import TYPES, by_groups

FORMS = (
    "tcgen05_m128n64k16_f16_mk_kn", "tcgen05_m128n32k16_f16_km_nk", "tcgen05_m128n128k16_bf16_km_kn",
    "tcgen05_m128n16k8_tf32_mk_nk", "tcgen05_m128n32k32_s8_mk_nk", "tcgen05_m128n48k32_e4m3_mk_nk",
    "tcgen05_m128n16k32_e5m2_mk_nk",
)  # fmt: skip


def scheduled(name: str):
    _, _, kind, a, b = name.split("_")
    t = TYPES[kind]
    total = td.f32 if t.is_float else td.i32
    s = by_groups(*product(t, t, total, turned_a=a == "km", turned_b=b == "nk"), name)
    columns = int(re.search(r"n(\d+)k", name)[1])
    x, y = operands(256, columns, 512 // t.bytes, t.numpy, t.numpy)
    want = x.astype(total.numpy) @ y.astype(total.numpy)
    return s, (x.T.copy() if a == "km" else x, y.T.copy() if b == "nk" else y), want


@pytest.mark.parametrize("name", FORMS)
def test_products_are_right(name):
    s, given, want = scheduled(name)
    got = td.emulate(td.compile(s, target="cuda:sm_100a"))(*given)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.skipif(not HAS_COMPILER, reason="g++ runs the text")
@pytest.mark.parametrize("name", FORMS)
def test_text_of_products_is_right(name):
    s, given, want = scheduled(name)
    got = text_of(td.compile(s, target="cuda:sm_100a"))(*given)
    np.testing.assert_array_equal(got, want, strict=True)


def test_machine_code_has_products_and_moves_of_sums():
    s, _, _ = scheduled(FORMS[0])
    f = td.compile(s, target="cuda:sm_100a", M=256, K=256, N=64)
    text = f.source()
    assert text.count("tdsl_tensor_store<64>(") == text.count("tdsl_tensor_load<64>(") == 1
    assert "tdsl_tensor_begin<128>" in text  # two groups of 64 columns each
    (kernel,) = f.launch.kernels
    assert kernel.spills == kernel.stack == 0


def test_sums_in_a_loop_over_tiles_are_loaded_before_each_result():
    """One block computes several tiles, one after the other: sums move once for each of them."""
    c, _, _ = product()
    s = td.Schedule(c, sizes={"M": 512, "N": 64, "K": 128}, target="cuda:sm_100a")
    td.recipes.tensor_core_matmul(s[c], block=(128, 64, 64), warpgroups=True, blocks=2)
    x, y = operands(512, 64, 128, np.float16, np.float16)
    want = x.astype(np.float32) @ y.astype(np.float32)
    f = td.compile(s, target="cuda:sm_100a")
    np.testing.assert_array_equal(td.emulate(f)(x, y), want)
    if HAS_COMPILER:
        np.testing.assert_array_equal(text_of(f)(x, y), want)


def test_the_default_schedule_of_blackwell_uses_tensor_memory():
    a, b, c = td.Tensor("a", (512, 256), td.f16), td.Tensor("b", (256, 512), td.f16), td.Func("c")
    c[i, j] = td.maximum(td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k), 0)
    s = td.Schedule(c, target="cuda:sm_100a")
    f = td.compile(s, target="cuda:sm_100a")
    x, y = operands(512, 512, 256, np.float16, np.float16)
    np.testing.assert_array_equal(
        td.emulate(f)(x, y), np.maximum(x.astype(np.float32) @ y.astype(np.float32), 0)
    )
    big = td.Tensor("a", (4096, 4096), td.f16), td.Tensor("b", (4096, 4096), td.bf16)
    text = td.compile(td.einsum("ik,jk->ij", big[0], big[0]), target="cuda:sm_100a").source()
    assert "tcgen05.mma" in text and "mma.sync" not in text


def test_other_architectures_are_refused():
    s, _, _ = scheduled(FORMS[0])
    for arch in ("sm_90a", "sm_120"):
        with pytest.raises(td.TargetError, match=f"needs sm_100a, the target is {arch}"):
            td.compile(s, target=f"cuda:{arch}").source("cuda", M=256, K=256, N=64)


def test_the_instruction_descriptor_has_the_fields_of_the_manual():
    bits = instruction_descriptor(GroupMma(td.bf16, td.f32, 256, "km", "nk", ROWS, "tcgen05"))
    fields = {"sums": (4, 2), "a": (7, 3), "b": (10, 3), "a_major": (15, 1), "b_major": (16, 1), "n": (17, 6)}
    got = {name: bits >> at & (1 << n) - 1 for name, (at, n) in fields.items()}
    assert got == {"sums": 1, "a": 1, "b": 1, "a_major": 1, "b_major": 0, "n": 32}
    assert bits >> 24 == 8
