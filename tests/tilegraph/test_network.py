"""The network as a level: bytes that a tile needs and does not own are those that plans move."""

from __future__ import annotations

import pytest

import tdsl as td
from tdsl.communication.distribution import Distribution, distribute_owned
from tdsl.cost.network import Received, links_of
from tdsl.machine.devices import describe_gpu
from tdsl.schedule.bind import bind_state

i, j, k = td.vars("i j k")


def predicted(s: td.Schedule) -> list[int]:
    state = distribute_owned(bind_state(s.state, s.sizes))
    return Distribution.of(state).volume().received.tolist()


def busiest(s: td.Schedule) -> Received:
    received = s.prediction().received
    assert received is not None
    return received


@pytest.mark.parametrize("every", [1, 2, 3])
def test_halos_of_some_steps_are_those_of_the_plan(every: int) -> None:
    u = td.Tensor("u", (48, 36), td.f64)
    source: td.Tensor | td.Func = u
    funcs = []
    for n in range(6):
        f, p = td.Func(f"step{n}"), td.pad(source, mode="edge", shape=u.shape)
        f[i, j] = p[i, j] / 2 + (p[i - 1, j] + p[i + 1, j] + p[i, j - 1] + p[i, j + 1]) / 8
        funcs.append(f)
        source = f
    rows = td.Grid(x=4)
    s = td.Schedule(funcs[-1]).place(u, "rc -> r", rows)
    for f in funcs[every - 1 :: every]:
        s.place(f, "rc -> r", rows)[f].distribute(onto=f)
    assert predicted(s) == list(td.compile(s).plan().received)


@pytest.mark.parametrize("places", [("mk -> m k", "kn -> k n"), ("mk -> m *", "kn -> * n")])
def test_a_product_on_a_grid_receives_rows_and_columns(places: tuple[str, str]) -> None:
    a, b, c = td.Tensor("A", (60, 40), td.f32), td.Tensor("B", (40, 50), td.f32), td.Func("C")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    grid = td.Grid(x=2, y=3)
    s = td.Schedule(c).place(a, places[0], grid).place(b, places[1], grid).place(c, "mn -> m n", grid)
    s[c].distribute(onto=c)
    plan = td.compile(s).plan()
    assert predicted(s) == list(plan.received)
    assert (busiest(s).bytes, busiest(s).ranks) == (max(plan.received), 6)
    assert busiest(s).messages == plan.messages[busiest(s).rank]


def blocks(*names: str) -> td.Schedule:
    """A product of which each of four ranks makes a block; the tensors named are on ranks."""
    a, b, c = td.Tensor("A", (64, 64), td.f32), td.Tensor("B", (64, 64), td.f32), td.Func("C")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    grid = td.Grid(x=2, y=2)
    s = td.Schedule(c)
    for x, way in ((a, "mk -> m k"), (b, "kn -> k n"), (c, "mn -> m n")):
        if x.name in names:
            s.place(x, way, grid)
    return s


def test_the_network_is_the_last_level_of_what_a_schedule_moves() -> None:
    s = blocks("A", "B", "C")
    moved = 4 * 2 * 32 * 32  # half of its rows of A, half of its columns of B
    assert s.traffic("network") == moved
    (link,) = links_of(s.prediction().machine, 1)
    seconds = 2 * link.latency + moved / link.bandwidth[0][1]
    assert s.prediction().network == pytest.approx(seconds)
    assert s.prediction().seconds == pytest.approx(seconds + sum(t.seconds for t in s.prediction().times))
    assert "network: 8.19 kB to rank 0, the busiest of 4, in 2 messages: " in s.explain()


def test_ranks_of_nothing_receive_nothing() -> None:
    x, y = td.Tensor("x", (0,), td.f32), td.Func("y")
    y[i] = x[i] + 1
    grid = td.Grid(r=4)
    s = td.Schedule(y).place(x, "n -> n", grid).place(y, "n -> n", grid)
    s[y].distribute(onto=y)
    assert s.traffic("network") == 0


def test_tensors_that_are_on_no_ranks_come_over_no_network() -> None:
    with pytest.raises(td.TargetError, match="no level 'network'"):
        blocks().traffic("network")
    assert blocks("A").prediction().received is None
    assert "network" not in blocks("A").explain()


def test_nodes_of_gpus_are_described_by_their_data_sheets() -> None:
    names = {a: [x.name for x in describe_gpu(a).links] for a in ("sm_80", "sm_89", "sm_90a")}
    both = ["NVLink", "network"]
    assert names == {"sm_80": both, "sm_89": ["PCIe"], "sm_90a": both}
    assert [x.bytes_per_second(1) for x in describe_gpu("sm_90a").links] == [450e9, 50e9]


def test_each_rank_computes_its_share() -> None:
    """Blocks of a product take a quarter of the time, but for their launch."""
    alone, shared = blocks().prediction(), blocks("A", "B", "C").prediction()
    assert shared.received is not None
    assert shared.received.ranks == 4
    for one, all_ in zip(shared.times, alone.times, strict=True):
        assert [s for _, s in one.units] == pytest.approx([s / 4 for _, s in all_.units])
        assert one.launch == all_.launch


def test_the_rank_that_computes_the_most_counts() -> None:
    x, mid, out = td.Tensor("x", (42,), td.f32), td.Func("mid"), td.Func("out", shape=(38,))
    mid[i] = td.exp(x[i])
    out[i] = mid[i] + mid[i + 4]
    g = td.Grid(r=4)
    s = td.Schedule(out).place(x, "n -> n", g).place(out, "n -> n", g)
    assert dict(busiest(s).computed) == {"out": 10, "mid": 14}
