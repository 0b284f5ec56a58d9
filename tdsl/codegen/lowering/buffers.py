"""The memory of a func: where its box starts, how its dimensions lie, which of them are rings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tdsl.errors import ScheduleError
from tdsl.lang.affine import difference, variables
from tdsl.lang.bounds import Facts, upper
from tdsl.lang.expr import ONE, ZERO, Binary, Const, Expr, Load, Var, const
from tdsl.lang.program import Axis, FuncDef
from tdsl.lang.regions import Box
from tdsl.lang.simplify import add, ceildiv, maximum, multiply, simplify, subtract
from tdsl.lang.types import DType
from tdsl.schedule.alike import Alike
from tdsl.schedule.instructions.layout import Layout
from tdsl.schedule.nest import FuncPlan
from tdsl.schedule.pipelines import whole_rows
from tdsl.schedule.sliding import ring_size


@dataclass(frozen=True, slots=True)
class Buffer:
    """`names` has one buffer a component; `order` lists the axes slowest first; `folds` holds ring sizes,
    and is None until a nest that computes the func has decided which dimensions are rings. `single` are the
    axes along which a component has one element, since its values do not differ there, `axes` those of an
    output's array."""

    func: str
    names: tuple[str, ...]
    origin: tuple[Expr, ...]
    extents: tuple[Expr, ...]
    order: tuple[int, ...]
    folds: tuple[Expr | None, ...] | None
    single: tuple[frozenset[int], ...] = ()
    axes: tuple[Axis, ...] = ()

    def index(self, at: Sequence[Expr], component: int = 0) -> tuple[Expr, ...]:
        """The position in memory of a component of a point of the func."""
        made: list[Expr] = []
        folds = self.folds or (None,) * len(self.origin)
        single = self.single_axes(component)
        for axis, (e, lo, fold) in enumerate(zip(at, self.origin, folds, strict=True)):
            if axis in single:
                made.append(ZERO)
            elif fold is not None:
                made.append(Binary("mod", e, fold))
            else:
                made.append(e if lo == ZERO else Binary("sub", e, lo))
        if self.axes:
            return tuple(axis.place(made) for axis in self.axes)
        return tuple(made[axis] for axis in self.order)

    def load(self, at: Sequence[Expr], component: int, dtype: DType) -> Load:
        """A component of a point of the func, from memory."""
        return Load(self.names[component], self.index(at, component), dtype)

    def single_axes(self, component: int) -> frozenset[int]:
        """The axes along which a component has one element."""
        return self.single[component] if self.single else frozenset()

    def memory_extents(self, component: int = 0) -> tuple[Expr, ...]:
        """The extents of a component as they lie in memory, slowest first."""
        single = self.single_axes(component)
        return tuple(ONE if axis in single else self.extents[axis] for axis in self.order)

    def layout(self, layout: Layout, component: int) -> Layout:
        """The layout of the func as that of a component in memory."""
        single, rank = self.single_axes(component), len(self.order)
        axes = [None if n in single else self.order.index(n) for n in range(rank)]
        return layout.along(axes, rank)


_FEW = 1 << 16  # elements up to which a buffer gets the largest extent it may need, as a constant


