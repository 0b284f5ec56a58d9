"""The buffer of a func: the origin of its box, its extents, its storage order and its folded dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tdsl.core.node import frozen
from tdsl.errors import ScheduleError
from tdsl.lang.affine import constant_difference, variables
from tdsl.lang.bounds import Facts, upper
from tdsl.lang.expr import ONE, ZERO, Binary, Const, Expr, Load, Var, const
from tdsl.lang.program import Axis, FuncDef
from tdsl.lang.regions import Box
from tdsl.lang.simplify import add, ceildiv, maximum, multiply, simplify, subtract
from tdsl.lang.types import DType
from tdsl.machine.instructions.layout import Layout
from tdsl.schedule.narrow import NarrowedComponents
from tdsl.schedule.pipelines import bulk_row_extent
from tdsl.schedule.sliding import ring_size
from tdsl.schedule.state import FuncPlan


@frozen
class Buffer:
    """The storage of a func: `names` has one buffer for each component, `order` the axes, outermost first.

    `folds` has the ring sizes of folded dimensions; it is None until a nest that computes the func has chosen
    them. `single` has for each component the axes with one element, along which its values do not vary;
    `axes` are the axes of an output's array."""

    func: str
    names: tuple[str, ...]
    origin: tuple[Expr, ...]
    extents: tuple[Expr, ...]
    order: tuple[int, ...]
    folds: tuple[Expr | None, ...] | None
    single: tuple[frozenset[int], ...] = ()
    axes: tuple[Axis, ...] = ()

    def index(self, at: Sequence[Expr], component: int = 0) -> tuple[Expr, ...]:
        """The index, in the buffer of a component, of a point of the func."""
        position: list[Expr] = []
        folds = self.folds or (None,) * len(self.origin)
        single = self.single_axes(component)
        for axis, (e, lo, fold) in enumerate(zip(at, self.origin, folds, strict=True)):
            if axis in single:
                position.append(ZERO)
            elif fold is not None:
                position.append(Binary("mod", e, fold))
            else:
                position.append(e if lo == ZERO else Binary("sub", e, lo))
        if self.axes:
            return tuple(axis.place(position) for axis in self.axes)
        return tuple(position[axis] for axis in self.order)

    def load(self, at: Sequence[Expr], component: int, dtype: DType) -> Load:
        """A load of a component at a point of the func."""
        return Load(self.names[component], self.index(at, component), dtype)

    def single_axes(self, component: int) -> frozenset[int]:
        """The axes along which a component has one element."""
        return self.single[component] if self.single else frozenset()

    def memory_extents(self, component: int = 0) -> tuple[Expr, ...]:
        """The extents of a component's buffer in storage order, outermost first."""
        single = self.single_axes(component)
        return tuple(ONE if axis in single else self.extents[axis] for axis in self.order)

    def layout(self, layout: Layout, component: int) -> Layout:
        """The layout of a component's buffer, from a layout over the func's variables."""
        single, rank = self.single_axes(component), len(self.order)
        axes = [None if n in single else self.order.index(n) for n in range(rank)]
        return layout.along(axes, rank)


_SMALL_EXTENT = 1 << 16  # elements up to which a dimension is allocated with its constant upper bound


def make_buffer(
    f: FuncDef,
    plan: FuncPlan,
    names: tuple[str, ...],
    box: Box,
    facts: Facts,
    invariant: NarrowedComponents | None,
) -> Buffer:
    """The buffer for a box, not folded. An extent with a constant upper bound is that constant.

    A bound above _FEW of an extent that depends on sizes alone is not used: it may follow from the type of
    an index and be far too large.
    """
    origin: list[Expr] = []
    extents: list[Expr] = []
    for axis, (lo, hi) in enumerate(box):
        assert lo is not None and hi is not None, f"{f.name} is unbounded"
        origin.append(lo)
        extent = simplify(add(subtract(hi, lo), ONE), facts)
        bound = upper(extent, facts)
        if bound is not None and (bound <= _SMALL_EXTENT or variables(extent)):
            extent = const(max(bound, 0))
        else:
            extent = maximum(extent, ZERO, facts)
        for aligned_axis, multiple in plan.align:
            if aligned_axis == axis:
                extent = multiply(ceildiv(extent, const(multiple)), const(multiple))
        extents.append(extent)
    if plan.bulk:
        extents[-1] = _padded_row(extents, f.dtypes[0].bytes)
    rank = len(box)
    order = plan.order if plan.order is not None else tuple(range(rank))
    single: tuple[frozenset[int], ...] = ()
    if invariant is not None:
        index = f.definitions[0].index
        axes = frozenset(n for n, e in enumerate(index) if isinstance(e, Var) and e.name in invariant.along)
        components = range(len(names))
        single = tuple(axes if n in invariant.components else frozenset() for n in components)
    return Buffer(f.name, names, tuple(origin), tuple(extents), order, None, single)


