"""Directives on how a kernel loads, stores or is launched leave loops on a GPU to the default schedule."""

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.gpu.launches import launches_of
from tests.codegen.cuda.programs import kernel_of

i, j, k = td.vars("i j k")

PROPERTIES = {
    "stream_stores": lambda stage: stage.stream_stores(),
    "cache_policy": lambda stage: stage.cache_policy("x", "evict_first"),
    "launch_bounds": lambda stage: stage.launch_bounds(2),
    "grid_sync": lambda stage: stage.grid_sync(),
}


def elements():
    x, f = td.Tensor("x", (5003,), td.f32), td.Func("f")
    f[i] = td.exp(x[i]) * 2
    return f


def products():
    x, w, f = td.Tensor("x", (128, 64), td.f16), td.Tensor("w", (64, 128), td.f16), td.Func("f")
    f[i, j] = td.sum(td.cast(x[i, k], td.f32) * w[k, j], axis=k)
    return f


def total():
    x, f = td.Tensor("x", (100003,), td.i32), td.Func("f")
    f[()] = td.sum(x[i], axis=i)
    return f


def running_sums():
    x, f = td.Tensor("x", (1 << 20,), td.f32), td.Func("f")
    r = td.range("r", 1, x.shape[0])
    f[i] = x[i]
    f[r] = f[r] + f[r - 1]
    return f


def launches(s):
    return launches_of(kernel_of(s)).launches


def sizes(s):
    return [(launch.grid, launch.block) for launch in launches(s)]


@pytest.mark.parametrize("directive", PROPERTIES)
@pytest.mark.parametrize("program", [elements, products], ids=lambda p: p.__name__)
def test_loops_are_those_without_the_directive(program, directive):
    f = program()
    s = td.Schedule(f, target="cuda:sm_80")
    plain = sizes(s)
    PROPERTIES[directive](s[f])
    assert sizes(s) == plain and plain[0][1] != (1, 1, 1)
    text = td.compile(s).explain()
    assert f"\n  by hand: {directive}\n" in text and "f: by hand" not in text


@pytest.mark.parametrize("program", [total, running_sums], ids=lambda p: p.__name__)
def test_added_kernels_have_the_properties(program):
    f = program()
    s = td.Schedule(f, target="cuda:sm_80")
    s[f].cache_policy("x", "evict_first").launch_bounds(2)
    found = launches(s)
    reading = [launch for launch in found if any(p.name == "x" for p in launch.params)]
    assert len(found) > 1 and reading
    assert all(launch.policies == (("x", "evict_first"),) for launch in reading)
    assert all(launch.resident == 2 for launch in found)


def test_added_kernels_join_the_grid_of_the_stage(rng):
    f = total()
    s = td.Schedule(f, target="cuda:sm_80")
    assert len(launches(s)) == 2
    s[f].grid_sync()
    x = rng.integers(-9, 9, 100003).astype(np.int32)
    for schedule in (s, s.completed()):
        assert len(launches(schedule)) == 1
        assert td.emulate(td.compile(schedule))(x) == x.sum()


def test_a_grid_that_cannot_be_resident_is_an_error():
    x, m, f = td.Tensor("x", (1024, 1024), td.f32), td.Func("m"), td.Func("f")
    m[i] = td.max(x[i, k], axis=k)
    f[i, j] = x[i, j] - m[i]
    s = td.Schedule(f, target="cuda:sm_80")
    s[m].compute_root()
    s[f].grid_sync()
    with pytest.raises(td.ScheduleError, match="1024 are too many"):
        td.compile(s).explain()


def test_a_policy_for_what_is_no_array_is_explained():
    x, m, f = td.Tensor("x", (1024, 1024), td.f32), td.Func("m"), td.Func("f")
    m[i] = td.max(x[i, k], axis=k)
    f[i, j] = td.exp(x[i, j] - m[i])
    s = td.Schedule(f, target="cuda:sm_80")
    s[f].cache_policy(m, "evict_last").cache_policy(x, "evict_first")
    reasons = [line for line in td.compile(s).explain().splitlines() if "cache_policy of" in line]
    assert reasons == ["  cache_policy of m: it is not an array in global memory"]


def test_a_tile_tree_is_explained_by_its_text():
    x, w, f = td.Tensor("x", (64, 64), td.f32), td.Tensor("w", (64, 64), td.f32), td.Func("f")
    f[i, j] = td.sum(x[i, k] * w[k, j], axis=k)
    text = td.compile(f, target="cuda:sm_80").explain()
    assert "\n  f: i:" in text and "Cut(" not in text
