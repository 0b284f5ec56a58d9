"""Points of a stage shared out among the threads of a GPU."""

from __future__ import annotations

from tdsl.autoschedule.recipes.choices import Unsuited, recipe
from tdsl.autoschedule.recipes.grid import share_points
from tdsl.autoschedule.recipes.stage_facts import beyond_rows, vector_of
from tdsl.core.node import frozen
from tdsl.schedule.fluent import Stage


@frozen
class Elements:
    """Blocks of so many threads, and the elements that each of them makes at once."""

    threads: int
    vector: int


@recipe
def elements(stage: Stage, *, threads: int = 256, vector: int | None = None) -> Elements:
    """Share the points of a stage out among threads, each definition by itself.

    `vector` neighbours are made by one thread; by default as many as 16 bytes hold, where they divide the
    last extent, or those of the last two, where a point is made of the same one of arrays whose rows
    follow each other. Returns what was chosen; a stage of one point has none.

    >>> import tdsl as td
    >>> i, j, a, f = *td.vars("i j"), td.Tensor("a", (100, 64), td.f32), td.Func("f")
    >>> f[i, j] = a[i, j] * 2
    >>> s = td.Schedule(f)
    >>> td.recipes.elements(s[f])
    Elements(threads=256, vector=4)
    """
    f = stage.schedule.state.program.func(stage.func)
    if not any(d.free for d in f.definitions):
        raise Unsuited("it has one point")
    widest = 1
    for n, d in enumerate(f.definitions):
        current = stage if n == 0 else stage.update(n - 1)
        width = vector_of(current) if vector is None else vector
        rows = 1
        if vector is None:
            width, rows = max((width, 1), beyond_rows(current, threads), key=lambda x: x[0])
        if share_points(current, d.free, threads, width, rows):
            widest = max(widest, width)
    return Elements(threads, widest)