def make_buffer(
    f: FuncDef,
    plan: FuncPlan,
    names: tuple[str, ...],
    box: Box,
    facts: Facts,
    alike: Alike | None,
) -> Buffer:
    """The buffer for a box, without rings: extents are constant where the box has a constant bound.

    Unless this is large and sizes may say less: a bound that follows from the type of an index is.
    """
    origin: list[Expr] = []
    extents: list[Expr] = []
    for axis, (lo, hi) in enumerate(box):
        assert lo is not None and hi is not None, f"{f.name} is unbounded"
        origin.append(lo)
        extent = simplify(add(subtract(hi, lo), ONE), facts)
        most = upper(extent, facts)
        if most is not None and (most <= _FEW or variables(extent)):
            extent = const(max(most, 0))
        else:
            extent = maximum(extent, ZERO, facts)
        for own, multiple in plan.align:
            if own == axis:
                extent = multiply(ceildiv(extent, const(multiple)), const(multiple))
        extents.append(extent)
    if plan.bulk:
        extents[-1] = _whole(extents, f.dtypes[0].bytes)
    rank = len(box)
    order = plan.order if plan.order is not None else tuple(range(rank))
    single: tuple[frozenset[int], ...] = ()
    if alike is not None:
        index = f.definitions[0].index
        axes = frozenset(
            n for n, e in enumerate(index) if isinstance(e, Var) and e.name in alike.along
        )
        kept = range(len(names))
        single = tuple(axes if n in alike.components else frozenset() for n in kept)
    return Buffer(f.name, names, tuple(origin), tuple(extents), order, None, single)


def _whole(extents: Sequence[Expr], size: int) -> Expr:
    """The last extent, up to what can be copied as a whole.

    >>> _whole((const(3), const(5)), 4).value, _whole((Var("n"),), 4).name
    (32, 'n')
    """
    known = [int(e.value) for e in extents if isinstance(e, Const)]
    if len(known) < len(extents):
        return extents[-1]  # memory without a constant bound is refused where it is placed
    return const(whole_rows(known, size))


@dataclass(slots=True)
class Ring:
    """A dimension of which a part is in use at a time, as large as the largest such part.

    `name` stands for its size until all nests that compute the func are made. `whole` is the extent
    without a ring, which is large enough for any part.
    """

    name: str
    whole: Expr
    needed: int | None = 0

    def hold(self, needed: int | None) -> None:
        """Make room for so many elements at a time; None for an unknown number."""
        if self.needed is None or needed is None:
            self.needed = None
        else:
            self.needed = max(self.needed, needed)

    def size(self) -> Expr:
        """How many elements the ring has."""
        if self.needed is None or shorter(self.whole, ring_size(self.needed)):
            return self.whole
        return const(ring_size(self.needed))


def shorter(extent: Expr, ring: int) -> bool:
    """True when a dimension certainly has no more elements than a ring would have."""
    return isinstance(extent, Const) and extent.value <= ring


def elements(box: Box, axis: int, facts: Facts) -> int | None:
    """The most elements that a box has along an axis; None where that is no constant."""
    lo, hi = box[axis]
    assert lo is not None and hi is not None
    apart = difference(hi, lo)
    return upper(add(subtract(hi, lo), ONE), facts) if apart is None else apart + 1


def check_extents(f: FuncDef, plan: FuncPlan, box: Box, whole: Box, facts: Facts) -> None:
    """ScheduleError where more of a dimension is computed than the user asked for."""
    for axis, extent in plan.extents:
        needed = elements(box, axis, facts)
        if extent is None or box[axis] == whole[axis]:
            continue
        if needed is None or needed > extent:
            hint = "give that number or more, or leave it out"
            raise _too_few("bound_extent", f, plan, axis, needed, "", extent, hint)


def _too_few(
    directive: str, f: FuncDef, plan: FuncPlan, axis: int, needed: int | None, when: str, asked: int,
    hint: str,
) -> ScheduleError:  # fmt: skip
    return ScheduleError(
        f"{directive} of {f.name!r}: dimension {f.variables[axis]!r} needs "
        f"{'an unknown number of' if needed is None else needed} elements{when}, not {asked}",
        loc=plan.loc,
        label="the last directive of this func",
        hint=hint,
    )


def asked_folds(f: FuncDef, plan: FuncPlan, box: Box, facts: Facts) -> dict[int, int]:
    """The rings that the user asked for; ScheduleError unless each holds what is in use at a time."""
    for axis, extent in plan.fold:
        needed = elements(box, axis, facts)
        if needed is None or needed > extent:
            hint = "fold to that number or more, or leave it to store_at"
            raise _too_few("fold_storage", f, plan, axis, needed, " at a time", extent, hint)
    return dict(plan.fold)
