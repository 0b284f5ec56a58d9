"""What conditions on indices choose is read in a part of the iterations."""

import pytest

import tdsl as td
from tdsl.cost.branches import branches_of
from tdsl.lang.expr import const

i, j = td.vars("i j")
a, b, c = (td.Tensor(n, (24, 24), td.f32) for n in "abc")
RANGES = {"i": (const(0), const(23)), "j": (const(0), const(23))}


def parts_of(value: object, **extents: int) -> dict[str, float]:
    """In which part of the iterations each input is read of which these values have been given."""
    f = td.Func("f", shape=(24, 24))
    f[i, j] = value
    (d,) = td.Schedule(f).program.func("f").definitions
    ranges = {v: (const(0), const(extents.get(v, 1) - 1)) for v in "ij"}
    branches = branches_of(d, RANGES)
    return {n: sum(x.part(ranges) for x in several) for n, several in branches.items()}


def test_parts_follow_from_the_condition_of_each_branch() -> None:
    three = td.where(i < 6, a[i, j], td.where(i < 18, b[i, j], c[i, j]))
    assert parts_of(three) == pytest.approx({"a": 6 / 24, "b": 12 / 24, "c": 6 / 24})
    assert parts_of(three, i=8) == pytest.approx({"a": 8 / 24, "b": 12 / 24, "c": 8 / 24})
    assert parts_of(three, i=24) == pytest.approx({"a": 1, "b": 1, "c": 1})


def test_what_is_read_elsewhere_too_or_by_data_is_read_always() -> None:
    assert parts_of(td.where(i < 6, a[i, j], b[i, j]) + a[i, j]) == pytest.approx({"b": 18 / 24})
    assert parts_of(td.where(a[i, j] < 6, b[i, j], c[i, j])) == {}


def test_conditions_on_several_variables_are_combined() -> None:
    corner = td.where((i < 6) & (j >= 12), a[i, j], 0)
    assert parts_of(corner) == pytest.approx({"a": 6 / 24 * 12 / 24})


def test_a_box_is_that_of_an_iteration_that_reads() -> None:
    f = td.Func("f", shape=(24, 24))
    f[i, j] = td.where(i < 16, 0, a[td.clip(i - 16, 0, 7), j])
    (d,) = td.Schedule(f).program.func("f").definitions
    ((branch,),) = branches_of(d, RANGES).values()
    (lo, hi), _ = branch.box({"i": (const(0), const(3)), "j": (const(0), const(23))})
    assert (lo.value, hi.value) == (0, 3)
