"""Chains with products of matrices whose rows do not need each other: attention, layers of a network.

`plan_bands` finds the variable of the rows, what of a group can be computed for a band of them at a time,
and how many rows a band has so that all of it stays in the cache. `recipes/bands.py` writes it as directives.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tdsl.autoschedule.patterns.contraction import find_contraction, share
from tdsl.autoschedule.patterns.groups import boxes_of_rows, moves
from tdsl.autoschedule.patterns.windows import has_shared_points
from tdsl.core.node import frozen
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box
from tdsl.machine.model import Machine
from tdsl.schedule.properties import element_bytes, extents, volume
from tdsl.schedule.state import State

LEAST, MOST = 8, 128  # rows of a band: fewer use a panel too seldom, more bring nothing
SPILLED = 2  # times the cache that intermediates may fill, before bands are lower than tiles like


@frozen
class Bands:
    """How a chain runs: `rows` of `row` at a time, one loop shared by threads, "" for none."""

    row: str
    rows: int
    parallel: str


@frozen
class Chain:
    """What is computed in a band: funcs, consumers first; `boxes` are what a band needs of each."""

    owner: str
    inside: tuple[str, ...]
    boxes: Mapping[str, Box]


def plan_bands(
    state: State, owner: str, group: list[str], boxes: dict[str, Box], machine: Machine
) -> tuple[Chain, Bands] | None:
    """The chain that ends in `owner`, and its bands; None where there is nothing to keep in a cache."""
    f = state.program.func(owner)
    if len(f.definitions) != 1 or len(f.variables) < 2:
        return None
    if all(d.init is None for name in group for d in state.program.func(name).definitions):
        return None  # no product among them; their boxes are not needed
    sizes = extents(f, f.definitions[0], boxes[owner])
    for at in range(len(f.variables) - 2, -1, -1):
        row, count = f.variables[at], sizes[f.variables[at]]
        outer = {v: sizes[v] or 1 for v in f.variables[:at]}
        inside = _inside(state, f, row, group, boxes)
        even = next((v for v, n in outer.items() if share(n, machine.threads) > 0.8), "")
        threads = 1 if even else machine.threads  # that share the rows
        if count is None or count < LEAST or not _is_chain(state, owner, row, inside, boxes):
            continue
        one = boxes_of_rows(state, owner, row, group, boxes, 1, tuple(outer))
        size, again = _price(state, inside, one, boxes, count * prod(outer.values()))
        most = -(-count // threads)
        rows = None if size is None or again > 1.1 else _rows(size, most, machine.l2_share)
        if rows is not None:
            band_boxes = boxes_of_rows(state, owner, row, group, boxes, rows, tuple(outer))
            parallel = (even or row) if machine.threads > 1 else ""
            return Chain(owner, tuple(inside), band_boxes), Bands(row, rows, parallel)
    return None


def _inside(state: State, f: FuncDef, row: str, group: list[str], boxes: dict[str, Box]) -> list[str]:
    """The funcs of a group that move with the rows and are read inside only."""
    row_boxes = boxes_of_rows(state, f.name, row, group, boxes, 1)
    moving = [n for n in group if n in row_boxes and n in boxes and moves(row_boxes[n])]
    while True:
        kept = [n for n in moving if {c.name for c, _ in state.consumers(n)} <= {f.name, *moving}]
        if kept == moving:
            return moving
        moving = kept


def _is_chain(state: State, owner: str, row: str, inside: list[str], boxes: dict[str, Box]) -> bool:
    """True when products are among the funcs, and not just one that the owner reads element by element.

    An owner that reduces is a product itself, tiled along the rows. Windows move along rows, which then
    share points.
    """
    if any(has_shared_points(state.program.func(n)) for n in (owner, *inside)):
        return False
    product = find_contraction(state, owner, inside, boxes)
    if state.program.func(owner).definitions[0].init is not None and (
        product is None or product.func != owner or product.names[product.across] != row
    ):
        return False
    rest = [n for n in inside if product is None or n != product.func]
    return any(find_contraction(state, n, [], boxes) is not None for n in inside) and bool(rest)


def _price(
    state: State, inside: list[str], one: dict[str, Box], boxes: dict[str, Box], count: int
) -> tuple[int | None, float]:
    """(bytes of a row of all funcs, how often each point is computed if bands have `count` rows)."""
    size = points = whole = 0
    for name in inside:
        n, total = volume(one[name]), volume(boxes[name])
        if n is None or total is None:
            return None, 0.0
        size += n * element_bytes(state.program, name)
        points, whole = points + n * count, whole + total
    return size, points / max(whole, 1)


def _rows(size: int, count: int, cache: int) -> int | None:
    """The rows of a band, each of `size` bytes: a divisor of all rows where there is a good one."""
    fit = cache // max(size, 1)
    rows = min(max(fit, min(SPILLED * fit, MOST // 2)), MOST, count)
    if rows < LEAST:
        return None
    return next((d for d in range(rows, rows // 2, -1) if count % d == 0), rows)
