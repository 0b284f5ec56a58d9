"""What a rank receives as a formula of the sizes: the boxes of its steps with named ends.

The region function is asked as for a plan, of a program whose sizes are symbols; what a rank owns is the
arithmetic of `placement.ownership` in sympy. The result is exact for all sizes, also where blocks are short
or empty.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tdsl.distribute.collective import FEWEST, is_of_mpi
from tdsl.distribute.stages import Part, members_of, needed_by, parts_of_nest
from tdsl.distribute.task import dtypes_of
from tdsl.errors import TypeMismatch
from tdsl.lang.expr import Const, Expr, Var, const
from tdsl.lang.program import FuncDef, bind_expr
from tdsl.lang.regions import Interval, box_of, common, interval_where
from tdsl.lang.simplify import simplify, substitute
from tdsl.lang.symbolic import as_sympy
from tdsl.placement.grid import Coordinates, Grid
from tdsl.placement.notation import Copies, Fixed, Partial, Placement
from tdsl.schedule.facts import rest_at_root, root_boxes
from tdsl.schedule.nest import State
from tdsl.source import here

Symbolic = tuple[tuple[Any, Any], ...]  # a box: first and behind the last, in sympy


def formula(state: State, rank: int, *, even: bool = False) -> Any:
    """The bytes that a rank receives, as a sympy expression of the sizes.

    With `even`, as if every block were whole: short, as in the literature. TypeMismatch where the number of
    steps depends on sizes, or a dimension is dealt out.
    """
    assert state.grid is not None
    total: Any = 0
    boxes = root_boxes(rest_at_root(state))
    for f in state.program.funcs:
        if f.name in boxes and state.plan(f.name).distributed:
            total += StageFormula(state, state.grid, f, boxes).received(rank)
    return _even(total, state) if even else total


def _even(total: Any, state: State) -> Any:
    """A formula for sizes that all blocks divide."""
    import sympy

    assert state.grid is not None
    parts = [n for _, n in state.grid.axes]
    for _, plan in state.plans:
        for nest in plan.nests:
            for r in nest.relations:
                parts += [n for n in (getattr(r, "parts", None), getattr(r, "factor", None)) if n]
    unit = math.lcm(*parts) ** 2  # blocks of blocks are whole, too
    symbols = {s: sympy.Symbol(s.name, integer=True, positive=True) for s in total.free_symbols}
    scaled = total.subs({s: unit * new for s, new in symbols.items()})
    scaled = sympy.simplify(sympy.piecewise_fold(scaled))
    return sympy.factor(scaled.subs({new: s / unit for s, new in symbols.items()}))


@dataclass(frozen=True, slots=True)
class StageFormula:
    """The formulas of one distributed func; `boxes` is what is computed of each."""

    state: State
    grid: Grid
    func: FuncDef
    boxes: Mapping[str, tuple[Interval, ...]]

    def received(self, rank: int) -> Any:
        """The bytes that a rank receives for the stage."""
        f, state = self.func, self.state
        plan = state.plan(f.name)
        nest = plan.nests[plan.shared]
        at = self.grid.coordinates(rank)
        parts, runs = parts_of_nest(f, plan.shared, nest, self.boxes[f.name])
        fixed = len(plan.distributed)
        inside, sources = members_of(state, f)
        levels = {t: nest.position(loop) + 1 for t, loop in plan.communicated}
        total: Any = 0
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
                    total += size * self._results(at, ranges)
                else:
                    mine = ranges(at)
                    need = needed_by(f, plan.shared, inside, mine).get(tensor)
                    if need is not None:
                        read = _sympy(need)
                        own = _meet(read, self._owned(tensor, at))
                        total += size * _if_any(mine, _volume(read) - _volume(own))
        return total

    def _results(self, at: Coordinates, ranges: Any) -> Any:
        """The elements that a rank gets of what all ranks made in a step."""
        name, grid = self.func.name, self.grid
        placement = dict(self.state.placed)[name]
        home = self._owned(name, at)
        if home is None:
            return 0
        from_all: Any = 0
        keep = [n for n, e in enumerate(placement.entries) if isinstance(e, Partial)]
        for maker in map(grid.coordinates, range(grid.size)):
            if maker != at and all(maker[n] == at[n] for n in keep):
                runs = ranges(maker)
                from_all += _if_any(runs, _volume(_meet(self._made(runs), home)))
        line = self._all_reduced(placement)
        if line is None:
            return from_all
        return self._all_reduce(at, line, ranges, from_all)

    def _made(self, ranges: Mapping[str, Interval]) -> Symbolic:
        """The box that iterations make."""
        plan = self.state.plan(self.func.name)
        d, whole = self.func.definitions[plan.shared], self.boxes[self.func.name]
        return _sympy(
            [
                box_of((e,), ranges)[0] if isinstance(e, Var) and e.name in d.free else all_of
                for e, all_of in zip(d.index, whole, strict=True)
            ]
        )

    def _all_reduced(self, placement: Placement) -> list[int] | None:
        """The axes along which every rank gets the sum of what all of them made, if there are such."""
        f, plan = self.func, self.state.plan(self.func.name)
        d, nest = f.definitions[plan.shared], plan.nests[plan.shared]
        combine = d.combine if plan.shared + 1 == len(f.definitions) else None
        if not is_of_mpi(combine, f.dtypes, in_order=plan.deterministic):
            return None
        parts, _ = parts_of_nest(f, plan.shared, nest, self.boxes[f.name])
        bare = {e.name for e in d.index if isinstance(e, Var) and e.name in d.free}
        loops = {x for part in parts if part.name in bare for x in part.loops}
        axes = [n for n, x in enumerate(plan.distributed)
                if x not in loops and n not in placement.partial]  # fmt: skip
        copied = all(isinstance(placement.entries[n], Copies) for n in axes)
        return axes if axes and copied else None

    def _all_reduce(self, at: Coordinates, axes: list[int], ranges: Any, messages: Any) -> Any:
        """The elements of an all-reduce along some axes; of messages, where some ranks make nothing."""
        import sympy

        line = [
            tuple(c) for c in itertools.product(
                *(range(n) if k in axes else (at[k],) for k, n in enumerate(self.grid.shape))
            )
        ]  # fmt: skip
        if len(line) < FEWEST:
            return messages
        whole, members, n = _volume(self._made(ranges(at))), len(line), line.index(at)
        each = sympy.ceiling(whole / members)
        share = sympy.Min(each * (n + 1), whole) - sympy.Min(each * n, whole)
        both = (members - 1) * share + whole - share
        all_make = sympy.And(*(x for c in line for x in _some(ranges(c))))
        return sympy.Piecewise((both, all_make), (messages, True))

    def _owned(self, tensor: str, at: Coordinates) -> Symbolic | None:
        """The box of a tensor that a rank owns; None where it certainly owns nothing."""
        import sympy

        program, placement = self.state.program, dict(self.state.placed)[tensor]
        for entry, position in zip(placement.entries, at, strict=True):
            if isinstance(entry, Fixed) and entry.coordinate != position:
                return None
        if program.has_func(tensor):
            whole = list(_sympy(self.boxes[tensor]))
        else:
            whole = [(sympy.Integer(0), as_sympy(e)) for e in program.input(tensor).shape]
        for dim, (lo, hi) in enumerate(whole):
            if placement.dealt(dim) is not None:
                raise TypeMismatch(
                    f"{tensor!r} is dealt out in blocks, of which there is no formula",
                    loc=here(),
                    label="this call",
                    hint="plan.received has the bytes for the sizes of the plan",
                )
            for axis in placement.axes_of(dim):
                size = sympy.ceiling((hi - lo) / self.grid.shape[axis])
                first = sympy.Min(lo + at[axis] * size, hi)
                lo, hi = first, sympy.Min(lo + (at[axis] + 1) * size, hi)
            whole[dim] = (lo, hi)
        return tuple(whole)


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
    """Where the variables run while some loops stand at some iterations."""
    at: dict[str, Expr] = {loop: const(n) for loop, n in given.items()}
    found = {}
    for part in parts:
        free = {x: runs[x] for x in part.loops if x not in given}
        root, where = simplify(substitute(part.root, at)), simplify(substitute(part.where, at))
        found[part.name] = common(interval_where(root, free, where), part.bounds)
    return found


def _sympy(box: Sequence[Interval]) -> Symbolic:
    made = []
    for lo, hi in box:
        assert lo is not None and hi is not None, "boxes of a plan have ends"
        made.append((as_sympy(bind_expr(lo, {})), as_sympy(bind_expr(hi, {})) + 1))
    return tuple(made)


def _meet(a: Symbolic, b: Symbolic | None) -> Symbolic | None:
    import sympy

    if b is None:
        return None
    both = zip(a, b, strict=True)
    return tuple((sympy.Max(x, lo), sympy.Min(y, hi)) for (x, y), (lo, hi) in both)


def _volume(box: Symbolic | None) -> Any:
    import sympy

    if box is None:
        return sympy.Integer(0)
    return sympy.Mul(*(sympy.Max(hi - lo, 0) for lo, hi in box))


def _if_any(ranges: Mapping[str, Interval], elements: Any) -> Any:
    """A number of elements where all of some ranges have points, else none."""
    import sympy

    return sympy.Piecewise((elements, sympy.And(*_some(ranges))), (0, True))


def _some(ranges: Mapping[str, Interval]) -> Iterator[Any]:
    """That each of some ranges has points."""
    for lo, hi in _sympy(list(ranges.values())):
        yield hi > lo
