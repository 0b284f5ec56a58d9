"""Wrong ways to fetch rows that data select."""

import numpy as np

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i, j = td.vars("i j")
a = td.Tensor("a", (20, 30), td.f32)
square = td.Grid(x=2, y=2)


def gathered(index=None, placed="rc -> r c"):
    """A schedule of rows that data select, distributed, and the func."""
    at, f = td.Tensor("at", (20,), td.i64), td.Func("f")
    f[i, j] = a[at[i] if index is None else index, j] + at[i]
    s = td.Schedule(f).place("a", placed, square).place(at, "i -> i *", square)
    s.place("f", "rc -> r c", square)["f"].distribute((i, j), square)
    return s


@wrong(td.ScheduleError, "'f' reads 'a' at no index that depends on data", hint="without routed")
def route_at_an_index_without_data():
    gathered(i)["f"].communicate("a", at="j_o", routed=True)  # here


@wrong(td.ScheduleError, "routed must be True or False, not 2", hint="")
def route_by_a_number():
    gathered()["f"].communicate("a", at="j_o", routed=2)  # here


@wrong(td.ScheduleError, "ranks learn which elements they receive when", hint="without prefetch and overlap")
def route_with_a_prefetch():
    gathered()["f"].communicate("a", at="i_i", prefetch=1, routed=True)  # here


@wrong(td.ScheduleError, "cannot route 'a': 'at', which selects its rows, is", hint="at the same loop")
def route_before_the_indices():
    s = gathered()
    s["f"].communicate("a", at="j_o", routed=True).communicate("at", at="i_i")  # here
    td.compile(s).plan()


@wrong(td.ScheduleError, "'f' cannot route 'h', of which ranks have partial results", hint="without routed")
def route_partial_results():
    at, h, f = td.Tensor("at", (20,), td.i64), td.Func("h"), td.Func("f")
    h[i] = td.sum(a[i, j], axis=j)
    f[i] = h[td.clip(at[i], 0, 19)]
    line = td.Grid(x=2)
    s = td.Schedule(f).place("a", "rc -> c", line).place(at, "r -> r", line)
    s.place(h, "r -> partial(sum)", line)[h].distribute(j, line)
    s.place(f, "r -> r", line)[f].distribute(i, line)
    s[f].communicate(h, at="i_o", routed=True)  # here
    td.compile(s).plan()


@wrong(td.IndexBoundError, "the index at[i] of 'a' has no bounds", hint="routed=True")
def data_without_bounds_and_without_a_route():
    at, f = td.Tensor("at", (20,), td.i64), td.Func("f")
    f[i, j] = a[at[i], j]  # here
    s = td.Schedule(f).place("a", "rc -> r c", square).place(at, "i -> i *", square)
    s.place("f", "rc -> r c", square)["f"].distribute((i, j), square)
    td.compile(s).plan()


@wrong(
    td.IndexBoundError, "rank 2 reads 'a' at 20 in axis 0, outside of [0, 20)", hint="td.clip(index, 0, 19)"
)
def a_row_that_is_none():
    at, f = td.Tensor("at", (20,), td.i64), td.Func("f")
    f[i, j] = a[at[i], j]  # here
    s = td.Schedule(f).place("a", "rc -> r c", square).place(at, "i -> i *", square)
    s.place("f", "rc -> r c", square)["f"].distribute((i, j), square)
    s["f"].communicate("a", at="j_o", routed=True)
    td.compile(s, target="python").simulate(np.ones((20, 30), np.float32), np.arange(20) + 1)
