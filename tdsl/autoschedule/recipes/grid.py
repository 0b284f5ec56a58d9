"""Loops of a stage on the axes of the blocks and threads of a launch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tdsl.autoschedule.recipes.stage_facts import sizes_of
from tdsl.schedule.fluent import Stage
from tdsl.schedule.launch import MAX_BLOCKS
from tdsl.schedule.loops import iterations_of
from tdsl.schedule.state import CLUSTER, GUARD

_MOST_OTHER = MAX_BLOCKS["blockIdx.y"]


def bind_blocks(stage: Stage, loops: Sequence[str]) -> None:
    """Up to three neighbouring loops, outermost first, on axes of blocks, the last on blockIdx.x.

    A loop with more iterations than another axis has blocks is one with those inside of it.

    >>> import tdsl as td
    >>> i, j, a, f = *td.vars("i j"), td.Tensor("a", (100_000, 64), td.f32), td.Func("f")
    >>> f[i, j] = a[i, j] * 2
    >>> s = td.Schedule(f)
    >>> bind_blocks(s[f], ["i", "j"])
    >>> print(s)
    s["f"].fuse("i", "j")
    s["f"].bind("i_j", "blockIdx.x")
    """
    state, sizes = stage.schedule.state, sizes_of(stage)
    counts = [iterations_of(state, stage.func, stage.definition, x, sizes) for x in loops]
    first = next((n for n, count in enumerate(counts) if (count or 0) > _MOST_OTHER), len(loops) - 1)
    axes = [*loops[:first], fused(stage, [*loops[first:]])]
    for loop, axis in zip(reversed(axes), "xyz", strict=False):
        stage.bind(loop, f"blockIdx.{axis}")


def share_points(stage: Stage, shared: Collection[str], threads: int, vector: int, rows: int = 1) -> bool:
    """One loop over blocks and one over threads of the loops `shared` outside of all others.

    Neighbours that a thread makes are those of the last loop, or of the last few as one.
    """
    free = [x.name for x in stage.loops]
    while free and not set(shared).issuperset(free):
        free.pop()
    if not free:
        return False
    free[-rows:] = [fused(stage, free[-rows:])]
    on_threads(stage, free, threads, vector, blocks=True)
    return True


def on_threads(
    stage: Stage, loops: Sequence[str], threads: int, vector: int = 1, *, blocks: bool = False,
    line: int = 0, tail: str = GUARD,
) -> tuple[str, str]:  # fmt: skip
    """Share neighbouring loops out among threads, `vector` neighbours at a time, the last ones by `tail`.

    Returns the loop over turns, which may be `blocks`, and the one over threads. With a `line`, so many
    threads are along threadIdx.x, and lines of them along threadIdx.y.
    """
    *outer, last = loops
    if vector > 1:
        last, lanes = (x.name for x in stage.split(last, vector, tail=tail))
        stage.vectorize(lanes)
    turn, thread = (x.name for x in stage.split(fused(stage, [*outer, last]), threads))
    if blocks:
        stage.bind(turn, "blockIdx.x")
    if line:
        y, thread = (x.name for x in stage.split(thread, line))
        stage.bind(y, "threadIdx.y")
    stage.bind(thread, "threadIdx.x")
    return turn, thread


def on_grid(
    stage: Stage, loops: Sequence[str], *, group: int = 1, blocks: int = 0, cluster: int = 1
) -> None:  # fmt: skip
    """Tiles for blocks: neighbouring loops over batches, if any, and over rows and columns of tiles.

    With a `group` blocks go down so many rows of tiles before the next column; with `blocks` above 0 there
    are only so many, each of which makes several tiles. Neighbours along rows are a `cluster`.
    """
    batch, tiles = [*loops[:-2]], [*loops[-2:]]
    if cluster > 1:
        tiles[0], rank = (x.name for x in stage.split(tiles[0], cluster))
        stage.reorder(rank, *batch, *tiles).bind(rank, CLUSTER)
        group, blocks = max(group // cluster, 1), blocks // cluster
    outer = [fused(stage, batch)] if batch else []
    if group > 1:
        above, inner = (x.name for x in stage.split(tiles[0], group))
        tiles = [above, tiles[1], inner]
        stage.reorder(*outer, *tiles)
    if blocks:
        turn, block = (x.name for x in stage.split(fused(stage, [*outer, *tiles]), blocks))
        stage.reorder(block, turn).bind(block, "blockIdx.x")
    else:
        bind_blocks(stage, [*outer, *(tiles if group == 1 else [fused(stage, tiles)])])


def fused(stage: Stage, loops: list[str]) -> str:
    """One loop of some that follow each other."""
    whole = loops[0]
    for x in loops[1:]:
        whole = stage.fuse(whole, x).name
    return whole
