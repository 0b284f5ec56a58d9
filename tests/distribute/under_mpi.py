"""A program for mpiexec: every rank runs it, and prints nothing but what the test looks for."""

import sys
import time

import numpy as np

import tdsl as td
from tests.distribute.matmuls import cube, flat, two_and_a_half

rng = np.random.default_rng(0)
a, b = rng.integers(-9, 9, (11, 13)).astype(float), rng.integers(-9, 9, (13, 7)).astype(float)
SIZES = {"M": 11, "N": 7, "K": 13}


def right() -> None:
    """Algorithms on four ranks, each checked on rank 0."""
    for s in (
        flat(td.Grid(x=2, y=2), "ij", **SIZES),
        flat(td.Grid(x=4, y=1), "", **SIZES),
        flat(td.Grid(x=2, y=2), "ij", "rc -> r/2 c/3", **SIZES),
        cube(td.Grid(x=2, y=1, z=2), **SIZES),
        two_and_a_half(td.Grid(x=2, y=2, z=1), **SIZES),
    ):
        p = td.compile(s)
        own, carried = p(p.block("A", a), p.block("B", b), count=True)
        plan, me = p.plan(), td.mpi.rank()
        assert (carried.received, carried.sent) == (plan.received[me], plan.sent[me])
        assert carried.messages == plan.messages[me]
        whole = p.gather("C", own)
        if td.mpi.rank() == 0:
            np.testing.assert_array_equal(whole, a @ b)
            print("right", flush=True)


def call(**sizes: int) -> None:
    p = td.compile(flat(td.Grid(x=2, y=2), "ij", **{**SIZES, **sizes}))
    p(p.block("A", a), p.block("B", b[:, : sizes.get("N", 7)]))


def fault(kind: str, victim: int) -> None:
    """One rank does what it should not."""
    call()
    mine = td.mpi.rank() == victim
    if mine and kind == "raise":
        raise RuntimeError("on purpose")
    if mine and kind == "exit":
        sys.exit(3)
    if mine and kind == "stall":
        time.sleep(600)
    if mine and kind == "kill":
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "block" and mine:
        p = td.compile(flat(td.Grid(x=2, y=2), "ij", **SIZES))
        p(p.block("A", a)[:1], p.block("B", b))
    call(**({"N": 6} if kind == "sizes" and mine else {}))


if __name__ == "__main__":
    if len(sys.argv) == 1:
        right()
    else:
        fault(sys.argv[1], int(sys.argv[2]))
