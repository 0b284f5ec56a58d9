"""How far the loops of a definition are open while they are made."""

from __future__ import annotations

from dataclasses import dataclass

from tdsl.lang.expr import ZERO, Expr
from tdsl.schedule.relate import Related

FULL, INIT, UPDATE = "full", "init", "update"
GATHER, PART = "gather", "part"  # of a reduction by threads together, and what each one does of it


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on a point, over the loops of the nest; a predicate does not restrict the start."""

    cond: Expr
    loops: frozenset[str]
    predicate: bool


@dataclass(frozen=True, slots=True)
class Spot:
    """How far a nest is open: the next loop, what is made (start and update, or one of them), guards left.

    `bounds` are (first, extent) of each variable as it runs here: those reduced over may have fewer terms in
    an iteration of the loops that are open. `related` are the loops: they are shorter then, and in the tail
    of a peeled split. `components` are
    those of its values that are made, where these are not all.
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
        """Where a loop starts: a variable that is itself a loop runs over its own range."""
        return self.bounds[loop][0] if loop in self.bounds else ZERO
