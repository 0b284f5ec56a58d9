"""A program for mpiexec: the random programs that are shared out over as many ranks as there are."""

import sys

import numpy as np

import tdsl as td
from tdsl.lang.interp import interpret
from tests.distribute.random_programs import arrays, schedule


def main(seeds: int, distributions: int) -> None:
    """Run all, count and compare on every rank; rank 0 says how many there were."""
    me, done = td.mpi.rank(), 0
    for seed in range(seeds):
        for distribution in range(distributions):
            s = schedule(seed, distribution)
            if s.state.grid.size != td.mpi.size():
                continue
            given, p = arrays(s, seed), td.compile(s, target="python")
            blocks = [p.block(t.name, given[t.name]) for t in p.signature.inputs]
            block, carried = p(*blocks, count=True)
            plan, what = p.plan(), f"schedule({seed}, {distribution})\n{s.program}\n{s}"
            planned = (plan.received[me], plan.sent[me], plan.messages[me])
            assert (carried.received, carried.sent, carried.messages) == planned, what
            whole = p.gather("f", block)
            if me == 0:
                (expected,) = interpret(s.program, given)
                np.testing.assert_array_equal(whole, expected, err_msg=what)
            done += 1
    if me == 0:
        print(f"right: {done}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
