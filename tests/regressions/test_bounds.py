"""No access beyond memory: extents are compared at every call, bounds of indices outlive being stored."""

from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.build_program import build_program
from tdsl.lang.interp import interpret

i, j = td.vars("i j")


def pair_sums(a: Any, c: Any) -> Any:
    """c[i] * (a[i] + a[i + 1]): c is one shorter than a."""
    lap, o = td.Func("lap"), td.Func("o")
    lap[i] = a[i + 1] + a[i]
    o[i] = c[i] * lap[i]
    return o


def tensors(*shapes: Any) -> list[Any]:
    return [td.Tensor(n, s, td.f64) for n, s in zip("acd", shapes, strict=False)]


CALLS = {
    "cpu": lambda a, c: td.compile(pair_sums(*tensors(("P",), ("I",)))),
    "python": lambda a, c: td.compile(pair_sums(*tensors(("P",), ("I",))), target="python"),
    "dynamic": lambda a, c: td.compile(pair_sums(*tensors(("P",), ("I",))), dynamic="P"),
    "known": lambda a, c: td.compile(pair_sums(*tensors(("P",), ("I",))), P=9),
}


@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("wrong", [0, 3, 7, 9, 20])
def test_an_extent_that_an_expression_decides_is_compared_at_the_call(how: str, wrong: int) -> None:
    f, a = CALLS[how](None, None), np.arange(9.0)
    for _ in range(2):  # the second call is the quick one
        np.testing.assert_array_equal(f(a=a, c=np.ones(8)), a[1:] + a[:-1])
        with pytest.raises(td.ShapeError, match=r"c has shape \(\d+,\), expected .*") as caught:
            f(a=a, c=np.full(64, 7.0)[:wrong])
    assert "'i' runs over axis 0 of 'lap'" in str(caught.value)
    assert "lap[i]" in str(caught.value)


def test_operators_and_graphs_compare_it() -> None:
    @td.op
    def op(a: td.f64["P"], c: td.f64["I"]) -> Any:  # type: ignore[name-defined]
        return pair_sums(a, c)

    np.testing.assert_array_equal(op(np.ones(9), np.ones(8)), np.full(8, 2.0))
    for n in (3, 9):
        with pytest.raises(td.ShapeError, match="c has shape"):
            op(np.ones(9), np.ones(n))
        with pytest.raises(td.ShapeError, match="c has shape"):
            td.Graph(lambda a, c: op(a, c))(np.ones(9), np.ones(n))


@pytest.mark.parametrize("dynamic", [(), ("P", "Q")])
def test_extents_of_two_expressions_are_compared_at_the_call(dynamic: Any) -> None:
    a, c, f, g, o = *tensors(("P",), ("Q",)), *map(td.Func, "fgo")
    f[i], g[i] = a[2 * i] + a[2 * i + 1], c[3 * i] + c[3 * i + 2]
    o[i] = f[i] * g[i]
    call = td.compile(o, dynamic=dynamic)
    x, y = np.arange(9.0), np.arange(13.0)
    for _ in range(2):
        want = (x[:8:2] + x[1:8:2]) * (y[:12:3] + y[2:12:3])
        np.testing.assert_array_equal(call(a=x, c=y), want)
        with pytest.raises(td.ShapeError, match="two extents: 4 as axis 0 of 'f', and 5 as axis 0"):
            call(a=x, c=np.ones(15))


def test_a_size_that_only_an_expression_has_follows_from_its_array() -> None:
    c, f = (
        td.Tensor("c", ("I",), td.f64),
        td.Func("f", shape=(td.Tensor("n", ("N",), td.f64).shape[0] * 2,)),
    )
    f[i] = td.cast(i, td.f64)
    o = td.Func("o")
    o[i] = c[i] * f[i]
    call = td.compile(o)
    np.testing.assert_array_equal(call(np.ones(6)), np.arange(6.0))
    with pytest.raises(td.ShapeError, match=r"c has shape \(5,\), expected \(N \* 2,\)"):
        call(np.ones(5))


