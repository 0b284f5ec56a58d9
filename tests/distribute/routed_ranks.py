"""A program for mpiexec: programs that read at indices of data, as calls and as standalone modules."""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.distribute import mpi
from tests.distribute.random_programs import arrays, routed_schedule
from tests.distribute.test_routed import tokens


def check_call(p: Any, given: dict[str, np.ndarray], what: str) -> None:
    """Results and bytes are those of a simulation, also in messages of 40 bytes; those of the module, too."""
    names, out, me = [a.name for a in p.signature.inputs], p.signature.outputs[0].name, td.mpi.rank()
    expected, counted = p.simulate(**given, count=True)
    simulated = counted.received[me], counted.sent[me], counted.messages[me]
    most = mpi.LARGEST
    for largest in (most, 40):
        mpi.LARGEST = largest
        block, carried = p(*(p.block(n, given[n]) for n in names), count=True)
        mpi.LARGEST = most
        assert (carried.received, carried.sent, carried.messages) == simulated, what
        compare(p.gather(out, block), expected, what)
    if p.signature.outputs[0].dtype == td.f16:  # which numba lacks
        return
    space: dict[str, Any] = {}
    exec(compile(str(p.source()), "module of a plan", "exec"), space)
    compare(p.gather(out, space["run"](*(p.block(n, given[n]) for n in names))), expected, what)


def compare(whole: Any, expected: np.ndarray, what: str) -> None:
    if td.mpi.rank() == 0:
        np.testing.assert_array_equal(whole, expected, err_msg=what)


def check_trace(p: Any, x: np.ndarray) -> None:
    """The trace of a call has the bytes that it moved, which are not those of the plan."""
    at, path = np.full(10, 12), Path(tempfile.gettempdir()) / f"routed{td.mpi.size()}.json"
    _, counted = p.simulate(x, at, count=True)
    p(p.block("x", x), p.block("at", at))
    p.trace(path)
    if td.mpi.rank() == 0:
        events = json.loads(path.read_text())["traceEvents"]
        rows = [e for e in events if e["name"] == "rows of x" and e["ph"] == "X"]
        for track, moved in (("send", counted.sent), ("receive", counted.received)):
            sizes = {e["pid"]: e["args"].get("bytes", 0) for e in rows if e["cat"] == track}
            assert sizes == dict(enumerate(moved)), (sizes, moved)


def main(seeds: int) -> None:
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    ranks, rng = td.mpi.size(), np.random.default_rng(0)
    for rows, count, dtype in ((13, 10, td.f64), (7, 1, td.f16), (3, 40, td.i8), (1, 5, td.u8)):
        given = {"x": rng.integers(0, 9, (rows, 3)).astype(dtype.numpy), "at": rng.integers(0, rows, count)}
        check_call(tokens(rows, count, ranks, dtype=dtype), given, f"{rows} rows, {count} tokens of {dtype}")
    for seed in range(seeds):
        s = routed_schedule(seed, (ranks,))
        check_call(
            td.compile(s, target="python"), arrays(s, seed), f"routed_schedule({seed}, ({ranks},))\n{s}"
        )
    p, x = tokens(13, 10, ranks), np.ones((13, 3))
    check_trace(p, x)
    at = np.full(10, 13)
    with pytest.raises(td.IndexBoundError, match=f"rank {ranks - 1} reads 'x' at 13 in axis 0"):
        p(p.block("x", x), p.block("at", at if td.mpi.rank() == ranks - 1 else 0 * at))
    sys.stdout.write(f"right: rank {td.mpi.rank()}\n")  # at once, unlike print


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
