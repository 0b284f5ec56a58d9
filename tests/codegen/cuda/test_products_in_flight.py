"""Products that go on into the next step: where threads wait for them, and bugs put in by hand."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.emulation.run import EmulatedExecutable
from tdsl.codegen.ir.loops import (
    SERIAL,
    ArriveBarrier,
    Barrier,
    Block,
    Commit,
    For,
    If,
    Invoke,
    Kernel,
    Operand,
    Stmt,
    Store,
    Wait,
)  # fmt: skip
from tdsl.codegen.ir.show import show
from tdsl.codegen.ir.statements import map_exprs
from tdsl.codegen.passes.commit_mma_groups import commit_mma_groups
from tdsl.errors import Hazard
from tdsl.lang.expr import ONE, ZERO, Binary, Const, Var, const
from tdsl.lang.simplify import add, substitute
from tdsl.lang.types import f16
from tdsl.machine.instructions.tensor_cores import find
from tests.codegen.cuda import programs
from tests.codegen.cuda.test_hopper import product

STEPS = 4


def kernel(stages: int = 3) -> Kernel:
    s = product(64, 64 * STEPS, 64, block=(64, 64, 64), warp=(64, 64), stages=stages)
    return programs.kernel_of(s)


def run(lowered: Kernel) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(0)
    a, b = (numbers.integers(-3, 4, x).astype(np.float16) for x in ((64, 256), (256, 64)))
    got = np.zeros((64, 64), np.float32)
    EmulatedExecutable(lowered).run((a, b, got))
    return got, a.astype(np.float32) @ b.astype(np.float32)


def run_broken(change: Callable[[Stmt], Stmt], stages: int = 3) -> None:
    lowered = kernel(stages)
    run(replace(lowered, body=programs.map_statements(lowered.body, change)))


@pytest.mark.parametrize("stages", [2, 3])
def test_a_step_waits_for_the_products_of_the_one_before(stages):
    lowered = kernel(stages)
    np.testing.assert_array_equal(*run(lowered))
    lines = [line.strip() for line in show(lowered.body).splitlines()]
    meetings = [line.partition("[")[0] for line in lines if line[:5] in ("wait(", "commi", "arriv")]
    assert meetings[-6:] == [
        "wait(c_k_o_copied",
        "commit(mma)",
        "wait(1, mma)",
        "arrive(c_k_o_used",  # the slot of the step before
        "wait(0, mma)",
        "arrive(c_k_o_used",
    ]


def test_a_slot_released_in_its_step_waits_for_products():
    """The pass finds the wait that a program needs."""

    def change(s: Stmt) -> Stmt:
        if isinstance(s, Commit | Wait) and s.mma:
            return Block(())
        if isinstance(s, If) and isinstance(s.then, ArriveBarrier) and s.then.per_warp:
            return map_exprs(s.then, lambda e: substitute(e, {"c_k_o": add(Var("c_k_o"), ONE)}))
        return s

    lowered = kernel()
    repaired = commit_mma_groups(replace(lowered, body=programs.map_statements(lowered.body, change)))
    assert "wait(1, mma)" not in show(repaired.body)
    assert show(repaired.body).count("wait(0, mma)") == 1


def test_waits_that_are_too_weak_are_a_hazard():
    with pytest.raises(Hazard, match=r"a pending copy|while wgmma_\w+ reads it"):
        run_broken(lambda s: Wait(2, mma=True) if s == Wait(1, mma=True) else s, stages=2)
    with pytest.raises(Hazard, match="reads a pending result before a wait: c_1"):
        run_broken(lambda s: Wait(1, mma=True) if s == Wait(0, mma=True) else s)


def test_missing_waits_and_commits_are_a_hazard():
    with pytest.raises(Hazard, match="a pending result before a wait"):
        run_broken(lambda s: Block(()) if s == Wait(0, mma=True) else s)
    with pytest.raises(Hazard, match=r"a pending (copy|result)"):
        run_broken(lambda s: Block(()) if isinstance(s, Commit) and s.mma else s)


def test_a_slot_released_a_step_too_early_is_a_hazard():
    def change(s: Stmt) -> Stmt:
        if isinstance(s, If) and isinstance(s.then, ArriveBarrier) and s.then.per_warp:
            return map_exprs(s.then, lambda e: substitute(e, {"c_k_o": add(Var("c_k_o"), ONE)}))
        return s

    with pytest.raises(Hazard, match="what another thread reads: a_cache"):
        run_broken(change, stages=2)


@pytest.mark.parametrize("slot, order", [(1, ["commit", "store", "wait"]), (3, ["commit", "wait", "store"])])
def test_tiles_are_stored_to_other_slots_while_products_are_pending(slot, order):
    """Stores to slot (n + 1) % 3 need no wait for products of slot n % 3; those to (n + 3) % 3 do."""

    def at(n: int) -> Binary:
        return Binary("mod", add(Var("n"), const(n)), const(3))

    acc = Operand("acc", (ZERO, ZERO), (0, 1))
    tiles = (Operand(x, (at(0), ZERO, ZERO), (1, 2)) for x in "ab")
    multiply = Invoke(find("wgmma_m64n8k16_f16_mk_nk").name, (acc, *tiles))
    body = Block((multiply, Store("b", (at(slot), ZERO, ZERO), Const(0, f16)), Barrier()))
    loop = For("n", ZERO, const(4), SERIAL, body)
    lines = show(commit_mma_groups(Kernel("k", (), loop)).body).splitlines()
    words = [line.strip().partition("(")[0].partition("[")[0] for line in lines[2:]]
    assert words == [{"store": "b"}.get(x, x) for x in order] + ["barrier"]


@pytest.mark.parametrize("stages", [2, 4])
def test_8_bit_floats_are_converted_while_products_are_pending(rng, stages):
    i, j, k = td.vars("i j k")
    x, w, c = td.Tensor("x", (128, 320), td.f8e4m3), td.Tensor("w", (320, 64), td.f8e5m2), td.Func("c")
    c[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(w[k, j], td.f32), axis=k)
    s = td.Schedule(c, target="cuda:sm_90a")
    td.recipes.tensor_core_matmul(
        s[c], block=(128, 64, 64), warp=(64, 64), stages=stages, warpgroups=True, factors="f16"
    )
    f = td.compile(s)
    steps = f.loops("final").partition("in range(0, 5)")[2]
    assert 0 < steps.index("commit(mma)") < steps.index("_factor_cache[(c_k_o") < steps.index("wait(0, mma)")
    a = rng.integers(-4, 5, (128, 320)).astype(td.f8e4m3.numpy)
    b = rng.integers(-4, 5, (320, 64)).astype(td.f8e5m2.numpy)
    np.testing.assert_array_equal(td.emulate(f)(a, b), a.astype(np.float32) @ b.astype(np.float32))
