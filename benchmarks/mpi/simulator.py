"""What planning, proving and simulating cost: `python -m benchmarks.mpi.simulator CASE RANKS`.

Prints one line of JSON with seconds of the processor, and the most memory that the process had.
"""

import itertools
import json
import math
import resource
import sys
import time
from collections.abc import Callable

import numpy as np

import tdsl as td

SIDE = 512


def heat(ranks: int) -> tuple[td.Schedule, dict[str, np.ndarray]]:
    """A step of a stencil on tiles: the pattern is local."""
    y, x = td.vars("y x")
    u, step = td.Tensor("u", (SIDE, SIDE), td.f64), td.Func("step")
    p = td.pad(u, mode="edge", shape=u.shape)
    step[y, x] = p[y, x] + 0.1 * (p[y - 1, x] + p[y + 1, x] + p[y, x - 1] + p[y, x + 1] - 4 * p[y, x])
    rows = 2 ** (int(math.log2(ranks)) // 2)
    grid = td.Grid(rows=rows, columns=ranks // rows)
    s = td.Schedule(step).place(u, "rc -> r c", grid).place(step, "rc -> r c", grid)
    s[step].distribute(onto=step)
    return s, {"u": np.random.default_rng(0).random((SIDE, SIDE))}


def product(ranks: int) -> tuple[td.Schedule, dict[str, np.ndarray]]:
    """A product of matrices by `cosma`."""
    i, j, k = td.vars("i j k")
    a, b = (td.Tensor(name, (SIDE, SIDE), td.f64) for name in "ab")
    c = td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    s = td.Schedule(c)
    td.recipes.cosma(s[c], ranks)
    rng = np.random.default_rng(0)
    return s, {name: rng.random((SIDE, SIDE)) for name in "ab"}


CASES: dict[str, Callable[[int], tuple[td.Schedule, dict[str, np.ndarray]]]] = {
    "heat": heat,
    "product": product,
}


def main(case: str, ranks: int) -> None:
    """Plan one rank, compute the volume of all, then plan and run them."""
    schedule, arrays = CASES[case](ranks)
    p = td.compile(schedule)
    marks = [time.process_time()]
    p.plan().rank(ranks // 2)
    marks.append(time.process_time())
    total = p.plan().total_received
    marks.append(time.process_time())
    p.simulate(**arrays)
    marks.append(time.process_time())
    one, all_, run = (b - a for a, b in itertools.pairwise(marks))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    answer = {"one_s": one, "all_s": all_, "run_s": run, "peak_bytes": peak, "received": total}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
