"""Several variables as one: the meaning stays, readers find what they read, an output keeps its array."""

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import ScheduleError
from tdsl.lang.interp import interpret

i, j, k, p, q = td.vars("i j k p q")


def windows(rows=None, columns=None):
    """f sums products in a window of a; g is made of f."""
    a, w = (
        td.Tensor("a", (rows or "M", columns or "N"), td.i32),
        td.Tensor("w", (2, 3, "O"), td.i32),
    )
    f, g = td.Func("f"), td.Func("g")
    f[i, j, k] = td.sum(a[i + p, 2 * j + q] * w[p, q, k], axis=(p, q))
    g[i, j, k] = f[i, j, k] * 10 + i - j
    return a, f, g


def run(s, rng, target="cpu"):
    x, w = rng.integers(-9, 9, (7, 12), np.int32), rng.integers(-9, 9, (2, 3, 5), np.int32)
    return td.compile(s, target=target)(x, w), (x, w)


@pytest.mark.in_part(12)
@pytest.mark.parametrize("names", [("i", "j"), ("i", "k"), ("j", "i", "k"), ("i", "j", "k")])
@pytest.mark.parametrize("which", ["f", "g", "fg"])
@pytest.mark.parametrize("known", [False, True])
def test_any_variables_of_a_func_and_its_readers(rng, names, which, known):
    _, _, g = windows(*((7, 12) if known else ()))
    s = td.Schedule(g)
    for name in which:
        s[name].flatten(*names)
    got, (x, w) = run(s, rng)
    (want,) = interpret(td.Schedule(g).program, {"a": x, "w": w})
    np.testing.assert_array_equal(got, want, strict=True)


def test_terms_are_one_range_and_results_are_split_anywhere(rng):
    _, f, g = windows()
    s = td.Schedule(g)
    loop = s[f].flatten("i", "j", name="point")
    term = s[f].flatten("p", "q")
    block, _ = s[f].split(loop, 4)
    s[f].reorder(block, "k", term).unroll(s[f].split(term, 4)[1])
    s[f].compute_root()
    got, (x, w) = run(s, rng)
    (want,) = interpret(td.Schedule(g).program, {"a": x, "w": w})
    np.testing.assert_array_equal(got, want, strict=True)
    assert s.state.program.func("f").variables == ("point", "k")


def test_readers_of_the_same_flattening_read_at_the_flat_variable():
    _, f, g = windows()
    s = td.Schedule(g)
    s[f].flatten("i", "j")
    s[g].flatten("i", "j")
    assert "f[i_j, k] * 10" in str(s.state.program)


def test_producers_of_a_flattened_func_are_flattened(rng):
    _, f, g = windows()
    s = td.Schedule(g)
    s[g].flatten("i", "j")
    s[f].flatten("i", "j")
    got, (x, w) = run(s, rng)
    (want,) = interpret(td.Schedule(g).program, {"a": x, "w": w})
    np.testing.assert_array_equal(got, want, strict=True)


def test_flat_outputs_are_flattened_again(rng):
    _, _, g = windows()
    s = td.Schedule(g)
    s[g].flatten(s[g].flatten("i", "j"), "k")
    got, (x, w) = run(s, rng)
    (want,) = interpret(td.Schedule(g).program, {"a": x, "w": w})
    np.testing.assert_array_equal(got, want, strict=True)


def test_a_schedule_with_it_is_python_and_json():
    _, f, g = windows()
    s = td.Schedule(g)
    s[f].flatten("i", "j", name="point")
    assert str(s) == 's["f"].flatten("i", "j", name="point")'
    again = td.Schedule(g).replay(s.to_json())
    assert again.state.program == s.state.program


def no_loop(s):
    s["f"].split("i", 2)
    s["f"].flatten("i", "j")


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda s: s["f"].flatten("i"), "two variables or more"),
        (lambda s: s["f"].flatten("i", "p"), "reduced over, others are not"),
        (no_loop, "was split"),
        (lambda s: s["f"].reorder_storage(1, 0, 2).flatten("i", "j"), "has been laid out"),
        (lambda s: s["f"].flatten("i", "j", name="k"), "already a loop 'k'"),
    ],
)
def test_refusals_name_the_reason(wrong, message):
    s = td.Schedule(windows()[2])
    before = s.state
    with pytest.raises(ScheduleError, match=message):
        wrong(s)
    assert s.state.program == before.program


def test_ordered_terms_are_not_flattened():
    a, f = td.Tensor("a", (4, 5), td.f32), td.Func("f", shape=(4,))
    r, t = td.range("r", 0, 4), td.range("t", 0, 5)
    f[i] = 0.0
    f[r] = f[r] / 2 + a[r, t]
    with pytest.raises(ScheduleError, match="has updates"):
        td.Schedule(f)["f"].flatten("i", "i")


def gathered_windows():
    a, f, g = windows(7, 12)
    s = td.Schedule(g)
    s[f].compute_root().flatten("i", "j")
    s[f].flatten("p", "q")
    return a, f, g, s


@pytest.mark.parametrize("filled", [False, True])
def test_reads_of_a_window_are_gathered_to_a_matrix(rng, filled):
    a, f, g, s = gathered_windows()
    block, _ = s[f].split("i_j", 4)
    copy = s.cache_read(a, f, at=block, gathered=True, filled=filled)
    assert len(s.state.program.func(copy.func).variables) == 2
    got, (x, w) = run(s, rng)
    (want,) = interpret(td.Schedule(g).program, {"a": x, "w": w})
    np.testing.assert_array_equal(got, want, strict=True)


def test_only_one_index_is_gathered():
    a, f = td.Tensor("a", (9,), td.f32), td.Func("f")
    f[i] = a[i] + a[i + 1]
    s = td.Schedule(f)
    with pytest.raises(ScheduleError, match="at 2 indices"):
        s.cache_read(a, f, gathered=True)


@pytest.mark.parametrize("names", [("i", "j"), ("j", "k"), ("i", "j", "k")])
@pytest.mark.parametrize("dynamic", [("A", "B", "C"), ("B",), ("C",)])
def test_extents_may_be_dynamic(names, dynamic):
    a, f = td.Tensor("a", ("A", "B", "C"), td.i32), td.Func("f")
    f[i, j, k] = a[i, j, k] * 2 + a[i, j + 1, k]
    s = td.Schedule(f)
    s[f].flatten(*names)
    run = td.compile(s, dynamic=dynamic)
    for shape in ((3, 5, 7), (1, 1, 1), (2, 1, 4), (4, 2, 0), (0, 3, 2), (9, 2, 3)):
        x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        np.testing.assert_array_equal(run(x), x[:, :-1] * 2 + x[:, 1:])
    with pytest.raises(td.ShapeError, match="would have shape"):
        run(np.zeros((2, 0, 3), np.int32))


def test_ranges_of_a_reduction_may_be_dynamic():
    a, f = td.Tensor("a", ("A", "B", "C"), td.i32), td.Func("f")
    f[i] = td.sum(a[i, p, q], axis=(p, q))
    s = td.Schedule(f)
    s[f].flatten("p", "q")
    run = td.compile(s, dynamic=("B", "C"))
    for shape in ((3, 5, 7), (1, 1, 1), (2, 0, 4), (4, 2, 0)):
        x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        np.testing.assert_array_equal(run(x), x.sum((1, 2)))


def test_a_func_with_an_extent_given_is_not_flattened():
    _, f, g = windows(7, 12)
    s = td.Schedule(g)
    s[f].bound_extent("i", 6)
    with pytest.raises(ScheduleError, match="has been laid out"):
        s[f].flatten("i", "j")
