"""Products of matrices on any number of ranks: grid and steps are chosen, so that little moves.

    cosma     the grid that moves least, of all that leave few ranks idle; or what the library COSMA chooses
    carma     the largest extent halved over and over

Every matrix is shared out evenly over all ranks. Each takes the stage of C[i, j] = sum(A[i, k] * B[k, j]).
"""

from __future__ import annotations

import math
import operator
import re

from tdsl.autoschedule.recipes.choices import recipe, refused
from tdsl.autoschedule.recipes.products import Product, extents_of, product_of
from tdsl.autoschedule.recipes.strategies import (
    Strategy,
    best_strategy,
    halved_strategy,
    published_strategy,
)
from tdsl.errors import did_you_mean, is_one_of
from tdsl.placement.grid import Grid
from tdsl.schedule.fluent import Stage

RULES = ("volume", "library")


@recipe
def cosma(
    stage: Stage, ranks: int, memory: int | None = None, *, rule: str = "volume", splits: str = ""
) -> Grid:
    """The grid of at most `ranks` ranks that moves least, with steps so that `memory` elements suffice.

    With rule="library" the grid and the steps that the library COSMA would choose; with `splits` those that
    are said in its notation, as "sm2,pn3": two steps along m, three ranks along n. The rule chooses for what
    ranks are left. Returns the grid; where
    that has fewer ranks, the others of a run are idle. ScheduleError where sizes are not known, or the memory
    is too little for any grid.
    """
    if not is_one_of(rule, RULES):
        raise refused(f"there is no rule {rule!r}", did_you_mean(rule, RULES))
    p = product_of(stage)
    ranks, memory = _counts(ranks, memory)
    given = _read_splits(splits, ranks)
    left = ranks // math.prod(given.ranks)
    parts = (a * b for a, b in zip(given.ranks, given.steps, strict=True))
    m, n, k = (-(-x // n) for x, n in zip(extents_of(stage, p), parts, strict=True))
    if rule == "library":
        published = published_strategy(m, n, k, left, memory)
        strategy = None if published is None else published.strategy
    else:
        strategy = best_strategy(m, n, k, left, memory)
    return _apply(stage, p, given.inside(_checked(strategy, p, stage, ranks, memory)), ranks)


@recipe
def carma(stage: Stage, ranks: int, memory: int | None = None) -> Grid:
    """The grid that halves the largest extent until each of 2^l <= `ranks` ranks has a part (CARMA).

    Where `memory` elements are too few, halves are done one after the other first. Returns the grid;
    ScheduleError as for `cosma`.
    """
    p = product_of(stage)
    ranks, memory = _counts(ranks, memory)
    strategy = halved_strategy(*extents_of(stage, p), ranks, memory)
    return _apply(stage, p, _checked(strategy, p, stage, ranks, memory), ranks)


def _read_splits(text: str, ranks: int) -> Strategy:
    """The strategy that splits say, one of no ranks and steps for none."""
    counts = {kind + dim: 1 for kind in "ps" for dim in "mnk"}
    for split in filter(None, text.split(",")):
        match = re.fullmatch(r"([ps][mnk])([1-9]\d*)", split.strip())
        if match is None:
            raise refused(f"{split!r} is no split", 'write as the library does: "sm2,pn2,pk3"')
        counts[match[1]] *= int(match[2])
    given = Strategy((counts["pm"], counts["pn"], counts["pk"]), (counts["sm"], counts["sn"], counts["sk"]))
    if math.prod(given.ranks) > ranks:
        raise refused(f"{text!r} takes {math.prod(given.ranks)} ranks, there are {ranks}", "take more ranks")
    return given


def _counts(ranks: int, memory: int | None) -> tuple[int, int | None]:
    """Both as integers, if they are ones that make sense."""
    return _count("ranks", ranks), None if memory is None else _count("memory", memory)


def _count(name: str, value: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise refused(f"{name} cannot be {value!r}", "give a positive integer")
    return operator.index(value)


def _checked(strategy: Strategy | None, p: Product, stage: Stage, ranks: int, memory: int | None) -> Strategy:
    if strategy is None:
        m, n, k = extents_of(stage, p)
        least = (m * k + k * n + m * n) / ranks
        raise refused(
            f"{memory} elements are too few for {ranks} ranks: {least:.0f} hold a share of the matrices",
            "take more ranks, or allow more memory",
        )
    return strategy


def _apply(stage: Stage, p: Product, s: Strategy, ranks: int) -> Grid:
    """Place the matrices and distribute the loops as a strategy says."""
    pm, pn, pk = s.ranks
    grid = Grid(m=pm, n=pn, k=pk)
    p.place(stage, grid, "m k' k", "k' n k", "m n m'")
    outer = stage.distribute((p.i, p.j, p.k), grid)
    if grid.size < ranks:
        stage.schedule.ranks(ranks)
    if s.steps == (1, 1, 1):
        stage.communicate((*p.factors, stage.func), at=outer[-1])
        return grid
    parts = [stage.divide(x, n) for x, n in zip((p.i, p.j, p.k), s.steps, strict=True)]
    stage.reorder(*(step for step, _ in parts), *(inside for _, inside in parts))
    result_loop = parts[1][0] if max(s.steps[:2]) > 1 else outer[-1]
    stage.communicate(stage.func, at=result_loop).communicate(p.factors, at=parts[2][0])
    return grid
