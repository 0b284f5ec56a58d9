"""Blocks of a cluster: an axis of its own, on which neighbours on blockIdx.x lie."""

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.launches import launches_of
from tests.codegen.cuda import programs

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
from tdsl.codegen.cuda import module
from tests.codegen.cuda.shim import HAS_COMPILER, text_of

i, j, k = td.vars("i j k")


def scaled(count: int = 4) -> td.Schedule:
    """A row for each block; neighbours in a cluster have neighbouring rows."""
    a, f = td.Tensor("a", ("M", 32), td.i32), td.Func("f")
    f[i, j] = a[i, j] * 2 + i
    s = td.Schedule(f)
    cluster, rank = s[f].split(i, count)
    s[f].bind(cluster, "blockIdx.x").bind(rank, "clusterCtaIdx.x").bind(j, "threadIdx.x")
    return s


@pytest.mark.parametrize("m", [16, 18])
def test_blocks_of_clusters_have_their_rows(m, rng):
    x = rng.integers(0, 99, (m, 32), np.int32)
    compiled = td.compile(scaled(), target="cuda")
    want = x * 2 + np.arange(m, dtype=np.int32)[:, None]
    np.testing.assert_array_equal(td.emulate(compiled)(x), want)
    if HAS_COMPILER:
        np.testing.assert_array_equal(text_of(compiled)(x), want)


def test_a_launch_has_whole_clusters():
    launches = launches_of(programs.kernel_of(scaled(), M=18))
    (launch,) = launches.launches
    assert (launch.grid, launch.cluster) == ((20, 1, 1), 4)
    assert (
        "__cluster_dims__(4, 1, 1) __launch_bounds__(32, 1) f_kernel("
        in module.build(launches, "sm_90a").source
    )


def test_clusters_that_a_gpu_has_not_are_refused():
    with pytest.raises(td.TargetError, match="sm_80 has no clusters"):
        module.build(launches_of(programs.kernel_of(scaled(), M=16)), "sm_80")
    with pytest.raises(td.ScheduleError, match="16 blocks in a cluster; sm_90a has 8 at most"):
        module.build(launches_of(programs.kernel_of(scaled(16), M=16)), "sm_90a")
