"""Extents that have to be equal because one variable runs over both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tdsl.core.node import post_order
from tdsl.core.source import Loc
from tdsl.lang.expr import TRUE, Binary, Expr, Size
from tdsl.lang.simplify import simplify


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two axes over which one variable runs, so that a call must give them one extent.

    `sides` has, for each, the extent, the tensor or func, its axis, and where it is read.
    """

    variable: str
    sides: tuple[tuple[Expr, str, int, Loc | None], tuple[Expr, str, int, Loc | None]]

    def map_extents(self, f: Callable[[Expr], Expr]) -> Agreement:
        """The agreement with `f` applied to both extents."""
        first, second = ((f(e), *rest) for e, *rest in self.sides)
        return Agreement(self.variable, (first, second))  # type: ignore[arg-type]  # of four each

    @property
    def sizes(self) -> frozenset[str]:
        """The named extents of both."""
        ends = (e for e, *_ in self.sides)
        return frozenset(n.name for n in post_order(*ends) if isinstance(n, Size))

    @property
    def is_certain(self) -> bool:
        """True where the extents are the same for all sizes."""
        (first, *_), (second, *_) = self.sides
        return simplify(Binary("eq", first, second)) == TRUE

    @property
    def related(self) -> tuple[tuple[Loc | None, str], ...]:
        """The two accesses, for an error."""
        return tuple(
            (loc, f"{self.variable} runs over axis {axis} of {name!r} here")
            for _, name, axis, loc in self.sides
        )
