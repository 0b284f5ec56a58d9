"""Programs that are rewritten where their plans gain: what is chosen, what it moves, what it computes."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret
from tests.planner.test_products import VOLUME
from tests.planner.test_replay import replayed

i, j, k, l = td.vars("i j k l")
FAST = {"latency": 1e-6, "bandwidth": 1e9, "operations": 1e12, "memory_bandwidth": 1e12}


def two_products(rows: int, columns: int, terms: int, *, nested: bool = False) -> td.Schedule:
    """x W and x V; nested: V is computed from x W."""
    x, (W, V) = td.Tensor("x", (rows, terms), td.f32), (td.Tensor(n, (terms, columns), td.f32) for n in "WV")
    y, z, V2 = td.Func("y"), td.Func("z"), td.Func("V2")
    y[i, j] = td.sum(x[i, k] * W[k, j], axis=k)
    V2[k, j] = V[k, j] * y[0, j]
    z[i, j] = td.sum(x[i, k] * (V2 if nested else V)[k, j], axis=k)
    return td.Schedule(y, z)


def residual() -> td.Schedule:
    """The sum of an input and of two products, as that of attention and perceptron in parallel."""
    x, out = td.Tensor("x", (8, 16), td.f32), td.Func("out")
    value = x[i, j]
    for n in range(2):
        a, W, y = (
            td.Tensor(f"a{n}", (8, 32), td.f32),
            td.Tensor(f"W{n}", (32, 16), td.f32),
            td.Func(f"y{n}"),
        )
        y[i, j] = td.sum(a[i, k] * W[k, j], axis=k)
        value = value + y[i, j]
    out[i, j] = value
    return td.Schedule(out)


def long_chain() -> td.Schedule:
    """(A B) C with A of few columns: A (B C) takes less."""
    A, B, C = (
        td.Tensor("A", (64, 2), td.f32),
        td.Tensor("B", (2, 64), td.f32),
        td.Tensor("C", (64, 4), td.f32),
    )
    y, z = td.Func("y"), td.Func("z")
    y[i, j] = td.sum(A[i, k] * B[k, j], axis=k)
    z[i, l] = td.sum(y[i, j] * C[j, l], axis=j)
    return td.Schedule(z)


def activations(layers: int = 4) -> td.Schedule:
    """Values of layers that are read again, as in a gradient, in the opposite order."""
    x = td.Tensor("x", (64, 64), td.f32)
    value, stored = x, []
    for n in range(layers):
        h = td.Func(f"h{n}")
        h[i, j] = td.exp(value[i, j]) if n % 2 == 0 else value[i, j] * value[j, i]
        value = h
        stored.append(h)
    total = td.Func("total")
    total[i, j] = td.sum(value[i, k] * x[k, j], axis=k)
    value = total
    for n, h in enumerate(reversed(stored)):
        g = td.Func(f"g{n}")
        g[i, j] = value[j, i] * h[i, j]
        value = g
    return td.Schedule(value)


def arrays_of(s: td.Schedule) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal([e.value for e in t.shape]).astype(np.float32) for t in s.program.inputs]


def named(s: td.Schedule, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    return dict(zip((t.name for t in s.program.inputs), arrays, strict=True))


def test_merged_products_read_their_shared_operand_once():
    """Unity's example, 2 x 2 x 2: 2 (M K + K N + M N) words are M K + 2 K N + 2 M N."""
    grid, size = td.Grid(a=2, b=2, c=2), (64, 256, 256)
    words = []
    for merged in (False, True):
        s = two_products(*size)
        if merged:
            s["y"].merge_products("z")
        for f in ("y_z",) if merged else ("y", "z"):
            s[f].distribute(("j", "i", "k"), grid)
        planned = s.plan(td.Cluster(ranks=8, **VOLUME), forbid="copies")
        assert planned.gap == 0
        words.append(sum(td.compile(s).plan().received) // 4)
    assert words == [196_608, 180_224]


CASES = [
    (lambda: two_products(8, 16, 16), {"x": "ij -> j", "W": "ij -> *", "V": "ij -> *"}, "merge_products"),
    (long_chain, {}, "reassociate"),
    (
        residual, {"x": "ij -> *", "out": "ij -> *"} | {f"W{n}": "kj -> k" for n in range(2)}
        | {f"a{n}": "ik -> k" for n in range(2)}, "add_first",
    ),
]  # fmt: skip


@pytest.mark.parametrize("program, fix, kind", CASES, ids=[kind for *_, kind in CASES])
def test_rewrites_that_gain_are_chosen_printed_replayed_and_explained(program, fix, kind):
    cluster = td.Cluster(ranks=2, **FAST)
    before, s = program(), program()
    plain = before.plan(cluster, fix=fix)
    planned = s.plan(cluster, fix=fix, rewrites=kind)
    assert planned.rewrites[0].name == kind
    assert planned.seconds < plain.seconds == planned.seconds_unrewritten
    assert planned.bytes <= plain.bytes
    assert f".{kind}(" in str(s)
    assert f"rewritten by {kind} of " in str(s.explain())
    again = replayed(program(), str(s))
    assert td.compile(again).plan().received == td.compile(s).plan().received
    arrays, p = arrays_of(s), td.compile(s, target="python")
    got, counted = p.simulate(*arrays, count=True)
    assert counted.received == p.plan().received
    expected = interpret(program().program, named(s, arrays))
    for a, b in zip(got if isinstance(got, tuple) else (got,), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_partial_sums_that_are_added_need_one_all_reduce():
    cluster, fix = td.Cluster(ranks=2, **FAST), CASES[2][1]
    s = residual()
    s.plan(cluster, fix=fix, rewrites="add_first")
    assert max(td.compile(s).plan().received) == 8 * 16 * 4


def test_products_of_which_one_depends_on_the_other_are_not_merged():
    planned = two_products(16, 64, 64, nested=True).plan(
        td.Cluster(ranks=2, **FAST), rewrites="merge_products"
    )
    assert not planned.rewrites


def test_values_are_computed_again_where_memory_does_not_hold_them():
    cluster = td.Cluster(ranks=2, **FAST)
    memory = 7 * 8192  # of the eight halves that a rank stores at once
    with pytest.raises(td.ScheduleError, match="a rank needs 65536 bytes"):
        activations().plan(cluster, memory=memory)
    s = activations()
    planned = s.plan(cluster, memory=memory, rewrites="clone_in")
    assert planned.memory <= memory
    assert planned.seconds_unrewritten == np.inf
    arrays = arrays_of(s)
    np.testing.assert_allclose(
        td.compile(s, target="python").simulate(*arrays),
        interpret(activations().program, named(s, arrays))[0],
        rtol=1e-4,
    )


def test_nothing_is_rewritten_unasked_and_unknown_kinds_are_refused():
    cluster = td.Cluster(ranks=2, **FAST)
    assert not long_chain().plan(cluster).rewrites
    with pytest.raises(td.TypeMismatch, match="'fuse' is no kind of rewrite"):
        long_chain().plan(cluster, rewrites="fuse")
