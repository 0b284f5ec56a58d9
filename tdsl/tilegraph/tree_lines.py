"""The tile trees of any schedule as text: what `Schedule.tree()` prints."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tdsl.cost.accesses import variable_of
from tdsl.cost.loopnests import Nests, NestSpot
from tdsl.schedule.state import BLOCKS, PARALLEL, THREADS, UNROLLED, VECTORIZED
from tdsl.tilegraph.tree import LANES, SERIAL, UNROLL, Cut
from tdsl.tilegraph.tree import THREADS as SHARED

_HOW = {PARALLEL: SHARED, UNROLLED: UNROLL, VECTORIZED: LANES}


def tree_lines(nests: Nests) -> Iterator[str]:
    """A line for each nest at the root, those inside of it below.

    Loops are named by their variable with the number of its values that an iteration goes through: `i:32*`
    has blocks of 32 values of `i` on threads, `i:u4` four in one piece of code, `i:v8` eight as lanes.

    >>> import tdsl as td
    >>> from tdsl.schedule.properties import unplaced_at_root
    >>> i, j, a, f = *td.vars("i j"), td.Tensor("a", (512, 512), td.f32), td.Func("f")
    >>> f[i, j] = a[i, j] + 1
    >>> s = td.Schedule(f)
    >>> _ = s[f].split(i, 32)
    >>> _ = s[f].parallel("i_o").vectorize(j, 8)
    >>> print(*tree_lines(Nests.of(unplaced_at_root(s.state))))
    f: i:32* i j:8 j:v8
    """
    for spot in nests.roots():
        yield from _lines(spot, "")


def _lines(spot: NestSpot, indent: str) -> Iterator[str]:
    cuts = [str(cut) for cut in _cuts(spot)]
    stage = spot.func.name + (f".update({spot.definition - 1})" if spot.definition else "")
    yield f"{indent}{stage}: {' '.join(cuts)}".rstrip()
    for k, cut in enumerate(cuts, 1):
        for child in spot.children(k):
            first, *rest = _lines(child, indent + "  ")
            yield f"{indent}  in {cut}: {first.strip()}"
            yield from rest


def _cuts(spot: NestSpot) -> Iterator[Cut]:
    counts, variable = spot.counts(), variable_of(spot)
    names = spot.nest.names()
    for n, x in enumerate(names):
        how = _HOW.get(spot.kind(x), SERIAL)
        if spot.kind(x) in (*BLOCKS, *THREADS):
            how = spot.kind(x)
        inner = prod(counts[y] for y in names[n + 1 :] if variable[y] == variable[x])
        size = counts[x] if how in (UNROLL, LANES) else inner
        yield Cut(variable[x], max(round(size), 1), how)