def hdiff(a: Any, c: Any) -> Any:
    lap, fx, fy, o = map(td.Func, ("lap", "fx", "fy", "o"))
    lap[i, j] = 4 * a[i + 1, j + 1] - (a[i + 2, j + 1] + a[i, j + 1] + a[i + 1, j + 2] + a[i + 1, j])
    fx[i, j] = lap[i + 1, j + 1] - lap[i, j + 1]
    fy[i, j] = (lap[i + 1, j + 1] - lap[i + 1, j]) * (a[i + 2, j + 2] - a[i + 2, j + 1])
    o[i, j] = a[i + 2, j + 2] - c[i, j] * (fx[i + 1, j] - fx[i, j] + fy[i, j + 1] - fy[i, j])
    return o


def shifted(a: Any, c: Any) -> Any:
    lap, o = td.Func("lap"), td.Func("o")
    lap[i, j] = a[i + 2, j + 1] - a[i, j + 1] + a[i + 1, j] * a[i + 1, j + 2]
    o[i, j] = c[i, j] * (lap[i + 2, j + 1] - lap[i + 1, j + 1] + lap[i, j + 1])
    return o


@pytest.mark.parametrize("program", [hdiff, shifted, lambda a, c: pair_sums(a, c)])
@pytest.mark.parametrize("extra", [-1, 0, 1, 4])
def test_names_and_numbers_of_extents_give_the_same(program: Any, extra: int) -> None:
    flat = program not in (hdiff, shifted)
    big, small = (9 + extra,) if flat else (12 + extra,) * 2, (8,) if flat else (8, 8)
    rng = np.random.default_rng(1)
    data = {"a": rng.random(big), "c": rng.random(small)}

    def run(*shapes: Any) -> Any:
        try:
            return td.compile(program(*tensors(*shapes)))(**data)
        except td.TdslError as error:
            return type(error)

    names = (("P",), ("I",)) if flat else (("P", "Q"), ("I", "J"))
    by_name, by_number = run(*names), run(big, small)
    if isinstance(by_number, type):
        assert isinstance(by_name, type)
    else:
        (want,) = interpret(build_program((program(*tensors(big, small)),)), data)
        np.testing.assert_allclose(by_number, want, rtol=1e-12)
        np.testing.assert_array_equal(by_name, by_number)
    if not flat and extra == 0:
        assert by_name.shape == (8, 8)


def test_updates_that_need_ever_more_are_refused_when_they_are_compiled() -> None:
    f, g = td.Func("f"), td.Func("g", shape=(3,))
    f[i, j] = td.cast(0, td.i32)
    f[i, i + 1] += 1
    f[j + 1, j] += 1
    g[i] = f[i, i]
    with pytest.raises(td.IndexBoundError, match="ever larger range"):
        td.compile(g)
    f.with_shape(6, 6)
    with pytest.raises(td.IndexBoundError, match="written"):  # the hint leads on to what is wrong
        td.compile(g)


def test_updates_may_reach_as_far_as_their_indices_do() -> None:
    f, g = td.Func("f"), td.Func("g", shape=(2,))
    f[i, j] = td.cast(i + 10 * j, td.i32)
    f[i, td.minimum(i + 1, 9)] += 1
    f[td.minimum(j + 1, 9), j] += 1
    g[i] = f[i, i]
    program = build_program((g,))
    np.testing.assert_array_equal(td.compile(g)(), interpret(program, {})[0])


def test_a_condition_reads_only_where_those_without_reads_hold() -> None:
    n, f, keep = td.Tensor("n", (5,), td.i32), td.Func("f"), td.Func("keep")
    keep[i] = n[i] + 1
    r = td.range("r", 0, 10, where=lambda r: (keep[r] > 1) & (r < 5))
    f[()] = td.sum(n[td.clip(r, 0, 4)], axis=r)
    call = td.compile(f)
    text = str(call.loops())
    assert text.index("< 5") < text.index("n[f_lanes_r_o * 8")
    assert call(np.int32([1, 0, 2, 0, 3])) == 6
    u, g = td.Tensor("u", (280,), td.u8), td.Func("g")
    r = td.range("r", 0, 300, where=lambda r: r < u[r])
    g[()] = td.sum(td.cast(r, td.i64), axis=r)
    with pytest.raises(td.IndexBoundError, match=r"'u' (may be|is) read at 299"):
        td.compile(g)


