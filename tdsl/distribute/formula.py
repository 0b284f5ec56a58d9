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

from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.distribute.collective import FEWEST, is_of_mpi
from tdsl.distribute.stages import Part, members_of, needed_by, parts_of_nest
from tdsl.distribute.task import dtypes_of
from tdsl.errors import TypeMismatch
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
from tdsl.schedule.properties import rest_at_root, root_boxes
from tdsl.schedule.state import Split, State

RangesAt = Callable[[Coordinates], dict[str, Interval]]  # of variables on a rank in a step
Ends = tuple[tuple[Expr, Expr], ...]  # a box: half-open intervals
Turns = tuple[
    int, int, Expr
]  # of a block-cyclic dimension: the size of a block, the period, the begin of a block
Own = tuple[tuple[Expr, Expr, Turns | None], ...]  # a box whose dimensions may be block-cyclic


def formula(state: State, rank: int, *, even: bool = False) -> Any:
    """The bytes that a rank receives, as a sympy expression of the sizes.

    With `even`, for sizes that every block divides: short, as in the literature. TypeMismatch where the
    number of steps depends on sizes.
    """
    assert state.grid is not None
    total: Expr = ZERO
    boxes = root_boxes(rest_at_root(state))
    for f in state.program.funcs:
        if f.name in boxes and state.plan(f.name).distributed:
            total = add(total, StageFormula(state, state.grid, f, boxes).received(rank))
    made = as_sympy(total)
    return simplify_for_multiples(made, _unit(state)) if even else made


