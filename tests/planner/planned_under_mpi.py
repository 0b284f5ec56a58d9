"""A program for mpiexec: plans for the ranks of the run; bytes counted are those planned, results NumPy's."""

import sys

import numpy as np

import tdsl as td
from tests.planner.test_prices import chain
from tests.planner.test_published import layers, mlp, product

ranks = td.mpi.size()
cluster = td.Cluster(ranks=ranks, latency=1e-6, bandwidth=1e9, operations=1e8, memory_bandwidth=1e9)
rng = np.random.default_rng(0)
steps, same = layers(16, 8, 2)
for name, s, fix in (
    ("product", product(16, 24, 32), {}),
    ("layers", mlp(8, 16, 32), {"X": "bh -> *", "Y": "bh -> *"}),
    ("training", steps, same),
    ("halos", chain(2), {}),
):
    alone = td.compile(td.Schedule.of_program(s.program))
    s.plan(cluster, fix=fix)
    p, me = td.compile(s), td.mpi.rank()
    inputs = s.program.inputs
    arrays = [rng.integers(-3, 4, [e.value for e in t.shape]).astype(t.dtype.numpy) for t in inputs]
    blocks, carried = p(*(p.block(t.name, x) for t, x in zip(inputs, arrays, strict=True)), count=True)
    plan = p.plan()
    counted = carried.received, carried.sent, carried.messages
    assert counted == (plan.received[me], plan.sent[me], plan.messages[me]), name
    results = alone(*arrays)
    outputs = s.program.outputs
    if len(outputs) == 1:
        blocks, results = (blocks,), (results,)
    for f, block, expected in zip(outputs, blocks, results, strict=True):
        whole = p.gather(f, block)
        if me == 0:
            np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-4)
    if me == 0:
        print("right:", name)
        sys.stdout.flush()