def histogram(stored: bool, at_of: Any) -> Any:
    w, x = td.Tensor("w", ("N",), td.f64), td.Tensor("x", ("N",), td.i32)
    at, s, count, o = map(td.Func, ("at", "s", "count", "o"))
    at[i] = at_of(x)
    if stored:  # an update of what others read
        r = td.range("r", 0, 2)
        at[r] = td.cast(3, at.dtype)
    s[j] = td.cast(0, td.f64)
    s[at[i]] += w[i]
    count[j] = td.cast(0, td.i64)
    count[at[i]] += 1
    o[j] = s[j] * td.cast(count[j], td.f64)
    return o.with_shape(10)


@pytest.mark.parametrize("dynamic", [(), ("N",)])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(
    "at_of",
    [
        lambda x: td.clip(x[i], 0, 9),
        lambda x: x[i] % 10,
        lambda x: td.cast(x[i] & 7, td.u32),
        lambda x: td.clip(td.cast(x[i], td.i64), 0, x.shape[0] - 1),
    ],
)
def test_bounds_of_an_index_outlive_being_stored(dynamic: Any, stored: bool, at_of: Any) -> None:
    o = histogram(stored, at_of)
    x = np.random.default_rng(0).integers(-20, 20, 40).astype(np.int32)
    w = np.arange(40.0)
    (want,) = interpret(build_program((o,)), {"w": w, "x": x})
    np.testing.assert_array_equal(td.compile(o, dynamic=dynamic)(w=w, x=x), want)


def test_a_symbolic_bound_is_not_lost_to_that_of_a_type() -> None:
    a = td.Tensor("a", ("N",), td.i32)
    n = a.shape[0]
    f, g, r = td.Func("f", shape=(n, n)), td.Func("g"), td.range("r", 0, n)
    f[i, j] = a[i]
    f[td.clip(td.cast(a[r], td.i64), 0, n - 1), r] += a[r]
    g[()] = f[0, 0]
    assert td.compile(g, dynamic="N")(np.arange(31, dtype=np.int32)) == 0


@pytest.mark.parametrize(
    "shape, read, match",
    [
        ((8, 9), lambda a, n: a[i, j + 1], "'a' is read at 9 in axis 1"),
        ((8, 9), lambda a, n: a[n[i], 0], "the index n\\[i\\] of 'a' has no bounds"),
        (("M", 9), lambda a, n: a[i, j + 1], "'a' is read at 9 in axis 1"),
        (("M", "K"), lambda a, n: a[n[i], 0], "the index n\\[i\\] of 'a' has no bounds"),
        (("M", "K"), lambda a, n: a[td.cast(n[i], td.i32), j], "'a' may be read at -2147483648"),
    ],
)
def test_what_leaves_a_tensor_in_every_call_is_refused_when_it_is_compiled(
    shape: Any, read: Any, match: str
) -> None:
    a, n, f = (
        td.Tensor("a", shape, td.f32),
        td.Tensor("n", (8,), td.i64),
        td.Func("f", shape=(8, 9)),
    )
    f[i, j] = read(a, n)
    with pytest.raises(td.IndexBoundError, match=match) as caught:
        td.compile(f)
    assert "td.clip" in caught.value.hint
    assert "read(a, n)" in str(caught.value) or "lambda a, n" in str(caught.value)


def test_what_is_inside_where_it_is_inlined_is_taken() -> None:
    a, f, g = td.Tensor("a", (8, 8), td.f32), td.Func("f"), td.Func("g", shape=(8,))
    f[i, j] = a[td.clip(i, 0, 7), i + j]  # at the root, i + j would reach 14
    g[i] = f[i, 7 - i]
    np.testing.assert_array_equal(td.compile(g)(np.ones((8, 8), np.float32)), np.ones(8))


