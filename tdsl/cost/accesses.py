"""The loads, stores and gathers of a nest, in bytes that vectors would move in the same time.

A cache serves so many accesses in a time, each of a vector at most. A vector of contiguous
elements is one access, one with a small stride as many as the vectors it touches, and one of elements
anywhere as many as it has.
What a tile of unrolled loops and vectors reads is loaded once for the tile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import prod

from tdsl.cost.loopnests import NestSpot, memoised
from tdsl.lang.affine import variables
from tdsl.lang.bounds import upper
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Binary, Const, Expr
from tdsl.schedule.properties import MAX_STRIDE, coefficient
from tdsl.schedule.state import BLOCKS, THREADS, UNROLLED, VECTORIZED, Split
from tdsl.schedule.tree import ROOT

ONE = 0.5  # of the time of a vector takes an access of a single element: there are two at a time


def accessed(
    spot: NestSpot, d: Definition, vector_bytes: int, register_bytes: int
) -> tuple[float, float, float]:
    """The loads and the stores of a nest, in bytes that full vectors would move in the same time.

    The third figure are the elements that vectors access one by one. `d` is its definition, without what no
    iteration reads; funcs of up to `register_bytes` are in registers. What does not depend on inner loops is
    loaded once for all of their iterations, and a sum is stored after them.
    """
    counts, loops = spot.counts(), variable_of(spot)
    tile = _tile(spot)
    points = spot.times * prod(counts.values()) * partly_filled(spot)
    runs = points / prod(counts[x] or 1 for x in tile)  # none where there is no iteration
    lanes = prod(n for x, n in spot.extents().items() if spot.kind(x) == VECTORIZED)
    along = {loops[x] for x in tile if spot.kind(x) == VECTORIZED}
    unrolled: dict[str, float] = {}
    for x, n in counts.items():
        if x in tile and spot.kind(x) != VECTORIZED:
            unrolled[loops[x]] = unrolled.get(loops[x], 1.0) * n
    singly = 0.0

    def total(name: str, index: tuple[Expr, ...], size: int) -> float:
        nonlocal singly
        if _in_registers(spot, name, register_bytes):
            return 0.0
        one = _one(_in_order(spot, name, index), along, lanes, size, vector_bytes)
        needs = loops_of(spot, frozenset().union(*map(variables, index)))
        times = runs * _different(index, unrolled, along) / _hoisted(spot, needs, tile)
        singly += times * lanes if one is None else 0.0
        return times * (one or 0.0)

    name = spot.func.name
    loads = sum(total(*r) for r in {(r.name, r.index, r.dtype.bytes): None for r in d.reads})
    stores = sum(total(name, d.index, t.bytes) for t in spot.func.dtypes)
    if d.combine is not None:
        needs = loops_of(spot, frozenset().union(*map(variables, d.index)))
        visits = prod(n for x, n in counts.items() if x not in needs) / repeated(spot, needs)
        loads += stores * (1.0 if d.init is None else 1 - 1 / max(visits, 1.0))
    return loads, stores, singly


def loops_of(spot: NestSpot, needs: frozenset[str]) -> frozenset[str]:
    """The loops that go through some variables."""
    _, related = spot.related()
    return frozenset[str]().union(*(variables(e) for v, e in related.roots.items() if v in needs))


def repeated(spot: NestSpot, needs: frozenset[str]) -> float:
    """The iterations of inner loops that share a value which changes with the loops `needs` alone."""
    tile, counts = _tile(spot), spot.counts()
    shared = prod(max(n, 1.0) for x, n in counts.items() if x in tile and x not in needs)
    return shared * _hoisted(spot, needs, tile)


def _hoisted(spot: NestSpot, needs: Collection[str], tile: Collection[str]) -> float:
    """The iterations of the innermost loops outside a tile that do not change a value.

    Each thread of a GPU computes for itself.
    """
    times = 1.0
    for x, n in reversed(spot.counts().items()):
        if x in tile:
            continue
        if x in needs or spot.kind(x) in (*THREADS, *BLOCKS):
            break
        times *= max(n, 1.0)
    return times


def variable_of(spot: NestSpot) -> dict[str, str]:
    """The variable of the definition that each loop belongs to."""
    _, related = spot.related()
    root_variable = {x: v for v, e in related.roots.items() for x in variables(e)}
    return {x: root_variable.get(x, x) for x in spot.nest.names()}


def partly_filled(spot: NestSpot, loops: Collection[str] | None = None) -> float:
    """How many times as many lanes vectors have as they are filled: the last one of a row may be short.

    With some loops, of rows whose vectors these loops go through.

    >>> import tdsl as td
    >>> from tdsl.cost.loopnests import Nests
    >>> from tdsl.schedule.properties import unplaced_at_root
    >>> i, x, f = td.vars("i"), td.Tensor("x", (20,), td.f32), td.Func("f")
    >>> f[i] = x[i] + 1
    >>> s = td.Schedule(f)
    >>> _ = s[f].vectorize(i, 16)
    >>> (spot,) = Nests.of(unplaced_at_root(s.state)).roots()
    >>> partly_filled(spot)
    1.6
    """
    lanes = {x: n for x, n in spot.extents().items() if spot.kind(x) == VECTORIZED}
    if not lanes:
        return 1.0
    splits = {r.parent: r for r in spot.nest.relations if isinstance(r, Split)}
    ratio, variables_ = 1.0, spot.func.definitions[spot.definition].variables
    for v, n in zip(variables_, spot.points(), strict=True):
        parts = [*_parts(v, splits)]
        inner = parts[-1].inner if parts else v
        if inner in lanes and n and (loops is None or any(r.outer in loops for r in parts)):
            ratio *= _vectors(n, [*_lengths(spot, parts)]) * lanes[inner] / n
    return ratio


def _parts(loop: str, splits: Mapping[str, Split]) -> Iterator[Split]:
    """The splits of a loop from which the innermost one comes."""
    while loop in splits:
        yield splits[loop]
        loop = splits[loop].inner


def _lengths(spot: NestSpot, parts: Iterable[Split]) -> Iterator[int]:
    _, related = spot.typical_related()
    yield from (max(upper(related.extents[r.inner]) or 1, 1) for r in parts)


def _vectors(n: int, lengths: Sequence[int]) -> int:
    """How many iterations of the innermost of parts of such lengths so many points are.

    >>> _vectors(100, [64, 16]), _vectors(20, [])
    (7, 1)
    """
    if not lengths:
        return 1
    first, *others = lengths
    many, rest = divmod(n, first)
    return many * _vectors(first, others) + (_vectors(rest, others) if rest else 0)


@memoised
def _tile(spot: NestSpot) -> set[str]:
    """The loops whose iterations are one piece of code: vectors, and unrolled ones inside of all others."""
    tile = {x for x in spot.nest.names() if spot.kind(x) == VECTORIZED}
    for x, n in reversed(spot.counts().items()):
        if spot.kind(x) not in (UNROLLED, VECTORIZED) and n > 1:
            break
        tile.add(x)
    return tile


def _in_registers(spot: NestSpot, name: str, register_bytes: int) -> bool:
    """Whether a func computed in a loop is so small that it stays in registers."""
    nests = spot.nests
    if not nests.state.program.has_func(name) or name in nests.tree.stored.get(ROOT, ()):
        return False
    return (nests.stored(name) or 0.0) <= register_bytes


def _in_order(spot: NestSpot, name: str, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """An index with what lies side by side in memory last."""
    program = spot.nests.state.program
    order = spot.nests.state.plan(name).order if program.has_func(name) else None
    return tuple(index[a] for a in order) if order else index


def _one(index: tuple[Expr, ...], along: set[str], lanes: int, size: int, vector_bytes: int) -> float | None:
    """The bytes of vectors side by side that are loaded in the time of one access; None for one by one."""
    moving = {v for e in index for v in variables(e)} & along
    if lanes == 1 or not moving:
        return ONE * vector_bytes
    if len(moving) == 1:
        (v,) = moving
        *outer, last = (_lane_stride(e, v, lanes) for e in index)
        if not any(outer) and None not in outer and last is not None and abs(last) <= MAX_STRIDE:
            return max(abs(last), 1) * lanes * size
    return None


def _lane_stride(e: Expr, v: str, lanes: int) -> int | None:
    """The step of an index from lane to lane; None where it varies.

    Blocks of a packed array are whole vectors.
    """
    if v not in variables(e):
        return 0
    if isinstance(e, Binary) and e.op in ("floordiv", "mod") and isinstance(e.right, Const):
        inner = coefficient(e.left, v)
        if inner and int(e.right.value) % (inner * lanes) == 0:
            return inner if e.op == "mod" else 0
    return coefficient(e, v)


def _different(index: tuple[Expr, ...], unrolled: Mapping[str, float], along: set[str]) -> float:
    """How many accesses at an index a tile makes that are not the same.

    Rows of windows that lie over each other are loaded once.
    """
    moving = {v: n for v, n in unrolled.items() if any(v in variables(e) for e in index)}
    count = 1.0
    for e in index:
        factors = {v: n for v, n in moving.items() if v in variables(e)}
        many = prod(factors.values())
        if len(factors) > 1 and along.isdisjoint(variables(e)):
            steps = [coefficient(e, v) for v in factors]
            if None not in steps:
                reach = sum(abs(k or 0) * (n - 1) for k, n in zip(steps, factors.values(), strict=True))
                many = min(many, reach + 1)
        count *= many
    return min(count, prod(moving.values()))