def _unit(state: State) -> int:
    """A number whose multiples, as sizes, divide into whole blocks, and blocks of blocks."""
    assert state.grid is not None
    relations = (r for _, plan in state.plans for nest in plan.nests for r in nest.relations)
    splits = [r.parts or r.factor or 1 for r in relations if isinstance(r, Split)]
    parts = [n for _, n in state.grid.axes] + splits
    for _, placement in state.placed:
        for dim in range(len(placement.dims)):
            turns = [state.grid.shape[axis] for axis in placement.axes_of(dim)]
            parts.append(math.prod(turns) * (placement.cyclic_size(dim) or 1))
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
        parts, runs = parts_of_nest(f, plan.distributed_definition, nest, self.boxes[f.name])
        fixed = len(plan.distributed)
        inside, sources = members_of(state, f)
        levels = {t: nest.position(loop) + 1 for t, loop in plan.communicated}
        total: Expr = ZERO
        for tensor in (*sources, f.name):
            steps = nest.names()[fixed : levels.get(tensor, fixed)]
            size = sum(t.bytes for t in dtypes_of(state.program, tensor))
            for inner in itertools.product(*(_iterations(x, runs[x]) for x in steps)):
                given = dict(zip(steps, inner, strict=True))

                def ranges(
                    where: Coordinates, given: Mapping[str, int] = given
                ) -> dict[str, Interval]:
                    fixed_loops = zip(plan.distributed, where, strict=True)
                    return _ranges(parts, runs, {**dict(fixed_loops), **given})

                if tensor == f.name:
                    moved = self._results(at, ranges)
                else:
                    mine, moved = ranges(at), ZERO
                    need = needed_by(f, plan.distributed_definition, inside, mine).get(tensor)
                    if need is not None:
                        self._check_ends(tensor)
                        read = _ends(need)
                        own = _shared(read, self._owned(tensor, at))
                        all_parts = multiply(const(self._parts_of(tensor)), _volume(read))
                        moved = _if_any(mine, subtract(all_parts, own))
                total = add(total, multiply(const(size), moved))
        return total

    def _parts_of(self, tensor: str) -> int:
        """The number of partial results of each element of a tensor, all of which are fetched."""
        placement = dict(self.state.placed)[tensor]
        return math.prod(self.grid.shape[n] for n in placement.partial)

    def _check_ends(self, tensor: str) -> None:
        """TypeMismatch if reads of a tensor wrap around the ends of a dimension."""
        for d in self.func.definitions:
            for r in d.reads:
                if r.name == tensor and any(_runs_around(e) for e in r.index):
                    raise _no_formula(
                        f"what {self.func.name!r} reads of {tensor!r} runs around its ends"
                    )

    def _results(self, at: Coordinates, ranges: RangesAt) -> Expr:
        """The number of elements that a rank receives of the results that all ranks compute in a step."""
        placement = dict(self.state.placed)[self.func.name]
        home = self._owned(self.func.name, at)
        messages: Expr = ZERO
        keep = [n for n, e in enumerate(placement.entries) if isinstance(e, Partial)]
        for maker in map(self.grid.coordinates, range(self.grid.size)):
            if maker != at and all(maker[n] == at[n] for n in keep):
                runs = ranges(maker)
                messages = add(messages, _if_any(runs, _shared(self._made(runs), home)))
        axes = self._reduced_axes(placement)
        if math.prod(self.grid.shape[n] for n in axes) < FEWEST:
            return messages
        entries = {placement.entries[n] for n in axes}
        levels = self._levels(axes)
        if len(levels) > 1:
            return self._by_levels(at, levels, placement, ranges, messages)
        if entries == {Copies()}:
            return self._all_reduce(at, axes, ranges, messages)
        return messages

    def _levels(self, axes: list[int]) -> list[list[int]]:
        """The axes of more than one rank, grouped by level of the grid, innermost first; no empty groups."""
        found, last = [], len(self.grid.shape)
        for depth in reversed(self.grid.depths):
            found.append([n for n in axes if last - depth <= n < last and self.grid.shape[n] > 1])
            last -= depth
        return [level for level in found if level]

    def _by_levels(
        self, at: Coordinates, levels: list[list[int]], placement: Placement, ranges: RangesAt,
        messages: Expr,
    ) -> Expr:  # fmt: skip
        """The elements of a hierarchical reduction to one rank; `messages` if some ranks compute none."""
        got: Expr = ZERO
        whole, going_on = _volume(self._made(ranges(at))), True
        for axes in levels:
            entries = [placement.entries[n] for n in axes]
            if not all(isinstance(e, Fixed) for e in entries):
                raise _no_formula(f"{self.func.name!r} is reduced level by level to several ranks")
            going_on = going_on and all(
                e == Fixed(at[n]) for e, n in zip(entries, axes, strict=True)
            )
            if going_on:
                others = math.prod(self.grid.shape[n] for n in axes) - 1
                got = add(got, multiply(const(others), whole))
        line = self._line(at, [n for axes in levels for n in axes])
        senders = [
            c for c in line if any(placement.entries[n] != Fixed(c[n]) for x in levels for n in x)
        ]
        all_make = conjunction(x for c in senders for x in _some(ranges(c)))
        return Select(all_make, got, messages)

    def _line(self, at: Coordinates, axes: list[int]) -> list[Coordinates]:
        """The coordinates of all ranks that differ from the rank at `at` along `axes` only."""
        shape = enumerate(zip(at, self.grid.shape, strict=True))
        return list(itertools.product(*(range(n) if k in axes else (p,) for k, (p, n) in shape)))

    def _made(self, ranges: Mapping[str, Interval]) -> Ends:
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
        number = plan.distributed_definition
        d, nest = f.definitions[number], plan.nests[number]
        combine = d.combine if number + 1 == len(f.definitions) else None
        if not is_of_mpi(combine, f.dtypes, in_order=plan.deterministic):
            return []
        parts, _ = parts_of_nest(f, number, nest, self.boxes[f.name])
        bare = {e.name for e in d.index if isinstance(e, Var) and e.name in d.free}
        loops = {x for part in parts if part.name in bare for x in part.loops}
        return [n for n, x in enumerate(plan.distributed)
                if x not in loops and n not in placement.partial]  # fmt: skip

    def _all_reduce(
        self, at: Coordinates, axes: list[int], ranges: RangesAt, messages: Expr
    ) -> Expr:
        """The elements of an all-reduce along some axes; `messages` if at most one rank computes any."""
        line = self._line(at, axes)
        whole, members, n = _volume(self._made(ranges(at))), len(line), line.index(at)
        each = ceildiv(whole, const(members))
        first, behind = (minimum(multiply(each, const(x)), whole) for x in (n, n + 1))
        share = subtract(behind, first)
        both = subtract(add(multiply(const(members - 1), share), whole), share)
        makers: Expr = ZERO
        for c in line:
            makers = add(makers, _if_any(ranges(c), ONE))
        return Select(Binary("lt", ONE, makers), both, messages)

    def _owned(self, tensor: str, at: Coordinates) -> Own | None:
        """The box of a tensor that a rank owns; None where it certainly owns nothing."""
        program, placement = self.state.program, dict(self.state.placed)[tensor]
        for entry, position in zip(placement.entries, at, strict=True):
            if isinstance(entry, Fixed) and entry.coordinate != position:
                return None
        if program.has_func(tensor):
            whole = list(_ends(self.boxes[tensor]))
        else:
            whole = [(ZERO, e) for e in program.input(tensor).shape]
        found = []
        for dim, (lo, hi) in enumerate(whole):
            turns, size = None, placement.cyclic_size(dim)
            for axis in placement.axes_of(dim):
                parts = self.grid.shape[axis]
                if size is not None:
                    turns = size, size * parts, add(lo, const(size * at[axis]))
                    continue
                each = ceildiv(subtract(hi, lo), const(parts))
                first, behind = (multiply(each, const(at[axis] + n)) for n in (0, 1))
                lo, hi = minimum(add(lo, first), hi), minimum(add(lo, behind), hi)
            found.append((lo, hi, turns))
        return tuple(found)


