"""A layer of a transformer moves the bytes of Megatron-LM, forward and backward."""

from __future__ import annotations

import tdsl as td
from benchmarks.plans.models import block

FREE_TASKS = {"latency": 0.0, "operations": 1e24, "memory_bandwidth": 1e24}


def test_a_layer_and_its_gradients_move_four_all_reduces():
    batch, rows, width, ranks = 2, 8, 64, 4
    X, seed = (td.Tensor(name, (batch, rows, width), td.f32) for name in ("X", "seed"))
    y, weights = block(X, "l", rows, width, 4, 4 * width)
    gradients = td.vjp(y, [X, *weights], seed=seed)
    s = td.Schedule(y, *gradients)
    copies = dict.fromkeys(("X", "seed", y.name, gradients[0].name), "bsd -> *")
    heads = dict(
        zip((W.name for W in weights), [*["dhe -> h"] * 3, "hed -> h", "df -> f", "fd -> f"], strict=True)
    )
    same = {g.name: W.name for g, W in zip(gradients[1:], weights, strict=True)}
    s.place("X", "bsd -> *", td.Grid(rank=ranks))
    del copies["X"]
    planned = s.plan(td.Cluster(ranks=ranks, **FREE_TASKS), fix=copies | heads | same)
    # two all-reduces forward, two backward, each of the values of a layer
    assert planned.bytes == 4 * 2 * (ranks - 1) * (batch * rows * width * 4) // ranks
    assert max(td.compile(s).plan().received) == planned.bytes