@pytest.mark.parametrize("place", ["i", "root", "rfactor"])
def test_bounds_of_an_index_outlive_copies(place: str) -> None:
    n, at, again, f = td.Tensor("n", ("N",), td.i64), td.Func("at"), td.Func("again"), td.Func("f")
    at[i] = td.clip(n[i], 0, n.shape[0] - 1)
    again[i] = td.where(i % 2 == 0, at[i], 0)
    r, g = td.range("r", 0, n.shape[0]), td.Func("g", shape=(n.shape[0],))
    g[i] = 0
    g[again[r]] += r
    f[i] = n[again[i]] + g[i]
    s = td.Schedule(f)
    for func in (at, again, g):
        s[func].compute_root()
    if place == "i":
        s.cache_read(again, s[f], at=i)
    else:
        s[g].update(0).split(r, 2)
        reader = s[g].update(0).rfactor("r_o") if place == "rfactor" else s[g].update(0)
        s.cache_read(again, reader.update(0) if place == "rfactor" else reader, at="r_o")
    x = np.int64([3, 9, -1, 0])
    np.testing.assert_array_equal(td.compile(s)(x), interpret(build_program((f,)), {"n": x})[0])


@pytest.mark.parametrize("target", ["python", "cpu"])
def test_a_size_that_only_the_bound_of_a_range_has_is_given_by_name(target: str) -> None:
    unread, b = td.Tensor("unread", ("N",), td.i64), td.Tensor("b", ("M",), td.i32)
    f = td.Func("f", shape=b.shape)
    f[i] = td.sum(b[i], axis=td.range("r", 0, unread.shape[0]))
    with pytest.raises(td.ShapeError, match="decides the size N") as caught:
        td.compile(f, target=target)
    assert "N=100" in caught.value.hint
    assert td.compile(f, target=target, N=3)(np.int32([1, 2])).tolist() == [3, 6]


def test_extents_that_do_not_agree_are_refused_wherever_sizes_are_given() -> None:
    a, c, f, g, o = *tensors(("P",), ("Q",)), *map(td.Func, "fgo")
    f[i], g[i] = a[2 * i] + a[2 * i + 1], c[3 * i] + c[3 * i + 2]
    o[i] = f[i] * g[i]
    grid, sizes = td.Grid(x=2), {"P": 9, "Q": 17}
    s = td.Schedule(o)
    s.place("a", "r -> *", grid).place("c", "r -> *", grid).place("o", "r -> r", grid)
    s[o].distribute([s[o].loops[0]], grid)
    ranks = td.compile(s)
    x, y = np.ones(9), np.ones(17)
    for call in (
        lambda: td.compile(o, **sizes),
        lambda: td.compile(o, target="cuda", **sizes),
        lambda: td.compile(td.Schedule(o, sizes={"P": 9}), Q=17),
        lambda: td.compile(o).loops(**sizes),
        lambda: td.Schedule(o, sizes=sizes),
        lambda: ranks.plan(**sizes),
        lambda: td.compile(s, **sizes),
        lambda: ranks.simulate(x, y),
        lambda: td.emulate(td.compile(o, target="cuda"))(x, y),
    ):
        with pytest.raises(td.ShapeError, match="two extents: 4 as axis 0 of 'f', and 5 as axis 0"):
            call()
    assert ranks.simulate(x, np.ones(14)).tolist() == [4, 4, 4, 4]


