"""One definition of a func and the nest that its loops are opened of."""

from __future__ import annotations

from tdsl.codegen.ir.loops import (
    FRAGMENT,
    SHARED,
)  # fmt: skip
from tdsl.codegen.lowering.context import Lowering
from tdsl.codegen.lowering.position import Spot
from tdsl.lang.expr import Expr
from tdsl.lang.program import FuncDef
from tdsl.lang.simplify import substitute
from tdsl.schedule.alike import find_alike
from tdsl.schedule.nest import Level, Nest, is_reduction
from tdsl.schedule.required import Active, inside
from tdsl.schedule.whole import is_whole


class DefinitionNest:
    """A definition of a func, its plan, and the nest that is opened.

    `reduced` are the loops of the nest that reduce. `shared_depth` is the number of loops down to the last
    one that other nests share, `common_depth` the number around all that is in shared memory.
    """

    def __init__(
        self, lowering: Lowering, f: FuncDef, definition: int, nest: Nest | None = None
    ) -> None:
        self.low, self.f, self.n = lowering, f, definition
        self.d = f.definitions[definition]
        self.plan = lowering.state.plan(f.name)
        self.own: tuple[str, ...] = ()  # registers in which a thread reduces its part
        self.alike = find_alike(lowering.state, f)
        self.whole = self.plan.scope == FRAGMENT and is_whole(lowering.state, f.name)
        self.first = nest or self.plan.nests[definition]

    def select(self, nest: Nest) -> None:
        """Take a nest of the definition: its own, or that of a specialization."""
        self.nest = nest
        self.reduced = {x for x in nest.names() if is_reduction(self.f, self.n, nest, x)}
        shared = [
            nest.position(x) + 1
            for x in nest.names()
            if self.low.tree.joined.get(Level(self.f.name, self.n, x))
        ]
        self.shared_depth = max(shared, default=0)
        self.common_depth = self._common_depth()

    def _common_depth(self) -> int:
        """How many loops are around all that is in shared memory; all threads take part in making that."""
        tree, state = self.low.tree, self.low.state
        return max(
            (
                n + 1
                for n, x in enumerate(self.nest.names())
                if any(
                    state.plan(name).scope == SHARED
                    for name in inside(tree, state, [Level(self.f.name, self.n, x)])
                )
            ),
            default=0,
        )

    def active(self, spot: Spot) -> Active:
        """The nest as far as it is open."""
        related = spot.related
        return Active(
            self.f, self.n, self.nest, related.roots, related.extents, spot.bounds, spot.opened,
            self.whole or (self.plan.scope == FRAGMENT and bool(self.plan.tensorizations)),
            related.guards,
        )  # fmt: skip

    def free_values(self, spot: Spot) -> dict[str, Expr]:
        """The free variables of the definition in the loop IR; loops that reduce may not be open."""
        roots = self.active(spot).roots
        return {n: substitute(v, spot.opened) for n, v in roots.items() if n in self.d.free}
