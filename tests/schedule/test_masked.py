"""Terms that a mask makes nothing are left out of loops, and results are what the interpreter has."""

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import ScheduleError
from tdsl.lang.expr import TRUE
from tdsl.lang.interp import interpret
from tdsl.lang.show import show_expr
from tdsl.schedule.implied_values import ConditionalFuncs
from tdsl.schedule.masked import mask_of
from tdsl.tilegraph.search import candidates

i, j, k, e = td.vars("i j k e")
INF, NAN = float("inf"), float("nan")


def _program(term, axis=j, reduce=td.sum, shape=(8, 8)):
    a, b = td.Tensor("a", shape, td.f32), td.Tensor("b", shape, td.f32)
    y = td.Func("y")
    y[i] = reduce(term(a[i, j], b[i, j]), axis=axis)
    return td.Schedule(y).program


def _mask(program, name="y", *, lenient=False):
    f = program.func(name)
    mask = mask_of(ConditionalFuncs.of(program), f, f.definitions[0], lenient=lenient)
    return None if mask == TRUE else show_expr(mask)


@pytest.mark.parametrize(
    "reduce, term, expected",
    [
        (td.sum, lambda a, b: td.where(j <= i, a * b, 0), "j <= i"),
        (td.sum, lambda a, b: td.where(j > i, 0, a), "i >= j"),
        (
            td.sum,
            lambda a, b: td.where(td.absolute(i - j) < 3, a, 0),
            "(i - j < 3) & (-(i - j) < 3)",
        ),
        (
            td.sum,
            lambda a, b: td.where(td.logical_and(j <= i, i - j < 3), a, 0),
            "(j <= i) & (i - j < 3)",
        ),
        (td.sum, lambda a, b: td.where(j <= i, td.where(b > 0, a, 0), 0), "j <= i"),
        (td.sum, lambda a, b: td.where(j <= i, a, 0) * 3, "j <= i"),
        (td.sum, lambda a, b: td.where(i == j, a, 0) / 2, "i == j"),
        (td.sum, lambda a, b: td.exp(td.where(j <= i, a, -INF)), "j <= i"),
        (td.sum, lambda a, b: td.exp(td.where(j <= i, a, -INF) * 2 - 1), "j <= i"),
        (td.max, lambda a, b: td.where(j <= i, a, -INF), "j <= i"),
        (td.min, lambda a, b: td.where(j < 2 * i, a, INF), "j < 2 * i"),
        (td.any, lambda a, b: td.logical_and(j <= i, a > b), "j <= i"),
        (td.all, lambda a, b: td.logical_or(j > i, a > b), "i >= j"),
        (td.prod, lambda a, b: td.where(j <= i, a, 1), "j <= i"),
    ],
)
def test_terms_that_are_nothing_for_certain(reduce, term, expected):
    assert _mask(_program(term, reduce=reduce)) == expected


@pytest.mark.parametrize(
    "reduce, term",
    [
        (td.sum, lambda a, b: td.where(j <= i, a, 0) * b),  # b may be infinite
        (td.sum, lambda a, b: td.where(j <= i, a, 0) / b),  # or 0
        (td.sum, lambda a, b: td.where(j <= i, a, 0) / NAN),
        (td.sum, lambda a, b: td.exp(td.where(j <= i, a, -INF) + NAN)),
        (td.sum, lambda a, b: td.exp(td.where(j <= i, a, -INF) + INF)),
        (td.sum, lambda a, b: td.exp(td.where(j <= i, a, -INF) - b)),  # or -inf
        (td.sum, lambda a, b: td.where(j <= i, a, 1)),
        (td.sum, lambda a, b: td.where(j <= i, a, 0) + b),
        (td.max, lambda a, b: td.where(j <= i, a, 0)),
        (td.max, lambda a, b: td.where(j <= i, a, -INF) * -1),
        (td.sum, lambda a, b: td.where(td.logical_or(j <= i, a > b), a, 0)),
        (td.sum, lambda a, b: td.where(i > 3, a, 0)),  # a whole row, which is made all the same
        (td.sum, lambda a, b: td.where(i != j, a, 0)),
        (td.sum, lambda a, b: td.where(j * i < 3, a, 0)),
        (td.sum, lambda a, b: td.where(a > b, a, 0)),
    ],
)
def test_terms_that_may_be_something(reduce, term):
    assert _mask(_program(term, reduce=reduce)) is None


