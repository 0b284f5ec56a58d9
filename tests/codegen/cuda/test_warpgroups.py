"""Products of warpgroups (wgmma): right under emulation and as text, back to back in machine code."""

import json
import re

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.gpu.launches import launches_of
from tdsl.machine.instructions import tensor_cores
from tests.codegen.cuda import programs
from tests.codegen.cuda.tensor_products import i, j, k, product

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
from tdsl.codegen.cuda import module
from tests.codegen.cuda.shim import HAS_COMPILER, run_text, text_of
from tests.codegen.cuda.test_fragments import operands
from tests.codegen.cuda.test_module import count, sass
from tests.codegen.cuda.test_tensor_text import loop_of

TYPES = {
    "f16": td.f16,
    "bf16": td.bf16,
    "tf32": td.f32,
    "s8": td.i8,
    "e4m3": td.f8e4m3,
    "e5m2": td.f8e5m2,
}


def by_groups(c, a, b, name: str, *, swizzle: int = 128) -> td.Schedule:
    """Two groups of threads in a block, each with 64 rows; operands in shared memory, or `a` in registers."""
    s, (rows, columns) = td.Schedule(c), tensor_cores.find(name).shapes()[0]
    terms = tensor_cores.find(name).shapes()[1][1]
    stage = s[c]
    io, jo, ii, j1 = stage.tile((i, j), (2 * rows, columns))
    wi, i1 = stage.split(ii, rows)
    ko, ki = stage.split(k, swizzle // a.dtype.bytes)
    ki, k1 = stage.split(ki, terms)
    stage.reorder(io, jo, wi, ko, ki, i1, j1, k1)
    stage.bind(io, "blockIdx.y").bind(jo, "blockIdx.x").bind(wi, "threadIdx.y")
    stage.tensorize(i1, name)
    s.cache_write(c, at=wi, scope="fragment").cooperate(2)
    for t in (a, b):
        tile = s.cache_read(t, c, at=ko, scope="shared").cooperate(16 // t.dtype.bytes)
        tile.swizzle(swizzle)
        if t is a and "_rk_" in name:
            s.cache_read(tile.func, c, at=ki, scope="fragment").cooperate()
    stage.unroll(ki)
    return s


FORMS = (
    "wgmma_m64n64k16_f16_mk_kn", "wgmma_m64n32k16_f16_km_nk", "wgmma_m64n96k16_bf16_rk_nk",
    "wgmma_m64n128k16_bf16_km_kn", "wgmma_m64n16k8_tf32_mk_nk", "wgmma_m64n8k32_s8_rk_nk",
    "wgmma_m64n16k32_e4m3_mk_nk", "wgmma_m64n8k32_e5m2_rk_nk",
)  # fmt: skip


def scheduled(name: str):
    _, _, kind, a, b = name.split("_")
    t = TYPES[kind]
    total = td.f32 if t.is_float else td.i32
    parts = product(t, t, total, turned_a=a == "km", turned_b=b == "nk")
    swizzle = 64 if "n32" in name else 128
    s = by_groups(*parts, name, swizzle=swizzle)
    columns = int(re.search(r"n(\d+)k", name)[1])
    x, y = operands(128, columns, 256 // t.bytes, t.numpy, t.numpy)
    want = x.astype(total.numpy) @ y.astype(total.numpy)
    return s, (x.T.copy() if a == "km" else x, y.T.copy() if b == "nk" else y), want


@pytest.mark.parametrize("name", FORMS)
def test_products_of_a_group_are_right(name):
    s, given, want = scheduled(name)
    got = td.emulate(td.compile(s, target="cuda:sm_90a"))(*given)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.in_part(3)
@pytest.mark.skipif(not HAS_COMPILER, reason="g++ runs the text")
@pytest.mark.parametrize("name", FORMS)
def test_text_of_products_of_a_group_is_right(name):
    s, given, want = scheduled(name)
    got = text_of(td.compile(s, target="cuda:sm_90a"))(*given)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.skipif(not HAS_COMPILER, reason="g++ runs the text")
@pytest.mark.parametrize("old, new", [(", 1024, 1)", ", 512, 1)"), (", 1024, 1)", ", 1024, 2)")])
def test_a_wrong_descriptor_gives_wrong_results(old, new, tmp_path):
    s, (x, y), want = scheduled("wgmma_m64n64k16_f16_mk_kn")
    launches = launches_of(programs.kernel_of(s, M=128, K=128, N=64))
    got = np.zeros_like(want)
    run_text(launches, [x, y, got], tmp_path, lambda text: text.replace(old, new))
    assert (got != want).any()


def test_instructions_that_an_architecture_lacks_are_refused():
    s, _, _ = scheduled("wgmma_m64n64k16_f16_mk_kn")
    with pytest.raises(td.TargetError, match="needs sm_90a, the target is sm_80"):
        td.compile(s, target="cuda:sm_80").source("cuda", M=128, K=128, N=64)


def test_operands_of_descriptors_must_be_swizzled():
    s, given, _ = scheduled("wgmma_m64n64k16_f16_mk_kn")
    plain = [d for d in json.loads(s.to_json()) if d["do"] != "swizzle"]
    again = td.Schedule(*product()[:1]).replay(json.dumps(plain))
    with pytest.raises(td.ScheduleError, match="swizzle"):
        td.emulate(td.compile(again, target="cuda:sm_90a"))(*given)


@pytest.mark.parametrize("turned, columns", [(False, 64), (True, 64), (False, 256), (True, 256)])
def test_the_recipe_for_hopper_keeps_products_back_to_back(turned, columns, tmp_path):
    c, *_ = product(turned_b=turned)
    sizes = {"M": 256, "K": 4096, "N": 256}
    s = td.Schedule(c, sizes=sizes)
    plan = td.recipes.tensor_core_matmul(
        s[c], block=(128, columns, 64), warp=(64, columns), stages=4, warpgroups=True
    )
    assert plan.instruction == f"wgmma_m64n{columns}k16_f16_mk_{'nk' if turned else 'kn'}"
    m = module.build(launches_of(programs.kernel_of(s, **sizes)), "sm_90a")
    (record,) = m.kernels
    assert record.block == (128, 1, 3)  # the third group asks for tiles
    assert (record.spills, record.stack, m.warnings) == (0, 0, ())
    text = sass(m, tmp_path)
    inner = loop_of(text, "HGMMA")
    steps = 64 // 16
    times = count(inner, r"\bHGMMA\b") // steps
    assert times >= 1 and count(inner, r"\bHGMMA\b") == times * steps
    assert "UTMALDG" in text and "UTMALDG" not in inner
    assert count(inner, r"\bWARPGROUP\.DEPBAR") == count(inner, r"\bWARPGROUP\.ARRIVE") == times
    assert not re.search(r"\bLDG\b|\bSTS\b|\bLDS\b|\bLDL\b|\bSTL\b|\bLDSM\b|\bBAR\b", inner)


def test_products_of_8_bits_use_wgmma_on_hopper_if_requested(tmp_path):
    c, *_ = product(td.f8e4m3, td.f8e4m3, turned_b=True)
    s = td.Schedule(c, sizes={"M": 256, "K": 1024, "N": 256})
    plan = td.recipes.tensor_core_matmul(
        s[c], block=(128, 128, 128), warp=(64, 128), stages=3, warpgroups=True
    )
    assert plan.instruction == "wgmma_m64n128k32_e4m3_mk_nk"
    m = module.build(launches_of(programs.kernel_of(s, M=256, K=1024, N=256)), "sm_90a")
    assert [(x.spills, x.stack) for x in m.kernels] == [(0, 0)] and m.warnings == ()
    text = sass(m, tmp_path)
    assert "QGMMA" in text and "UTMALDG" in text
    default = td.compile(c, target="cuda:sm_90a", M=2048, K=2048, N=2048).loops("final")
    assert "wgmma_m64n256k16_f16" in default and "e4m3" not in default.replace("f8e4m3", "")


def test_products_of_8_bits_need_an_architecture_that_has_them():
    c, *_ = product(td.f8e5m2, td.f8e4m3)
    s = td.Schedule(c)
    plan = td.recipes.tensor_core_matmul(s[c], block=(64, 64, 64), warp=(32, 32))
    assert plan.instruction == "mma_m16n8k32_f8e5m2_f8e4m3"
    with pytest.raises(td.TargetError, match="needs sm_89, the target is sm_80"):
        td.compile(s, target="cuda:sm_80").source("cuda", M=64, K=64, N=64)


@pytest.mark.skipif(not HAS_COMPILER, reason="g++ runs the text")
@pytest.mark.parametrize("turned", [False, True])
def test_text_of_the_recipe_for_hopper(turned):
    """All threads of a group say that they have used a tile; tiles wider than a swizzle come in panels.

    One block makes both tiles of the result; five steps for each are no multiple of the slots of the ring.
    """
    c, *_ = product(turned_b=turned)
    s = td.Schedule(c, sizes={"M": 256, "K": 320, "N": 128})
    td.recipes.tensor_core_matmul(s[c], block=(128, 128, 64), warp=(64, 128), warpgroups=True, blocks=1)
    x, y = operands(256, 128, 320)
    compiled = td.compile(s, target="cuda:sm_90a")
    got = text_of(compiled)(x, y.T.copy() if turned else y)
    np.testing.assert_array_equal(got, x.astype(np.float32) @ y.astype(np.float32))
    assert compiled.source("cuda").count("tdsl_tma_load_2d(\n") == (2 if turned else 3)
