"""The network as a level: bytes that a tile needs and does not own are those that plans move."""

from __future__ import annotations

import pytest

import tdsl as td
from tdsl.schedule.bind import bind_state
from tdsl.tilegraph.network import received

i, j, k = td.vars("i j k")


def predicted(s: td.Schedule, ranks: int) -> list[float]:
    return [received(bind_state(s.state, s.sizes), rank) for rank in range(ranks)]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_halos_of_some_steps_are_those_of_the_plan(every: int) -> None:
    u = td.Tensor("u", (48, 36), td.f64)
    source: td.Tensor | td.Func = u
    made = []
    for n in range(6):
        f, p = td.Func(f"step{n}"), td.pad(source, mode="edge", shape=u.shape)
        f[i, j] = p[i, j] / 2 + (p[i - 1, j] + p[i + 1, j] + p[i, j - 1] + p[i, j + 1]) / 8
        made.append(f)
        source = f
    rows = td.Grid(x=4)
    s = td.Schedule(made[-1]).place(u, "rc -> r", rows)
    for f in made[every - 1 :: every]:
        s.place(f, "rc -> r", rows)[f].distribute(onto=f)
    assert predicted(s, 4) == list(td.compile(s).plan().received)


@pytest.mark.parametrize("places", [("mk -> m k", "kn -> k n"), ("mk -> m *", "kn -> * n")])
def test_a_product_on_a_grid_receives_rows_and_columns(places: tuple[str, str]) -> None:
    a, b, c = td.Tensor("A", (60, 40), td.f32), td.Tensor("B", (40, 50), td.f32), td.Func("C")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    grid = td.Grid(x=2, y=3)
    s = (
        td.Schedule(c)
        .place(a, places[0], grid)
        .place(b, places[1], grid)
        .place(c, "mn -> m n", grid)
    )
    s[c].distribute(onto=c)
    assert predicted(s, 6) == list(td.compile(s).plan().received)
