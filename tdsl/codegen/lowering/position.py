"""The position in a loop nest during lowering: the open loops, the remaining guards, the bounds."""

from __future__ import annotations

from tdsl.core.node import frozen
from tdsl.lang.expr import ZERO, Expr
from tdsl.schedule.loop_relations import Related

FULL, INIT, UPDATE = "full", "init", "update"
SHUFFLE, LOCAL = "gather", "part"  # a reduction over threads, and the part of one thread in it


@frozen
class Guard:
    """A condition on points, over the `loops` of the nest; a predicate does not restrict initialisation.

    `enclosing`: it is an untested guard of the nest around this one and depends on no loop of this one.
    """

    cond: Expr
    loops: frozenset[str]
    predicate: bool
    enclosing: bool = False


@frozen
class NestPosition:
    """A position in a nest: `depth` of the next loop, values of the `opened` loops, `guards` not tested yet.

    `mode` tells what is emitted: initialisation and update (FULL), or one of them. `bounds` are (first,
    extent) of each variable here: a reduction variable may have fewer terms in an iteration of the open
    loops. `related` has the loop extents for these bounds, and for the `tails` of peeled splits. `components`
    are the values of the definition that are computed, None for all.
    """

    depth: int
    mode: str
    opened: dict[str, Expr]
    guards: tuple[Guard, ...]
    bounds: dict[str, tuple[Expr, Expr]]
    related: Related
    tails: frozenset[str] = frozenset()
    components: tuple[int, ...] | None = None

    def first_of(self, loop: str) -> Expr:
        """The first value of a loop: the variable's if the loop is a whole variable, else 0."""
        return self.bounds[loop][0] if loop in self.bounds else ZERO
