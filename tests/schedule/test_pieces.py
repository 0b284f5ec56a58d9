"""Updates whose value and element change along a range: their lanes are cut where they do."""

import random
from contextlib import suppress

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import ScheduleError
from tdsl.lang.interp import interpret

N = 24  # extent of a dimension
K = 7  # steps of the outer loop


class Update:
    """A random update f[k, e] = where(s < c, ...) over s inside k, of which some pieces accumulate."""

    def __init__(self, seed):
        draw = random.Random(seed)
        m, row = td.vars("m row")
        a = td.Tensor("a", (N,), td.f64)
        f = self.f = td.Func("f", shape=(K + 1, N))
        k = td.range("k", 1, K + 1)
        s = td.range("s", 0, draw.choice([10, k + 3, 2 * k + 1]))
        f[row, m] = a[m] * 0.25 + td.cast(row, td.f64)

        def index():
            return draw.choice(
                [s, s + 1, k, k + 1, 15, s - k + K, 20 - s, td.clip(s - k, 0, k + 4), td.minimum(s, k + 3)]
            )

        def cut():
            at = draw.choice([k, k + 1, k + 2, 4, 2 * k])
            return draw.choice([s < at, s <= at, at < s, s == at, s != at, at - s > 0])

        def term():
            return draw.choice([a[td.clip(s + k, 0, N - 1)], f[k - 1, index()], f[k, index()], a[k]])

        def value(at):
            old = f[k, at]
            return draw.choice([old + term() * 0.5, old - term() * 0.25, term(), td.minimum(old, term())])

        parts = [index() for _ in range(draw.choice([1, 2, 3]))]
        target, total = parts[0], value(parts[0])
        for at in parts[1:]:
            c = cut()
            target, total = td.where(c, target, at), td.where(c, total, value(at))
        f[k, target] = total

    def arrays(self):
        return {"a": np.random.default_rng(0).random(N)}


def check(seed, schedule_of):
    update = Update(seed)
    schedule = td.Schedule(update.f)
    schedule_of(schedule[update.f].update(0))
    (expected,) = interpret(schedule.state.program, update.arrays())
    np.testing.assert_allclose(td.compile(schedule)(**update.arrays()), expected, rtol=1e-12)


@pytest.mark.in_part(2)
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_lanes_compute_what_the_update_means(first):
    for seed in range(first, first + 10):
        check(seed, lambda stage: stage)
        lanes = random.Random(seed).choice([2, 4, 8])
        with suppress(ScheduleError):  # two points of one piece need each other
            check(seed, lambda stage, lanes=lanes: stage.vectorize("s", lanes))


def test_a_recursion_in_phases_is_cut_into_its_phases():
    """A sum into one element, a value of it, and a row that reads this value: one range, three pieces."""
    n = 40
    m, row = td.vars("m row")
    r = td.Tensor("r", (n,), td.f64)
    f = td.Func("f", shape=(n, n + 1))
    f[row, m] = td.where(row == 0, 0.5, 0.0)
    k = td.range("k", 1, n)
    s = td.range("s", 0, 2 * k + 1)
    at = td.clip(s - k - 1, 0, k - 1)
    total = f[k, n] + r[td.clip(k - 1 - s, 0, n - 1)] * f[k - 1, td.clip(s, 0, k - 1)]
    entry = f[k - 1, at] * 0.5 + f[k, k]
    column = td.where(s < k, n, td.where(s == k, k, at))
    f[k, column] = td.where(s < k, total, td.where(s == k, f[k, n] / n, entry))
    schedule = td.Schedule(f)
    schedule[f].update(0).vectorize(s, 4)
    arrays = {"r": np.random.default_rng(0).random(n)}
    (expected,) = interpret(schedule.state.program, arrays)
    compiled = td.compile(schedule)
    np.testing.assert_allclose(compiled(**arrays), expected)
    text = str(compiled.loops("final"))
    assert "f_lanes[0:4] + r[" in text and "where(f_s" not in text
