"""How far the loops of a definition are open while they are made."""

from __future__ import annotations

from dataclasses import dataclass

from tdsl.lang.expr import Expr
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

    `related` are the loops as they run here: in the tail of a peeled split they are shorter. `components` are
    those of its values that are made, where these are not all.
    """

    depth: int
    mode: str
    opened: dict[str, Expr]
    guards: tuple[Guard, ...]
    related: Related
    tails: frozenset[str] = frozenset()
    components: tuple[int, ...] | None = None
