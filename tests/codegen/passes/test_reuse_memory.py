"""Allocations that share memory where their values are not needed at the same time."""

from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.ir.loops import Alloc, Block, For, Invoke, Operand
from tdsl.codegen.ir.statements import map_parts, stored_in, walk
from tdsl.codegen.passes.reuse_memory import reuse_memory
from tdsl.lang.expr import ZERO
from tests.codegen.passes.loop_text import assert_same_results, kernel


def allocated(k):
    return [s.name for s in walk(k.body) if isinstance(s, Alloc)]


def shared(arrays, text):
    before = kernel(arrays, text)
    after = reuse_memory(before)
    assert_same_results(before, after)
    return after


def chain(second, third="c[i] = u[i]"):
    return f"""
    with alloc(t, 4000, "auto"):
        with alloc(u, 4000, "auto"):
            for i in parallel(0, 4000):
                t[i] = a[i] * 3
            for i in parallel(0, 4000):
                {second}
            for i in parallel(0, 4000):
                {third}
    """


@pytest.mark.parametrize(
    "second, third, kept",
    [
        ("u[i] = t[i] + 1", "c[i] = u[i]", ["t"]),
        ("u[i] = t[i] * t[i] + a[i]", "c[i] = u[3999 - i]", ["t"]),
        ("u[i] = t[3999 - i]", "c[i] = u[i]", ["t", "u"]),
        ("u[i] = t[max(i - 1, 0)] + t[i]", "c[i] = u[i]", ["t", "u"]),
        ("u[3999 - i] = t[i]", "c[i] = u[i]", ["t", "u"]),
        ("u[i // 2] = t[i // 2] + 1", "c[i] = u[i // 2]", ["t", "u"]),
        ("u[i] = t[i] + 1", "c[i] = u[i] + t[i]", ["t", "u"]),
    ],
)
def test_memory_is_written_in_place_where_each_element_is_read_last(second, third, kept):
    assert allocated(shared("c[4000], a[4000]", chain(second, third))) == kept


def test_a_copy_into_the_same_memory_is_removed():
    after = shared("c[4000], a[4000]", chain("u[i] = t[i]"))
    assert allocated(after) == ["t"]
    assert sum(isinstance(s, For) for s in walk(after.body)) == 2


def test_small_memory_and_other_shapes_are_left():
    text = """
    with alloc(t, 40, "auto"):
        with alloc(u, 40, "auto"):
            for i in serial(0, 40):
                t[i] = a[i]
            for i in serial(0, 40):
                u[i] = t[i] + 1
            for i in serial(0, 40):
                c[i] = u[i]
    """
    assert allocated(shared("c[40], a[40]", text)) == ["t", "u"]
    other = chain("u[i] = t[i] + 1").replace("alloc(u, 4000", "alloc(u, 4001")
    assert allocated(shared("c[4000], a[4000]", other)) == ["t", "u"]


def test_two_loops_that_write_one_memory_keep_what_the_second_one_reads():
    text = """
    with alloc(t, 4000, "auto"):
        with alloc(u, 4000, "auto"):
            for i in parallel(0, 4000):
                t[i] = a[i] * 3
            for y in parallel(0, 40):
                for x in serial(0, 100):
                    u[y * 100 + x] = t[y * 100 + x] + 1
                for x in serial(0, 100):
                    u[y * 100 + x] = t[y * 100 + x] + u[y * 100 + x]
            for i in parallel(0, 4000):
                c[i] = u[i]
    """
    assert allocated(shared("c[4000], a[4000]", text)) == ["t", "u"]


def test_a_third_allocation_uses_memory_whose_values_are_dead():
    text = """
    with alloc(t, 4000, "auto"):
        with alloc(u, 4000, "auto"):
            with alloc(v, 4000, "auto"):
                for i in parallel(0, 4000):
                    t[i] = a[i] * 3
                for i in parallel(0, 4000):
                    u[i] = t[3999 - i]
                for i in parallel(0, 4000):
                    v[i] = u[3999 - i] + 1
                for i in parallel(0, 4000):
                    c[i] = v[i]
    """
    assert allocated(shared("c[4000], a[4000]", text)) == ["t", "u"]


def test_steps_in_time_need_two_arrays():
    """Steps over a copy of the array before the last one are steps in place, without copies."""
    n, steps = 100, 8
    i, j = td.vars("i j")
    y, x = td.range("y", 1, n - 1), td.range("x", 1, n - 1)
    a, b = (td.Tensor(name, (n, n), td.f64) for name in "ab")
    new, old = a, b
    for step in range(steps):
        f = td.Func(f"f{step}", shape=(n, n))
        f[i, j] = old[i, j]
        f[y, x] = 0.25 * (new[y - 1, x] + new[y + 1, x] + new[y, x - 1] + new[y, x + 1])
        new, old = f, new
    compiled = td.compile(new)
    rng = np.random.default_rng(0)
    arrays = rng.random((n, n)), rng.random((n, n))
    expected_new, expected_old = arrays[0].copy(), arrays[1].copy()
    for _ in range(steps):
        e = expected_new
        expected_old[1:-1, 1:-1] = 0.25 * (e[:-2, 1:-1] + e[2:, 1:-1] + e[1:-1, :-2] + e[1:-1, 2:])
        expected_new, expected_old = expected_old, expected_new
    np.testing.assert_allclose(compiled(*arrays), expected_new)
    text = str(compiled.loops("final"))
    assert text.count("alloc(") == 2
    assert text.count("# parallel") == steps  # the copies of the arguments have too little work for threads


def test_a_loop_keeps_its_range_beside_another_of_its_name():
    text = """
    with alloc(t, 4000, "auto"):
        with alloc(u, 4000, "auto"):
            for i in parallel(0, 4000):
                t[i] = a[i] * 3
            for y in serial(0, 39):
                for x in serial(0, 200):
                    u[y * 100 + x] = t[y * 100 + x] + 1
                for x in serial(0, 100):
                    c[y * 100 + x] = 1
            for i in parallel(0, 4000):
                c[i] = u[i]
    """
    assert allocated(shared("c[4000], a[4000]", text)) == ["t", "u"]


def test_an_atomic_update_by_the_element_itself_is_no_copy():
    text = """
    with alloc(t, 4000, "auto"):
        with alloc(u, 4000, "auto"):
            for i in parallel(0, 4000):
                t[i] = a[i] * 3
            for i in parallel(0, 4000):
                t[i] += t[i]
            for i in parallel(0, 4000):
                u[i] = t[i] + 1
            for i in parallel(0, 4000):
                c[i] = u[i]
    """
    assert allocated(shared("c[4000], a[4000]", text)) == ["t"]


def test_memory_that_instructions_access_is_not_written_in_place():
    k = kernel("c[4000], a[4000]", chain("u[i] = t[i] + 1"))
    loop = next(s for s in walk(k.body) if isinstance(s, For) and "u" in stored_in(s))
    other = Invoke("dot", tuple(Operand(name, (ZERO,), (0,)) for name in ("c", "u")))
    both = replace(loop, body=Block((loop.body, other)))

    def changed(s):
        return both if s == loop else map_parts(s, changed)

    assert allocated(reuse_memory(replace(k, body=changed(k.body)))) == ["t", "u"]
