"""Schedules that are pickled or copied know what they knew."""

import copy
import pickle

import tdsl as td

i, j = td.vars("i j")


def schedule():
    x, f, g = td.Tensor("x", (8, 8), td.f32), td.Func("f"), td.Func("g")
    f[i, j] = x[i, j] + 1
    g[i, j] = f[j, i] * 2
    s = td.Schedule(g)
    s[g].parallel(i)
    return s, f, g


def test_a_schedule_whose_time_was_predicted_can_be_pickled():
    s, *_ = schedule()
    seconds = s.prediction().seconds
    again = pickle.loads(pickle.dumps(s))
    assert str(again) == str(s)
    assert again.prediction().seconds == seconds
    again["f"].compute_at("g", "i")
    assert str(again) != str(s)


def test_a_copy_in_memory_takes_the_funcs_of_the_original():
    s, f, g = schedule()
    s.prediction()
    again = copy.copy(s)
    again[f].compute_at(again[g], i)
    assert str(again) != str(s)
