"""Chains with products of matrices, computed for some rows at a time so that intermediates stay in a cache.

    for others, bands of rows (one of them by threads):
      for each func of the chain: the rows of this band,
        products in register tiles, the rest by vectors

Attention is such a chain (scores, softmax, weighted values), and so is a network of dense layers. What the
products multiply every band with is packed once, in front.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tdsl.autoschedule.patterns.bands import Bands, Chain, plan_bands
from tdsl.autoschedule.patterns.contraction import (
    Contraction,
    RegisterTiles,
    find_contraction,
    plan_tiles,
)
from tdsl.autoschedule.patterns.groups import moves, open_group
from tdsl.autoschedule.recipes.choices import Unsuited, choose, recipe
from tdsl.autoschedule.recipes.matmul import tile
from tdsl.autoschedule.recipes.rows import write_vectors
from tdsl.lang.affine import variables
from tdsl.lang.regions import Box
from tdsl.machine.model import Machine
from tdsl.schedule.bind import bind_state
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.properties import root_boxes, stride_of, unplaced_at_root
from tdsl.schedule.state import Root, State
from tdsl.target import as_target


@recipe
def bands(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> Bands:
    """Schedule a func and the products, reductions and element-wise funcs in front of it by bands of rows.

    `choices` replace what is chosen by shape; they are the fields of `Bands`. Returns the choices.

    >>> import tdsl as td
    >>> from tdsl.machine.devices import reference_cpu
    >>> i, j, k = td.vars("i j k")
    >>> x, v, w = (td.Tensor(n, (512, 512), td.f32) for n in "xvw")
    >>> hidden, y = td.Func("hidden"), td.Func("y")
    >>> hidden[i, j] = td.maximum(td.sum(x[i, k] * v[k, j], axis=k), 0)
    >>> y[i, j] = td.sum(hidden[i, k] * w[k, j], axis=k) + x[i, j]
    >>> s = td.Schedule(y)
    >>> td.recipes.bands(s[y], parallel="", machine=reference_cpu())
    Bands(row='i', rows=128, parallel='')
    """
    schedule = stage.schedule
    machine = machine or as_target(schedule.target).machine()
    state = unplaced_at_root(bind_state(schedule.state, schedule.sizes))
    boxes = root_boxes(state)
    planned = plan_bands(state, stage.func, open_group(state, stage.func), boxes, machine)
    if planned is None:
        raise Unsuited(
            "it ends no chain with a product of matrices whose rows, of known extents, can stay in a cache"
        )
    chain, plan = planned
    plan = choose(plan, choices)
    write_bands(schedule, chain, plan, machine)
    return plan


def write_bands(schedule: BaseSchedule, chain: Chain, plan: Bands, machine: Machine) -> None:
    """Write bands as directives."""
    owner, left = schedule[chain.owner], list(chain.inside)
    boxes = dict(chain.boxes)
    ends = find_contraction(schedule.state, chain.owner, left, boxes)
    if ends is not None and ends.names[ends.across] == plan.row:
        left = [n for n in left if n != ends.func]
        names = {loop.name for loop in owner.loops}
        tile_product(schedule, ends, chain, machine, band=plan.rows)
        band = next(x for x in owner.loops if x.name not in names)
    else:
        write_parts(schedule, schedule.state, chain.owner, boxes, machine)
        band, _ = owner.split(plan.row, plan.rows, tail="peel")
    if plan.parallel:
        owner.parallel(band if plan.parallel == plan.row else plan.parallel)
    while left:
        name = left.pop(0)
        product = find_contraction(schedule.state, name, left, boxes)
        if product is None:
            write_parts(schedule, schedule.state, name, boxes, machine)
        else:
            left = [n for n in left if n != product.func]
            tile_product(schedule, product, chain, machine)
        schedule[name].compute_at(owner, band)


def tile_product(
    schedule: BaseSchedule, c: Contraction, chain: Chain, machine: Machine, band: int = 0
) -> None:
    """Register tiles for a product; what it multiplies with is packed in front if all bands need the same."""
    tiles = plan_tiles(c, machine)
    axis = schedule.state.program.func(c.func).variables.index(c.along)
    same = _is_there(schedule, c, chain) and not moves(chain.boxes[c.func][axis : axis + 1])
    panel = "block" if c.crowded and _moves_on(c, schedule, chain) else "root" if same else "no"
    if tiles.panel == "no" or _is_packed(c, tiles):
        panel = "no"
    parallel = tiles.parallel or c.names[c.along]
    dot = "" if panel == "no" else tiles.dot  # instructions take panels
    tiles = replace(tiles, panel=panel, parallel=parallel, band=band, terms=0, dot=dot)
    tile(schedule, c, tiles, threads=False)


def _is_there(schedule: BaseSchedule, c: Contraction, chain: Chain) -> bool:
    """True if the moving operand is not computed in a band; copies of what is computed there are renamed."""
    name, state = c.moving.name, schedule.state
    if name in chain.inside:
        return False
    return not state.program.has_func(name) or isinstance(state.plan(name).place, Root | None)


def _moves_on(c: Contraction, schedule: BaseSchedule, chain: Chain) -> bool:
    """True when tiles need boxes of their own of what moves along, not just one of several whole ones."""
    used = {v for e in c.moving.index for v in variables(e)}
    names = schedule.state.program.func(c.func).variables
    box = [i for v, i in zip(names, chain.boxes[c.func], strict=True) if v in used and i[0] != i[1]]
    return moves(tuple(box))


def _is_packed(c: Contraction, tiles: RegisterTiles) -> bool:
    """True when the vectors of a term lie next to those of the last one as they are."""
    return not tiles.dot and c.sizes[c.along] <= tiles.width and stride_of(c.moving, c.along) == 1


def write_parts(
    schedule: BaseSchedule, state: State, name: str, boxes: dict[str, Box], machine: Machine
) -> None:
    """Vectors for each definition of a func that is no product; `state` has the sizes."""
    f = state.program.func(name)
    for n in range(len(f.definitions)):
        stage = schedule[name] if n == 0 else schedule[name].update(n - 1)
        write_vectors(stage, f, n, boxes[name], machine)
