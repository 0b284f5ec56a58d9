"""The standalone module of a plan, run by threads in the place of ranks."""

from __future__ import annotations

import queue
import sys
import threading
import types
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tests.distribute.matmuls import cube, flat, two_and_a_half


class Ranks:
    """What the module uses of mpi4py, between threads."""

    def __init__(self) -> None:
        self.post: defaultdict[Any, queue.Queue[np.ndarray]] = defaultdict(queue.Queue)

    def comm(self, rank: int) -> Any:
        def send(array: np.ndarray, dest: int, tag: int) -> Any:
            self.post[rank, dest, tag].put(array.copy())
            return lambda: None

        def receive(array: np.ndarray, source: int, tag: int) -> Any:
            def wait() -> None:
                array[...] = self.post[source, rank, tag].get(timeout=60).reshape(array.shape)

            return wait

        return types.SimpleNamespace(rank=rank, Isend=send, Irecv=receive)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the text of a module with threads as its ranks."""
    requests = types.SimpleNamespace(Waitall=lambda waits: [wait() for wait in waits])
    fake = types.SimpleNamespace(Request=requests, COMM_WORLD=None)
    package = types.ModuleType("mpi4py")
    package.MPI = fake
    monkeypatch.setitem(sys.modules, "mpi4py", package)

    def run(text: str, blocks: list[tuple[Any, ...]]) -> list[Any]:
        space: dict[str, Any] = {}
        exec(compile(text, "module of a plan", "exec"), space)
        ranks, results = Ranks(), [None] * len(blocks)

        def work(rank: int) -> None:
            results[rank] = space["run"](*blocks[rank], comm=ranks.comm(rank))

        threads = [threading.Thread(target=work, args=(r,), daemon=True) for r in range(len(blocks))]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
        return results

    return run


@pytest.mark.parametrize(
    "schedule",
    [
        lambda **n: flat(td.Grid(x=2, y=2), "ij", **n),
        lambda **n: cube(td.Grid(x=2, y=1, z=2), **n),
        lambda **n: two_and_a_half(td.Grid(x=2, y=2, z=1), **n),
    ],
    ids=["cannon", "johnson", "2.5d"],
)
def test_the_module_gives_the_blocks_of_the_result(
    schedule: Any, module: Any, rng: np.random.Generator
) -> None:
    p = td.compile(schedule(M=7, N=9, K=5))
    a, b = (rng.integers(0, 9, s).astype(float) for s in ((7, 5), (5, 9)))
    size = p.state.grid.size
    blocks = [(p.block("A", a, r), p.block("B", b, r)) for r in range(size)]
    results = module(str(p.source("mpi")), blocks)
    for rank, result in enumerate(results):
        expected = p.block("C", a @ b, rank)
        if expected is None:
            assert result is None
        else:
            np.testing.assert_array_equal(result, expected)


def test_equal_tasks_are_one_function() -> None:
    text = str(td.compile(flat(td.Grid(x=2, y=2), "ij", M=8, N=8, K=8)).source("mpi"))
    assert text.count("def compute_") == 1
    assert text.count("def rank_") == 4


def test_partial_results_of_wrapped_reads_are_merged(module: Any, rng: np.random.Generator) -> None:
    i, k = td.vars("i k")
    x, f, h, grid = td.Tensor("x", (9, 8), td.f64), td.Func("f"), td.Func("h"), td.Grid(x=3)
    f[i] = td.max(x[i, k], axis=k)
    h[i] = f[(i + 1) % 9] - f[(i - 1) % 9]
    s = td.Schedule(h.with_shape(9)).place("x", "ik -> k", grid).place("h", "i -> i", grid)
    s.place("f", "i -> partial(max)", grid)[f].distribute(k, grid)
    s[h].distribute(i, grid)
    p, given = td.compile(s), rng.normal(size=(9, 8))
    results = module(str(p.source("mpi")), [(p.block("x", given, r),) for r in range(3)])
    most = given.max(axis=1)
    np.testing.assert_array_equal(np.concatenate(results), np.roll(most, -1) - np.roll(most, 1))


def test_ranks_that_the_grid_does_not_need_are_idle() -> None:
    text = str(td.compile(flat(td.Grid(x=1, y=2), "", M=4, N=4, K=4).ranks(3)).source("mpi"))
    assert '"""Rank 1, at (0, 1)."""' in text
    assert '"""Rank 2, idle."""' in text


def test_arguments_do_not_take_the_names_of_a_module(module: Any) -> None:
    i = td.vars("i")
    x, factor, f = td.Tensor("comm", (5,), td.f64), td.Scalar("np", td.f64), td.Func("f")
    f[i] = x[i] * factor
    grid = td.Grid(x=2)
    s = td.Schedule(f).place("comm", "r -> 0", grid).place("f", "r -> r", grid)
    s["f"].distribute(i, grid)
    p = td.compile(s)
    results = module(str(p.source("mpi")), [(np.arange(5.0), 3.0), (None, 3.0)])
    np.testing.assert_array_equal(np.concatenate(results), 3 * np.arange(5.0))
