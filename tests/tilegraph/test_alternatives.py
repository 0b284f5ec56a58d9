"""Nested tiles where nothing has been said: where recipes leave much in memory, right, and explained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import tdsl as td
from tdsl.autoschedule.by_recipes import complete_by_recipes
from tdsl.autoschedule.explain import explain
from tdsl.cost.predict import Prediction
from tdsl.lang.interp import interpret
from tdsl.machine.devices import described_machine
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.schedule.bind import bind_state
from tdsl.tilegraph.default import completion, decide
from tdsl.tilegraph.sum_order import sum_orders
from tests.tilegraph.chains import CHAINS

LEVELS = (
    MemoryLevel("L1", 1 << 14), MemoryLevel("L2", 1 << 17), MemoryLevel("memory", None, managed=True),
)  # fmt: skip
SMALL = Machine(vector_bytes=64, threads=2, registers=32, levels=LEVELS)


def test_a_chain_that_recipes_leave_in_memory_gets_tiles() -> None:
    s = td.Schedule(*CHAINS["gated block"](64))
    state = bind_state(s.state, {})
    completed, decisions = decide(state, SMALL)
    assert [(d.func, d.how) for d in decisions if d.how != "inline"] == [("out", "tiles")]
    assert "in L2" in explain(decisions)
    before = Prediction(complete_by_recipes(state, SMALL)[0], SMALL).seconds
    assert Prediction(completed, SMALL).seconds < 0.8 * before
    rng = np.random.default_rng(0)
    given = {t.name: rng.random([n.value for n in t.shape], dtype=np.float32) for t in s.program.inputs}
    (want,) = interpret(s.program, given)
    np.testing.assert_allclose(
        td.compile(td.Schedule.of_state(completed))(**given), want, rtol=1e-4, atol=1e-5
    )


def hows(*outputs: td.Func) -> set[str]:
    return {d.how for d in decide(bind_state(td.Schedule(*outputs).state, {}), SMALL)[1]}


def test_small_programs_and_cached_funcs_are_left_to_recipes() -> None:
    assert "tiles" not in hows(*CHAINS["dense and norm"](64))
    assert "tiles" not in hows(*CHAINS["gated block"](12))


def test_what_has_been_scheduled_is_left_alone() -> None:
    s = td.Schedule(*CHAINS["gated block"](64))
    s["normed"].compute_root()
    assert "tiles" not in {d.how for d in decide(bind_state(s.state, {}), SMALL)[1]}


def test_sizes_that_are_not_known_and_updates_are_left_to_recipes() -> None:
    i, j, k = td.vars("i j k")
    x, first, last = td.Tensor("x", ("N", "N"), td.f32), td.Func("first"), td.Func("last")
    first[i, j] = td.exp(x[j, i])
    last[i, j] = td.sum(first[k, i] * first[k, j], axis=k)
    assert "tiles" not in hows(last)
    y, count, out = (
        td.Tensor("y", (512, 512), td.i64),
        td.Func("count", shape=(64,)),
        td.Func("out"),
    )
    r, s = td.range("r", 0, 512), td.range("s", 0, 512)
    count[i] = 0
    count[td.clip(y[r, s], 0, 63)] += 1
    out[i, j] = count[td.clip(y[i, j], 0, 63)] * y[i, j]
    assert "tiles" not in hows(out.with_shape(512, 512))


def test_shared_loops_and_trees_keep_the_order_of_sums_for_any_number_of_threads() -> None:
    i, j, k, o, u = td.vars("i j k o u")
    x, v = td.Tensor("x", (20000, 300), td.f32), td.Tensor("v", (300,), td.f32)
    p, q = td.Tensor("p", (150, 150, 80), td.f32), td.Tensor("q", (80, 150, 150), td.f32)
    a, b, c, d = td.Func("a"), td.Func("b"), td.Func("c"), td.Func("d")
    a[i], b[i] = td.sum(x[i, k] * v[k], axis=k), td.sum(x[i, k] * x[i, k], axis=k)
    c[i], d[u] = td.max(x[i, k], axis=k), td.sum(p[o, u, j] * q[j, o, u], axis=(j, o))
    state = bind_state(td.Schedule(a, b, c, d).state, {})
    machines = [replace(described_machine("zen3"), threads=n) for n in (1, 2, 8)]
    completed = [completion(state, machine) for machine in machines]
    assert [how.how for how in completed[0].decisions][:3] == ["together"] * 3
    first, *others = (sum_orders(c.state) for c in completed)
    assert all(order == first for order in others)
