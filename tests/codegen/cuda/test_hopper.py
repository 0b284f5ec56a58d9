"""Products of warpgroups of tiles that a warpgroup of its own asks for: results, and their machine code."""

import re

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cuda import module
from tdsl.codegen.gpu.launches import launches_of
from tdsl.codegen.ir.loops import Barrier, InitBarriers
from tdsl.codegen.ir.statements import walk
from tests.codegen.cuda import programs

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
from tests.codegen.cuda.test_module import sass  # imports tvm

i, j, k = td.vars("i j k")


def product(m: int, n: int, p: int, block=(128, 64, 64), warp=(64, 64), stages: int = 3) -> td.Schedule:
    """wgmma, TMA, and a warpgroup that only asks for tiles."""
    a, b, c = td.Tensor("a", (m, n), td.f16), td.Tensor("b", (n, p), td.f16), td.Func("c")
    c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(s[c], block=block, warp=warp, stages=stages, warpgroups=True)
    (ahead,) = (dict(d.arguments)["loop"] for d in s.directives if d.name == "pipeline")
    s[c].pipeline(ahead, stages, producer_warps=True)
    return s


@pytest.mark.parametrize("stages", [2, 4])
def test_products_are_right(stages):
    numbers = np.random.default_rng(0)
    a, b = (numbers.integers(-3, 4, x).astype(np.float16) for x in ((128, 256), (256, 128)))
    got = td.emulate(td.compile(product(128, 256, 128, stages=stages), target="cuda"))(a, b)
    np.testing.assert_array_equal(got, a.astype(np.float32) @ b.astype(np.float32))


def test_a_producer_warpgroup_fetches_and_warps_release_slots():
    kernel = programs.kernel_of(product(128, 256, 128))
    (launch,) = launches_of(kernel).launches
    assert launch.block == (128, 1, 2 + 1)
    assert [s.arrivals for s in walk(kernel.body) if isinstance(s, InitBarriers)] == [2, 8]
    assert all(s.group for s in walk(kernel.body) if isinstance(s, Barrier))


def test_wgmmas_are_back_to_back_in_machine_code(tmp_path):
    compiled = module.build(launches_of(programs.kernel_of(product(1024, 1024, 1024))), "sm_90a")
    (kernel,) = compiled.kernels
    assert (kernel.spills, kernel.stack, compiled.warnings) == (0, 0, ())
    text = sass(compiled, tmp_path)
    lines = [x for x in text.splitlines() if re.search(r"\b(HGMMA|BAR|WARPGROUP|UTMALDG)\b", x)]
    words = [re.search(r"\b(HGMMA|BAR|WARPGROUP|UTMALDG)\b", x)[1] for x in lines]
    assert words.count("HGMMA") >= 4 and "UTMALDG" in words
    first = words.index("HGMMA")
    assert words[first : first + 4] == ["HGMMA"] * 4
    last = len(words) - 1 - words[::-1].index("HGMMA")
    assert words.index("BAR", 2) > last  # two where phases are made ready, and none in the loop


def test_rows_of_several_swizzles_are_fetched_panel_by_panel(tmp_path):
    s = product(1024, 1024, 1024, block=(128, 256, 64), warp=(64, 256), stages=4)
    compiled = module.build(launches_of(programs.kernel_of(s)), "sm_90a")
    (kernel,) = compiled.kernels
    assert (kernel.block, kernel.spills, kernel.stack) == ((128, 1, 3), 0, 0)
    assert [x.box for x in kernel.maps] == [(128, 64), (64, 64)]
    text = sass(compiled, tmp_path)
    assert len(re.findall(r"\bUTMALDG", text)) >= 1 + 4
    assert not re.findall(r"\b(LDGSTS|LDL|STL)\b", text)