def _padded_row(extents: Sequence[Expr], size: int) -> Expr:
    """The last extent, rounded up to rows that a TMA copy accepts.

    >>> _padded_row((const(3), const(5)), 4).value, _padded_row((Var("n"),), 4).name
    (32, 'n')
    """
    known = [int(e.value) for e in extents if isinstance(e, Const)]
    if len(known) < len(extents):
        return extents[-1]  # a size that is not constant is refused by `_check_scope`
    return const(bulk_row_extent(known, size))


@dataclass(slots=True)
class Ring:
    """A folded dimension (circular buffer), as large as the largest part of it in use at a time.

    `name` is a placeholder for its size until all nests that compute the func are lowered. `extent` is the
    extent without folding.
    """

    name: str
    extent: Expr
    needed: int | None = 0

    def require(self, needed: int | None) -> None:
        """Raise the size to at least `needed` elements; None for an unknown number."""
        if self.needed is None or needed is None:
            self.needed = None
        else:
            self.needed = max(self.needed, needed)

    def size(self) -> Expr:
        """The number of elements: a power of two; `extent` if that is not larger or the need is unknown."""
        if self.needed is None or fits_in_ring(self.extent, ring_size(self.needed)):
            return self.extent
        return const(ring_size(self.needed))


def fits_in_ring(extent: Expr, ring: int) -> bool:
    """True if an extent is a constant of at most `ring` elements, so that folding saves nothing."""
    return isinstance(extent, Const) and extent.value <= ring


def max_elements(box: Box, axis: int, facts: Facts) -> int | None:
    """The maximal number of elements of a box along an axis; None without a constant upper bound."""
    lo, hi = box[axis]
    assert lo is not None and hi is not None
    distance = constant_difference(hi, lo)
    return upper(add(subtract(hi, lo), ONE), facts) if distance is None else distance + 1


def check_extents(f: FuncDef, plan: FuncPlan, box: Box, whole: Box, facts: Facts) -> None:
    """ScheduleError if a box has more elements in a dimension than the user's bound_extent."""
    for axis, extent in plan.extents:
        needed = max_elements(box, axis, facts)
        if extent is None or (needed is None and box[axis] == whole[axis]):
            continue
        if needed is None or needed > extent:
            hint = "give that number or more, or leave it out"
            raise _extent_error("bound_extent", f, plan, axis, needed, "", extent, hint)


def _extent_error(
    directive: str, f: FuncDef, plan: FuncPlan, axis: int, needed: int | None, when: str, given: int,
    hint: str,
) -> ScheduleError:  # fmt: skip
    return ScheduleError(
        f"{directive} of {f.name!r}: dimension {f.variables[axis]!r} needs "
        f"{'an unknown number of' if needed is None else needed} elements{when}, not {given}",
        loc=plan.loc,
        label="the last directive of this func",
        hint=hint,
    )


def fold_sizes(f: FuncDef, plan: FuncPlan, box: Box, facts: Facts) -> dict[int, int]:
    """The ring sizes of fold_storage directives by axis; ScheduleError if one is too small for the box."""
    for axis, extent in plan.fold:
        needed = max_elements(box, axis, facts)
        if needed is None or needed > extent:
            hint = "fold to that number or more, or leave it to store_at"
            raise _extent_error("fold_storage", f, plan, axis, needed, " at a time", extent, hint)
    return dict(plan.fold)