def test_integers_times_nothing_are_nothing():
    a, y = td.Tensor("a", (8, 8), td.i32), td.Func("y")
    y[i] = td.sum(td.cast(j <= i, td.i32) * a[i, j], axis=j)
    assert _mask(td.Schedule(y).program) == "j <= i"


def _softmax(mask, rows=8, terms=8):
    """Weights of rows, and their products with columns."""
    x, v = td.Tensor("x", (rows, terms), td.f32), td.Tensor("v", (terms, 5), td.f32)
    score, top, p, total, out = (td.Func(n) for n in ("score", "top", "p", "total", "out"))
    score[i, j] = td.where(mask(i, j), x[i, j] * 2, -INF)
    top[i] = td.max(score[i, j], axis=j)
    p[i, j] = td.exp(score[i, j] - top[i])
    total[i] = td.sum(p[i, j], axis=j)
    out[i, e] = td.sum(p[i, j] / total[i] * v[j, e], axis=j)
    return out


def test_weights_are_nothing_where_each_row_has_a_term():
    program = td.Schedule(_softmax(lambda i, j: j <= i)).program
    assert [_mask(program, n) for n in ("top", "total")] == ["j <= i", "j <= i"]
    assert _mask(program, "out_sum" if program.has_func("out_sum") else "out") is None
    without = td.Schedule(_softmax(lambda i, j: j < i)).program  # the first row has none
    assert [_mask(without, n) for n in ("top", "total")] == ["j < i", None]


def test_skip_masked_takes_factors_for_finite_and_needs_a_term_in_each_row():
    program = td.Schedule(_softmax(lambda i, j: j <= i)).program
    assert _mask(program, "out", lenient=True) == "j <= i"
    without = td.Schedule(_softmax(lambda i, j: j < i)).program
    assert _mask(without, "out", lenient=True) is None
    with pytest.raises(ScheduleError, match="no comparison of indices is known"):
        td.Schedule(_softmax(lambda i, j: j < i))["out"].skip_masked()


def _inputs(program, seed=0):
    rng = np.random.default_rng(seed)
    return {
        t.name: rng.standard_normal([int(n.value) for n in t.shape]).astype(np.float32)
        for t in program.inputs
    }


def _check_result(schedule, inputs=None):
    program = schedule.program
    inputs = inputs or _inputs(program)
    result = td.compile(schedule)(**inputs)
    (want,) = interpret(program, inputs)
    np.testing.assert_allclose(result, want, rtol=2e-5, atol=1e-6)


MASKS = {
    "causal": lambda i, j: j <= i,
    "strict": lambda i, j: j < i,
    "later": lambda i, j: j >= i,
    "ahead": lambda i, j: j <= i + 5,
    "behind": lambda i, j: j <= i - 3,
    "window": lambda i, j: td.absolute(i - j) < 4,
    "sliding": lambda i, j: td.logical_and(j <= i, j > i - 6),
    "every other": lambda i, j: 2 * j <= i,
    "none": lambda i, j: j < i - 99,
}


SHAPES = [*((name, n, m) for name in MASKS for n, m in ((13, 29), (29, 13)))]
SHAPES += [("causal", n, m) for n, m in ((0, 7), (7, 0), (1, 1), (70, 67))]


@pytest.mark.in_part(8)
@pytest.mark.parametrize("name, rows, terms", SHAPES)
def test_results_are_those_of_all_terms(name, rows, terms):
    out = _softmax(MASKS[name], rows, terms)
    _check_result(td.Schedule(out))
    s = td.Schedule(out)
    for func in ("top", "total", "out"):
        try:
            s[func].skip_masked()
        except ScheduleError:
            assert name not in ("causal", "window") or 0 in (rows, terms) or rows > terms
    _check_result(s)


def _triangle(rows=37, terms=41):
    a, b = td.Tensor("a", (rows, terms), td.f32), td.Tensor("b", (terms, 19), td.f32)
    y = td.Func("y")
    y[i, k] = td.sum(td.where(j <= i + 2, a[i, j] * b[j, k], 0), axis=j)
    return y


