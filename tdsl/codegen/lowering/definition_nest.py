"""The loop nest of one definition of a func while it is lowered."""

from __future__ import annotations

from tdsl.codegen.ir.loops import FRAGMENT, REGISTER, SHARED
from tdsl.codegen.lowering.context import Lowering
from tdsl.codegen.lowering.position import NestPosition
from tdsl.lang.expr import Expr
from tdsl.lang.program import FuncDef
from tdsl.lang.simplify import substitute
from tdsl.schedule.bounds_inference import OpenNest, funcs_inside
from tdsl.schedule.full_tiles import is_total
from tdsl.schedule.narrow import find_narrowed
from tdsl.schedule.state import Level, Nest, is_reduction


class DefinitionNest:
    """A definition of a func, its plan, and the loop nest that is lowered.

    `reduced` are the reduction loops of the nest. `shared_depth` is the number of outermost loops down to the
    last one that other nests share (compute_with), `common_depth` the number down to the last one with
    shared memory stored or computed in it.
    """

    def __init__(self, lowering: Lowering, f: FuncDef, definition: int, nest: Nest | None = None) -> None:
        self.low, self.f, self.n = lowering, f, definition
        self.d = f.definitions[definition]
        self.plan = lowering.state.plan(f.name)
        self.partial_results: tuple[str, ...] = ()  # registers of a thread's partial results
        self.invariant = find_narrowed(lowering.state, f)
        self.full_tiles = self.plan.scope in (FRAGMENT, REGISTER) and is_total(lowering.state, f.name)
        self.plan_nest = nest or self.plan.nests[definition]

    def select_nest(self, nest: Nest) -> None:
        """Set the nest to lower: the definition's, or the nest of one of its specializations."""
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
        """The number of loops down to the last one with shared memory in it, which all threads compute."""
        tree, state = self.low.tree, self.low.state
        return max(
            (
                n + 1
                for n, x in enumerate(self.nest.names())
                if any(
                    state.plan(name).scope == SHARED
                    for name in funcs_inside(tree, state, [Level(self.f.name, self.n, x)])
                )
            ),
            default=0,
        )

    def active(self, pos: NestPosition) -> OpenNest:
        """The nest with the loops that are open at a position."""
        related = pos.related
        return OpenNest(
            self.f, self.n, self.nest, related.roots, related.extents, pos.bounds, pos.opened,
            self.full_tiles or (self.plan.scope == FRAGMENT and bool(self.plan.tensorizations)),
            related.guards,
        )  # fmt: skip

    def free_values(self, pos: NestPosition) -> dict[str, Expr]:
        """The values of the definition's free variables in the loop IR; reduction loops need not be open."""
        roots = self.active(pos).roots
        return {n: substitute(v, pos.opened) for n, v in roots.items() if n in self.d.free}
