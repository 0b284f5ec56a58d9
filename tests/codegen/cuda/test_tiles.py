"""Tiles copied as a whole: right for every size, and what is put in by hand is found."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.emulation.run import EmulatedExecutable
from tdsl.codegen.ir.loops import (
    ArriveBarrier,
    Barrier,
    Block,
    CopyTile,
    InitBarriers,
    Stmt,
    Store,
    WaitBarrier,
)
from tdsl.codegen.ir.statements import walk
from tdsl.lang.expr import Binary, Const, const
from tdsl.lang.interp import interpret
from tests.codegen.cuda import programs

i, j, k = td.vars("i j k")


def numbers(*shape: int, dtype=np.int32):
    """Small whole numbers: their sums are exact in any order."""
    return (np.arange(np.prod(shape)) * 7 % 11 - 3).reshape(shape).astype(dtype)


def agrees(s: td.Schedule, **arrays) -> None:
    got = td.emulate(td.compile(s, target="cuda"))(**arrays)
    (want,) = interpret(s.program, arrays)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("m, n, p", [(32, 64, 64), (17, 12, 36), (1, 4, 4), (50, 100, 20)])
def test_a_matmul_is_right_at_every_size(m, n, p, stages):
    s = programs.matmul(td.f32, stages=stages, bulk=True)
    agrees(s, a=numbers(m, n, dtype=np.float32), b=numbers(n, p, dtype=np.float32))


def test_a_copy_that_is_filled_is_copied_as_a_whole():
    a, c = td.Tensor("a", ("M", "K"), td.f32), td.Func("c")
    c[i] = td.sum(a[i, k], axis=k)
    s = td.Schedule(c)
    io, ii = s[c].split(i, 16)
    ko, ki = s[c].split(k, 8)
    s[c].reorder(io, ii, ko, ki).bind(io, "blockIdx.x").bind(ii, "threadIdx.x")
    s.cache_read(a, c, at=ko, scope="shared", filled=True).bulk_copy()
    s[c].pipeline(ko, 2)
    agrees(s, a=numbers(40, 20, dtype=np.float32))


@pytest.mark.parametrize("dtype", [td.f16, td.f64, td.i32, td.i16], ids=str)
def test_tiles_of_every_type(dtype):
    s = programs.matmul(dtype, stages=3, bulk=True)
    agrees(s, a=numbers(20, 24, dtype=dtype.numpy), b=numbers(24, 40, dtype=dtype.numpy))


def test_one_thread_copies_tiles_and_all_wait_once_an_iteration():
    kernel = programs.kernel_of(programs.matmul(stages=3, bulk=True), M=32, K=64, N=64)
    statements = list(walk(kernel.body))
    assert [s.arrivals for s in statements if isinstance(s, InitBarriers)] == [2]
    assert sum(isinstance(s, CopyTile) for s in statements) == 4
    assert sum(isinstance(s, WaitBarrier) for s in statements) == programs.barriers(kernel) == 1
    announced = {s.bytes for s in statements if isinstance(s, ArriveBarrier)}
    assert announced == {16 * 8 * 4, 8 * 32 * 4}


def copied_and_cooperative() -> td.Schedule:
    """A tile that is copied as a whole beside one that all threads copy."""
    a, b, c = td.Tensor("a", ("M", "K"), td.f32), td.Tensor("b", ("K", "N"), td.f32), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    s = td.Schedule(c)
    io, jo, ii, ji = s[c].tile((i, j), (16, 16))
    ko, ki = s[c].split(k, 8)
    s[c].reorder(io, jo, ii, ji, ko, ki).bind(io, "blockIdx.y").bind(jo, "blockIdx.x")
    s[c].bind(ii, "threadIdx.y").bind(ji, "threadIdx.x")
    s.cache_read(a, c, at=ko, scope="shared").bulk_copy()
    s.cache_read(b, c, at=ko, scope="shared").cooperate(4)
    s[c].pipeline(ko, 3)
    return s


@pytest.mark.parametrize("m, n, p", [(32, 64, 64), (17, 12, 36)])
def test_both_kinds_of_copies_in_a_loop(m, n, p):
    agrees(
        copied_and_cooperative(),
        a=numbers(m, n, dtype=np.float32),
        b=numbers(n, p, dtype=np.float32),
    )
    kernel = programs.kernel_of(copied_and_cooperative(), M=32, K=64, N=64)
    assert programs.barriers(kernel) == 1


def batches() -> td.Schedule:
    """Products one after the other in each block: barriers of phases are made ready again."""
    a, b, c = (td.Tensor("a", (3, 20, 24), td.f32), td.Tensor("b", (3, 24, 40), td.f32),
               td.Func("c"))  # fmt: skip
    n = td.vars("n")
    c[n, i, j] = td.sum(a[n, i, k] * b[n, k, j], axis=k)
    s = td.Schedule(c)
    io, jo, ii, ji = s[c].tile((i, j), (16, 16))
    ko, ki = s[c].split(k, 8)
    s[c].reorder(io, jo, ii, ji, n, ko, ki).bind(io, "blockIdx.y").bind(jo, "blockIdx.x")
    s[c].bind(ii, "threadIdx.y").bind(ji, "threadIdx.x")
    for t in (a, b):
        s.cache_read(t, c, at=ko, scope="shared").bulk_copy()
    s[c].pipeline(ko, 2)
    return s


def test_a_pipeline_in_a_loop_and_boxes_of_three_axes():
    agrees(batches(), a=numbers(3, 20, 24, dtype=np.float32), b=numbers(3, 24, 40, dtype=np.float32))


# Bugs put in by hand.


def broken(change: Callable[[Stmt], Stmt], stages: int = 3) -> None:
    kernel = programs.kernel_of(programs.matmul(stages=stages, bulk=True), M=32, K=64, N=64)
    arrays = numbers(32, 64), numbers(64, 64), np.zeros((32, 64), np.int64)
    EmulatedExecutable(kernel).run(arrays)
    EmulatedExecutable(replace(kernel, body=programs.map_statements(kernel.body, change))).run(arrays)


def test_a_missing_wait_is_a_hazard():
    with pytest.raises(td.Hazard, match="reads a pending copy before a wait: a_cache"):
        broken(lambda s: Block(()) if isinstance(s, WaitBarrier) else s)


def test_a_wait_for_the_wrong_phase_is_a_hazard():
    def change(s: Stmt) -> Stmt:
        return replace(s, parity=Binary("sub", const(1), s.parity)) if isinstance(s, WaitBarrier) else s

    with pytest.raises(td.Hazard, match="reads a pending copy before a wait: a_cache"):
        broken(change)


def test_a_phase_that_never_alternates_is_a_hazard():
    def change(s: Stmt) -> Stmt:
        return replace(s, parity=const(0)) if isinstance(s, WaitBarrier) else s

    with pytest.raises(td.Hazard, match="a pending copy before a wait"):
        broken(change)


def test_waiting_for_too_many_arrivals_is_a_hazard():
    def change(s: Stmt) -> Stmt:
        return replace(s, arrivals=3) if isinstance(s, InitBarriers) else s

    with pytest.raises(td.Hazard, match="waits for ever at slot 0 of 'c_k_o_copied': 1 arrivals and 0 bytes"):
        broken(change)


def test_waiting_for_too_few_arrivals_is_a_hazard():
    def change(s: Stmt) -> Stmt:
        return replace(s, arrivals=1) if isinstance(s, InitBarriers) else s

    with pytest.raises(td.Hazard, match="arrives at an mbarrier that has its 1 arrivals"):
        broken(change)


@pytest.mark.parametrize("more", [-4, 4])
def test_a_wrong_byte_count_is_a_hazard(more):
    def change(s: Stmt) -> Stmt:
        return replace(s, bytes=s.bytes + more) if isinstance(s, ArriveBarrier) else s

    with pytest.raises(td.Hazard, match=f"waits for ever at .* 0 arrivals and {2 * more} bytes are missing"):
        broken(change)


def test_a_copy_without_an_arrival_is_a_hazard():
    with pytest.raises(td.Hazard, match="waits for ever at slot 0"):
        broken(lambda s: Block(()) if isinstance(s, ArriveBarrier) else s)


def test_a_missing_barrier_after_a_wait_is_a_hazard():
    with pytest.raises(td.Hazard, match="writes what another thread reads: a_cache"):
        broken(lambda s: Block(()) if isinstance(s, Barrier) else s, stages=2)


def test_a_wrong_slot_is_a_hazard():
    def change(s: Stmt) -> Stmt:
        if isinstance(s, CopyTile) and isinstance(s.index[0], Binary):
            before = Binary("add", s.index[0].left, const(1))
            return replace(s, index=(Binary("mod", before, s.index[0].right), *s.index[1:]))
        return s

    with pytest.raises(td.Hazard, match=r"another thread reads|before a wait"):
        broken(change)


def test_a_box_at_the_wrong_place_gives_wrong_results():
    def change(s: Stmt) -> Stmt:
        if isinstance(s, CopyTile) and s.buffer == "a_cache":
            return replace(s, start=(s.start[0], Binary("add", s.start[1], const(1))))
        return s

    kernel = programs.kernel_of(programs.matmul(stages=3, bulk=True), M=32, K=64, N=64)
    a, b, c = numbers(32, 64), numbers(64, 64), np.zeros((32, 64), np.int64)
    wrong = replace(kernel, body=programs.map_statements(kernel.body, change))
    EmulatedExecutable(wrong).run((a, b, c))
    assert (c != a @ b).any()


def test_a_tile_copied_by_every_thread_is_a_hazard():
    def change(s: Stmt) -> Stmt:
        alone = hasattr(s, "then") and any(isinstance(x, CopyTile) for x in walk(s.then))
        inner = alone and not any(hasattr(x, "then") for x in walk(s.then))
        return s.then if inner else s

    with pytest.raises(td.Hazard, match="arrives at an mbarrier that has its 2 arrivals"):
        broken(change)


def test_a_store_into_a_tile_in_flight_is_a_hazard():
    def change(s: Stmt) -> Stmt:
        if isinstance(s, CopyTile) and s.buffer == "a_cache":
            return Block((s, Store("a_cache", s.index, Const(0, td.i32))))
        return s

    with pytest.raises(td.Hazard, match="writes a pending copy before a wait"):
        broken(change)
