"""Recipes change a schedule as a whole or not at all."""

import pytest

import tdsl as td

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
    a, b, c = td.Tensor("a", (128, 64), td.f16), td.Tensor("b", (64, 128), td.f16), td.Func("c")
    c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    s = td.Schedule(c, target="cuda:sm_90a")
    with pytest.warns(DeprecationWarning, match="hopper=.* is deprecated: warpgroups=") as caught:
        chosen = td.recipes.tensor_core_matmul(s[c], block=(64, 64, 64), warp=(64, 64), hopper=True)
    assert chosen.instruction.startswith("wgmma")
    assert caught[0].filename == __file__
