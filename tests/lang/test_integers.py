"""Integer points of linear systems, against trying all of a box."""

import itertools
import random

import pytest

from tdsl.lang.integers import LinearForm, find_point


@pytest.mark.parametrize("seed", range(60))
def test_find_point_agrees_with_enumeration(seed):
    draw = random.Random(seed)
    names = [("x",), ("y",), ("z",)]
    ends = {n: sorted((draw.randint(-4, 4), draw.randint(-4, 4))) for n in names}
    least = [LinearForm({n: 1}, -lo) for n, (lo, _) in ends.items()]
    least += [LinearForm({n: -1}, hi) for n, (_, hi) in ends.items()]

    def drawn():
        terms = {n: draw.randint(-3, 3) for n in names}
        return LinearForm({n: c for n, c in terms.items() if c}, draw.randint(-5, 5))

    zero = [drawn() for _ in range(draw.randint(0, 2))]
    least += [drawn() for _ in range(draw.randint(0, 3))]
    box = itertools.product(*(range(lo, hi + 1) for lo, hi in ends.values()))
    points = [dict(zip(names, values, strict=True)) for values in box]
    fits = [p for p in points if all(e.at(p) == 0 for e in zero) and all(e.at(p) >= 0 for e in least)]
    point = find_point(zero, least)
    assert (point in fits) if fits else point is None


def test_find_point_of_unbounded_variables():
    x, y = LinearForm({("x",): 1}), LinearForm({("y",): 1})
    least = [x.plus(y, -1).less(1), x.plus(y, 2).less(-3)]
    point = find_point([], least)
    assert all(e.at(point) >= 0 for e in least)
