"""Iterations that a predicate leaves out, of loops of terms in which other stages are made, too.

for o in range(0, 32):                     for o in range(0, row // 64 + 1):
  tile = ...                                 tile = ...
  if 64 * o <= row: s[row] += tile           if 64 * o <= row: s[row] += tile
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdsl.codegen.loops import PIPELINED, SERIAL
from tdsl.codegen.spot import INIT, Spot
from tdsl.lang.expr import ONE, TRUE, Const, Expr
from tdsl.lang.regions import interval_of, tighten
from tdsl.lang.simplify import add, simplify, subtract
from tdsl.schedule.nest import Level

if TYPE_CHECKING:
    from tdsl.codegen.lower import Open
    from tdsl.codegen.nest import NestBuilder


def _skips(builder: NestBuilder, spot: Spot, loop: str) -> bool:
    """True for a loop of terms with other stages inside, where a predicate leaves terms out."""
    inside = builder.low.tree.at(Level(builder.f.name, builder.n, loop))
    plain = loop in builder.bounds and builder.nest.kind(loop) in (SERIAL, PIPELINED)
    terms = spot.mode != INIT and loop in builder.reduced and builder.d.where != TRUE
    return plain and terms and inside


def needed_run(
    builder: NestBuilder, spot: Spot, around: Open, loop: str, run: tuple[Expr, Expr]
) -> tuple[Expr, Expr]:
    """From where on, and how often, a loop runs: where the predicate may hold for one of the threads.

    `run` is that without a predicate, which stays where no other stages are inside.
    """
    none = isinstance(run[1], Const) and run[1].value <= 0
    if none or not _skips(builder, spot, loop):
        return run
    ranges = builder.active(spot).ranges(around.facts)
    lo, hi = tighten(ranges, builder.d.where, around.facts)[loop]
    for _, name, threads in around.threads:
        lo = None if lo is None else interval_of(lo, {name: threads}, around.facts)[0]
        hi = None if hi is None else interval_of(hi, {name: threads}, around.facts)[1]
    if lo is None or hi is None:
        return run
    return lo, simplify(add(subtract(hi, lo), ONE), around.facts)
