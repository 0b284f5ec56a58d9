"""`Contents`: the values of an array at the present point of a function that is traced."""

from __future__ import annotations

from tdsl.graph.values import Array, Base


class Contents:
    """The values of an array at the present point of a traced function, shared by the array and its views.

    A write by the function replaces `base`, an argument, a constant or the result of a call, whose values
    never change. `known` is an array of NumPy where the values depend on no argument, else None; `base` is
    then the constant with these values, or None before one is recorded.
    """

    __slots__ = ("_snapshot", "base", "known")

    def __init__(self, base: Base | None, known: Array | None = None) -> None:
        self.base, self.known = base, known
        self._snapshot: Array | None = None

    def replace(self, base: Base) -> None:
        """Sets the values to those of `base`, which are unknown."""
        self.base, self.known, self._snapshot = base, None, None

    def changed(self) -> None:
        """Notes that `known` has been written to."""
        self.base = self._snapshot = None

    def snapshot(self) -> Array:
        """A read-only copy of the known values, one until they are written to."""
        assert self.known is not None
        if self._snapshot is None:
            self._snapshot = self.known.copy()
            self._snapshot.flags.writeable = False
        return self._snapshot
