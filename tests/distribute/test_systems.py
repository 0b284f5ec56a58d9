"""Figures that publications state for training on ranks, as bytes and memory of schedules by hand."""

from __future__ import annotations

import pytest

import tdsl as td

i, j, k = td.vars("i j k")
RANKS, PARAMETERS = 64, 7_500_000_000


def adam(gradients: str, weights: str, states: str) -> td.Schedule:
    """A step of Adam in mixed precision, in place: f16 weights and gradients; f32 weights, m and v.

    Each is on all ranks ("*") or cut ("i"), after which the f16 weights are gathered where all have them.
    """
    n, grid = PARAMETERS, td.Grid(x=RANKS)
    w16, g = td.Tensor("w16", (n,), td.f16), td.Tensor("g", (n,), td.f16)
    w, m, v = (td.Tensor(name, (n,), td.f32) for name in ("w", "m", "v"))
    m2, v2, w2, new = (td.Func(name) for name in ("m2", "v2", "w2", "new"))
    gradient = td.cast(g[i], td.f32) + 0.01 * td.cast(w16[i], td.f32)  # decay of weights
    m2[i] = 0.9 * m[i] + 0.1 * gradient
    v2[i] = 0.999 * v[i] + 0.001 * gradient * gradient
    w2[i] = w[i] - 0.001 * m2[i] / (td.sqrt(v2[i]) + 1e-8)
    new[i] = td.cast(w2[i], td.f16)
    s = td.Schedule(m2, v2, w2, new)
    placed = {w16: weights, new: weights, g: gradients} | dict.fromkeys((w, m, v, m2, v2, w2), states)
    for tensor, entry in placed.items():
        s.place(tensor, f"i -> {entry}", grid)
    for f, old in ((m2, m), (v2, v), (w2, w), (new, w16)):
        s[f].distribute(states if states == "*" else i, grid)
        s.overwrite(f, old)
    return s


@pytest.mark.parametrize(
    "gradients, weights, states, gigabytes, gathered",
    [
        ("*", "*", "*", 120, False),
        ("*", "*", "i", 31.40625, True),  # ZeRO-1: states of the optimizer are cut
        ("i", "*", "i", 16.640625, True),  # ZeRO-2: and gradients
        ("i", "i", "i", 1.875, False),  # ZeRO-3: and weights, which are gathered where they are read
    ],
)
def test_memory_of_zero(
    gradients: str, weights: str, states: str, gigabytes: float, gathered: bool
) -> None:  # fmt: skip
    """7.5e9 parameters on 64 ranks, 2 + 2 + 12 bytes each (Rajbhandari et al., ZeRO, SC 2020, figure 1)."""
    plan = td.compile(adam(gradients, weights, states)).plan()
    assert set(plan.peak_memory) == {gigabytes * 1e9}
    each_part = 2 * PARAMETERS // RANKS
    assert set(plan.received) == {(RANKS - 1) * each_part if gathered else 0}


def experts(groups: int, capacity: int, tokens: int, model: int) -> td.Schedule:
    """Tokens to experts and back: as many experts and groups as ranks, which have one of each."""
    e, g, c, m, t = td.vars("e g c m t")
    grid = td.Grid(x=groups)
    x = td.Tensor("x", (groups, tokens, model), td.f32)
    mask = td.Tensor("mask", (groups, tokens, groups, capacity), td.f32)
    dispatched, hidden, out = td.Func("dispatched"), td.Func("hidden"), td.Func("out")
    dispatched[e, g, c, m] = td.sum(mask[g, t, e, c] * x[g, t, m], axis=t)
    hidden[e, g, c, m] = td.maximum(dispatched[e, g, c, m], 0)
    out[g, t, m] = td.sum(mask[g, t, e, c] * hidden[e, g, c, m], axis=(e, c))
    s = td.Schedule(out)
    for tensor, placement in (
        (x, "gtm -> g"), (mask, "gtec -> g"), (dispatched, "egcm -> e"), (hidden, "egcm -> e"),
        (out, "gtm -> g"),
    ):  # fmt: skip
        s.place(tensor, placement, grid)
    s[dispatched].distribute(g, grid)
    s[hidden].distribute(e, grid)
    s[out].distribute(g, grid)
    return s


def test_experts_receive_their_tokens_and_return_them() -> None:
    """GShard (Lepikhin et al., ICLR 2021): 2 (D - 1) (E / D) (G / D) C M elements, half of them each way."""
    plan = td.compile(experts(8, 4, 16, 32)).plan()
    assert set(plan.received) == set(plan.sent) == {2 * 7 * 4 * 32 * 4} == {7_168}
    plan = td.compile(experts(8, 2 * 1024 // 8, 1024, 512)).plan()
    assert plan.moved("dispatched") == plan.moved("hidden") == 8 * 4 * 917_504
