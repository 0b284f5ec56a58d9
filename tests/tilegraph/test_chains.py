"""Chains of operators of networks: what the search makes of them is right, and no fusion harms."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret
from tdsl.target import Target
from tdsl.tilegraph.search import candidates, notes_of
from tests.tilegraph.chains import CHAINS, adds_concat_pool, gated_mlp, transformer_block


@pytest.mark.in_part(6)
@pytest.mark.parametrize("size", [12, 33])
@pytest.mark.parametrize("name", CHAINS)
def test_candidates_for_a_chain_are_right(name: str, size: int) -> None:
    program = td.Schedule(*CHAINS[name](size - size % 2)).program
    rng = np.random.default_rng(0)
    # small, for exponentials of sums of products of three must not differ by more than floats tell
    given = {
        t.name: (rng.standard_normal([n.value for n in t.shape]) / 2).astype(np.float32)
        for t in program.inputs
    }
    want = interpret(program, given)
    ranked = candidates(program, {}, Target("cpu"))
    for candidate in (ranked[0], ranked[-1]):
        got = td.compile(candidate.schedule)(**given)
        for mine, expected in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
            np.testing.assert_allclose(mine, expected, rtol=2e-4, atol=2e-5, err_msg=candidate.label)


def test_large_dense_layers_are_not_fused_to_their_harm() -> None:
    program = td.Schedule(*gated_mlp(16384, inner=3456, width=1280)).program
    best, *others = candidates(program, {}, Target("cpu"))
    work = 2 * 3 * 16384 * 1280 * 3456
    machine = best.schedule.prediction().machine
    peak = machine.threads * (machine.rate("vector") or 1.2e11)
    assert best.seconds < 2 * work / peak
    assert all(best.seconds <= c.seconds / 0.8 for c in others)
    assert any("times as long" in note for note in notes_of([best, *others]))


def test_pooling_does_not_compute_sums_again() -> None:
    program = td.Schedule(*adds_concat_pool(64, parts=9)).program
    best, *_ = candidates(program, {}, Target("cpu"))
    again = best.schedule.prediction().again
    assert max(again.values()) < 1.1


def test_a_transformer_block_is_right() -> None:
    program = td.Schedule(*transformer_block(24)).program
    rng = np.random.default_rng(0)
    given = {
        t.name: rng.standard_normal([n.value for n in t.shape]).astype(np.float32) / 2 for t in program.inputs
    }
    (want,) = interpret(program, given)
    ranked = candidates(program, {}, Target("cpu"))
    tiled = [c for c in ranked if c.label.endswith("tiles")][:1]
    for candidate in (ranked[0], *tiled):
        got = td.compile(candidate.schedule)(**given)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4, err_msg=candidate.label)