def _runs_around(e: Expr) -> bool:
    match e:
        case Call("pad_wrap") | Binary("mod"):
            return True
        case _:
            return False


def _no_formula(what: str) -> TypeMismatch:
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
    parts: Sequence[Part], runs: Mapping[str, Interval], given: Mapping[str, int]
) -> dict[str, Interval]:
    """The ranges of the variables while the loops of `given` are at those iterations."""
    at: dict[str, Expr] = {loop: const(n) for loop, n in given.items()}
    found = {}
    for part in parts:
        free = {x: runs[x] for x in part.loops if x not in given}
        root, where = simplify(substitute(part.root, at)), simplify(substitute(part.where, at))
        found[part.name] = intersection(interval_where(root, free, where), part.bounds)
    return found


def _ends(box: Sequence[Interval]) -> Ends:
    made = []
    for lo, hi in box:
        assert lo is not None and hi is not None, "boxes of a plan have ends"
        made.append((simplify(lo), simplify(add(hi, ONE))))
    return tuple(made)


def _shared(box: Ends, own: Own | None) -> Expr:
    """The number of elements of a box that a rank owns."""
    if own is None:
        return ZERO
    found: Expr = ONE
    for (x, y), (lo, hi, turns) in zip(box, own, strict=True):
        first = maximum(x, lo)
        behind = maximum(minimum(y, hi), first)
        found = multiply(found, subtract(_before(behind, turns), _before(first, turns)))
    return found


def _before(at: Expr, turns: Turns | None) -> Expr:
    """The number of owned elements before an index, up to a constant."""
    if turns is None:
        return at
    block, period, start = turns
    rounds = floordiv(subtract(at, start), const(period))
    into = subtract(subtract(at, start), multiply(rounds, const(period)))
    return add(multiply(rounds, const(block)), minimum(into, const(block)))


def _volume(box: Ends) -> Expr:
    found: Expr = ONE
    for lo, hi in box:
        found = multiply(found, maximum(subtract(hi, lo), ZERO))
    return found


def _if_any(ranges: Mapping[str, Interval], elements: Expr) -> Expr:
    """`elements` where no range is empty, else 0."""
    return Select(conjunction(_some(ranges)), elements, ZERO)


def _some(ranges: Mapping[str, Interval]) -> Iterator[Expr]:
    """A condition for each range: that it is not empty."""
    for lo, hi in _ends(list(ranges.values())):
        yield Binary("lt", lo, hi)
