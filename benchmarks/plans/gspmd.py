"""Bytes that plans receive and those of GSPMD, from equal placements: python -m benchmarks.plans.gspmd.

GSPMD (Xu et al., 2021) is run through JAX on 8 devices of the host: inputs and results have the placements
that the planner is given. Bytes are those of the collectives in the compiled program, counted as the planner
does: what a device receives if a collective is as good as its bound.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tdsl as td

RANKS = 8
CLUSTER = td.Cluster(ranks=RANKS, latency=5e-6, bandwidth=25e9, operations=100e12, memory_bandwidth=2e12)
b, e, f, g, h, i, j, k, m, q, s, t = td.vars("b e f g h i j k m q s t")
Arrays = Mapping[str, Any]
SHAPE = r"(?:f32|pred|s32)\[([0-9,]*)\]"
COLLECTIVE = re.compile(
    r"= \(?(.*?)\)? (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


@dataclass(frozen=True, slots=True)
class Model:
    """A program for both: the results of tdsl and of JAX, by the placements of inputs and results."""

    name: str
    outputs: tuple[td.Func, ...]
    jax: Callable[[Any, Arrays], tuple[Any, ...]]
    placed: Mapping[str, str]


def product(name: str, index: tuple[Any, ...], value: Any, axis: Any) -> td.Func:
    """A func that sums products."""
    new = td.Func(name)
    new[index] = td.sum(value, axis=axis)
    return new


def perceptron() -> Model:
    """Weights cut as Megatron-LM does."""
    X, W1, W2 = (
        td.Tensor("X", (512, 1024), td.f32),
        td.Tensor("W1", (1024, 4096), td.f32),
        td.Tensor("W2", (4096, 1024), td.f32),
    )
    hidden = product("hidden", (b, f), X[b, h] * W1[h, f], h)
    y = product("y", (b, h), td.maximum(hidden[b, f], 0) * W2[f, h], f)

    def in_jax(np: Any, a: Arrays) -> tuple[Any, ...]:
        return (np.maximum(a["X"] @ a["W1"], 0) @ a["W2"],)

    return Model(
        "perceptron", (y,), in_jax, {"X": "bh -> *", "W1": "hf -> f", "W2": "fh -> f", "y": "bh -> *"}
    )


def training() -> Model:
    """A step of two layers: rows of the batch are cut, weights are copies."""
    X, T = td.Tensor("X", (1024, 256), td.f32), td.Tensor("T", (1024, 256), td.f32)
    W1, W2 = td.Tensor("W1", (256, 512), td.f32), td.Tensor("W2", (512, 256), td.f32)
    hidden = td.Func("hidden")
    hidden[b, f] = td.maximum(td.sum(X[b, h] * W1[h, f], axis=h), 0)
    y, error = product("y", (b, h), hidden[b, f] * W2[f, h], f), td.Func("error")
    error[b, h] = y[b, h] - T[b, h]
    news = []
    for W, d in zip((W1, W2), td.vjp(y, [W1, W2], seed=error), strict=True):
        new = td.Func(f"new_{W.name}")
        new[i, j] = W[i, j] - 0.01 * d[i, j]
        news.append(new)

    def in_jax(np: Any, a: Arrays) -> tuple[Any, ...]:
        before = a["X"] @ a["W1"]
        hidden = np.maximum(before, 0)
        error = hidden @ a["W2"] - a["T"]
        d2, d1 = hidden.T @ error, a["X"].T @ np.where(before > 0, error @ a["W2"].T, 0)
        return a["W1"] - 0.01 * d1, a["W2"] - 0.01 * d2

    placed = {
        "X": "bh -> b",
        "T": "bh -> b",
        "W1": "hf -> *",
        "W2": "fh -> *",
        "new_W1": "ij -> *",
        "new_W2": "ij -> *",
    }
    return Model("training step", tuple(news), in_jax, placed)


def attention() -> Model:
    """Heads are cut."""
    X, Wo = td.Tensor("X", (2, 256, 512), td.f32), td.Tensor("Wo", (8, 64, 512), td.f32)
    parts = []
    for n in "qkv":
        W = td.Tensor(f"W{n}", (512, 8, 64), td.f32)
        parts.append(product(f"p{n}", (b, s, h, e), X[b, s, m] * W[m, h, e], m))
    pq, pk, pv = parts
    score = product("score", (b, h, s, t), pq[b, s, h, e] * pk[b, t, h, e], e)
    weight = td.Func("weight")
    weight[b, h, s, t] = td.exp(score[b, h, s, t] / 8)
    total = td.Func("total")
    total[b, h, s] = td.sum(weight[b, h, s, t], axis=t)
    mixed = product("mixed", (b, s, h, e), weight[b, h, s, t] / total[b, h, s] * pv[b, t, h, e], t)
    y = product("y", (b, s, m), mixed[b, s, h, e] * Wo[h, e, m], (h, e))

    def in_jax(np: Any, a: Arrays) -> tuple[Any, ...]:
        q, k, v = (np.einsum("bsm,mhe->bshe", a["X"], a[f"W{n}"]) for n in "qkv")
        weight = np.exp(np.einsum("bshe,bthe->bhst", q, k) / 8)
        mixed = np.einsum("bhst,bthe->bshe", weight / weight.sum(-1, keepdims=True), v)
        return (np.einsum("bshe,hem->bsm", mixed, a["Wo"]),)

    placed = {f"W{n}": "mhe -> h" for n in "qkv"} | {"X": "bsm -> *", "Wo": "hem -> h", "y": "bsm -> *"}
    return Model("attention", (y,), in_jax, placed)


def experts() -> Model:
    """Groups of tokens and experts are cut (GShard)."""
    groups, slots, places, width = 8, 64, 16, 128
    D, X = td.Tensor("D", (groups, slots, 8, places), td.f32), td.Tensor("X", (groups, slots, width), td.f32)
    W = td.Tensor("W", (8, width, width), td.f32)
    sent = product("sent", (e, g, k, m), D[g, s, e, k] * X[g, s, m], s)
    worked = product("worked", (e, g, k, f), sent[e, g, k, m] * W[e, m, f], m)
    y = product("y", (g, s, f), D[g, s, e, k] * worked[e, g, k, f], (e, k))

    def in_jax(np: Any, a: Arrays) -> tuple[Any, ...]:
        sent = np.einsum("gsek,gsm->egkm", a["D"], a["X"])
        worked = np.einsum("egkm,emf->egkf", sent, a["W"])
        return (np.einsum("gsek,egkf->gsf", a["D"], worked),)

    return Model(
        "experts", (y,), in_jax, {"D": "gsek -> g", "X": "gsm -> g", "W": "emf -> e", "y": "gsf -> g"}
    )


def stencil() -> Model:
    """Two steps of a stencil on rows that are cut."""
    n = 1024
    X = td.Tensor("X", (n, n), td.f32)
    value: td.Tensor | td.Func = X
    for step in range(2):
        padded, new = td.pad(value, mode="constant"), td.Func(f"y{step}", shape=(n, n))
        new[i, j] = (padded[i - 1, j] + padded[i + 1, j] + padded[i, j]) / 3
        value = new
    assert isinstance(value, td.Func)

    def in_jax(np: Any, a: Arrays) -> tuple[Any, ...]:
        y = a["X"]
        for _ in range(2):
            p = np.pad(y, ((1, 1), (0, 0)))
            y = (p[:-2] + p[2:] + p[1:-1]) / 3
        return (y,)

    return Model("stencil", (value,), in_jax, {"X": "ij -> i", "y1": "ij -> i"})


MODELS = (perceptron, training, attention, experts, stencil)


def planned_bytes(model: Model) -> int:
    """The bytes that the busiest rank receives in the plan."""
    schedule = td.Schedule(*model.outputs)
    schedule.plan(CLUSTER, fix=model.placed)
    return max(td.compile(schedule).plan().received)


def gspmd_bytes(model: Model) -> tuple[int, str]:
    """The bytes that a device receives in the program of GSPMD, and its collectives."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={RANKS}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("x",))

    def sharding(name: str) -> NamedSharding:
        letters, _, cut = model.placed[name].replace(" ", "").partition("->")
        return NamedSharding(mesh, PartitionSpec(*("x" if x == cut else None for x in letters)))

    program = td.Schedule(*model.outputs).program
    types = {
        x.name: jax.ShapeDtypeStruct([e.value for e in x.shape], np.float32, sharding=sharding(x.name))
        for x in program.inputs
    }
    results = tuple(sharding(name) for name in program.outputs)
    step = jax.jit(lambda a: model.jax(jax.numpy, a), out_shardings=results)
    return received(step.lower(types).compile().as_text())


def received(text: str) -> tuple[int, str]:
    """The bytes that a device receives in a compiled program of RANKS devices, and its collectives.

    >>> received("x = f32[8,4]{1,0} all-reduce(f32[8,4]{1,0} y), channel_id=1")
    (224, 'all-reduce 224')
    """
    total, parts = 0, []
    for line in text.splitlines():
        match = COLLECTIVE.search(line)
        if match is None:
            continue
        shapes, kind = match.groups()
        size = sum(
            4 * math.prod(map(int, filter(None, dims.split(",")))) for dims in re.findall(SHAPE, shapes)
        )
        share = {"all-reduce": 2 * (RANKS - 1) / RANKS, "reduce-scatter": RANKS - 1, "collective-permute": 1}
        received_ = int(size * share.get(kind, (RANKS - 1) / RANKS))
        total += received_
        parts.append(f"{kind} {received_}")
    return total, ", ".join(parts)


if __name__ == "__main__":
    for build in MODELS:
        model = build()
        theirs, collectives = gspmd_bytes(model)
        print(
            f"{model.name:14} planner {planned_bytes(model):9} bytes, GSPMD {theirs:9} bytes ({collectives})",
            flush=True,
        )
