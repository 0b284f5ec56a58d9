"""Blocks of a cluster: an axis of its own, on which neighbours on blockIdx.x lie."""

from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.emulation.memory import Hazard
from tdsl.codegen.emulation.run import EmulatedExecutable
from tdsl.codegen.gpu.launches import launches_of
from tdsl.codegen.ir.loops import ArriveBarrier, CopyTile, InitBarriers
from tdsl.lang.expr import const
from tests.codegen.cuda import programs

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
from tdsl.codegen.cuda import module
from tests.codegen.cuda.shim import HAS_COMPILER, text_of
from tests.codegen.cuda.test_module import count, sass

i, j, k = td.vars("i j k")


def scaled(count: int = 4) -> td.Schedule:
    """A row for each block; neighbours in a cluster have neighbouring rows."""
    a, f = td.Tensor("a", ("M", 32), td.i32), td.Func("f")
    f[i, j] = a[i, j] * 2 + i
    s = td.Schedule(f)
    cluster, rank = s[f].split(i, count)
    s[f].bind(cluster, "blockIdx.x").bind(rank, "clusterCtaIdx.x").bind(j, "threadIdx.x")
    return s


def rows_of_a_cluster() -> td.Schedule:
    """All rows in one cluster, however many there are."""
    a, f = td.Tensor("a", ("M", 32), td.i32), td.Func("f")
    f[i, j] = a[i, j] * 2
    s = td.Schedule(f)
    s[f].bind(i, "clusterCtaIdx.x").bind(j, "threadIdx.x")
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
        module.build(launches_of(programs.kernel_of(rows_of_a_cluster(), M=16)), "sm_90a")


# Tiles that blocks of a cluster fetch for each other.


def product(*, turned: bool = False, cluster: int = 2) -> td.Schedule:
    """Blocks of a cluster make neighbouring rows of the same columns, two tiles each."""
    a = td.Tensor("a", (256, 192), td.f16)
    b, c = td.Tensor("b", (128, 192) if turned else (192, 128), td.f16), td.Func("c")
    y = b[j, k] if turned else b[k, j]
    c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(y, td.f32), axis=k)
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(
        s[c], block=(64, 64, 64), warp=(64, 64), stages=2, warpgroups=True, blocks=4, cluster=cluster
    )
    return s


def operands():
    numbers = np.random.default_rng(0)
    a, b = (numbers.integers(-3, 4, x).astype(np.float16) for x in ((256, 192), (192, 128)))
    return a, b, a.astype(np.float32) @ b.astype(np.float32)


@pytest.mark.parametrize("turned, cluster", [(False, 2), (True, 2), (False, 4)])
def test_products_of_clusters_are_right(turned, cluster):
    a, b, want = operands()
    compiled = td.compile(product(turned=turned, cluster=cluster), target="cuda")
    got = td.emulate(compiled)(a, b.T.copy() if turned else b)
    np.testing.assert_array_equal(got, want)
    loops = compiled.loops("final")
    assert loops.count(f", to {cluster} blocks)") == 1  # what all of them need, a part from each
    assert loops.count(f", as a warp, in {cluster} blocks)") == 2


@pytest.mark.skipif(not HAS_COMPILER, reason="g++ runs the text")
def test_text_of_products_of_clusters():
    a, b, want = operands()
    np.testing.assert_array_equal(text_of(td.compile(product(), target="cuda"))(a, b), want)


def run_broken(change) -> None:
    kernel, (a, b, want) = programs.kernel_of(product()), operands()
    changed = replace(kernel, body=programs.map_statements(kernel.body, change))
    EmulatedExecutable(changed).run((a, b, np.zeros_like(want)))


def test_overwriting_a_slot_that_another_block_reads_is_a_hazard():
    """Consumers say only to their own block that they have used a slot, and that waits for no others."""

    def change(s):
        if isinstance(s, ArriveBarrier) and s.per_warp:
            return replace(s, blocks=1)
        if isinstance(s, InitBarriers) and s.name == "c_k_o_used":
            return replace(s, arrivals=s.arrivals // 2)
        return s

    with pytest.raises(Hazard, match=r"another thread|a pending copy"):
        run_broken(change)


def test_arrivals_of_one_block_instead_of_two_are_a_hazard():
    with pytest.raises(Hazard, match="waits for ever at slot 0 of 'c_k_o_used': 4 arrivals"):
        run_broken(lambda s: replace(s, blocks=1) if isinstance(s, ArriveBarrier) and s.per_warp else s)


def test_a_tile_copied_to_one_block_only_is_a_hazard():
    with pytest.raises(Hazard, match="waits for ever at slot 0"):
        run_broken(lambda s: replace(s, blocks=1) if isinstance(s, CopyTile) else s)


def test_the_wrong_half_of_a_tile_is_a_hazard():
    def change(s):
        if isinstance(s, CopyTile) and s.blocks > 1:
            return replace(s, index=(s.index[0], const(0), s.index[2]))
        return s

    with pytest.raises(Hazard, match=r"a pending copy|reads what nobody wrote"):
        run_broken(change)


def test_machine_code_of_clusters(tmp_path):
    a, b, c = (
        td.Tensor("a", (4096, 4096), td.bf16),
        td.Tensor("b", (4096, 4096), td.bf16),
        td.Func("c"),
    )
    c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(s[c], warpgroups=True, group=8, blocks=128, cluster=2)
    m = module.build(launches_of(programs.kernel_of(s)), "sm_90a")
    (record,) = m.kernels
    assert (record.grid, record.spills, record.stack, m.warnings) == ((128, 1, 1), 0, 0, ())
    assert record.registers <= 168  # what 384 threads may have
    text = sass(m, tmp_path)
    assert count(text, r"\bHGMMA\b") % 4 == 0 and count(text, r"\bHGMMA\b") > 0
    assert count(text, r"\bUTMALDG\.2D\.MULTICAST") > 0
    assert count(text, r"\bUSETMAXREG\b") == 2  # a group that asks for tiles gives to those that use them
    # around the phases of what is copied, and of what is used
    assert count(text, r"\bUCGABAR_ARV") >= 4


def test_the_default_schedule_takes_clusters_of_two():
    a, b, c = td.Tensor("a", ("M", "K"), td.bf16), td.Tensor("b", ("K", "N"), td.bf16), td.Func("c")
    c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    compiled = td.compile(c, target="cuda:sm_90a")
    assert "range(0, 2):  # clusterCtaIdx.x" in compiled.loops("final", M=4096, K=512, N=4096)
    assert "clusterCtaIdx" not in compiled.loops("final", M=4096 - 128, K=512, N=4096)
