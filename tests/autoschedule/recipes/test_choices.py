"""Recipes change a schedule as a whole or not at all."""

import pytest

import tdsl as td
from tdsl.autoschedule.patterns.strips import Strips
from tdsl.autoschedule.recipes.choices import choose

i, j, k = td.vars("i j k")


def product():
    """The schedule of a product of matrices."""
    a, b = td.Tensor("a", (256, 256), td.f32), td.Tensor("b", (256, 256), td.f32)
    c = td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    return td.Schedule(c)


def test_a_recipe_that_fails_leaves_the_schedule_as_it_was():
    s = product()
    before = s.state
    with pytest.raises(td.ScheduleError, match="no loop 'zz'"):
        td.recipes.matmul(s["c"], parallel="zz")
    assert s.state == before
    assert s.directives == ()
    assert s.origins == {}


def test_a_function_that_fails_leaves_the_schedule_as_it_was():
    s = product()
    s["c"].split("i", 128)
    before, text = s.state, str(s)

    def wrong(schedule):
        schedule["c"].reorder("j", "k")
        schedule["c"].parallel("zz")

    with pytest.raises(td.ScheduleError, match="no loop 'zz'"):
        s.apply(wrong)
    assert s.state == before
    assert str(s) == text


def test_a_choice_has_its_old_name_for_one_version() -> None:
    plan = Strips("y", (), "y", 4, ())
    with pytest.warns(DeprecationWarning, match="last=.* is deprecated: lookup_axes="):
        chosen = choose(plan, {"last": (("table", "x"),)})
    assert chosen.lookup_axes == (("table", "x"),)
