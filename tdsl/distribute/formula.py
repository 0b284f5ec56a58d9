"""The bytes that a rank receives, as a formula of the sizes: the boxes of its steps with symbolic ends.

The boxes come from the region function, as for a plan, for a program whose sizes are symbols; owned blocks
are computed as in `placement.ownership`, on expressions. The result is exact for all sizes, also where blocks
are short or empty.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tdsl.communication.collective import MIN_COLLECTIVE_RANKS, has_mpi_operator
from tdsl.communication.derived_variables import DerivedVariable, derived_variables
from tdsl.communication.stages import dtypes_of, required_boxes, task_funcs_and_sources
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.lang.affine import variables
from tdsl.lang.expr import ONE, ZERO, Binary, Call, Const, Expr, Select, Var, const
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Interval, box_of, intersection, interval_where
from tdsl.lang.simplify import (
    add,
    ceildiv,
    conjunction,
    floordiv,
    maximum,
    minimum,
    multiply,
    simplify,
    substitute,
    subtract,
)
from tdsl.lang.symbolic import as_sympy, simplify_for_multiples
from tdsl.placement.grid import Coordinates, Grid
from tdsl.placement.notation import Copies, Fixed, Partial, Placement
from tdsl.schedule.properties import root_boxes, unplaced_at_root
from tdsl.schedule.ranks import distributed_loops
from tdsl.schedule.state import Split, State

RangesAt = Callable[[Coordinates], dict[str, Interval]]  # of variables on a rank in a step
Ends = tuple[tuple[Expr, Expr], ...]  # a box: half-open intervals
Cycle = tuple[
    int, int, Expr
]  # of a block-cyclic dimension: the size of a block, the period, the begin of a block
OwnedBox = tuple[tuple[Expr, Expr, Cycle | None], ...]  # a box whose dimensions may be block-cyclic


def formula(state: State, rank: int, *, even: bool = False) -> Any:
    """The bytes that a rank receives, as a sympy expression of the sizes.

    With `even`, for sizes that every block divides: short, as in the literature. TypeMismatch where the
    number of steps depends on sizes.
    """
    assert state.grid is not None
    total: Expr = ZERO
    boxes = root_boxes(unplaced_at_root(state))
    for f in state.program.funcs:
        if f.name in boxes and state.plan(f.name).distributed:
            total = add(total, StageFormula(state, state.grid, f, boxes).received(rank))
    expression = as_sympy(total)
    return simplify_for_multiples(expression, _even_size(state)) if even else expression


def _even_size(state: State) -> int:
    """A number whose multiples, as sizes, divide into whole blocks, and blocks of blocks."""
    assert state.grid is not None
    relations = (r for _, plan in state.plans for nest in plan.nests for r in nest.relations)
    splits = [r.parts or r.factor or 1 for r in relations if isinstance(r, Split)]
    parts = [n for _, n in state.grid.axes] + splits
    for _, placement in state.placed:
        for dim in range(len(placement.dims)):
            extents = [state.grid.shape[axis] for axis in placement.axes_of(dim)]
            parts.append(math.prod(extents) * (placement.cyclic_size(dim) or 1))
    return math.lcm(*parts) ** 2


@frozen
class StageFormula:
    """The formulas of one distributed func; `boxes` has the box that is computed of each func."""

    state: State
    grid: Grid
    func: FuncDef
    boxes: Mapping[str, tuple[Interval, ...]]

    def received(self, rank: int) -> Expr:
        """The bytes that a rank receives for the stage."""
        f, state = self.func, self.state
        plan = state.plan(f.name)
        nest = plan.nests[plan.distributed_definition]
        at = self.grid.coordinates(rank)
        parts, runs = derived_variables(f, plan.distributed_definition, nest, self.boxes[f.name])
        if any(isinstance(e, Fixed | Partial) for e in plan.distributed):
            raise no_formula(f"{f.name!r} is computed at one coordinate, or from partial sources")
        loops = len(distributed_loops(plan))
        inside, sources = task_funcs_and_sources(state, f)
        levels = {t: nest.position(loop) + 1 for t, loop in plan.communicated}
        total: Expr = ZERO
        for tensor in (*sources, f.name):
            steps = nest.names()[loops : levels.get(tensor, loops)]
            size = sum(t.bytes for t in dtypes_of(state.program, tensor))
            for inner in itertools.product(*(_iterations(x, runs[x]) for x in steps)):
                given = dict(zip(steps, inner, strict=True))

                def ranges(coordinates: Coordinates, given: Mapping[str, int] = given) -> dict[str, Interval]:
                    axes = zip(plan.distributed, coordinates, strict=True)
                    fixed_loops = {x: n for x, n in axes if isinstance(x, str)}
                    return _ranges(parts, runs, {**fixed_loops, **given})

                if tensor == f.name:
                    moved = self._result_elements(at, ranges)
                else:
                    ranges_of_rank, moved = ranges(at), ZERO
                    read_region = required_boxes(f, plan.distributed_definition, inside, ranges_of_rank).get(
                        tensor
                    )
                    if read_region is not None:
                        self._check_no_wrap(tensor)
                        self._check_no_all_reduce(tensor, parts, inside)
                        read = _ends(read_region)
                        owned_elements = _shared_elements(read, self._owned(tensor, at))
                        read_elements = multiply(const(self._partial_count(tensor)), _volume(read))
                        moved = _unless_empty(ranges_of_rank, subtract(read_elements, owned_elements))
                total = add(total, multiply(const(size), moved))
        return total

    def _partial_count(self, tensor: str) -> int:
        """The number of partial results of each element of a tensor, all of which are fetched."""
        placement = dict(self.state.placed)[tensor]
        return math.prod(self.grid.shape[n] for n in placement.partial)

    def _check_no_all_reduce(
        self, tensor: str, parts: Sequence[DerivedVariable], inside: Sequence[FuncDef]
    ) -> None:
        """TypeMismatch if ranks with partial results of a tensor may read all of them by an all-reduce."""
        axes, entries = dict(self.state.placed)[tensor].partial, self.state.plan(self.func.name).distributed
        if self._partial_count(tensor) < MIN_COLLECTIVE_RANKS:
            return
        indices = (e for d in self.func.definitions for r in d.reads if r.name == tensor for e in r.index)
        names = {name for e in indices for name in variables(e)}
        loops = {x for part in parts if inside or part.name in names for x in part.loops}
        if any(entries[n] not in loops for n in axes):
            raise no_formula(f"{self.func.name!r} may read partial results of {tensor!r} by an all-reduce")

    def _check_no_wrap(self, tensor: str) -> None:
        """TypeMismatch if reads of a tensor wrap around the ends of a dimension."""
        for d in self.func.definitions:
            for r in d.reads:
                if r.name == tensor and any(_wraps_around(e) for e in r.index):
                    raise no_formula(f"what {self.func.name!r} reads of {tensor!r} runs around its ends")

    def _result_elements(self, at: Coordinates, ranges: RangesAt) -> Expr:
        """The number of elements that a rank receives of the results that all ranks compute in a step."""
        placement = dict(self.state.placed)[self.func.name]
        owned_box = self._owned(self.func.name, at)
        messages: Expr = ZERO
        kept_axes = {*placement.partial, *self._repeated_axes()}
        for writer in map(self.grid.coordinates, range(self.grid.size)):
            if writer != at and all(writer[n] == at[n] for n in kept_axes):
                runs = ranges(writer)
                messages = add(
                    messages,
                    _unless_empty(runs, _shared_elements(self._computed_box(runs), owned_box)),
                )
        axes = self._reduced_axes(placement)
        if math.prod(self.grid.shape[n] for n in axes) < MIN_COLLECTIVE_RANKS:
            return messages
        entries = {placement.entries[n] for n in axes}
        levels = self._levels(axes)
        if len(levels) > 1:
            return self._hierarchical_reduce(at, levels, placement, ranges, messages)
        if entries == {Copies()}:
            return self._all_reduce(at, axes, ranges, messages)
        return messages

    def _levels(self, axes: list[int]) -> list[list[int]]:
        """The axes of more than one rank, grouped by level of the grid, innermost first; no empty groups."""
        levels, last = [], len(self.grid.shape)
        for depth in reversed(self.grid.depths):
            levels.append([n for n in axes if last - depth <= n < last and self.grid.shape[n] > 1])
            last -= depth
        return [level for level in levels if level]

    def _hierarchical_reduce(
        self, at: Coordinates, levels: list[list[int]], placement: Placement, ranges: RangesAt,
        messages: Expr,
    ) -> Expr:  # fmt: skip
        """The elements of a hierarchical reduction to one rank; `messages` if some ranks compute none."""
        received: Expr = ZERO
        whole, takes_part = _volume(self._computed_box(ranges(at))), True
        for axes in levels:
            entries = [placement.entries[n] for n in axes]
            if not all(isinstance(e, Fixed) for e in entries):
                raise no_formula(f"{self.func.name!r} is reduced level by level to several ranks")
            takes_part = takes_part and all(e == Fixed(at[n]) for e, n in zip(entries, axes, strict=True))
            if takes_part:
                others = math.prod(self.grid.shape[n] for n in axes) - 1
                received = add(received, multiply(const(others), whole))
        line = self._ranks_along(at, [n for axes in levels for n in axes])
        senders = [c for c in line if any(placement.entries[n] != Fixed(c[n]) for x in levels for n in x)]
        all_compute = conjunction(x for c in senders for x in _nonempty_conditions(ranges(c)))
        return Select(all_compute, received, messages)

    def _ranks_along(self, at: Coordinates, axes: list[int]) -> list[Coordinates]:
        """The coordinates of all ranks that differ from the rank at `at` along `axes` only."""
        shape = enumerate(zip(at, self.grid.shape, strict=True))
        return list(itertools.product(*(range(n) if k in axes else (p,) for k, (p, n) in shape)))

    def _computed_box(self, ranges: Mapping[str, Interval]) -> Ends:
        """The box that is computed where the variables have some ranges."""
        plan = self.state.plan(self.func.name)
        d, whole = self.func.definitions[plan.distributed_definition], self.boxes[self.func.name]
        return _ends(
            [
                box_of((e,), ranges)[0] if isinstance(e, Var) and e.name in d.free else all_of
                for e, all_of in zip(d.index, whole, strict=True)
            ]
        )

    def _reduced_axes(self, placement: Placement) -> list[int]:
        """The axes along which ranks have partial results of one box, which MPI can combine."""
        f, plan = self.func, self.state.plan(self.func.name)
        d, nest = (
            f.definitions[plan.distributed_definition],
            plan.nests[plan.distributed_definition],
        )
        combine = d.combine if plan.distributed_definition + 1 == len(f.definitions) else None
        if not has_mpi_operator(combine, f.dtypes, in_order=plan.deterministic):
            return []
        parts, _ = derived_variables(f, plan.distributed_definition, nest, self.boxes[f.name])
        bare = {e.name for e in d.index if isinstance(e, Var) and e.name in d.free}
        loops = {x for part in parts if part.name in bare for x in part.loops}
        return [n for n, x in enumerate(plan.distributed)
                if x not in loops and n not in placement.partial and not isinstance(x, Copies)]  # fmt: skip

    def _repeated_axes(self) -> tuple[int, ...]:
        """The axes of which every coordinate computes the func."""
        entries = self.state.plan(self.func.name).distributed
        return tuple(n for n, e in enumerate(entries) if isinstance(e, Copies))

    def _all_reduce(self, at: Coordinates, axes: list[int], ranges: RangesAt, messages: Expr) -> Expr:
        """The elements of an all-reduce along some axes; `messages` if at most one rank computes any."""
        line = self._ranks_along(at, axes)
        whole, members, n = _volume(self._computed_box(ranges(at))), len(line), line.index(at)
        each = ceildiv(whole, const(members))
        first, behind = (minimum(multiply(each, const(x)), whole) for x in (n, n + 1))
        share = subtract(behind, first)
        received = subtract(add(multiply(const(members - 1), share), whole), share)
        writers: Expr = ZERO
        for c in line:
            writers = add(writers, _unless_empty(ranges(c), ONE))
        return Select(Binary("lt", ONE, writers), received, messages)

    def _owned(self, tensor: str, at: Coordinates) -> OwnedBox | None:
        """The box of a tensor that a rank owns; None where it certainly owns nothing."""
        program, placement = self.state.program, dict(self.state.placed)[tensor]
        for entry, position in zip(placement.entries, at, strict=True):
            if isinstance(entry, Fixed) and entry.coordinate != position:
                return None
        if program.has_func(tensor):
            whole = list(_ends(self.boxes[tensor]))
        else:
            whole = [(ZERO, e) for e in program.input(tensor).shape]
        dims = []
        for dim, (lo, hi) in enumerate(whole):
            cycle, size = None, placement.cyclic_size(dim)
            for axis in placement.axes_of(dim):
                parts = self.grid.shape[axis]
                if size is not None:
                    cycle = size, size * parts, const(size * at[axis])
                    continue
                each = ceildiv(subtract(hi, lo), const(parts))
                first, behind = (multiply(each, const(at[axis] + n)) for n in (0, 1))
                lo, hi = minimum(add(lo, first), hi), minimum(add(lo, behind), hi)
            dims.append((lo, hi, cycle))
        return tuple(dims)


def _wraps_around(e: Expr) -> bool:
    match e:
        case Call("pad_wrap") | Binary("mod"):
            return True
        case _:
            return False


def no_formula(what: str) -> TypeMismatch:
    """The error that says of what there is no formula."""
    return TypeMismatch(
        f"{what}, of which there is no formula",
        loc=here(),
        label="this call",
        hint="plan.received has the bytes for the sizes of the plan",
    )


def _iterations(loop: str, run: Interval) -> range:
    lo, hi = run
    if not isinstance(lo, Const) or not isinstance(hi, Const):
        raise TypeMismatch(
            f"how often loop {loop!r} runs depends on sizes",
            loc=here(),
            label="this call",
            hint="divide it into a number of parts, or ask a plan for known sizes",
        )
    return range(int(lo.value), int(hi.value) + 1)


def _ranges(
    parts: Sequence[DerivedVariable], runs: Mapping[str, Interval], given: Mapping[str, int]
) -> dict[str, Interval]:
    """The ranges of the variables while the loops of `given` are at those iterations."""
    at: dict[str, Expr] = {loop: const(n) for loop, n in given.items()}
    ranges = {}
    for part in parts:
        free = {x: runs[x] for x in part.loops if x not in given}
        root, where = simplify(substitute(part.root, at)), simplify(substitute(part.where, at))
        ranges[part.name] = intersection(interval_where(root, free, where), part.bounds)
    return ranges


def _ends(box: Sequence[Interval]) -> Ends:
    ends = []
    for lo, hi in box:
        assert lo is not None and hi is not None, "boxes of a plan have ends"
        ends.append((simplify(lo), simplify(add(hi, ONE))))
    return tuple(ends)


def _shared_elements(box: Ends, owned: OwnedBox | None) -> Expr:
    """The number of elements of a box that a rank owns."""
    if owned is None:
        return ZERO
    count: Expr = ONE
    for (x, y), (lo, hi, cycle) in zip(box, owned, strict=True):
        first = maximum(x, lo)
        behind = maximum(minimum(y, hi), first)
        count = multiply(count, subtract(_owned_before(behind, cycle), _owned_before(first, cycle)))
    return count


def _owned_before(at: Expr, cycle: Cycle | None) -> Expr:
    """The number of owned elements before an index, up to a constant."""
    if cycle is None:
        return at
    block, period, start = cycle
    rounds = floordiv(subtract(at, start), const(period))
    into = subtract(subtract(at, start), multiply(rounds, const(period)))
    return add(multiply(rounds, const(block)), minimum(into, const(block)))


def _volume(box: Ends) -> Expr:
    volume: Expr = ONE
    for lo, hi in box:
        volume = multiply(volume, maximum(subtract(hi, lo), ZERO))
    return volume


def _unless_empty(ranges: Mapping[str, Interval], elements: Expr) -> Expr:
    """`elements` where no range is empty, else 0."""
    return Select(conjunction(_nonempty_conditions(ranges)), elements, ZERO)


def _nonempty_conditions(ranges: Mapping[str, Interval]) -> Iterator[Expr]:
    """A condition for each range: that it is not empty."""
    for lo, hi in _ends(list(ranges.values())):
        yield Binary("lt", lo, hi)
