"""Schedules that are found: right, the same each time, with a reason for everything."""

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret
from tdsl.target import Target
from tdsl.tilegraph.search import candidates, search
from tests.tilegraph.chains import adds_concat_pool


@td.op
def attention(q: td.f32["Q", "D"], k: td.f32["S", "D"], v: td.f32["S", "E"]):
    i, j, d, e = td.vars("i j d e")
    score, top, p, total, out = (td.Func(n) for n in ("score", "top", "p", "total", "out"))
    score[i, j] = td.sum(q[i, d] * k[j, d], axis=d) / 8
    top[i] = td.max(score[i, j], axis=j)
    p[i, j] = td.exp(score[i, j] - top[i])
    total[i] = td.sum(p[i, j], axis=j)
    out[i, e] = td.sum(p[i, j] * v[j, e], axis=j) / total[i]
    return out


@td.op
def network(x: td.f32["M", "K"], w: td.f32["K", "N"], bias: td.f32["N"]):
    i, j, k = td.vars("i j k")
    hidden, mean, out = td.Func("hidden"), td.Func("mean"), td.Func("out")
    hidden[i, j] = td.maximum(td.sum(x[i, k] * w[k, j], axis=k) + bias[j], 0)
    mean[i] = td.sum(hidden[i, j], axis=j) / td.cast(w.shape[1], td.f32)
    out[i, j] = hidden[i, j] - mean[i]
    return out


SIZES = {"attention": {"Q": 70, "S": 90, "D": 16, "E": 24}, "network": {"M": 65, "K": 33, "N": 48}}
OPERATORS = {"attention": attention, "network": network}


def arrays(name: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    program, sizes = OPERATORS[name].program, SIZES[name]
    return {
        t.name: rng.standard_normal([sizes[n.name] for n in t.shape]).astype(np.float32)
        for t in program.inputs
    }


@pytest.mark.parametrize("name", OPERATORS)
def test_the_best_candidate_is_right_and_can_be_replayed(name: str) -> None:
    op, given = OPERATORS[name], arrays(name)
    s = op.autoschedule(**given)
    (want,) = interpret(op.program, given)
    np.testing.assert_allclose(td.compile(s)(**given), want, rtol=1e-4, atol=1e-5)
    again = op.schedule(**SIZES[name]).replay(s.to_json())
    assert str(again) == str(s)
    assert str(op.autoschedule(**SIZES[name])) == str(s)


def test_every_edge_and_every_candidate_has_a_reason() -> None:
    text = str(attention.autoschedule(**SIZES["attention"]).explain())
    for edge in ("q -> score_sum", "score ->", "p ->", "total ->"):
        assert edge in text
    assert "taken: default" in text
    assert "not taken: apart" in text
    assert text.splitlines()[-1].startswith("time: ")


def test_long_rows_on_a_gpu_are_read_in_tiles() -> None:
    s = attention.autoschedule(Q=64, S=100_000, D=64, E=64, target="cuda")
    assert "online" in str(s)
    assert s.traffic("global") < 1.4 * s.prediction().least
    default = attention.schedule(Q=64, S=100_000, D=64, E=64, target="cuda")
    assert default.traffic("global") == s.traffic("global")  # by default they are read in one pass, too


@td.op
def looked_up(table: td.f32["N"], at: td.i64["M"]):
    i, k = td.vars("i k")
    weights, out = td.Func("weights"), td.Func("out")
    weights[i] = td.sum(table[k] * td.cast(i, td.f32), axis=k)
    out[i] = weights[at[i]]
    return out


def test_nothing_is_preferred_where_conditions_say_which_input_is_read() -> None:
    (out,) = adds_concat_pool(64, parts=9)
    best, *_ = candidates(td.Schedule(out).program, {}, Target("cpu"))
    assert best.label == "default"


def test_an_index_without_bounds_is_refused() -> None:
    with pytest.raises(td.IndexBoundError, match=r"(?s)'weights' is needed has no bounds.*td.clip"):
        looked_up.autoschedule(N=8, M=8)
    with pytest.raises(td.IndexBoundError, match="has no bounds"):
        looked_up.schedule(N=8, M=8).traffic("memory")


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_reads_outside_of_an_array_are_refused(target: str) -> None:
    @td.op
    def gathered(a: td.f32["N"], at: td.i32["M"]) -> td.Func:
        i, y = td.vars("i"), td.Func("y")
        y[i] = a[at[i]]
        return y

    with pytest.raises(td.IndexBoundError, match=r"(?s)'a' may be read at -2147483648.*td.clip"):
        gathered.autoschedule(N=5, M=3, target=target)


def test_reads_in_bounds_after_inlining_are_accepted() -> None:
    @td.op
    def turned(a: td.f32["N"], at: td.i32["M"]) -> td.Func:
        i, place, y = td.vars("i"), td.Func("place"), td.Func("y")
        place[i] = at[i] % 5
        y[i] = a[place[i]]
        return y

    f = td.compile(turned.autoschedule(N=5, M=4))
    at = np.array([7, 0, 4, 5], np.int32)
    np.testing.assert_array_equal(f(np.arange(5, dtype=np.float32), at), [2, 0, 4, 0])


def test_refused_candidates_are_reported() -> None:
    result = search(network.program, SIZES["network"], Target("cuda"))
    assert all("is not for" in error.message for error in result.refused.values())


def test_a_fault_of_a_recipe_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object, **__: object) -> None:
        raise td.TargetError("this must not happen")

    monkeypatch.setattr("tdsl.tilegraph.search.write_tiles", fault)
    with pytest.raises(td.TargetError, match="must not happen"):
        candidates(td.Schedule(*adds_concat_pool(64, parts=9)).program, {}, Target("cpu"))


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_calls_of_reassociated_products_are_separate_kernels(target: str) -> None:
    """Some results of calls are not made in that order."""
    i, j, k, r = td.vars("i j k r")
    x, u = td.Tensor("x", (512, 1024), td.f32), td.Tensor("u", (1024, 16), td.f32)
    w = td.Tensor("w", (16, 1024), td.f32)
    full, y = td.Func("full"), td.Func("y")
    full[k, j] = td.sum(u[k, r] * w[r, j], axis=r)
    y[i, j] = td.sum(x[i, k] * full[k, j], axis=k)
    result = search(td.Schedule(y).program, {}, Target(target), None, {"full", "y"})
    assert "reassociated, calls apart" in {c.label for c in result.candidates}
    assert not result.refused
