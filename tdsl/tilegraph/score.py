"""WELDER's score of a tile, for comparison with the roofline: bytes of a tile times waves of tiles.

It ignores operations, assumes that b resident blocks run b times as fast as one, and counts bytes as moved
from a memory that nothing shares. What it ranks highest is still a good first guess where memory decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil

from tdsl.lang.regions import Box
from tdsl.machine.model import Machine
from tdsl.schedule.properties import extent, volume
from tdsl.tilegraph.graph import Tile, TileGraph

READ, WRITTEN = 128, 32  # bytes of a memory transaction
REGISTERS = 65536  # registers of 4 bytes per multiprocessor
MAX_BLOCKS_PER_SM = 4  # blocks; more resident ones are not counted


def score(
    graph: TileGraph, group: Iterable[str], shape: Mapping[str, tuple[int, ...]], machine: Machine
) -> float | None:
    """Bytes of a tile times waves, lower is better; None if a tile does not fit into a block.

    >>> import tdsl as td
    >>> from tdsl.machine.devices import describe_gpu
    >>> i, j, a, f = *td.vars("i j"), td.Tensor("a", (4096, 128), td.f32), td.Func("f")
    >>> f[i, j] = td.exp(a[i, j])
    >>> graph, gpu = TileGraph.of(td.Schedule(f).program), describe_gpu("sm_80")
    >>> score(graph, ["f"], {"f": (16, 128)}, gpu), score(graph, ["f"], {"f": (4096, 128)}, gpu)
    (16385.0, None)
    """
    members, name, tile_shape = graph.tiled(group, shape)
    tiles = graph.tiles(name, tile_shape)
    if not tiles:
        return 0.0
    tile = graph.propagate(members, {name: tiles[0][0]})
    count = sum(times for _, times in tiles)
    moved = sum(coalesced(graph, n, tile.boxes[n], READ) for n in tile.reads)
    moved += sum(coalesced(graph, n, tile.boxes[n], WRITTEN) for n in tile.writes)
    blocks = _blocks(graph, tile, machine)
    if blocks == 0:
        return None
    return (moved + 1) * ceil(count / (blocks * machine.threads))


def _blocks(graph: TileGraph, tile: Tile, machine: Machine) -> int:
    """The number of tiles (blocks) resident on a multiprocessor; 0 if a tile does not fit."""
    shared = machine.level("shared").bytes or 0
    footprint = graph.footprint(tile, reads=False)
    largest = max(graph.bytes_moved(n, tile.boxes[n]) for n in tile.members)
    registers = 2 * largest / 4
    if footprint > shared or registers > REGISTERS:
        return 0
    return int(min(shared // max(footprint, 1), REGISTERS // max(registers, 1), MAX_BLOCKS_PER_SM))


def coalesced(graph: TileGraph, name: str, box: Box, transaction: int) -> float:
    """The bytes of a box in whole transactions; a shorter contiguous run takes one of its own."""
    size, run = graph.element_bytes(name), 1
    for axis in range(len(box) - 1, -1, -1):
        length, whole = extent(box, axis) or 0, extent(graph.boxes[name], axis) or 0
        run *= max(length, 1)
        if length < whole:
            break
    most = max(transaction // size, 1)
    return most * (volume(box) or 0) / min(most, run) * size