SCHEDULES = {
    "plain": lambda s: s.reorder("i", "j", "k"),
    "terms outside": lambda s: s.reorder("j", "i", "k"),
    "rows and vectors": lambda s: s.parallel("i").vectorize("k", 8),
    "bands": lambda s: (s.split("i", 5), s.reorder("i_o", "j", "i_i", "k"), s.vectorize("k", 8)),
    "bands, shifted": lambda s: (
        s.split("i", 5, tail="shift"),
        s.reorder("i_o", "j", "i_i", "k"),
        s.unroll("i_i"),
    ),
    "bands, peeled": lambda s: (
        s.split("i", 5, tail="peel"),
        s.reorder("i_o", "j", "i_i", "k"),
        s.unroll("i_i"),
    ),
    "tiles of terms": lambda s: (s.split("j", 8), s.reorder("i", "j_o", "k", "j_i")),
    "tiles of terms, peeled": lambda s: (
        s.split("j", 8, tail="peel"),
        s.reorder("i", "j_o", "k", "j_i"),
        s.unroll("j_i"),
    ),
    "parts of terms": lambda s: (s.split("j", nparts=3), s.rfactor("j_o")),
    "lanes of terms": lambda s: (s.reorder("i", "k", "j"), s.vectorize("j", 8)),
    "unrolled": lambda s: s.unroll("j", 4),
    "fused": lambda s: s.fuse("i", "k"),
    "fused terms": lambda s: (s.split("j", 4), s.fuse("j_o", "j_i")),
}


@pytest.mark.in_part(10)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("size", [(23, 29), (29, 23)])
def test_loops_of_any_schedule_are_cut(name, size):
    s = td.Schedule(_triangle(*size))
    SCHEDULES[name](s["y"])
    _check_result(s)


def test_loops_end_at_the_diagonal_of_a_band():
    s = td.Schedule(_triangle())
    s["y"].split("i", 5, tail="peel")
    s["y"].reorder("i_o", "j", "i_i", "k")
    assert "for y_j in range(0, y_i_o * 5 + 7):" in str(td.compile(s).loops())


def test_producers_of_masked_terms_are_not_computed():
    x, y, double = td.Tensor("x", (64, 64), td.f32), td.Func("y"), td.Func("double")
    double[i, j] = td.exp(x[i, j])
    y[i] = td.sum(td.where(j >= i, double[i, j], 0), axis=j)
    s = td.Schedule(y)
    s["double"].compute_at(s["y"], "i")
    assert "for double_j in range(y_i, 64):" in str(td.compile(s, target="python").loops())
    _check_result(s)


def test_infinite_factors_count_unless_a_directive_says_otherwise():
    out = _softmax(lambda i, j: j <= i, 16, 16)
    inputs = _inputs(td.Schedule(out).program)
    inputs["v"][9:] = np.inf
    _check_result(td.Schedule(out), inputs)
    s = td.Schedule(out)
    s["out"].skip_masked().reorder("i", "j", "e")
    assert np.isfinite(td.compile(s)(**inputs)[:9]).all()


def test_fast_math_leaves_masked_terms_out():
    a, b, y = td.Tensor("a", (9, 9), td.f32), td.Tensor("b", (9, 9), td.f32), td.Func("y")
    y[i] = td.sum(td.where(j <= i, a[i, j], 0) * b[i, j], axis=j)
    td.fast_math(y)
    assert _mask(td.Schedule(y).program) == "j <= i"


def test_predicted_times_count_the_terms_that_are_left():
    def seconds_of_exp(s):
        s["p"].inline()
        total = next(nest for nest in s.prediction().times if nest.func == "total")
        return dict(total.units)["exp"]

    full = td.Schedule(_softmax(lambda i, j: j >= 0, 512, 512))
    s = td.Schedule(_softmax(lambda i, j: j <= i, 512, 512))
    for name in ("top", "total", "out"):
        s[name].skip_masked()
    assert 0 < seconds_of_exp(s) < 0.75 * seconds_of_exp(full)


def test_the_search_leaves_masked_terms_out():
    program = td.Schedule(_softmax(lambda i, j: j <= i, 96, 96)).program
    s = candidates(program, {}, td.Target("cpu"))[0].schedule
    assert 's["out"].skip_masked()' in str(s)
    _check_result(s)


def test_keys_of_bands_are_packed_as_without_a_mask():
    q, k_, v = (td.Tensor(n, (256, 64), td.f32) for n in "qkv")
    score, top, p, out = (td.Func(n) for n in ("score", "top", "p", "out"))
    score[i, j] = td.where(j <= i, td.sum(q[i, k] * k_[j, k], axis=k), -INF)
    top[i] = td.max(score[i, j], axis=j)
    p[i, j] = td.exp(score[i, j] - top[i])
    out[i, e] = td.sum(p[i, j] * v[j, e], axis=j)
    s = td.Schedule(out)
    for name in ("top", "out"):
        s[name].skip_masked()
    td.recipes.bands(s["out"], parallel="")
    assert 's.cache_read("k", ' in str(s)
    assert "for out_j in range(0, out_i_o * " in str(td.compile(s).loops())
