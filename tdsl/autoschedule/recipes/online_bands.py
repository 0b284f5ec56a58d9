"""Attention and its like over long rows on a CPU: bands of rows go over tiles of terms that stay in a cache.

for others, bands of rows (one of them by threads):
  for tiles of the terms:
    scores of the band and the tile, their maxima, weights and sums
    products with the weights, corrected as the maxima grow
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tdsl.autoschedule.patterns.bands import Chain
from tdsl.autoschedule.patterns.contraction import find_contraction, share
from tdsl.autoschedule.recipes.bands import tile_product, write_parts
from tdsl.autoschedule.recipes.choices import Unsuited, choose, recipe
from tdsl.autoschedule.recipes.conv import known
from tdsl.autoschedule.recipes.online_blocks import OnlineChain, find_online_chain, inside_tiles
from tdsl.core.node import frozen
from tdsl.lang.bounds import upper
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Expr, Var, const
from tdsl.lang.regions import Box
from tdsl.lang.simplify import add, subtract
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage
from tdsl.schedule.needed_boxes import boxes_of_group
from tdsl.schedule.new_stage import replace_func
from tdsl.schedule.properties import lanes_for
from tdsl.target import as_target

MOST, LEAST = 128, 8  # rows of a band
TERMS = 256  # of a tile: few enough to stay in a cache, enough for merging to take little
BAND = 24  # rows of which products still make register tiles
CACHE_SHARE = 0.5  # of the cache, for scores and weights: keys and values pass by


@frozen
class OnlineBands:
    """Bands of `rows` go over tiles of `terms`; one loop is shared by threads, "" for none."""

    rows: int
    terms: int
    parallel: str


@recipe
def online_bands(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> OnlineBands:
    """Schedule a sum whose terms need other reductions over them, with what it ends in, on a CPU.

    `stage` is the sum, with rows and columns as the last two of its variables; the schedule has to know
    all sizes. Where others read results of the pass, too, what it ends in has loops of its own. `choices`
    replace what is chosen: the fields of `OnlineBands`. Returns the choices. Float sums are computed
    in another order.

    >>> import tdsl as td
    >>> i, j, d, e = td.vars("i j d e")
    >>> q, k, v = td.Tensor("q", (64, 32), td.f32), *(td.Tensor(n, (9999, 32), td.f32) for n in "kv")
    >>> score, top, out = (td.Func(n) for n in ("score", "top", "out"))
    >>> score[i, j] = td.sum(q[i, d] * k[j, d], axis=d) * 0.5
    >>> top[i] = td.max(score[i, j], axis=j)
    >>> out[i, e] = td.sum(td.exp(score[i, j] - top[i]) * v[j, e], axis=j)
    >>> s = td.Schedule(out)
    >>> td.recipes.online_bands(s[out], rows=32)
    OnlineBands(rows=32, terms=256, parallel='i')
    """
    schedule = stage.schedule
    machine = machine or as_target(schedule.target).machine()
    chain = find_online_chain(stage)
    if not machine.has_vectors:
        raise Unsuited("the target has no vectors", "td.recipes.online_blocks is for GPUs")
    plan = choose(_plan(chain, machine), choices)
    _write(stage, chain, plan, machine)
    return plan


def needs_tiles(d: Definition, arrays: int, machine: Machine) -> bool:
    """Whether a sum over one range has so many terms that a band of rows does not fit a cache.

    Of each row so many arrays of weights, scores and what is between are kept.
    """
    if len(d.ranges) != 1:
        return False
    ((_, lo, hi),) = d.ranges
    terms = None if lo is None or hi is None else upper(subtract(hi, lo))
    return terms is not None and 4 * arrays * terms * BAND > machine.l2_share


def _plan(chain: OnlineChain, machine: Machine) -> OnlineBands:
    count, terms = chain.sizes[chain.row], min(TERMS, chain.sizes[chain.term])
    each = 4 * (2 * terms + 4 * chain.sizes[chain.column])  # bytes of a row
    rows = max(min(int(CACHE_SHARE * machine.l2_share) // each, MOST, count), min(LEAST, count))
    if count >= machine.threads:  # a band for each thread
        rows = min(rows, max(-(-count // machine.threads), LEAST))
    even = (v for v in chain.outside if share(chain.sizes[v], machine.threads) > 0.8)
    return OnlineBands(rows, terms, next(even, chain.row) if machine.threads > 1 else "")


def _write(stage: Stage, chain: OnlineChain, plan: OnlineBands, machine: Machine) -> None:
    schedule = stage.schedule
    running, owner = stage.online(chain.term, plan.terms), schedule[chain.end]
    readers = {f.name for f, _ in schedule.state.consumers(running.func)}
    if chain.end != chain.lead.name:
        schedule[chain.lead.name].inline()
    tile = running.loops[-1].name
    inside = inside_tiles(schedule.state, running.func, chain.row, tile)
    lanes = lanes_for(chain.lead.definitions[0], chain.sizes[chain.column], machine.vector_bytes)
    if readers <= {chain.lead.name, chain.end}:
        band, rows = owner.split(chain.row, plan.rows, tail="peel")
        owner.reorder(*chain.outside, band, rows, chain.column)
        running.compute_at(owner, band).reorder(*chain.outside, tile, chain.row, chain.column)
        if lanes > 1:
            owner.vectorize(chain.column, lanes)
    else:
        owner = running
        band, rows = owner.split(chain.row, plan.rows, tail="peel")
        owner.reorder(*chain.outside, band, tile, rows, chain.column)
    if plan.parallel:
        owner.parallel(band if plan.parallel == chain.row else plan.parallel)
    if lanes > 1:
        running.vectorize(chain.column, lanes)
    tile_boxes = _boxes(stage, running.func, chain, plan, tile, tuple(inside))
    _fill(running, tile, Chain(running.func, tuple(inside), tile_boxes), machine)


def _fill(running: Stage, tile: str, chain: Chain, machine: Machine) -> None:
    """What a tile needs: products in register tiles, the rest by vectors."""
    schedule, left, boxes = running.schedule, list(chain.inside), dict(chain.boxes)
    while left:
        name = left.pop(0)
        state = known(schedule)[0]
        product = find_contraction(state, name, left, boxes)
        if product is None:
            write_parts(schedule, state, name, boxes, machine)
        else:
            left = [n for n in left if n != product.func]
            tile_product(schedule, product, chain, machine)
        schedule[name].compute_at(running, tile)


def _boxes(
    stage: Stage, running: str, chain: OnlineChain, plan: OnlineBands, tile: str,
    inside: tuple[str, ...],
) -> dict[str, Box]:  # fmt: skip
    """What one band and one tile of terms need, in terms of the first row, as `boxes_of_rows` has it."""
    state, _ = known(stage.schedule)
    f = state.program.func(running)
    at: Expr = Var("first tile")  # no variable of a program has spaces
    one = replace(f.definitions[0], ranges=((tile, at, add(at, const(1))),))
    state = replace_func(state, replace(f, definitions=(one,)))
    box: list[tuple[Expr | None, Expr | None]] = []
    for v, whole in zip(f.variables, f.natural, strict=True):
        if v == chain.row:
            box.append((Var("row"), add(Var("row"), const(plan.rows - 1))))
        else:
            box.append(whole if v == chain.column else (Var(f"row of {v}"), Var(f"row of {v}")))
    return boxes_of_group(state, running, tuple(box), list(inside))
