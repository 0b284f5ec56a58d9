"""A program for `tdsl run --restarts`: steps on integers, each saved, on as many ranks as there are.

Its arguments are a folder for checkpoints, one for records of its ranks, and the number of steps.
"""

import os
import sys
from pathlib import Path

import numpy as np

import tdsl as td

rng = np.random.default_rng(0)
START, FACTORS = rng.integers(-9, 9, (13, 7)), rng.integers(-9, 9, (7, 7))


def after(steps: int) -> np.ndarray:
    """The values after some steps, modulo 2**64, by NumPy."""
    value = START
    for n in range(steps):
        value = value @ FACTORS + len(FACTORS) * n
    return value


def step_on(ranks: int) -> td.Schedule:
    """One step; rows are in blocks of 2, in turn, if the number of ranks is odd, else in one block each."""
    i, j, k = td.vars("i j k")
    x, w = td.Tensor("x", START.shape, td.i64), td.Tensor("w", FACTORS.shape, td.i64)
    number, y = td.Scalar("number", td.i64), td.Func("y")
    y[i, j] = td.sum(x[i, k] * w[k, j] + number, axis=k)
    grid, rows = td.Grid(r=ranks), "rc -> r/2" if ranks % 2 else "rc -> r"
    s = td.Schedule(y).place(x, rows, grid).place(y, rows, grid).place(w, "rc -> *", grid)
    s[y].distribute(i, grid)
    return s


def record(folder: Path, text: str) -> None:
    """Append a line to the record of the run, on rank 0."""
    if td.mpi.rank() == 0:
        with open(folder / "steps", "a") as file:
            file.write(f"{text}\n")


def main(checkpoints: Path, records: Path, steps: int) -> None:
    rank, ranks = td.mpi.rank(), td.mpi.size()
    new = records / f"{ranks}-{rank}.new"
    new.write_text(str(os.getpid()))
    new.rename(new.with_suffix(".pid"))
    p = td.compile(step_on(ranks), target="python")
    saved = p.load(checkpoints, missing_ok=True)
    first, blocks = saved or (0, {"x": p.block("x", START)})
    record(records, f"loaded {first}")
    (records / f"{ranks}.loaded").touch()
    for n in range(first, steps):
        record(records, f"begun {n}")
        blocks["x"] = p(blocks["x"], p.block("w", FACTORS), n)
        p.save(checkpoints, blocks, step=n + 1)
        record(records, f"saved {n + 1}")
    whole = p.gather("x", blocks["x"])
    if rank == 0:
        np.save(records / "result.npy", whole)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
