"""WELDER's score, whose ranking of tiles is known."""

from __future__ import annotations

from tdsl.machine.devices import describe_gpu
from tdsl.tilegraph.score import coalesced, score
from tests.tilegraph.test_graph import attention_scores, conv_and_pool


def test_more_rows_move_less_until_nothing_fits() -> None:
    graph, gpu = attention_scores(), describe_gpu("sm_80")
    group = [f.name for f in graph.program.funcs]
    scores = {rows: score(graph, group, {"out": (rows, 128)}, gpu) for rows in (4, 16, 64, 512)}
    assert scores[4] is not None
    assert scores[16] is not None
    assert scores[4] > scores[16]
    assert scores[512] is None


def test_short_runs_take_whole_transactions() -> None:
    graph = conv_and_pool()
    tile = graph.propagate(["conv", "pool"], {"pool": graph.tiles("pool", (1, 1, 16))[0][0]})
    # rows of 4 pixels of 8 channels are contiguous: 4 of them, each a transaction of 128 bytes
    assert coalesced(graph, "image", tile.boxes["image"], 128) == 4 * 128
    assert coalesced(graph, "image", tile.boxes["image"], 32) == 4 * 128
    assert coalesced(graph, "image", tile.boxes["image"], 256) == 4 * 256
