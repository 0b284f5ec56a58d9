"""The region function against brute force: no touched point is outside a box; where it is exact."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdsl.core.node import transform
from tdsl.lang.bounds import NO_FACTS, Facts, upper
from tdsl.lang.expr import (
    ONE,
    ZERO,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Read,
    Select,
    Size,
    Unary,
    Var,
    const,
)
from tdsl.lang.interp import evaluate
from tdsl.lang.regions import (
    Interval,
    box_of,
    boxes_of_reads,
    interval_of,
    interval_where,
    is_empty,
    restrict_ranges,
    union,
)
from tdsl.lang.simplify import simplify
from tdsl.lang.solve import solve
from tdsl.lang.types import i32, i64, u8
from tests.lang.index_expressions import (
    PADS,
    POSITIVE,
    affine,
    conditions,
    constant_ranges,
    expressions,
    nested_facts,
    points_of,
    points_of_facts,
    values,
)

NAMES = ("i", "j")
Ranges = dict[str, tuple[int, int]]


def as_ranges(ranges: Ranges) -> dict[str, Interval]:
    return {n: (const(lo), const(hi)) for n, (lo, hi) in ranges.items()}


def end(e: Expr | None, default: float) -> float:
    if e is None:
        return default
    simple = simplify(e)
    assert isinstance(simple, Const)
    return int(simple.value)


def with_extent(e: Expr, n: int) -> Expr:
    """`e` where the only named extent is a number."""
    return transform(e, lambda x: const(n) if isinstance(x, Size) else x)


def ends(interval: Interval) -> tuple[float, float]:
    return end(interval[0], -np.inf), end(interval[1], np.inf)


@given(expressions(NAMES), constant_ranges(NAMES))
def test_an_interval_holds_every_value(e: Expr, ranges: Ranges) -> None:
    lo, hi = ends(interval_of(e, as_ranges(ranges)))
    touched = values(e, points_of(ranges))
    assert lo <= touched.min()
    assert touched.max() <= hi


@given(affine(("i", "j", "k")), constant_ranges(("i", "j", "k")))
def test_the_interval_of_a_sum_is_exact(e: Expr, ranges: Ranges) -> None:
    touched = values(e, points_of(ranges))
    assert ends(interval_of(e, as_ranges(ranges))) == (touched.min(), touched.max())


@st.composite
def exact(draw: Any) -> Expr:
    """Sums, quotients, extremes and padding in which every variable stands once."""
    left = Binary("add", Var("i"), const(draw(st.integers(-6, 6))))
    right = Binary("mul", Var("j"), const(draw(st.integers(-3, 3))))
    match draw(st.integers(0, 3)):
        case 0:
            return Binary("floordiv", Binary("add", left, right), const(draw(POSITIVE)))
        case 1:
            return Binary(draw(st.sampled_from(("min", "max"))), left, right)
        case 2:
            e = Call("pad_edge", (Binary("add", left, right), const(draw(POSITIVE))), i64)
            return Binary("add", e, const(draw(st.integers(-3, 3))))
        case _:
            return Binary("sub", Binary("floordiv", left, const(draw(POSITIVE))), right)


@given(exact(), constant_ranges(NAMES))
def test_quotients_extremes_and_clips_of_separate_variables_are_exact(e: Expr, ranges: Ranges) -> None:
    touched = values(e, points_of(ranges))
    assert ends(interval_of(e, as_ranges(ranges))) == (touched.min(), touched.max())


@given(expressions(NAMES), constant_ranges(("i",)), nested_facts(("t", "j")))
def test_an_interval_over_an_outer_loop_holds_at_each_step_of_it(
    e: Expr, ranges: Ranges, facts: Facts
) -> None:
    """j and t are outer: the ends are expressions of them."""
    lo, hi = interval_of(e, as_ranges(ranges), facts)
    outer = points_of_facts(facts)
    for at in range(len(outer["j"])):
        fixed = {n: v[at : at + 1] for n, v in outer.items()}
        steps = points_of(ranges)
        full = {**steps, **{n: np.broadcast_to(v, steps["i"].shape) for n, v in fixed.items()}}
        touched = values(e, full)
        assert lo is None or evaluate(lo, fixed) <= touched.min()
        assert hi is None or touched.max() <= evaluate(hi, fixed)


@given(affine(("i", "t")), st.integers(-4, 4), st.integers(0, 5), st.integers(-9, 9))
def test_ends_that_depend_on_an_outer_loop_are_exact_for_sums(
    e: Expr, times: int, extent: int, t: int
) -> None:
    start = Binary("mul", const(times), Var("t"))
    ranges = {"i": (start, Binary("add", start, const(extent)))}
    i = np.arange(times * t, times * t + extent + 1)
    touched = values(e, {"i": i, "t": np.full_like(i, t)})
    ends = tuple(int(evaluate(x, {"t": np.array(t)})) for x in interval_of(e, ranges) if x)
    assert ends == (touched.min(), touched.max())


@given(st.sampled_from(PADS), affine(("i",)), st.integers(0, 7), constant_ranges(("i",)))
def test_padding_by_a_named_extent_stays_inside_for_every_extent(
    mode: str, e: Expr, n: int, ranges: Ranges
) -> None:
    padded = Call(mode, (e, Size("n")), i64)

    lo, hi = interval_of(padded, as_ranges(ranges))
    assert lo is not None
    assert hi is not None
    touched = values(with_extent(padded, n), points_of(ranges))
    assert 0 <= end(with_extent(lo, n), 0) <= touched.min()
    assert touched.max() <= end(with_extent(hi, n), 0) <= max(n - 1, 0)


@given(conditions(expressions(NAMES)), constant_ranges(NAMES))
def test_restricted_ranges_keep_every_point_that_a_condition_keeps(cond: Expr, ranges: Ranges) -> None:
    tight = restrict_ranges(as_ranges(ranges), cond)
    points = points_of(ranges)
    kept = values(cond, points)
    for name, interval in tight.items():
        lo, hi = ends(interval)
        assert np.all(points[name][kept] >= lo)
        assert np.all(points[name][kept] <= hi)
        assert ranges[name][0] <= lo
        assert hi <= ranges[name][1]


def _periodic(x: Expr, n: int, kind: str, rest: Expr) -> Expr:
    """The sum of an index that is padded, or its remainder, and another index."""
    inside = _binary("mod", x, n) if kind == "mod" else Call(kind, (x, const(n)), i64)
    return _binary("add", inside, rest)


PERIODIC = st.builds(
    _periodic, affine(NAMES), st.integers(1, 9), st.sampled_from(("mod", *PADS)), affine(NAMES)
)


def _nonlinear(x: Expr, y: Expr, kind: str) -> Expr:
    """An index by `abs`, a select, a cast or a product, beside another index."""
    match kind:
        case "abs":
            return _binary("add", Unary("abs", x), y)
        case "select":
            return Select(_binary("lt", y, x), x, _binary("sub", x, 3))
        case "cast":
            return _binary("add", Cast(Cast(x, i32), i64), y)
        case _:
            return _binary("mul", x, y)


NONLINEAR = st.builds(
    _nonlinear, affine(NAMES), affine(NAMES), st.sampled_from(("abs", "select", "cast", "product"))
)


@given(affine(NAMES) | PERIODIC | NONLINEAR, conditions(affine(NAMES)), constant_ranges(NAMES))
def test_an_interval_where_a_condition_holds_holds_every_value_there(
    e: Expr, cond: Expr, ranges: Ranges
) -> None:
    points = points_of(ranges)
    touched = values(e, points)[values(cond, points)]
    lo, hi = ends(interval_where(e, as_ranges(ranges), cond))
    assert np.all(touched >= lo)
    assert np.all(touched <= hi)
    low, high = ends(interval_of(e, as_ranges(ranges)))
    assert low <= lo
    assert hi <= high


@pytest.mark.parametrize("kind", ["mod", *PADS])
def test_a_condition_bounds_what_is_padded(kind: str) -> None:
    """Such as the lanes of a sum that are beyond its extent of 5."""
    lane = _binary("add", _binary("mul", Var("tile"), 4), Var("lane"))
    ranges = as_ranges({"tile": (0, 1), "lane": (0, 3)})
    e = _periodic(lane, 9, kind, ZERO)
    assert ends(interval_where(e, ranges, _binary("lt", lane, const(5)))) == (0, 4)


def test_a_condition_bounds_the_operand_of_abs() -> None:
    """A distance of lanes beyond an extent of 5 is that of no lane."""
    lane = _binary("add", _binary("mul", Var("tile"), 4), Var("lane"))
    ranges = as_ranges({"tile": (0, 1), "lane": (0, 3), "i": (0, 5)})
    e = Unary("abs", _binary("sub", lane, Var("i")))
    assert ends(interval_where(e, ranges, _binary("lt", lane, const(5)))) == (0, 5)


@given(st.sampled_from(("lt", "le", "gt", "ge", "eq")), affine(("i",)), st.integers(-9, 9))
def test_a_condition_on_one_variable_restricts_to_what_it_keeps(op: str, e: Expr, n: int) -> None:
    ranges = {"i": (-9, 9)}
    cond = Binary(op, e, const(n))
    points = points_of(ranges)
    kept = points["i"][values(cond, points)]
    lo, hi = ends(restrict_ranges(as_ranges(ranges), cond)["i"])
    if kept.size and op != "eq":
        assert (lo, hi) == (kept.min(), kept.max())
    elif kept.size:
        assert lo <= kept.min() <= kept.max() <= hi


@given(expressions(NAMES, data=False), constant_ranges(("j",)), st.integers(-5, 5), POSITIVE)
def test_a_solved_range_keeps_an_index_inside(e: Expr, ranges: Ranges, lo: int, count: int) -> None:
    hi = lo + count - 1
    first, last = ends(solve(e, "i", const(lo), const(hi), as_ranges(ranges)))
    if -np.inf < first and last < np.inf:
        points = points_of({"i": (int(first), int(last)), **ranges})
        touched = values(e, points)
        assert np.all((lo <= touched) & (touched <= hi))


@given(st.integers(-4, 4).filter(bool), affine(("j",)), constant_ranges(("j",)), POSITIVE)
def test_a_solved_range_of_a_sum_is_the_largest(times: int, rest: Expr, ranges: Ranges, count: int) -> None:
    e = Binary("add", Binary("mul", const(times), Var("i")), rest)
    first, last = ends(solve(e, "i", ZERO, const(count - 1), as_ranges(ranges)))
    for i in range(-60, 60):
        touched = values(e, points_of({"i": (i, i), **ranges}))
        assert (first <= i <= last) == bool(np.all((touched >= 0) & (touched < count)))


@given(constant_ranges(("i", "j")))
def test_a_union_is_the_smallest_interval_that_holds_both(ranges: Ranges) -> None:
    a, b = as_ranges(ranges).values()
    (p, q), (r, s) = ranges.values()
    assert ends(union(a, b)) == (min(p, r), max(q, s))


def test_boxes_of_reads_include_reads_in_indices() -> None:
    i, j = Var("i"), Var("j")
    table = Read("table", (i,), 0, u8)
    e = Binary(
        "add",
        Read("a", (Cast(table, i64), j), 0, i64),
        Read("a", (const(300), Binary("sub", const(2), j)), 0, i64),
    )
    boxes = boxes_of_reads([e], as_ranges({"i": (0, 4), "j": (0, 7)}))
    assert {n: [ends(x) for x in box] for n, box in boxes.items()} == {
        "a": [(0, 300), (-5, 7)],
        "table": [(0, 4)],
    }


def test_an_index_by_wide_data_has_no_bounds() -> None:
    (interval,) = box_of([Read("a", (Var("i"),), 0, i64)], as_ranges({"i": (0, 3)}))
    assert interval == (None, None)


def test_a_clip_bounds_wide_data() -> None:
    data = Read("a", (Var("i"),), 0, i64)
    clipped = Binary("min", Binary("max", data, ZERO), Binary("sub", Size("n"), ONE))
    interval = interval_of(clipped, as_ranges({"i": (0, 3)}))
    for n, expected in ((5, (0, 4)), (1, (0, 0)), (0, (-1, -1))):
        bound = [None if e is None else with_extent(e, n) for e in interval]
        assert ends((bound[0], bound[1])) == expected


@pytest.mark.parametrize("lo, hi, empty", [(0, 3, False), (3, 3, False), (4, 3, True), (0, -1, True)])
def test_emptiness_is_known_for_numbers(lo: int, hi: int, empty: bool) -> None:
    assert is_empty((const(lo), const(hi))) == empty


def test_emptiness_is_not_claimed_for_a_named_extent() -> None:
    assert not is_empty((ZERO, Binary("sub", Size("n"), ONE)))


def test_both_arms_of_a_choice_are_read() -> None:
    i = Var("i")
    e = Select(Binary("lt", i, const(2)), Binary("sub", i, const(3)), Binary("add", i, const(3)))
    assert ends(interval_of(e, as_ranges({"i": (0, 9)}))) == (-3, 12)


def test_the_ranges_of_a_sliding_window_cancel() -> None:
    """Two neighbouring tiles of 16: what the second adds does not depend on where they are."""
    t = Var("t")
    tile = {"x": (Binary("mul", const(16), t), Binary("add", Binary("mul", const(16), t), const(15)))}
    lo, hi = interval_of(Binary("add", Var("x"), const(1)), tile, NO_FACTS)
    assert lo is not None
    assert hi is not None
    assert simplify(Binary("sub", hi, lo)) == const(15)


def tiles_of(n: Expr) -> Interval:
    """0 to ceil(n / 64) - 1."""
    return ZERO, simplify(_binary("sub", _binary("floordiv", _binary("add", n, 63), 64), ONE))


def _binary(op: str, left: Expr, right: Expr | int) -> Expr:
    return Binary(op, left, const(right) if isinstance(right, int) else right)


def test_a_condition_alone_bounds_the_tiles_of_a_named_extent() -> None:
    """Else the bounds of tiles inside of tiles would be minima of minima."""
    n = Size("n")
    element = _binary("add", _binary("mul", Var("tile"), 64), Var("i"))
    ranges = {
        "tile": tiles_of(n),
        "i": (ZERO, simplify(_binary("min", const(63), _binary("sub", n, 1)))),
    }
    _, last = interval_where(element, ranges, _binary("lt", element, n))
    assert last == _binary("sub", n, 1)


def test_a_condition_bounds_nothing_where_an_extent_is_zero() -> None:
    """Below 6 there are elements of none of the tiles."""
    element = _binary("add", _binary("mul", Var("tile"), 64), Var("i"))
    ranges = {"tile": tiles_of(Size("n")), "i": (ZERO, const(63))}
    lo, last = interval_where(element, ranges, _binary("lt", element, const(6)))
    assert lo is not None
    assert last is not None
    nothing = transform(last, lambda e: ZERO if isinstance(e, Size) else e)
    assert is_empty((lo, simplify(nothing)))


def test_the_remainders_of_a_tile_that_an_end_cuts_are_as_many_as_its_elements():
    """(8 * b + 4 * t + x) % 8 where the sum is below 21: an interval of at most 4 elements."""
    b, t = Var("b"), Var("t")
    facts = NO_FACTS.with_range("b", ZERO, const(2)).with_range("t", ZERO, ONE)
    place = Binary("add", Binary("mul", b, const(8)), Binary("mul", t, const(4)))
    run = (place, Binary("min", Binary("add", place, const(3)), const(20)))
    lo, hi = interval_of(Binary("mod", Var("i"), const(8)), {"i": run}, facts)
    assert upper(simplify(Binary("sub", hi, lo), facts), facts) == 3
    for at in ({"b": x, "t": y} for x in range(3) for y in range(2)):
        first, last = (int(evaluate(e, at)) for e in run)
        seen = [x % 8 for x in range(first, last + 1)]
        if seen:
            assert (int(evaluate(lo, at)), int(evaluate(hi, at))) == (min(seen), max(seen))
