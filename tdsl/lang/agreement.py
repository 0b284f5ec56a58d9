"""`Agreement`: two extents that must be equal because one loop variable indexes both axes."""

from __future__ import annotations

from collections.abc import Callable

from tdsl.core.node import frozen, post_order
from tdsl.core.source import Loc
from tdsl.lang.expr import TRUE, Binary, Expr, Size
from tdsl.lang.simplify import simplify


@frozen
class Agreement:
    """Two axes indexed by one loop variable, so that their extents must be equal in each call.

    `sides` has, for each of the two, the extent, the tensor or func, its axis, and the access's location.
    """

    variable: str
    sides: tuple[tuple[Expr, str, int, Loc | None], tuple[Expr, str, int, Loc | None]]

    def map_extents(self, f: Callable[[Expr], Expr]) -> Agreement:
        """The agreement with `f` applied to both extents."""
        first, second = ((f(e), *rest) for e, *rest in self.sides)
        return Agreement(self.variable, (first, second))  # type: ignore[arg-type]  # of four each

    @property
    def sizes(self) -> frozenset[str]:
        """The names of the sizes in both extents."""
        ends = (e for e, *_ in self.sides)
        return frozenset(n.name for n in post_order(*ends) if isinstance(n, Size))

    @property
    def is_certain(self) -> bool:
        """True if the extents are equal for all sizes."""
        (first, *_), (second, *_) = self.sides
        return simplify(Binary("eq", first, second)) == TRUE

    @property
    def related(self) -> tuple[tuple[Loc | None, str], ...]:
        """The locations of the two accesses, each with a label, for an error message."""
        return tuple(
            (loc, f"{self.variable} runs over axis {axis} of {name!r} here")
            for _, name, axis, loc in self.sides
        )
