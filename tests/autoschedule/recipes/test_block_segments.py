"""Reductions of segments on GPUs, whose ends are data."""

import itertools

import numpy as np
import pytest

import tdsl as td

i = td.vars("i")


def segments(count: int, n: int, reduce=td.sum) -> td.Func:
    start, v, out = (
        td.Tensor("start", (count + 1,), td.i32),
        td.Tensor("v", (n,), td.f32),
        td.Func("out", shape=count),
    )
    r = td.range("r", td.clip(start[i], 0, n), td.clip(start[i + 1], 0, n))
    out[i] = reduce(v[r], axis=r)
    return out


@pytest.mark.parametrize("count, n", [(1, 100), (50, 1600), (1000, 40_000), (3, 30_000), (300, 31)])
def test_segments_of_any_length(rng, count, n):
    start, v = np.sort(rng.integers(0, n + 1, count + 1)).astype(np.int32), rng.random(n).astype(np.float32)
    pairs = list(itertools.pairwise(start))
    compiled = td.compile(segments(count, n), target="cuda:sm_89")
    expected = [v[a:b].sum() for a, b in pairs]
    np.testing.assert_allclose(td.emulate(compiled)(start, v), expected, rtol=1e-4)
    best = td.emulate(td.compile(segments(count, n, td.max), target="cuda:sm_89"))(start, v)
    np.testing.assert_array_equal(best, [v[a:b].max() if b > a else -np.inf for a, b in pairs])


def test_threads_go_over_the_terms_of_their_segment_only():
    compiled = td.compile(segments(1000, 40_000), target="cuda:sm_89")
    assert [x.block for x in compiled.launch.kernels] == [(16, 16, 1)]
    (loop,) = (line for line in str(compiled.loops("final")).splitlines() if "r_o in range" in line)
    assert loop.count("start") == 2


def test_what_has_no_segments_is_refused():
    v, out, k = td.Tensor("v", (8, 100), td.f32), td.Func("out"), td.vars("k")
    out[i] = td.sum(v[i, k], axis=k)
    with pytest.raises(td.ScheduleError, match="the ends of what it reduces are not data"):
        td.recipes.block_segments(td.Schedule(out, target="cuda:sm_89")[out])