@pytest.mark.parametrize("reduce", [td.sum, td.max, td.mean])
@pytest.mark.parametrize("dynamic", [(), ("M", "K")])
def test_a_stored_length_of_few_bits_has_the_extent_that_it_is_clipped_to(reduce, dynamic) -> None:
    i = td.vars("i")
    n, a = td.Tensor("n", ("M",), td.i32), td.Tensor("a", ("M", "K"), td.f32)
    length, s = td.Func("length"), td.Func("s")
    length[i] = td.clip(n[i], 0, a.shape[1])
    s[i] = reduce(a[i, (r := td.range("r", 0, length[i]))], axis=r)
    schedule = td.Schedule(s)
    schedule[length].compute_root()
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    lengths = np.array([2, 2**31 - 1], np.int32)
    want = {td.sum: x.sum, td.max: x.max, td.mean: x.mean}[reduce](axis=1)
    first = {td.sum: np.sum, td.max: np.max, td.mean: np.mean}[reduce](x[0, :2])
    got = td.compile(schedule, dynamic=dynamic)(lengths, x)
    np.testing.assert_array_equal(got, [first, want[1]])


def test_a_stored_index_of_few_bits_may_be_clipped_to_an_open_size() -> None:
    i = td.vars("i")
    a, n = td.Tensor("a", ("N",), td.f32), td.Tensor("n", ("M",), td.i32)
    at, f = td.Func("at"), td.Func("f")
    at[i] = td.clip(n[i], 0, a.shape[0] - 1)
    f[i] = a[at[i]]
    s = td.Schedule(f)
    s[at].compute_root()
    got = td.compile(s, dynamic=("N", "M"))(np.arange(5, dtype=np.float32), np.int32([9, -1, 2]))
    np.testing.assert_array_equal(got, [4, 0, 2])


def test_loops_end_by_data_that_is_stored_before_them() -> None:
    i = td.vars("i")
    n, a = td.Tensor("n", ("M",), td.i32), td.Tensor("a", (4,), td.f32)
    most, s = td.Func("most"), td.Func("s")
    most[()] = td.max(n[i], axis=i)
    s[()] = td.sum(a[td.clip(r := td.range("r", 0, most[()]), 0, 3)], axis=r)
    f = td.compile(s)
    assert any("in range(" in line and "most" in line for line in f.loops(M=2).splitlines())
    assert f(np.int32([2, 3]), np.ones(4, np.float32)) == 3


@pytest.mark.parametrize("target", ["cpu", "python"])
@pytest.mark.parametrize("dtype", [td.u8, td.i8, td.i64])
def test_extremes_of_narrow_integers_and_loop_variables_are_those_of_all_integers(dtype, target) -> None:
    i = td.vars("i")
    x, low, high = td.Tensor("x", (600,), dtype), td.Func("low"), td.Func("high")
    low[i] = td.minimum(x[i], 250 - i)
    high[i] = td.maximum(x[i], i - 300)
    low.with_shape(600)
    ends = np.iinfo(dtype.numpy)
    values = np.arange(600).astype(dtype.numpy)
    wide, at = values.astype(np.int64), np.arange(600)
    mine = td.compile((low, high), target=target)(values)
    for got, want in zip(mine, (np.minimum(wide, 250 - at), np.maximum(wide, at - 300)), strict=True):
        np.testing.assert_array_equal(got, np.clip(want, ends.min, ends.max))


@pytest.mark.parametrize("kind", ["abs", "select", "product", "cast"])
def test_lanes_beyond_a_sum_bound_no_index_that_is_not_affine(kind):
    """The last of two vectors of four lanes has one term; its other lanes read nothing."""
    f, y, m = td.Func("f", shape=6), td.Func("y", shape=5), td.range("m", 0, 5)
    a = td.Tensor("a", (6,), td.f64)
    index = {
        "abs": abs(m - i), "select": td.where(m < i, i, m), "product": m * m // 4,
        "cast": td.cast(td.cast(m, td.i32) + 1, td.i64),
    }  # fmt: skip
    f[i] = a[i] * 2
    y[i] = td.sum(f[index[kind]] * a[index[kind]], axis=m)
    s = td.Schedule(y)
    _, lane = s[y].split(m, 4)
    s[y].rfactor(lane)
    s[f].compute_root()
    v = np.linspace(-1, 2, 6)
    expected = td.compile(y, target="python")(v)
    np.testing.assert_allclose(td.compile(s)(v), expected, rtol=1e-12)
