"""Where the largest value of a row is, and other reductions, found in the pass that sums its exponentials."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret

i, j, e = td.vars("i j e")
x = td.Tensor("x", ("R", "C"), td.f32)
v = td.Tensor("v", ("C", "E"), td.f32)


def softmax(*, mask: bool = False, lead: str = "total") -> tuple[td.Schedule, list[str]]:
    """Sums of a softmax, with what else a row has: where it is largest and smallest, in all its forms."""
    score, top, p, total, out = (td.Func(n) for n in ("score", "top", "p", "total", "out"))
    score[i, j] = td.where(j <= i, x[i, j] * 2, -np.inf) if mask else x[i, j] * 2
    top[i] = td.max(score[i, j], axis=j)
    p[i, j] = td.exp(score[i, j] - top[i])
    total[i] = td.sum(p[i, j], axis=j)
    out[i, e] = td.sum(p[i, j] * v[j, e], axis=j) / total[i]
    names = "first", "last", "best", "most", "least", "pair"
    first, last, best, most, least, pair = (td.Func(n) for n in names)
    first[i] = td.argmax(score[i, j], axis=j)
    last[i] = td.argmin(score[i, j], axis=j)
    best[i] = td.argmax(p[i, j] / total[i], axis=j)
    most[i] = td.max(p[i, j] / total[i], axis=j)
    least[i] = td.min(p[i, j] * 3, axis=j)
    pair[i] = td.reduce(
        lambda a, b: (td.minimum(a[0], b[0]), a[1] | b[1]), (np.float32(np.inf), False),
        (score[i, j], score[i, j] > 1), axis=j,
    )  # fmt: skip
    s = td.Schedule(out if lead == "out_sum" else total, first, last, best, most, least, pair)
    return s, [f"{first.name}_argmax", f"{last.name}_argmin", f"{best.name}_argmax"]


def rows(count: int = 13) -> np.ndarray:
    given = np.random.default_rng(count).standard_normal((11, count)).astype(np.float32)
    given[1], given[2, count // 2], given[3], given[4, count // 3] = np.nan, np.nan, -np.inf, np.inf
    given[5, [count // 4, count - 1]], given[6, : count // 2], given[7] = np.inf, -np.inf, 2.5
    given[8, [0, count - 1]] = 4, 4
    given[9] = np.round(given[9])
    given[10] = np.where(np.arange(count) % 3, given[10], -np.inf)
    return given


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("lead", ["total", "out_sum"])
@pytest.mark.parametrize("tile", [1, 4, 7, 32])
def test_positions_and_extremes_are_those_of_numpy(tile: int, lead: str, mask: bool) -> None:
    s, _ = softmax(mask=mask, lead=lead)
    s[lead].online("j", tile)
    left = [f.name for f in s.state.program.funcs if f.definitions[0].ranges]
    assert all(name.endswith(("_tile", "_online")) for name in left)
    given = {"x": rows()} | ({"v": np.ones((13, 2), np.float32)} if lead == "out_sum" else {})
    with np.errstate(all="ignore"):
        want = interpret(s.program, given)
        meant = interpret(s.state.program, given)
    for result, expected in zip(meant, want, strict=True):
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(result, expected, rtol=1e-5)
        else:
            np.testing.assert_array_equal(result, expected)


def test_compiled_code_gives_the_same() -> None:
    s, _ = softmax()
    s["total"].online("j", 8)
    given = rows(37)
    with np.errstate(all="ignore"):
        want = interpret(s.program, {"x": given})
    for result, expected in zip(td.compile(s)(given), want, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.parametrize("count", [0, 1])
def test_rows_of_no_and_of_one_term(count: int) -> None:
    s, _ = softmax()
    s["total"].online("j", 4)
    given = np.ones((3, count), np.float32)
    for result, expected in zip(
        interpret(s.state.program, {"x": given}), interpret(s.program, {"x": given}), strict=True
    ):
        np.testing.assert_array_equal(result, expected)


def test_an_argmax_may_lead() -> None:
    top, best = td.Func("top"), td.Func("best")
    top[i] = td.max(x[i, j], axis=j)
    best[i] = td.argmax(td.exp2(x[i, j] - top[i]) * 4, axis=j)
    s = td.Schedule(best)
    s["best_argmax"].online("j", 4)
    given = rows()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(
            interpret(s.state.program, {"x": given})[0], interpret(s.program, {"x": given})[0]
        )


def test_a_position_that_selects_other_factors_is_computed_before() -> None:
    """The index of the largest value chooses a weight of all terms, and so is needed before."""
    top, at, total = td.Func("top"), td.Func("at"), td.Func("total")
    top[i] = td.max(x[i, j], axis=j)
    at[i] = td.argmax(x[i, j], axis=j)
    total[i] = td.sum(td.exp(x[i, j] - top[i]) * v[td.clip(at[i], 0, v.shape[0] - 1), 0], axis=j)
    s = td.Schedule(total)
    s["total"].online("j", 4)
    given = {"x": rows()[8:], "v": np.random.default_rng(0).random((13, 1), np.float32)}
    assert s.state.program.func("at_argmax").definitions[0].ranges
    np.testing.assert_allclose(
        interpret(s.state.program, given)[0], interpret(s.program, given)[0], rtol=1e-5
    )


@pytest.mark.parametrize("term", [lambda p: -p, lambda p: p * x[i, 0]])
def test_factors_that_may_be_negative_are_no_correction(term: object) -> None:
    top, best = td.Func("top"), td.Func("best")
    top[i] = td.max(x[i, j], axis=j)
    best[i] = td.argmax(term(td.exp(x[i, j] - top[i])), axis=j)
    s = td.Schedule(best)
    with pytest.raises(td.ScheduleError, match="cannot be corrected for another top"):
        s["best_argmax"].online("j", 4)
