"""Tiles asked for by a warp of its own: right for every size, and what is put in by hand is found."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.emulation.memory import Hazard
from tdsl.codegen.emulation.run import EmulatedExecutable
from tdsl.codegen.launches import launches_of
from tdsl.codegen.loops import Arrive, Await, Beside, Block, Kernel, Phases, Stmt
from tdsl.codegen.passes.statements import walk
from tdsl.lang.expr import Binary, const
from tdsl.lang.interp import interpret
from tests.codegen.cuda import programs

i, j, k = td.vars("i j k")


def numbers(*shape: int, dtype=np.int32):
    """Small whole numbers: their sums are exact in any order."""
    return (np.arange(np.prod(shape)) * 7 % 11 - 3).reshape(shape).astype(dtype)


def matmul(stages: int = 3) -> td.Schedule:
    return programs.matmul(td.f32, stages=stages, bulk=True, apart=True)


def kernel(stages: int = 3) -> Kernel:
    return programs.kernel_of(matmul(stages), M=32, K=64, N=64)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("m, n, p", [(32, 64, 64), (17, 12, 36), (1, 4, 4), (50, 100, 20)])
def test_a_matmul_is_right_at_every_size(m, n, p, stages):
    a, b = numbers(m, n, dtype=np.float32), numbers(n, p, dtype=np.float32)
    s = matmul(stages)
    got = td.emulate(td.compile(s, target="cuda"))(a, b)
    np.testing.assert_array_equal(got, interpret(s.program, {"a": a, "b": b})[0], strict=True)


def test_a_block_has_a_warp_more_and_no_barriers():
    made = kernel()
    (launch,) = launches_of(made).launches
    assert launch.block == (8, 8 + 4, 1)
    assert programs.barriers(made) == 0
    assert [s.arrivals for s in walk(made.body) if isinstance(s, Phases)] == [2, 2]
    assert sum(isinstance(s, Beside) for s in walk(made.body)) == 1


def test_the_directive_is_written_and_read():
    s = matmul()
    assert str(s).endswith('s["c"].pipeline("k_o", 3, True)')
    again = td.Schedule(*s.outputs).replay(s.to_json()) if hasattr(s, "outputs") else s
    assert str(again) == str(s)


# Bugs put in by hand.


def broken(change: Callable[[Stmt], Stmt], stages: int = 3) -> None:
    made = kernel(stages)
    a, b, c = (numbers(*x, dtype=np.float32) for x in ((32, 64), (64, 64), (32, 64)))
    EmulatedExecutable(made).run((a, b, c))
    EmulatedExecutable(replace(made, body=programs.rewritten(made.body, change))).run((a, b, c))


def in_part(n: int, change: Callable[[Stmt], Stmt]) -> Callable[[Stmt], Stmt]:
    """The change in one of the statements that run side by side: 0 asks for tiles, 1 uses them."""

    def both(s: Stmt) -> Stmt:
        if not isinstance(s, Beside):
            return s
        parts = list(s.parts)
        parts[n] = programs.rewritten(parts[n], change)
        return Beside(tuple(parts))

    return both


def dropped(kind: type) -> Callable[[Stmt], Stmt]:
    return lambda s: Block(()) if isinstance(s, kind) else s


@pytest.mark.parametrize(
    "more, says",
    [
        (1, "waits for ever at slot 0 of 'c_k_o_used'"),
        (-1, "another thread|comes to a phase|no wait"),
    ],
)
def test_a_wrong_number_of_arrivals_is_found(more, says):
    def change(s: Stmt) -> Stmt:
        used = isinstance(s, Phases) and s.name == "c_k_o_used"
        return replace(s, arrivals=s.arrivals + more) if used else s

    with pytest.raises(Hazard, match=says):
        broken(change)


def test_slots_that_are_never_free_again_are_found():
    with pytest.raises(Hazard, match="waits for ever at slot 0 of 'c_k_o_used': 2 arrivals"):
        broken(in_part(1, dropped(Arrive)))


def test_a_producer_that_does_not_wait_for_free_slots_is_found():
    with pytest.raises(Hazard, match=r"with no wait, what is being copied|come to"):
        broken(in_part(0, dropped(Await)))


def test_a_consumer_that_does_not_wait_for_its_tile_is_found():
    with pytest.raises(
        Hazard, match=r"reads, with no wait, what is being copied|reads what nobody wrote"
    ):
        broken(in_part(1, dropped(Await)))


def test_a_producer_that_waits_for_the_wrong_phase_is_found():
    def change(s: Stmt) -> Stmt:
        return replace(s, parity=Binary("sub", const(1), s.parity)) if isinstance(s, Await) else s

    with pytest.raises(Hazard, match="waits for ever at slot 0 of 'c_k_o_used'"):
        broken(in_part(0, change))


def test_a_slot_given_back_before_it_is_read_is_found():
    def change(s: Stmt) -> Stmt:
        if isinstance(s, Block) and isinstance(s.body[0], Await):
            first, *rest, last = s.body
            return Block((first, last, *rest))
        return s

    with pytest.raises(Hazard, match=r"another thread reads|no wait, what is being copied"):
        broken(in_part(1, change), stages=2)


def test_wrong_bytes_are_found():
    def change(s: Stmt) -> Stmt:
        return replace(s, bytes=s.bytes - 4) if isinstance(s, Arrive) and s.bytes else s

    with pytest.raises(Hazard, match="waits for ever at slot 0"):
        broken(change)
