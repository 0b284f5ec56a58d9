"""Streaming stores and cache policies of loads on GPUs: their instructions, and unchanged results."""

import re

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cuda import module
from tdsl.codegen.cuda.sass import disassemble
from tdsl.codegen.gpu.launches import launches_of
from tests.codegen.cuda import programs

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
from tests.codegen.cuda.shim import HAS_COMPILER
from tests.codegen.cuda.test_text import check, numbers

i, j, k = td.vars("i j k")


def scaled(dtype: td.DType, lanes: int, policy: str = "evict_first") -> td.Schedule:
    """Elements loaded and stored with hints, by vectors of `lanes`."""
    a, f = td.Tensor("a", ("N",), dtype), td.Func("f")
    f[i] = a[i] * td.cast(2, dtype)
    s = td.Schedule(f)
    block, inner = s[f].split(i, 32 * lanes)
    thread, vector = s[f].split(inner, lanes)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x").vectorize(vector)
    s[f].stream_stores().cache_policy(a, policy)
    return s


def product(policy: str = "evict_last", **how: bool) -> td.Schedule:
    """A matmul through shared memory whose operand b is kept in L2, and whose operand a is not."""
    s = programs.matmul(td.f32, stages=2, **how)
    s["a_cache"].cache_policy("a", "evict_first")
    s["b_cache"].cache_policy("b", policy)
    return s


def source(s: td.Schedule, arch: str = "sm_90a", **sizes: int) -> tuple[str, str]:
    m = module.build(launches_of(programs.kernel_of(s, **sizes)), arch)
    return m.source, disassemble(m.code)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"])
def test_loads_and_stores_have_hints(arch):
    text, code = source(scaled(td.f32, 4), arch, N=4096)
    assert "createpolicy.fractional.L2::evict_first" in text and "evict_last" not in text
    assert re.search(r"\bLDG\.E\.\S*NA\S*\.128", code) and re.search(r"\bSTG\.E\.EF\.128", code), code
    plain = programs.scaled()
    text, code = source(plain, arch, N=4096)
    assert "policy" not in text and not re.search(r"\bSTG\.E\.EF", code)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_streaming_stores_need_no_architecture(arch):
    s = programs.scaled()
    s["f"].stream_stores()
    _, code = source(s, arch, N=4096)
    assert re.search(r"\bSTG\.E\.EF\.128", code)


def test_asynchronous_copies_have_hints():
    text, _ = source(product(), M=256, K=64, N=256)
    assert "cp.async.cg.shared.global.L2::cache_hint" in text
    assert re.search(r"tdsl_cp_async_hint<16>\(\s*&a_cache[^;]*,\s*evict_first[,)]", text)
    assert re.search(r"tdsl_cp_async_hint<16>\(\s*&b_cache[^;]*,\s*evict_last[,)]", text)
    text, code = source(product(bulk=True), M=256, K=64, N=256)
    assert "complete_tx::bytes.L2::cache_hint" in text and "tdsl_tma_load_2d(" not in text
    assert "UTMALDG" in code


@pytest.mark.in_part(4)
@pytest.mark.skipif(not HAS_COMPILER, reason="g++ runs the text")
@pytest.mark.parametrize("dtype", [td.u8, td.f16, td.bf16, td.i32, td.f32, td.f64], ids=str)
@pytest.mark.parametrize("lanes", [1, 4])
def test_results_are_the_same(dtype, lanes, tmp_path):
    for n in (1024, 1000, 1):
        (tmp_path / str(n)).mkdir()
        check(scaled(dtype, lanes), tmp_path / str(n), a=numbers(n, dtype=np.int32).astype(dtype.numpy))


@pytest.mark.skipif(not HAS_COMPILER, reason="g++ runs the text")
@pytest.mark.parametrize("how", [{}, {"bulk": True}, {"bulk": True, "producer": True}], ids=str)
@pytest.mark.parametrize("m, n, p", [(32, 64, 64), (17, 12, 36)])
def test_products_are_the_same(m, n, p, how, tmp_path):
    check(product(**how), tmp_path, a=numbers(m, n, dtype=np.float32), b=numbers(n, p, dtype=np.float32))


def test_a_policy_of_what_a_kernel_writes_is_not_used():
    f = td.Func("f", shape=(64,))
    r = td.range("r", 1, 64)
    f[i] = td.cast(1, td.f32)
    f[r] = f[r] + f[r - 1]
    s = td.Schedule(f)
    s[f].update().cache_policy(f, "evict_first")
    text = launches_of(programs.kernel_of(s))
    assert all(not x.policies for x in text.launches)


def test_emulation_ignores_hints():
    s = scaled(td.f32, 4)
    x = numbers(1000, dtype=np.float32)
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda"))(x), x * 2)


def test_earlier_architectures_are_refused():
    with pytest.raises(td.TargetError, match="sm_75 has no cache policies of loads, which sm_80 has"):
        source(scaled(td.f32, 4), "sm_75", N=4096)
