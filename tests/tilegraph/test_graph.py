"""The tile graph: boxes of a group, what it holds and what it moves."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

import tdsl as td
from tdsl.lang.expr import Expr, const
from tdsl.tilegraph.graph import TileGraph

i, j, k, y, x, c, f, r, s = td.vars("i j k y x c f r s")
MIB = 1 << 20


def attention_scores() -> TileGraph:
    """Scores of attention and their softmax, all batches and heads as rows of one matrix."""
    a, b = td.Tensor("a", (98304, 64), td.f32), td.Tensor("b", (64, 128), td.f32)
    score, top, e, total, out = (td.Func(n) for n in ("score", "top", "e", "total", "out"))
    score[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    top[i] = td.max(score[i, j], axis=j)
    e[i, j] = td.exp(score[i, j] - top[i])
    total[i] = td.sum(e[i, j], axis=j)
    out[i, j] = e[i, j] / total[i]
    return TileGraph.of(td.Schedule(out).program)


@pytest.mark.parametrize("rows, mib", [(4, 840), (16, 264), (32, 168), (64, 120), (128, 96)])
def test_traffic_of_softmax_of_products_by_rows_of_a_tile(rows: int, mib: int) -> None:
    graph = attention_scores()
    everything = [g.name for g in graph.program.funcs]
    traffic = graph.traffic(everything, {"out": (rows, 128)})
    assert traffic.tiles == 98304 // rows
    assert traffic.total == mib * MIB
    assert traffic.tile == mib * MIB / traffic.tiles


def test_separate_funcs_move_intermediate_results() -> None:
    graph = attention_scores()
    product = graph.traffic(["score"], {"score": (98304, 128)}).total
    rest = graph.traffic(["top", "e", "total", "out"], {"out": (98304, 128)}).total
    least = graph.traffic([g.name for g in graph.program.funcs], {"out": (98304, 128)}).total
    between = 98304 * 128 * 4
    assert product + rest == least + 2 * between
    assert least == (98304 * 64 + 64 * 128 + 98304 * 128) * 4  # 75.5 MB: everything once


def point(*index: int) -> tuple[tuple[Expr, Expr], ...]:
    return tuple((const(n), const(n)) for n in index)


def conv_and_pool(size: int = 32) -> TileGraph:
    image, w = (
        td.Tensor("image", (size + 2, size + 2, 8), td.f32),
        td.Tensor("w", (3, 3, 8, 16), td.f32),
    )
    conv, pool = td.Func("conv"), td.Func("pool", shape=(size // 2, size // 2, 16))
    conv[y, x, f] = td.sum(image[y + r, x + s, c] * w[r, s, c, f], axis=(r, s, c))
    pool[y, x, f] = td.maximum(
        td.maximum(conv[2 * y, 2 * x, f], conv[2 * y, 2 * x + 1, f]),
        td.maximum(conv[2 * y + 1, 2 * x, f], conv[2 * y + 1, 2 * x + 1, f]),
    )
    return TileGraph.of(td.Schedule(pool).program)


def test_tiles_of_convolution_and_pooling() -> None:
    graph = conv_and_pool()
    one = (*point(5, 5), (const(0), const(15)))
    tile = graph.propagate(["conv", "pool"], {"pool": one})
    assert tile.shape("conv") == (2, 2, 16)
    assert tile.shape("image") == (4, 4, 8)
    assert tile.reads == ("image", "w")
    assert tile.writes == ("pool",)


def test_tiles_of_windows_read_what_they_share_again() -> None:
    a, f1, f2 = td.Tensor("a", (132,), td.f32), td.Func("f1"), td.Func("f2")
    f1[i] = a[i] + a[i + 1] + a[i + 2]
    f2[i] = f1[i] + f1[i + 1] + f1[i + 2]
    graph = TileGraph.of(td.Schedule(f2).program)
    assert graph.traffic(["f1", "f2"], {"f2": (16,)}).total == 4 * (8 * 20 + 128)


@pytest.mark.parametrize("extent", [49, 83, 165, 196])
@pytest.mark.parametrize("tile", [4, 16, 64, 500])
def test_tails_are_counted_as_they_are(extent: int, tile: int) -> None:
    a, f1, f2 = (
        td.Tensor("a", (2 * extent + 1,), td.f32),
        td.Func("f1"),
        td.Func("f2", shape=(extent,)),
    )
    f1[i] = a[i] * 2
    f2[i] = f1[2 * i] + f1[2 * i + 1] + f1[2 * i + 2]
    graph = TileGraph.of(td.Schedule(f2).program)
    moved = 0
    for first in range(0, extent, tile):  # by hand: each tile, from its first to its last point
        last = min(first + tile, extent) - 1
        moved += 4 * (2 * last + 2 - 2 * first + 1) + 4 * (last - first + 1)
    traffic = graph.traffic(["f1", "f2"], {"f2": (tile,)})
    assert traffic.total == moved
    assert traffic.tiles == -(-extent // tile)


def test_short_runs_of_memory_move_whole_granules() -> None:
    a, t = td.Tensor("a", (64, 64), td.f32), td.Func("t")
    t[i, j] = a[j, i]
    graph = TileGraph.of(td.Schedule(t).program)
    tile = graph.propagate(["t"], {"t": ((const(0), const(3)), (const(0), const(63)))})
    assert graph.moved(tile) == 2 * 4 * 64 * 4
    assert graph.moved(tile, granule=64) == 64 * 64 + 4 * 64 * 4  # columns of four, whole rows


def test_a_gathered_table_is_read_as_far_as_indices_reach() -> None:
    table, at = td.Tensor("table", (1000,), td.f32), td.Tensor("at", (64,), td.u8)
    g = td.Func("g")
    g[i] = table[td.cast(at[i], td.i64)]
    graph = TileGraph.of(td.Schedule(g).program)
    tile = graph.propagate(["g"], {"g": ((const(0), const(7)),)})
    assert tile.shape("table") == (256,)


def test_several_outputs_and_funcs_that_others_read_are_written() -> None:
    a, p, q1, q2 = td.Tensor("a", (64, 8), td.f32), td.Func("p"), td.Func("q1"), td.Func("q2")
    p[i, j] = td.exp(a[i, j])
    q1[i] = td.sum(p[i, j], axis=j)
    q2[i, j] = p[i, j] / q1[i]
    graph = TileGraph.of(td.Schedule(q1, q2).program)
    rows = ((const(0), const(3)), (const(0), const(7)))
    tile = graph.propagate(["p", "q1", "q2"], {"q2": rows})
    assert tile.writes == ("q1", "q2")
    assert graph.propagate(["p", "q1"], {"q1": rows[:1], "p": rows}).writes == ("p", "q1")
    assert graph.groups() == [("p",), ("q1",), ("q2",)]
    joined = graph.connect("p", "q1", 2).connect("q1", "q2", 1)
    assert joined.groups(1) == [("p", "q1", "q2")]
    assert joined.groups(2) == [("p", "q1"), ("q2",)]


def test_a_schedule_shows_its_edges_where_funcs_live() -> None:
    graph = attention_scores()
    s = td.Schedule.of_program(graph.program)
    after = TileGraph.of_schedule(s)
    connected = {e.producer for e in after.edges if e.level}
    assert "e" in connected and "a" not in connected
    root = ElementTree.fromstring(after._repr_svg_())
    names = {"".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {g.name for g in after.program.funcs} <= names
    assert any(", level" in name for name in names)


def test_nodes_of_a_picture_do_not_overlap() -> None:
    root = ElementTree.fromstring(conv_and_pool()._repr_svg_())
    at = [(r.get("x"), r.get("y")) for r in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(at) == len({*at}) == 4
