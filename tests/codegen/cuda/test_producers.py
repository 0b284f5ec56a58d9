"""Tiles asked for by a warp of its own: right for every size, and what is put in by hand is found."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.emulation.run import EmulatedExecutable
from tdsl.codegen.gpu.launches import launches_of
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import (
    BLOCKS,
    SERIAL,
    ArriveBarrier,
    Block,
    For,
    If,
    InitBarriers,
    Kernel,
    Stmt,
    Store,
    WaitBarrier,
    WarpSpecialize,
)
from tdsl.codegen.ir.show import show
from tdsl.codegen.ir.statements import map_exprs, scalars_of, walk
from tdsl.codegen.transforms.producer_warps import Producer, specialize_warps
from tdsl.lang.expr import TRUE, ZERO, Binary, Expr, Var, const
from tdsl.lang.interp import interpret
from tdsl.lang.simplify import substitute
from tests.codegen.cuda import programs

i, j, k = td.vars("i j k")


def numbers(*shape: int, dtype=np.int32):
    """Small whole numbers: their sums are exact in any order."""
    return (np.arange(np.prod(shape)) * 7 % 11 - 3).reshape(shape).astype(dtype)


def matmul(stages: int = 3, rounds: int = 1) -> td.Schedule:
    return programs.matmul(td.f32, stages=stages, bulk=True, producer=True, rounds=rounds)


def kernel(stages: int = 3, rounds: int = 1) -> Kernel:
    return programs.kernel_of(matmul(stages, rounds), M=32, K=64, N=64 * rounds)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("m, n, p", [(32, 64, 64), (17, 12, 36), (1, 4, 4), (50, 100, 20)])
def test_a_matmul_is_right_at_every_size(m, n, p, stages):
    a, b = numbers(m, n, dtype=np.float32), numbers(n, p, dtype=np.float32)
    s = matmul(stages)
    got = td.emulate(td.compile(s, target="cuda"))(a, b)
    np.testing.assert_array_equal(got, interpret(s.program, {"a": a, "b": b})[0], strict=True)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("m, n, p", [(16, 40, 96), (17, 12, 100), (32, 64, 64), (8, 4, 32)])
def test_blocks_that_compute_several_tiles(m, n, p, stages):
    """Also where terms are fewer than the ring has slots, and where the last round has nothing to do."""
    a, b = numbers(m, n, dtype=np.float32), numbers(n, p, dtype=np.float32)
    s = matmul(stages, rounds=3)
    got = td.emulate(td.compile(s, target="cuda"))(a, b)
    np.testing.assert_array_equal(got, interpret(s.program, {"a": a, "b": b})[0], strict=True)


def test_the_ring_is_initialised_once_for_all_rounds():
    lowered = kernel(3, rounds=2)
    outside = lowered.body
    while not isinstance(outside, WarpSpecialize):
        assert not isinstance(outside, For) or outside.kind in BLOCKS
        outside = outside.body
    slots = [line.partition("[")[2] for line in show(outside).splitlines() if "_used[" in line]
    assert slots == [
        "(c_j_o_i_1 * 8 + c_k_o_1) % 3], (c_j_o_i_1 * 8 + c_k_o_1) // 3 % 2 * -1 + 1)",
        "(c_j_o_i * 8 + c_k_o) % 3], as a warp)",
    ]


@pytest.mark.parametrize("around", [For("r", ZERO, const(3), SERIAL, Block(())), If(TRUE, Block(()))])
def test_producer_warps_need_the_same_iteration_count_each_time(around):
    inner = For("k", ZERO, Var("r"), SERIAL, Block(()))
    use = For("x", ZERO, const(32), "threadIdx.x", Store("b", (Var("x"),), Var("x")))
    wrong = Producer(inner, inner, (), "full", "empty", 2, 1, (around, use))
    with pytest.raises(td.ScheduleError, match="as many iterations each time"):
        specialize_warps(use, [wrong], FreshNames(Kernel("k", (), use)))


def test_a_producer_warp_is_added_and_barriers_are_removed():
    lowered = kernel()
    (launch,) = launches_of(lowered).launches
    assert launch.block == (8, 8 + 4, 1)
    assert programs.barriers(lowered) == 0
    assert [s.arrivals for s in walk(lowered.body) if isinstance(s, InitBarriers)] == [2, 2]
    assert sum(isinstance(s, WarpSpecialize) for s in walk(lowered.body)) == 1


def test_the_directive_is_written_and_read():
    s = matmul()
    assert str(s).endswith('s["c"].pipeline("k_o", 3, True)')
    again = td.Schedule(*s.outputs).replay(s.to_json()) if hasattr(s, "outputs") else s
    assert str(again) == str(s)


# Bugs put in by hand.


def run_broken(change: Callable[[Stmt], Stmt], stages: int = 3, rounds: int = 1) -> None:
    lowered = kernel(stages, rounds)
    shapes = (32, 64), (64, 64 * rounds), (32, 64 * rounds)
    a, b, c = (numbers(*x, dtype=np.float32) for x in shapes)
    EmulatedExecutable(lowered).run((a, b, c))
    EmulatedExecutable(replace(lowered, body=programs.map_statements(lowered.body, change))).run((a, b, c))


def in_part(n: int, change: Callable[[Stmt], Stmt]) -> Callable[[Stmt], Stmt]:
    """The change in one of the statements that run side by side: 0 asks for tiles, 1 uses them."""

    def both(s: Stmt) -> Stmt:
        if not isinstance(s, WarpSpecialize):
            return s
        parts = list(s.parts)
        parts[n] = programs.map_statements(parts[n], change)
        return replace(s, parts=tuple(parts))

    return both


def dropped(kind: type) -> Callable[[Stmt], Stmt]:
    return lambda s: Block(()) if isinstance(s, kind) else s


@pytest.mark.parametrize(
    "more, says",
    [
        (1, "waits for ever at slot 0 of 'c_k_o_used'"),
        (-1, "another thread|arrives at an mbarrier|before a wait"),
    ],
)
def test_a_wrong_number_of_arrivals_is_a_hazard(more, says):
    def change(s: Stmt) -> Stmt:
        used = isinstance(s, InitBarriers) and s.name == "c_k_o_used"
        return replace(s, arrivals=s.arrivals + more) if used else s

    with pytest.raises(td.Hazard, match=says):
        run_broken(change)


def test_slots_that_are_never_released_are_a_hazard():
    with pytest.raises(td.Hazard, match="waits for ever at slot 0 of 'c_k_o_used': 2 arrivals"):
        run_broken(in_part(1, dropped(ArriveBarrier)))


def test_a_producer_that_does_not_wait_for_free_slots_is_a_hazard():
    with pytest.raises(td.Hazard, match=r"a pending copy before a wait|arrive"):
        run_broken(in_part(0, dropped(WaitBarrier)))


def test_a_consumer_that_does_not_wait_for_its_tile_is_a_hazard():
    with pytest.raises(td.Hazard, match=r"reads a pending copy before a wait|reads what nobody wrote"):
        run_broken(in_part(1, dropped(WaitBarrier)))


def test_a_producer_that_waits_for_the_wrong_phase_is_a_hazard():
    def change(s: Stmt) -> Stmt:
        return replace(s, parity=Binary("sub", const(1), s.parity)) if isinstance(s, WaitBarrier) else s

    with pytest.raises(td.Hazard, match="waits for ever at slot 0 of 'c_k_o_used'"):
        run_broken(in_part(0, change))


@pytest.mark.parametrize("part", [0, 1])
def test_restarting_phases_in_each_round_is_a_hazard(part):
    def change(s: Stmt) -> Stmt:
        return map_exprs(s, anew) if isinstance(s, WaitBarrier | ArriveBarrier) else s

    def anew(e: Expr) -> Expr:
        return substitute(e, {n: const(0) for n in scalars_of(e) if n.startswith("c_j_o")})

    with pytest.raises(td.Hazard, match=r"waits for ever|a wait|another thread|arrive"):
        run_broken(in_part(part, change), rounds=2)


def test_a_slot_released_before_it_is_read_is_a_hazard():
    def change(s: Stmt) -> Stmt:
        if isinstance(s, Block) and isinstance(s.body[0], WaitBarrier):
            first, *rest, last = s.body
            return Block((first, last, *rest))
        return s

    with pytest.raises(td.Hazard, match=r"another thread reads|a pending copy"):
        run_broken(in_part(1, change), stages=2)


def test_a_wrong_byte_count_is_a_hazard():
    def change(s: Stmt) -> Stmt:
        return replace(s, bytes=s.bytes - 4) if isinstance(s, ArriveBarrier) and s.bytes else s

    with pytest.raises(td.Hazard, match="waits for ever at slot 0"):
        run_broken(change)
