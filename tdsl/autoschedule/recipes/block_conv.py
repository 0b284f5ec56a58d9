"""Convolutions on a GPU as products of matrices that nobody makes: filters times windows, in tiles.

for tiles of filters and points (blocks):
  for some filters and neighbouring points of each thread:
    for steps along the channels:
      the filters, and what the tile reads with its halo, fetched together into shared memory
      for the places of the window: products of all filters and points of the thread, in registers
    the sums, or what is made of them alone, to memory
"""

from __future__ import annotations

from math import prod
from typing import Any

from tdsl.autoschedule.recipes.block_rows import fused
from tdsl.autoschedule.recipes.choices import Unsuited, choose, recipe, reduction_of
from tdsl.autoschedule.recipes.elements import definition_of, known_sizes, sizes_of, vector_of
from tdsl.autoschedule.recipes.epilogue import following, reader_of, write_neighbours
from tdsl.autoschedule.recipes.grid import bind_blocks
from tdsl.core.node import frozen
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Binary, Read, Var
from tdsl.machine.devices import describe_gpu
from tdsl.schedule.fluent import Stage
from tdsl.schedule.state import REGISTER, SHARED
from tdsl.target import as_target

_SHARED = 40 << 10  # bytes of the tiles of both operands
_CHANNELS = 8  # of a step, at most
_LEAST = 16  # filters and points of a line that are worth tiles
_UNROLLED = 512  # products of a thread without a loop


@frozen
class BlockConv:
    """The tile of a block (filters, lines, points of a line), and that of a thread.

    `channels` are summed up for one tile of both operands. `epilogue` is what is made of the sums in
    registers, if something is.
    """

    tile: tuple[int, int, int]
    each: tuple[int, int, int]
    channels: int
    epilogue: str = ""


@frozen
class _Conv:
    """The variables of a convolution: `line` is empty where points have one dimension."""

    filter: str
    line: str
    point: str
    channel: str
    window: tuple[str, ...]
    weights: str
    source: str


@recipe
def block_conv(stage: Stage, **choices: Any) -> BlockConv:
    """Schedule a sum over channels and a window of products with filters, in tiles.

    Filters may come first or last in memory; batches and further dimensions have blocks of their own. An
    element-wise stage that alone reads the sums is made of them in registers. `choices` replace what is
    chosen: the numbers of `BlockConv`. Returns what was chosen. There are at least 16 filters and
    points of a line, and the schedule has to know that.

    >>> import tdsl as td
    >>> n, o, c, y, x, p, q = td.vars("n o c y x p q")
    >>> a, w = td.Tensor("a", (8, 32, 66, 66), td.f32), td.Tensor("w", (64, 32, 3, 3), td.f32)
    >>> f = td.Func("f")
    >>> f[n, o, y, x] = td.sum(a[n, c, y + p, x + q] * w[o, c, p, q], axis=(c, p, q))
    >>> s = td.Schedule(f)
    >>> td.recipes.block_conv(s[f])
    BlockConv(tile=(64, 4, 32), each=(8, 1, 4), channels=8, epilogue='')
    """
    d = reduction_of(stage)
    axes = _find(d)
    if axes is None:
        raise Unsuited(
            "it is no sum, over one channel and a window, of filters times what moves with a point"
        )
    sizes = known_sizes(stage, axes.filter, axes.point)
    for v in (axes.filter, axes.point):
        if sizes[v] < _LEAST:
            raise Unsuited(f"{v!r} goes through {sizes[v]} elements, and less than {_LEAST} are no tile")
    plan = _plan(stage, d, axes)
    plan = choose(plan, choices, epilogue=dict.fromkeys(("", plan.epilogue)))
    _write(stage, axes, plan)
    return plan


def _find(d: Definition) -> _Conv | None:
    """The variables by what reads them: filters are read by the weights alone, points by the source alone."""
    reads = _factors(d)
    if reads is None or not d.index or not isinstance(d.index[-1], Var):
        return None
    ranges = {v for v, _, _ in d.ranges}
    for weights, source in (reads, reads[::-1]):
        of_weights = {v for e in weights.index for v in variables(e)}
        of_source = {v for e in source.index for v in variables(e)}
        filters = [v for v in d.free if v in of_weights - of_source]
        points = [v for v in d.free if v in of_source - of_weights and _is_windowed(source, v, ranges)]
        channels = [v for v in ranges if Var(v) in source.index and v in of_weights]
        window = tuple(v for v, _, _ in d.ranges if v not in channels)
        last = d.index[-1].name
        if len(filters) == len(channels) == 1 and points and last in (filters[0], points[-1]):
            if not window or weights.name == source.name:
                return None
            line = points[-2] if len(points) > 1 else ""
            names = filters[0], line, points[-1], channels[0]
            return _Conv(*names, window, weights.name, source.name)
    return None


