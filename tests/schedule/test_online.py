"""Reductions that need each other's results, in one pass over tiles of their terms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret

b, i, j, d, e = td.vars("b i j d e")
q = td.Tensor("q", ("M", "D"), td.f32)
k = td.Tensor("k", ("N", "D"), td.f32)
v = td.Tensor("v", ("N", "E"), td.f32)


def attention(mask: bool = False) -> td.Func:
    score, top, p, total, out = (td.Func(n) for n in ("score", "top", "p", "total", "out"))
    dot = td.sum(q[i, d] * k[j, d], axis=d)
    score[i, j] = td.where(j <= i, dot, -np.inf) if mask else dot
    top[i] = td.max(score[i, j], axis=j)
    p[i, j] = td.exp(score[i, j] - top[i])
    total[i] = td.sum(p[i, j], axis=j)
    out[i, e] = td.sum(p[i, j] * v[j, e], axis=j) / total[i]
    return out


def normalised() -> td.Func:
    """Attention whose weights are divided by their sum before they are used."""
    score, top, total, share, out = (td.Func(n) for n in ("score", "top", "total", "share", "out"))
    score[i, j] = td.sum(q[i, d] * k[j, d], axis=d)
    top[i] = td.max(score[i, j], axis=j)
    total[i] = td.sum(td.exp((score[i, j] - top[i]) * 0.5), axis=j)
    share[i, j] = td.exp((score[i, j] - top[i]) * 0.5) / total[i]
    out[i, e] = td.sum(share[i, j] * v[j, e], axis=j)
    return out


def by_smallest() -> td.Func:
    """Weights of base two that fall from the smallest score on, which is kept negated."""
    low, shift, out = td.Func("low"), td.Func("shift"), td.Func("out")
    low[i] = td.min(q[i, j], axis=j)
    shift[i] = -low[i]
    out[i] = td.sum(td.exp2(-(q[i, j] + shift[i])) * 3, axis=j)
    return out


def by_size() -> td.Func:
    """Exponents over the square root of the number of terms."""
    top, out = td.Func("top"), td.Func("out")
    top[i] = td.max(q[i, j], axis=j)
    out[i] = td.sum(td.exp((q[i, j] - top[i]) / td.sqrt(td.cast(q.shape[1], td.f32))), axis=j)
    return out


def test_sums_wider_than_their_terms_are_rescaled_in_their_type() -> None:
    """Weights of f16 are summed in f32, so that the factor of a partial sum is of f32, too."""
    x, top, p, out = td.Tensor("x", (5, 40), td.f16), td.Func("top"), td.Func("p"), td.Func("out")
    top[i] = td.max(x[i, j], axis=j)
    p[i, j] = td.exp(x[i, j] - top[i])
    out[i] = td.sum(p[i, j], axis=j)
    s = td.Schedule(out)
    s["out_sum"].online("j", 8)
    a = (8 * np.random.default_rng(0).standard_normal((5, 40))).astype(np.float16)
    expected = np.exp(a - a.max(1, keepdims=True)).sum(1, dtype=np.float32)
    np.testing.assert_allclose(td.compile(s)(a), expected, rtol=4e-3)


def norm() -> td.Func:
    """A layer norm, whose variance needs the mean."""
    mean, var, out = td.Func("mean"), td.Func("var"), td.Func("out")
    mean[i] = td.mean(q[i, j] + 8, axis=j)
    var[i] = td.mean((q[i, j] + 8 - mean[i]) ** 2, axis=j)
    out[i, j] = (q[i, j] + 8 - mean[i]) * td.rsqrt(var[i] + 0.5)
    return out


def below() -> td.Func:
    """How far a row lies below its largest value, in all, and squared."""
    top, less, out = td.Func("top"), td.Func("less"), td.Func("out")
    top[i] = td.max(q[i, j], axis=j)
    less[i, j] = top[i] - q[i, j]
    out[i] = td.sum(less[i, j] * less[i, j], axis=j) - td.sum(less[i, j], axis=j)
    return out


SUMS = {
    "attention": ("out_sum", attention), "masked": ("out_sum", lambda: attention(mask=True)),
    "by size": ("out", by_size), "normalised": ("out", normalised), "smallest": ("out", by_smallest),
    "norm": ("var_sum", norm), "below": ("out_sum", below),
}  # fmt: skip


@pytest.mark.in_part(10)
@pytest.mark.parametrize("tile", [1, 4, 7, 32])
@pytest.mark.parametrize("name", SUMS)
def test_an_online_reduction_means_the_same(name: str, tile: int) -> None:
    lead, make = SUMS[name]
    s = td.Schedule(make())
    s[lead].online(s[lead].loops[-1], tile)
    rng = np.random.default_rng(tile)
    sizes = {"M": 13, "N": 21, "D": 5, "E": 3}
    given = {
        t.name: rng.standard_normal([sizes[n.name] for n in t.shape]).astype(np.float32)
        for t in s.program.inputs
    }
    (want,) = interpret(s.program, given)
    (meant,) = interpret(s.state.program, given)
    got = td.compile(s)(**given)
    for mine in (meant, got):
        np.testing.assert_allclose(mine, want, rtol=1e-5, atol=5e-6)
    assert np.isfinite(want).all()


def test_terms_are_read_once() -> None:
    s = td.Schedule(attention())
    s["out_sum"].online("j", 8)
    names = [f.name for f in s.state.program.funcs]
    assert names == [
        "score", "top_tile", "p", "out_sum_tile", "total_tile", "out_sum_online", "out_sum", "out",
    ]  # fmt: skip


def test_rows_without_a_finite_score_are_unchanged() -> None:
    x, f, top = td.Tensor("x", ("R", "C"), td.f32), td.Func("f"), td.Func("top")
    top[i] = td.max(x[i, j], axis=j)
    f[i] = td.sum(td.exp(x[i, j] - top[i]), axis=j)
    given = np.zeros((5, 12), np.float32)
    given[0] = -np.inf
    given[1, :9] = -np.inf
    given[2, 3] = np.inf
    given[3, 11] = np.nan
    (want,) = interpret(td.Schedule(f).program, {"x": given})
    s = td.Schedule(f)
    s[f].online(j, 4)
    np.testing.assert_array_equal(td.compile(s)(given), want)
    assert np.isnan(want[[0, 2, 3]]).all()
    assert want[1] == 3


def test_rows_of_no_terms_are_empty_sums() -> None:
    x, f, top = td.Tensor("x", (5, 0), td.f32), td.Func("f"), td.Func("top")
    top[i] = td.max(x[i, j], axis=j)
    f[i] = td.sum(td.exp(x[i, j] - top[i]), axis=j)
    s = td.Schedule(f)
    assert s[f].online(j, 4).func == "f_online"
    np.testing.assert_array_equal(td.compile(s)(np.zeros((5, 0), np.float32)), np.zeros(5))


def test_a_result_that_is_an_output_is_the_one_of_the_pass() -> None:
    x, f, top = td.Tensor("x", ("R", "C"), td.f32), td.Func("f"), td.Func("top")
    top[i] = td.max(x[i, j], axis=j)
    f[i] = td.sum(td.exp(x[i, j] - top[i]), axis=j)
    s = td.Schedule(f, top)
    s[f].online(j, 8)
    given = np.random.default_rng(0).standard_normal((6, 30)).astype(np.float32)
    sums, tops = td.compile(s)(given)
    np.testing.assert_array_equal(tops, given.max(1))
    np.testing.assert_allclose(sums, np.exp(given - tops[:, None]).sum(1), rtol=1e-6)


def test_an_online_reduction_can_be_rfactored() -> None:
    s = td.Schedule(attention(), sizes={"M": 6, "N": 64, "D": 4, "E": 8})
    running = s["out_sum"].online("j", 4)
    part, _ = running.split("j_o", nparts=3)
    running.rfactor(part).parallel(part)
    again = td.Schedule(attention(), sizes=s.sizes).replay(s.to_json())
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(n).astype(np.float32) for n in ((6, 4), (64, 4), (64, 8))]
    want = interpret(s.program, dict(zip(("q", "k", "v"), given, strict=True)))[0]
    np.testing.assert_allclose(td.compile(again)(*given), want, rtol=1e-5, atol=1e-6)


def bind_tiles(s: td.Schedule, rows: int) -> None:
    """Blocks of rows of attention on a GPU, whose scores never leave shared memory."""
    running, out = s["out_sum"].online("j", 8), s["out"]
    s["out_sum"].inline()
    block, inner = out.split("i", rows)
    _, columns = out.split("e", 8)
    out.reorder(block, "e_o", inner, columns)
    out.bind(block, "blockIdx.x").bind("e_o", "blockIdx.y")
    out.bind(inner, "threadIdx.y").bind(columns, "threadIdx.x")
    running.compute_at(out, columns).set_scope("register").reorder("j_o", "i", "e")
    s["out_sum_tile"].compute_at(running, "j_o").set_scope("register")
    for name in ("top_tile", "total_tile"):
        s[name].compute_at(running, "j_o").set_scope("shared").bind("i", "threadIdx.x")
    s["p"].compute_at(running, "j_o").set_scope("shared").cooperate()
    score = s["score"].compute_at(running, "j_o").set_scope("shared")
    score.bind("i", "threadIdx.y").bind("j", "threadIdx.x")


def test_a_block_of_a_gpu_keeps_its_rows() -> None:
    s = td.Schedule(attention(), sizes={"M": 12, "N": 20, "D": 4, "E": 8}, target="cuda")
    bind_tiles(s, rows=8)
    rng = np.random.default_rng(2)
    given = [rng.standard_normal(n).astype(np.float32) for n in ((12, 4), (20, 4), (20, 8))]
    want = interpret(s.program, dict(zip(("q", "k", "v"), given, strict=True)))[0]
    np.testing.assert_allclose(td.emulate(td.compile(s))(*given), want, rtol=1e-5, atol=1e-6)


def test_factors_are_derived_from_the_structure_of_terms() -> None:
    from tdsl.lang.expr import Read, Var
    from tdsl.schedule.rescaling import result_factors

    def shifts_of(make: Callable[[td.Func, td.Func], object]) -> int | None:
        m, f = td.Func("m"), td.Func("f")
        m[i] = td.max(q[i, j], axis=j)
        f[i] = td.sum(make(q[i, j], m[i]), axis=j)
        (term,) = td.Schedule(f).program.func("f").definitions[0].values
        factors = result_factors(
            term, lambda n: isinstance(n, Read) and n.name == "m", lambda n: n == Var("j")
        )
        return None if factors is None else len(factors.shifts)

    assert shifts_of(lambda x, m: td.exp(x - m) * td.exp(2 * m + x) / m) == 2
    assert shifts_of(lambda x, m: -x * m) == 0
    assert shifts_of(lambda x, m: td.exp(x * m)) is None
    assert shifts_of(lambda x, m: td.exp(x) + m) is None


def test_a_variance_far_from_zero_is_not_lost() -> None:
    x, mean, var = td.Tensor("x", ("R", "C"), td.f32), td.Func("mean"), td.Func("var")
    mean[i] = td.mean(x[i, j], axis=j)
    var[i] = td.mean((x[i, j] - mean[i]) ** 2, axis=j)
    s = td.Schedule(var)
    s["var_sum"].online(j, 64)
    given = (3000 + np.random.default_rng(0).standard_normal((4, 5000))).astype(np.float32)
    want = given.astype(np.float64).var(1)
    np.testing.assert_allclose(td.compile(s)(given), want, rtol=1e-4)


def test_funcs_in_the_loops_of_a_member_are_an_error() -> None:
    i, m = td.vars("i m")
    a, top, f = td.Tensor("a", (8, 3), td.f32), td.Func("top"), td.Func("f")
    top[i] = td.max(a[m, i], axis=m)
    f[i] = td.sum(a[m, i] - top[i], axis=m) + i
    s = td.Schedule(f)
    s[top].vectorize("m", 8)
    with pytest.raises(td.ScheduleError, match="'top_lanes' has its place in the loops of 'top'"):
        s["f_sum"].online("m", 2)
