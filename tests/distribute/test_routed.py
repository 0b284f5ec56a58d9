"""Rows that data select: results of one rank, exactly the bytes that the data imply, and clear errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.communication.steps import Route
from tdsl.distribute.check import check
from tdsl.distribute.mpi_execution import last_steps
from tdsl.distribute.routing import fetch_rows
from tdsl.lang.interp import interpret
from tests.distribute import test_mpi
from tests.distribute.random_programs import arrays, routed_schedule
from tests.distribute.test_mpi import ROOT, needs_mpi
from tests.distribute.volumes import assert_volume_is_of_plan
from tests.nightly import NIGHTLY

t, d, k = td.vars("t d k")
RNG = np.random.default_rng(0)


def tokens(
    rows: int, count: int, ranks: int, *, width: int = 3, dtype: Any = td.f64, index: Any = td.i64,
    placed: str = "rd -> r", indices: str = "t -> t", routed: bool | None = True,
) -> Any:  # fmt: skip
    """y[t, d] = 2 x[at[t], d] on a line of ranks."""
    x, at, y = td.Tensor("x", (rows, width), dtype), td.Tensor("at", (count,), index), td.Func("y")
    y[t, d] = x[at[t], d] * 2
    grid = td.Grid(p=ranks)
    s = td.Schedule(y).place(x, placed, grid).place(at, indices, grid).place(y, "td -> t", grid)
    (outer,) = s[y].distribute(t, grid)
    s[y].communicate(x, at=outer, routed=routed)
    return td.compile(s, target="python")


def block(extent: int, ranks: int, n: int) -> range:
    size = -(-extent // ranks)
    return range(min(n * size, extent), min((n + 1) * size, extent))


def bytes_of_rows(rows: int, at: np.ndarray, ranks: int, row: int) -> tuple[list[int], list[int]]:
    """The bytes that ranks receive and send: a number for each partner, 8 for each row, and the rows once."""
    received, sent = ([8 * (ranks - 1)] * ranks for _ in range(2))
    for reader in range(ranks):
        needs = {int(at[n]) for n in block(len(at), ranks, reader)}
        for owner in (n for n in range(ranks) if n != reader):
            count = len(needs & set(block(rows, ranks, owner)))
            received[owner] += 8 * count
            sent[reader] += 8 * count
            received[reader] += row * count
            sent[owner] += row * count
    return received, sent


def values(rows: int, width: int, dtype: np.dtype) -> np.ndarray:
    return RNG.integers(-9, 9, (rows, width)).astype(dtype)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_rows_are_those_of_one_rank_and_move_the_bytes_of_the_data(ranks: int) -> None:
    for rows, count in ((13, 10), (1, 7), (7, 1), (5, 0), (64, 100), (2, 17)):
        at = RNG.integers(0, rows, count)
        p, x = tokens(rows, count, ranks), values(rows, 3, np.float64)
        y, counted = p.simulate(x, at, count=True)
        np.testing.assert_array_equal(y, 2 * x[at])
        received, sent = bytes_of_rows(rows, at, ranks, 24)
        if count:
            assert (list(counted.received), list(counted.sent)) == (received, sent)
            assert set(counted.messages) == {3 if ranks > 1 else 0}
        assert_volume_is_of_plan(p._specialise({}))
        check(p.plan())


@pytest.mark.parametrize("count", [1, 2, 9])
@pytest.mark.parametrize("placed", ["rd -> r", "rd -> d"])
def test_no_rank_moves_more_than_the_bound_that_all_agree_on(
    placed: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = []

    def fetched(*args: Any) -> Any:
        for x in fetch_rows(*args):
            moved.append((max(sum(a.nbytes for _, a in part) for part in (x.sends, x.receives)), x.bound))
            yield x

    monkeypatch.setattr("tdsl.distribute.engine.fetch_rows", fetched)
    at = RNG.integers(0, 5, count)
    tokens(5, count, 4, width=4, placed=placed).simulate(values(5, 4, np.float64), at)
    assert len(moved) == 12
    assert all(most <= bound for most, bound in moved)


def test_a_route_is_a_communication_in_texts_of_errors() -> None:
    plan = tokens(5, 8, 2).plan().rank(0)
    (at,) = (n for n, step in enumerate(plan.steps, 1) if isinstance(step, Route))
    assert last_steps(plan).startswith(f"steps {at + 1} to {len(plan.steps)}, ")


@pytest.mark.parametrize("index", [td.i32, td.i64], ids=str)
@pytest.mark.parametrize("dtype", [td.f16, td.i8, td.f64, td.u16], ids=str)
def test_elements_and_indices_have_any_type(dtype: Any, index: Any) -> None:
    at = RNG.integers(0, 11, 9).astype(index.numpy)
    p, x = tokens(11, 9, 4, dtype=dtype, index=index), values(11, 3, dtype.numpy)
    y, counted = p.simulate(x, at, count=True)
    np.testing.assert_array_equal(y, (2 * x[at].astype(np.int64)).astype(dtype.numpy))
    assert list(counted.received) == bytes_of_rows(11, at, 4, 3 * dtype.bytes)[0]


@pytest.mark.parametrize(
    "at",
    [np.full(12, 5), np.zeros(12, int), np.arange(12), np.repeat([0, 11], 6), np.arange(12)[::-1] // 4],
    ids=["one row", "one owner", "local rows", "two rows", "blocks"],
)
def test_a_row_is_sent_once_to_a_rank(at: np.ndarray) -> None:
    p, x = tokens(12, 12, 4), values(12, 3, np.float64)
    y, counted = p.simulate(x, at, count=True)
    np.testing.assert_array_equal(y, 2 * x[at])
    assert list(counted.received) == bytes_of_rows(12, at, 4, 24)[0]


@pytest.mark.parametrize("placed", ["rd -> d", "rd -> r/2", "rd -> 2", "rd -> *"])
@pytest.mark.parametrize("indices", ["t -> t", "t -> *", "t -> 1", "t -> t/1"])
def test_the_tensor_and_the_indices_have_any_placement(placed: str, indices: str) -> None:
    at, x = RNG.integers(0, 9, 10), values(9, 5, np.float64)
    p = tokens(9, 10, 4, width=5, placed=placed, indices=indices)
    np.testing.assert_array_equal(p.simulate(x, at), 2 * x[at])
    assert_volume_is_of_plan(p._specialise({}))


def batched() -> td.Func:
    """The gather along one dimension of torch.gather, in each batch."""
    x, at, y = td.Tensor("x", (4, 9, 3), td.i64), td.Tensor("at", (4, 10), td.i32), td.Func("y")
    y[k, t, d] = x[k, td.clip(at[k, t], 0, 8), d]
    return y


def element_wise() -> td.Func:
    x, at, y = td.Tensor("x", (4, 9), td.i64), td.Tensor("at", (7, 4), td.i64), td.Func("y")
    y[t, k] = x[k, td.clip(at[t, k], 0, 8)] + x[k, 0]
    return y


def two_indices() -> td.Func:
    x, a, b, y = (
        td.Tensor("x", (4, 9, 2), td.i64),
        td.Tensor("a", (10,), td.i64),
        td.Tensor("b", (10,), td.i64),
        td.Func("y"),
    )
    y[t, d] = x[td.clip(a[t], 0, 3), td.clip(b[t], 0, 8), d]
    return y


def nested() -> td.Func:
    x, a, b, y = (
        td.Tensor("x", (9, 2), td.i64),
        td.Tensor("a", (10,), td.i64),
        td.Tensor("b", (7,), td.i64),
        td.Func("y"),
    )
    y[t, d] = x[td.clip(a[td.clip(b[t], 0, 9)], 0, 8), d]
    return y


def through_itself() -> td.Func:
    x, y = td.Tensor("x", (11,), td.i64), td.Func("y")
    y[t] = x[td.clip(x[td.clip(x[t], 0, 10)], 0, 10)] - x[10 - t]
    return y


def sparse() -> td.Func:
    """A matrix in ELLPACK form times a vector."""
    x, at, v, y = (
        td.Tensor("x", (12,), td.i64),
        td.Tensor("at", (10, 3), td.i64),
        td.Tensor("v", (10, 3), td.i64),
        td.Func("y"),
    )
    y[t] = td.sum(v[t, k] * x[td.clip(at[t, k], 0, 11)], axis=k)
    return y


def inlined() -> td.Func:
    """The row is read by a func that tasks compute, at an index that another one computes."""
    x, at, g, h, y = (
        td.Tensor("x", (12, 3), td.i64),
        td.Tensor("at", (10,), td.i64),
        td.Func("g"),
        td.Func("h"),
        td.Func("y"),
    )
    h[t] = td.clip(at[t] * 2, 0, 11)
    g[t, d] = x[h[t], d] + h[t]
    y[t] = td.sum(g[t, d], axis=d) - g[t, 0]
    return y


def shifted() -> td.Func:
    """Two parts of one row, and two rows of which one is next to the other."""
    x, at, y = td.Tensor("x", (12, 7), td.i64), td.Tensor("at", (10,), td.i64), td.Func("y", shape=(10, 6))
    e = td.clip(at[t], 0, 10)
    y[t, d] = x[e, d] - x[e, d + 1] + x[e + 1, (d + 3) % 7] + at[t]
    return y


PROGRAMS = (batched, element_wise, two_indices, nested, through_itself, sparse, inlined, shifted)


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(3,), (2, 2)], ids=str)
def test_any_index_of_data_is_routed(make: Callable[[], td.Func], shape: tuple[int, ...]) -> None:
    y = make()
    s = td.Schedule(y)
    grid = td.Grid(**dict(zip("pq", shape, strict=False)))
    for n in s.program.inputs:
        entries = ["a", "b" if len(n.shape) > 1 else "*"][: len(shape)]
        s.place(n.name, f"{'abc'[: len(n.shape)]} -> {' '.join(entries)}", grid)
    ndim = len(s.program.func("y").variables)
    s.place(y, f"{'abc'[:ndim]} -> {' '.join(['a', 'b' if ndim > 1 else '*'][: len(shape)])}", grid)
    loops = s.program.func("y").variables[: len(shape)]
    outer = s[y].distribute((*loops, *"*" * (len(shape) - len(loops))), grid)
    s[y].communicate("x", at=outer[-1], routed=True)
    p = td.compile(s, target="python")
    assert any(isinstance(step, Route) for step in p.plan().rank(0).steps)
    given = arrays(s, 1)
    np.testing.assert_array_equal(p.simulate(**given), interpret(s.program, given)[0])
    assert_volume_is_of_plan(p._specialise({}))
    check(p.plan())


def shared_selection(x: td.Tensor, a: td.Tensor) -> td.Func:
    """A func of rows that select others, and that is read besides."""
    y, row = td.Func("y"), td.Func("row")
    row[t] = a[td.clip(a[t], 0, 8)]
    y[t] = x[row[t]] + row[t]
    return y


def selection_from_itself(x: td.Tensor, a: td.Tensor) -> td.Func:
    y, row = td.Func("y"), td.Func("row")
    row[t] = x[a[t]]
    y[t] = x[row[t]] + row[t]
    return y


def alternating(x: td.Tensor, a: td.Tensor) -> td.Func:
    y = td.Func("y")
    y[t] = x[a[x[a[t]]]]
    return y


@pytest.mark.parametrize("make", [shared_selection, selection_from_itself, alternating])
@pytest.mark.parametrize("order", ["xa", "ax"])
def test_rows_select_rows_of_several_routed_tensors(
    make: Callable[[td.Tensor, td.Tensor], td.Func], order: str
) -> None:
    x, a = (td.Tensor(n, (9,), td.i64) for n in "xa")
    y, grid = make(x, a), td.Grid(p=3)
    s = td.Schedule(y).place(x, "r -> r", grid).place(a, "r -> r", grid).place(y, "r -> r", grid)
    (outer,) = s[y].distribute(t, grid)
    for name in order if make is not selection_from_itself else "x":
        s[y].communicate(name, at=outer, routed=True)
    p = td.compile(s, target="python")
    given = {n: RNG.permutation(9) for n in "xa"}
    np.testing.assert_array_equal(p.simulate(**given), interpret(s.program, given)[0])
    assert_volume_is_of_plan(p._specialise({}))
    check(p.plan())


X, AT, U = (td.Tensor("x", (12, 5), td.i64), td.Tensor("at", (10,), td.i64), td.Tensor("u", (10,), td.i64))
LINE = td.Grid(p=3)


def on_a_line(y: td.Func, indices: str = "t -> t", placed: str | None = None) -> td.Schedule:
    """A schedule with rows of X, indices and funcs on three ranks."""
    s = td.Schedule(y)
    for n in s.program.inputs:
        s.place(n.name, {"at": indices, "x": "rd -> r"}.get(n.name, "t -> t"), LINE)
    dims = "td"[: len(s.program.func(y.name).variables)]
    return s.place(y, placed or f"{dims} -> t", LINE)


def pairs() -> td.Schedule:
    """Rows of a func of two values of different types."""
    f, y = td.Func("f"), td.Func("y")
    f[t] = (X[t, 0], td.cast(X[t, 1], td.i8))
    a, b = f[td.clip(AT[t], 0, 11)]
    y[t] = a * 100 + b
    s = on_a_line(y).place(f, "t -> t", LINE)
    s[f].distribute(t, LINE)
    s[y].distribute(t, LINE)
    return s


def histogram() -> td.Schedule:
    """An update, of which each rank computes a partial result."""
    h, r = td.Func("y", shape=(5,)), td.range("r", 0, 10)
    h[t] = 0
    h[td.clip(U[r], 0, 4)] += X[td.clip(AT[r], 0, 11), 1]
    s = on_a_line(h)
    s[h].update(0).distribute(r, LINE)
    return s


def running_sums() -> td.Schedule:
    """Updates that follow the first definition, at indices of their own."""
    f, q = td.Func("y", shape=(10, 4)), td.range("q", 1, 4)
    f[t, d] = X[td.clip(AT[t], 0, 11), d]
    f[t, q] = f[t, q - 1] + X[td.clip(AT[t] + q, 0, 11), q]
    s = on_a_line(f)
    s[f].distribute(t, LINE)
    return s


def with_a_halo() -> td.Schedule:
    """The halo of a stencil travels while rows are fetched."""
    padded, y = td.pad(U, mode="edge", shape=U.shape), td.Func("y", shape=U.shape)
    y[t] = padded[t - 1] + padded[t + 1] + X[td.clip(AT[t], 0, 11), 2]
    s = on_a_line(y)
    s[y].communicate(U, at=s[y].distribute(t, LINE)[0], overlap=True)
    return s


def in_steps() -> td.Schedule:
    """Indices are prefetched, rows are fetched in each step."""
    y = td.Func("y")
    y[t, d] = X[td.clip(AT[t], 0, 11), d] * U[t]
    s = on_a_line(y, indices="t -> *", placed="td -> d")
    s[y].distribute(t, LINE)
    steps, _ = s[y].split("t", 2)
    s[y].communicate([AT, U], at=steps, prefetch=1)
    return s


@pytest.mark.parametrize(
    "make, source, loop",
    [
        (pairs, "f", "t_o"),
        (histogram, "x", "r_o"),
        (running_sums, "x", "t_o"),
        (with_a_halo, "x", "t_o"),
        (in_steps, "x", "t_i_o"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_routes_go_with_other_directives(make: Callable[[], td.Schedule], source: str, loop: str) -> None:
    s = make()
    stage = s["y"].update(0) if make is histogram else s["y"]
    stage.communicate(source, at=loop, routed=True)
    p, given = td.compile(s, target="python"), arrays(s, 2)
    np.testing.assert_array_equal(p.simulate(**given), interpret(s.program, given)[0])
    assert_volume_is_of_plan(p._specialise({}))
    check(p.plan())


def test_sizes_may_be_named() -> None:
    x, at, y = td.Tensor("x", ("N", "D"), td.i64), td.Tensor("at", ("T",), td.i32), td.Func("y")
    y[t, d] = x[at[t], d]
    s = td.Schedule(y).place(x, "rd -> r", LINE).place(at, "t -> t", LINE).place(y, "td -> t", LINE)
    s[y].distribute(t, LINE)
    s[y].communicate(x, at="t_o", routed=True)
    assert td.Schedule(y).replay(s.to_json()).state == s.state
    p = td.compile(s, target="python")
    for rows, width, count in ((1, 1, 1), (0, 3, 0), (7, 0, 5), (7, 2, 0), (13, 3, 29)):
        given, index = values(rows, width, np.int64), RNG.integers(0, max(rows, 1), count).astype(np.int32)
        np.testing.assert_array_equal(p.simulate(given, index), given[index])
    with pytest.raises(td.IndexBoundError, match="'x' has no elements"):
        p.simulate(values(0, 3, np.int64), np.zeros(4, np.int32))
    with pytest.raises(td.TypeMismatch, match="what data select of 'x', of which there is no formula"):
        p.plan(N=10, D=2, T=5).formula()


@pytest.mark.parametrize("part", range(4))
def test_random_programs_give_what_one_rank_gives(part: int) -> None:
    for seed in range(part, 32, 4):
        s = routed_schedule(seed)
        given, p = arrays(s, seed), td.compile(s, target="python")
        what = f"routed_schedule({seed})\n{s.program}\n{s}"
        got, counted = p.simulate(**given, count=True)
        np.testing.assert_array_equal(got, interpret(s.program, given)[0], err_msg=what)
        assert counted.messages == p.plan().messages, what
        assert sum(counted.received) == sum(counted.sent), what
        assert_volume_is_of_plan(p._specialise({}), what)
        check(p.plan())


@pytest.mark.parametrize(
    "rows, count, routed", [(4096, 16, True), (4096, 100_000, False), (64, 16, False), (4096, 0, False)]
)
def test_expected_bytes_decide_where_nothing_is_said(rows: int, count: int, routed: bool) -> None:
    """A few rows of many; rows of which each is read by all ranks; and too few bytes for three messages."""
    x, at, y = td.Tensor("x", (rows, 64), td.f32), td.Tensor("at", (count,), td.i64), td.Func("y")
    y[t, d] = x[td.clip(at[t], 0, rows - 1), d]
    grid, plans = td.Grid(p=4), []
    for said in (None, routed):
        s = td.Schedule(y).place(x, "rd -> r", grid).place(at, "t -> t", grid).place(y, "td -> t", grid)
        (outer,) = s[y].distribute(t, grid)
        s[y].communicate(x, at=outer, **({} if said is None else {"routed": said}))
        plans.append(td.compile(s, target="python").plan())
    assert plans[0].rank(0) == plans[1].rank(0)
    assert any(isinstance(step, Route) for step in plans[0].rank(0).steps) == routed


def test_expected_bytes_are_the_mean_of_those_of_uniform_indices() -> None:
    rng, plan = np.random.default_rng(1), tokens(400, 600, 4).plan()
    runs = [bytes_of_rows(400, rng.integers(0, 400, 600), 4, 24) for _ in range(100)]
    received, sent = np.mean(runs, axis=0)
    np.testing.assert_allclose(received, plan.received, rtol=0.02)
    np.testing.assert_allclose(sent, plan.sent, rtol=0.02)


@pytest.mark.parametrize("wrong", [-1, 13, 1 << 40])
def test_an_index_outside_names_the_rank_the_place_and_the_line(wrong: int) -> None:
    p, at = tokens(13, 10, 4), np.zeros(10, int)
    at[7] = wrong
    with pytest.raises(
        td.IndexBoundError, match=f"rank 2 reads 'x' at {wrong} in axis 0, outside of"
    ) as error:
        p.simulate(values(13, 3, np.float64), at)
    assert "x[at[t], d] * 2" in str(error.value)
    assert "td.clip(index, 0, 12)" in str(error.value)


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 4])
def test_calls_and_modules_under_mpi(ranks: int) -> None:
    """All ranks have the same error for an index of the last one."""
    program = ROOT / "tests" / "distribute" / "routed_ranks.py"
    done = test_mpi.ranks(ranks, str(program), "60" if NIGHTLY else "3", seconds=60, limit=600)
    assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(done.stdout.split("\n")[:-1]) == [f"right: rank {n}" for n in range(ranks)]