def _factors(d: Definition) -> tuple[Read, Read] | None:
    match d.values:
        case (Binary("mul", Read() as left, Read() as right),) if d.combine is not None:
            return (left, right) if d.combine.kind == "sum" else None
        case _:
            return None


def _is_windowed(r: Read, v: str, ranges: set[str]) -> bool:
    """True if a variable is in one index expression with one of the window."""
    return any(v in variables(e) and variables(e) & ranges for e in r.index)


def _plan(stage: Stage, d: Definition, c: _Conv) -> BlockConv:
    sizes = sizes_of(stage)
    last = d.index[-1] == Var(c.filter)
    tile, each = ((64, 4, 32), (4, 1, 8)) if last else ((64, 4, 32), (8, 1, 4))
    if not c.line:
        tile, each = (64, 1, 128), each
    size = stage.schedule.state.program.func(stage.func).dtypes[0].bytes
    window = [sizes.get(v) or 1 for v in c.window]
    halo = prod(n + w for n, w in zip(tile[1:], (*window, 0, 0)[:2], strict=True))
    filters = tile[0]
    while filters > each[0] and size * (filters * prod(window) + halo) > _SHARED:
        filters //= 2
    tile, step = (filters, *tile[1:]), size * (filters * prod(window) + halo)
    machine = describe_gpu(as_target(stage.schedule.target).arch)
    if step > (machine.level("shared").bytes or 0):
        raise Unsuited(f"a channel of a window of {prod(window)} points needs {step} bytes of shared memory")
    channels = max(min(_CHANNELS, sizes.get(c.channel) or 1, _SHARED // step), 1)
    reader = reader_of(stage)
    return BlockConv(tile, each, channels, "" if reader is None else reader.func)


def _write(stage: Stage, c: _Conv, plan: BlockConv) -> None:
    schedule, d, sizes = stage.schedule, definition_of(stage), sizes_of(stage)
    by_filter = d.index[-1] == Var(c.filter)
    far, point_loops = _tiles(stage, c, plan, by_filter=by_filter)
    at = stage.loops[[x.name for x in stage.loops].index(far) - 1]
    if plan.epilogue:
        out = following(stage, at, REGISTER)
    else:
        out = schedule.cache_write(stage, at=at, scope=REGISTER)
    write_neighbours(out, plan.each[0 if by_filter else -1], vector_of(out))
    for source in (c.weights, c.source):
        schedule.cache_read(source, stage, at=far, scope=SHARED).cooperate()
    count = prod(plan.each)
    for x in point_loops:
        stage.unroll(x)
    for v in reversed(c.window):
        count *= sizes.get(v) or _UNROLLED
        if count <= _UNROLLED:
            stage.unroll(v)


def _tiles(stage: Stage, c: _Conv, plan: BlockConv, *, by_filter: bool) -> tuple[str, list[str]]:
    """Tiles for blocks and threads; the loop over steps of channels, and those of a thread's own points."""
    sides = [
        (v, n, e) for v, n, e in zip((c.filter, c.line, c.point), plan.tile, plan.each, strict=True) if v
    ]
    names = [v for v, _, _ in sides]
    batch = [v for v in definition_of(stage).free if v not in names]
    loops = [x.name for x in stage.tile(names, [n for _, n, _ in sides])]
    outer, inner = loops[: len(names)], loops[len(names) :]
    loops = [x.name for x in stage.tile(inner, [e for _, _, e in sides])]
    threads, point_loops = loops[: len(names)], loops[len(names) :]
    far, channel = (x.name for x in stage.split(c.channel, plan.channels))
    if by_filter:  # neighbours in memory on neighbouring threads
        threads = [*threads[1:], threads[0]]
    stage.reorder(*batch, *outer, *threads, far, channel, *c.window, *point_loops)
    outer[0] = fused(stage, [*batch, outer[0]])
    bind_blocks(stage, outer)
    for x, axis in zip(reversed(threads), "xyz", strict=False):
        stage.bind(x, f"threadIdx.{axis}")
    return far, point_loops
