"""Rows of results go from shared to global memory by TMA."""

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cuda import module
from tdsl.codegen.cuda.sass import disassemble, instruction_mix
from tdsl.codegen.gpu.launches import launches_of
from tests.codegen.cuda import programs

i, j, k = td.vars("i j k")


def transposed(dtype: td.DType = td.f32, columns: int = 32, pad: bool = True) -> td.Schedule:
    """A transpose by tiles in shared memory, of 32 rows that a warp stores in bulk."""
    a, f = td.Tensor("a", ("N", "M"), dtype), td.Func("f")
    f[i, j] = a[j, i]
    s = td.Schedule(f)
    io, jo, ii, _ = s[f].tile((i, j), (32, columns))
    s[f].bind(io, "blockIdx.y").bind(jo, "blockIdx.x")
    out = s.cache_write(f, at=jo, scope="shared")
    if pad:
        s[f].align_storage(1, columns + 16 // dtype.bytes)
    s[f].bind(ii, "threadIdx.x")
    out.tensorize(out.loops[0], f"bulk_store_m32n{columns}_{dtype.name}")
    return s


@pytest.mark.parametrize("dtype, columns", [(td.f32, 32), (td.f16, 64), (td.bf16, 32), (td.f64, 8)], ids=str)
def test_rows_are_stored(rng, dtype, columns):
    x = rng.integers(-9, 9, (columns * 2, 96)).astype(dtype.numpy)
    got = td.emulate(td.compile(transposed(dtype, columns), target="cuda:sm_90a"))(x)
    np.testing.assert_array_equal(got, x.T)


def test_the_text_is_right(rng):
    from tests.codegen.cuda.shim import HAS_COMPILER, text_of

    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    if not HAS_COMPILER:
        pytest.skip("g++ runs the text")
    x = rng.standard_normal((64, 96), dtype=np.float32)
    np.testing.assert_array_equal(text_of(td.compile(transposed(), target="cuda:sm_90a"))(x), x.T)


@pytest.mark.parametrize("arch", ["sm_90", "sm_90a", "sm_100a", "sm_120"])
def test_lanes_store_rows_and_no_elements(arch):
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    m = module.build(launches_of(programs.kernel_of(transposed(), M=96, N=64)), arch)
    (mix,) = instruction_mix(disassemble(m.code))
    assert mix.count("UBLKCP") == 1 and mix.count("STG") == 0 and m.spills == 0
    # what threads store is ordered before what the copy unit reads
    assert m.source.index("tdsl_fence_proxy_async();") < m.source.index("bulk_store_m32n32_f32(&")


def test_a_missing_barrier_is_a_hazard():
    from dataclasses import replace

    from tdsl.codegen.emulation.run import EmulatedExecutable

    whole = programs.kernel_of(transposed(), M=32, N=32)
    broken = replace(whole, body=programs.without_barrier(whole.body, 0))
    with pytest.raises(td.Hazard, match="another thread"):
        EmulatedExecutable(broken).run([np.zeros((32, 32), np.float32), np.zeros((32, 32), np.float32)])


def test_padded_rows_are_read_without_conflicts():
    x = np.zeros((32, 32), np.float32)
    degrees = []
    for pad in (True, False):
        counts = td.count_memory(td.compile(transposed(pad=pad), target="cuda:sm_90a"), x)
        degrees.append(max(a.conflict_degree for a in counts.accesses if a.site.kind == "store"))
    assert degrees[0] < degrees[1]
