"""A program for mpiexec in which one rank does what it should not, at a step of its plan."""

import os
import signal
import sys
import time
from typing import Any

import numpy as np

import tdsl as td
from tdsl.distribute.engine import Worker
from tests.distribute.matmuls import flat, matmul
from tests.distribute.test_results import histogram

SIZES = {"M": 11, "N": 7, "K": 13}


def programs() -> dict[str, td.Schedule]:
    """Messages, broadcasts that are fetched ahead, a reduction."""
    ahead = matmul.schedule(**SIZES)
    td.recipes.summa(ahead["C"], td.Grid(x=1, y=4), prefetch=1)
    turned = flat(td.Grid(x=2, y=2), "ij", **SIZES)
    return {"cannon": turned, "summa": ahead, "histogram": histogram("r -> *")}


def blocks(p: Any) -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = [tuple(e.value for e in t.shape) for t in p.signature.inputs]
    arrays = (
        rng.integers(0, 5, x).astype(t.dtype.numpy) for x, t in zip(shapes, p.signature.inputs, strict=True)
    )
    return [p.block(t.name, x) for t, x in zip(p.signature.inputs, arrays, strict=True)]


def fail(kind: str) -> None:
    match kind:
        case "raise":
            raise RuntimeError("on purpose")
        case "exit":
            sys.exit(3)
        case "stall" | "last":
            time.sleep(600)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)


def fail_at_step(kind: str, failing_step: int) -> None:
    """Have the worker of this process fail when it comes to a step."""

    def reach(worker: Any, step: int) -> None:
        worker.__dict__["step"] = step
        if step == failing_step:
            fail(kind)

    Worker.at = property(lambda worker: worker.__dict__["step"], reach)  # type: ignore[assignment, method-assign]


def main(what: str, kind: str, victim: int, step: int) -> None:
    p = td.compile(programs()[what])
    mine = td.mpi.rank() == victim
    given = blocks(p)
    if mine and kind == "program":
        p = td.compile(flat(td.Grid(x=2, y=2), "i", **SIZES))
    if mine and kind == "sizes":
        p = td.compile(flat(td.Grid(x=2, y=2), "ij", **{**SIZES, "N": 6}))
        given = blocks(p)
    if mine and kind == "shape":
        given = [given[0][1:], *given[1:]]
    if mine and kind == "dtype":
        given = [given[0].astype(np.float32), *given[1:]]
    if mine:
        fail_at_step(kind, max(1, len(p.plan().rank(victim).steps) * step // 100))
    if mine and kind == "away":
        time.sleep(600)
    p(*given)
    if kind == "last":
        return
    p(*given)  # a rank that stalled behind its last message is missed here
    print("not stopped", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
