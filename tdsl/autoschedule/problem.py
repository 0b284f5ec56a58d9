"""One definition as a tile tree sees it: its axes, and how accesses move in memory along each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property
from math import gcd, inf, prod

import numpy as np

from tdsl.autoschedule.recipes.choices import Unsuited
from tdsl.autoschedule.recipes.stage_facts import separate_operands
from tdsl.core.node import Node, frozen, transform
from tdsl.cost.sectors import WARP, WORD
from tdsl.lang.affine import as_sum, has_data, variables
from tdsl.lang.bounds import upper
from tdsl.lang.definition import Definition
from tdsl.lang.expr import TRUE, Binary, Const, Expr, Var
from tdsl.lang.interp import evaluate
from tdsl.lang.operations import arithmetic_of
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.schedule.bind import bind_state
from tdsl.schedule.fluent import Stage
from tdsl.schedule.gathering import uses_variable
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.padding import padded_reads
from tdsl.schedule.properties import extents, has_effects, root_boxes, shape_of, unplaced_at_root
from tdsl.schedule.state import State, is_ordered

OPEN = 4096  # the extent that is assumed where only a call tells it


@frozen
class Axis:
    """A variable of a definition, its extent, whether that is known, and whether it is summed over."""

    name: str
    extent: int
    summed: bool = False
    known: bool = True


@frozen(slots=False)
class Access:
    """A read or the write of an array with elements of `size` bytes.

    `dims` has the coefficients of the axes in each index, `starts` its constant; `steps` are the elements
    from one value of an axis to the next in memory. Along axes in `data` the place is not affine. Of those
    along which it grows evenly, as of `x[i // 2]`, `slopes` has the mean elements to the next value.
    """

    array: str
    size: int
    dims: tuple[tuple[tuple[str, int], ...], ...]
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    steps: tuple[tuple[str, int], ...]
    data: frozenset[str] = frozenset()
    written: bool = False
    slopes: tuple[tuple[str, float], ...] = ()

    def step(self, axis: str) -> int:
        """The elements in memory from one value of an axis to the next; 0 if all are the same element."""
        return self._step_of.get(axis, 0)

    def uses(self, axis: str) -> bool:
        """True if values of an axis are different elements."""
        return axis in self._step_of or axis in self.data

    @cached_property
    def _step_of(self) -> Mapping[str, int]:
        return dict(self.steps)

    @cached_property
    def offset(self) -> int:
        """The element at which an access begins."""
        return sum(s * prod(self.shape[n + 1 :]) for n, s in enumerate(self.starts))

    def width(self, axis: str, count: int) -> int:
        """The neighbours along an axis in one access: up to 16 bytes, aligned, a divisor of `count`."""
        if self.step(axis) != 1 or axis in self.data:
            return 1
        others = [s for name, s in self.steps if name != axis]
        most = gcd(16 // self.size, count, self.offset, *others) if self.size <= 16 else 1
        return most & -most

    @property
    def has_narrow_rows(self) -> bool:
        """True if rows of the last dimension are aligned to 4 bytes or less."""
        return bool(self.shape) and self.row_width * self.size <= WORD

    @property
    def row_width(self) -> int:
        """The neighbours of the last dimension that 16 bytes hold where all rows begin aligned."""
        if not self.shape:
            return 1
        most = gcd(max(16 // self.size, 1), self.shape[-1])
        return most & -most


@frozen(slots=False)
class Operand:
    """The reads of an array that move together; `along` distinguishes them from others of the same array.

    They are `padded` if all have one padding, which a copy of the operand can include.
    """

    array: str
    along: str | None
    reads: tuple[Access, ...]
    padded: bool = False

    def uses(self, axis: str) -> bool:
        """True if values of an axis are different elements."""
        return any(r.uses(axis) for r in self.reads)

    @property
    def is_affine(self) -> bool:
        """True if data do not choose places."""
        return not any(r.data for r in self.reads)

    def box(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """The extents of the box that so many values of each axis read, also beyond the array's ends."""
        box = []
        for ends in self._ends:
            low, high = inf, -inf
            for start, moves in ends:
                first = last = start
                for v, c in moves:
                    reach = c * (values.get(v, 1) - 1)
                    if reach < 0:
                        first += reach
                    else:
                        last += reach
                low, high = min(low, first), max(high, last)
            box.append(int(high - low) + 1)
        return tuple(box)

    @cached_property
    def _ends(self) -> list[list[tuple[int, tuple[tuple[str, int], ...]]]]:
        """Where each read begins in each dimension, and how axes move it."""
        dims = range(len(self.reads[0].shape))
        return [[*dict.fromkeys((r.starts[n], r.dims[n]) for r in self.reads)] for n in dims]


@frozen(slots=False)
class Problem:
    """A definition: its axes, reads and result, and the arithmetic of one term.

    The operands are the reads by what moves together. What is written may be an epilogue of sums, which have
    `sum_bytes` each. `is_affine` is True if all indices are sums of axes, without limits or data.
    """

    func: str
    axes: tuple[Axis, ...]
    reads: tuple[Access, ...]
    operands: tuple[Operand, ...]
    write: Access
    work: int
    dtype: str
    sum_bytes: int
    is_rectangular: bool
    is_affine: bool
    definition: Definition = field(compare=False)

    @property
    def accesses(self) -> tuple[Access, ...]:
        """The reads and the write."""
        return (*self.reads, self.write)

    @cached_property
    def free(self) -> tuple[Axis, ...]:
        """The axes of the result."""
        return tuple(a for a in self.axes if not a.summed)

    @cached_property
    def summed(self) -> tuple[Axis, ...]:
        """The axes that are summed over."""
        return tuple(a for a in self.axes if a.summed)

    @cached_property
    def points(self) -> int:
        """The elements of the result."""
        return prod(a.extent for a in self.free)

    @cached_property
    def terms(self) -> int:
        """The terms of each element."""
        return prod(a.extent for a in self.summed)

    def axis(self, name: str) -> Axis:
        """The axis with a name."""
        return self._axis_of[name]

    @cached_property
    def _axis_of(self) -> Mapping[str, Axis]:
        return {a.name: a for a in self.axes}

    @cached_property
    def lane(self) -> str | None:
        """The free axis along which neighbours of the result are neighbours in memory."""
        return next((a.name for a in self.free if self.write.step(a.name) == 1), None)

    def has_reuse(self, least: int) -> bool:
        """True if several points read the same elements of each operand: by a free axis, or a window.

        The axis has an extent of at least `least`.
        """
        many = [a.name for a in self.free if a.extent >= least]
        return all(
            any(not x.uses(v) for v in many) or any(len(dim) > 1 for r in x.reads for dim in r.dims)
            for x in self.operands
        )

    def with_parts(self, axis: str, parts: int) -> Problem:
        """The problem of sums of each of some equal parts of an axis, which is the first of the result."""
        size = -(-self.axis(axis).extent // parts)
        name = f"{axis}_part"

        def split(r: Access) -> Access:
            dims = tuple((*d, *((name, c * size) for v, c in d if v == axis)) for d in r.dims)
            steps = (*r.steps, *((name, s * size) for v, s in r.steps if v == axis))
            return replace(r, dims=dims, steps=steps)

        axes = tuple(replace(a, extent=size) if a.name == axis else a for a in self.axes)
        reads = tuple(map(split, self.reads))
        operands = tuple(replace(x, reads=tuple(map(split, x.reads))) for x in self.operands)
        write = replace(
            self.write, dims=(((name, 1),), *self.write.dims), starts=(0, *self.write.starts),
            shape=(parts, *self.write.shape), steps=(*self.write.steps, (name, self.points)),
        )  # fmt: skip
        axes = (Axis(name, parts), *axes)
        return replace(self, axes=axes, reads=reads, operands=operands, write=write)

    def with_lanes(self, axis: str, threads: int, each: int) -> Problem:
        """The problem of sums of each of some threads, which take turns at `each` neighbours along an axis.

        The number of the thread is a free axis, of which the result has one element.
        """
        lane, term = f"{axis}_lane", f"{axis}_each"

        def split(r: Access) -> Access:
            dims = tuple(
                tuple(x for v, c in d for x in (((v, c * threads * each), (lane, c * each), (term, c))
                                                if v == axis else ((v, c),)))
                for d in r.dims
            )  # fmt: skip
            steps = [(v, s * threads * each if v == axis else s) for v, s in r.steps]
            steps += [x for v, s in r.steps if v == axis for x in ((lane, s * each), (term, s))]
            data = r.data | {lane, term} if axis in r.data else r.data
            return replace(r, dims=dims, steps=tuple(steps), data=data)

        extent = -(-self.axis(axis).extent // (threads * each))
        axes = tuple(replace(a, extent=extent) if a.name == axis else a for a in self.axes)
        reads = tuple(map(split, self.reads))
        operands = tuple(replace(x, reads=tuple(map(split, x.reads))) for x in self.operands)
        axes = (Axis(lane, threads), *axes, Axis(term, each, summed=True))
        return replace(self, axes=axes, reads=reads, operands=operands)

    def tile_of(self, x: Operand, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The extents of a copy of an operand for a tile of so many values of each axis.

        Beyond the ends of the array it is filled; one that includes padding ends with the last point.
        """
        known = {a.name: a.extent for a in self.axes if a.known} if x.padded else {}
        return x.box({v: min(n, known.get(v, n)) for v, n in sizes.items()} if known else sizes)

    def bytes_of(self, x: Operand, values: Mapping[str, int]) -> int:
        """The bytes of all elements of an operand that so many values of each axis read."""
        return prod(map(min, x.box(values), x.reads[0].shape)) * x.reads[0].size

    @cached_property
    def written_bytes(self) -> int:
        """The bytes of all elements that are written."""
        return prod(a.extent for a in self.free if self.write.uses(a.name)) * self.write.size

    def least_bytes(self) -> int:
        """The bytes of all elements that are read or written, each once."""
        whole = {a.name: a.extent for a in self.axes}
        return sum(self.bytes_of(x, whole) for x in self.operands) + self.written_bytes

    @staticmethod
    def of(stage: Stage, *, reduction: bool = False) -> Problem:
        """The problem of a stage; Unsuited where an order, effects or an empty extent are in the way.

        A `reduction` may be an update, have several values and one point.

        >>> import tdsl as td
        >>> i, j, x, t = *td.vars("i j"), td.Tensor("x", (8, 100), td.f32), td.Func("t")
        >>> t[j, i] = x[i, j]
        >>> p = Problem.of(td.Schedule(t)["t"])
        >>> p.reads[0].steps, p.write.steps, p.lane
        ((('i', 100), ('j', 1)), (('j', 8), ('i', 1)), 'i')
        """
        schedule = stage.schedule
        state = unplaced_at_root(inline_funcs(bind_state(schedule.state, schedule.sizes)))
        boxes = root_boxes(state)
        f = state.program.func(stage.func)
        number = stage.definition if reduction else 0
        d = f.definitions[number]
        several = len(f.dtypes) > 1 and not reduction
        if several or (len(f.definitions) > 1 and not number) or f.name not in boxes:
            raise Unsuited("it has updates, several values, or nothing of it is needed")
        if has_effects(d) or (d.ranges and (is_ordered(f, number) or (d.init is None and not number))):
            raise Unsuited("its points or terms have an order")
        if reduction and (not d.ranges or d.index != tuple(map(Var, d.free))):
            raise Unsuited("it reduces nothing, or not to an element for each of its points")
        if not d.free and not reduction:
            raise Unsuited("it has one point")
        p = _describe(state, f, boxes, number)
        if any(a.extent == 0 for a in p.axes):
            raise Unsuited("it has no point")
        return p

    @staticmethod
    def described(stage: Stage) -> Problem:
        """The problem of a stage whose points and terms may run in any order."""
        state = unplaced_at_root(inline_funcs(bind_state(stage.schedule.state, stage.schedule.sizes)))
        return _describe(state, state.program.func(stage.func), root_boxes(state), stage.definition)

    @staticmethod
    def in_state(state: State, f: FuncDef, boxes: Mapping[str, Box]) -> Problem | None:
        """The problem of a func with affine indices; None where extents, an order or data are in the way."""
        d = f.definitions[0]
        if len(f.definitions) > 1 or len(f.dtypes) > 1 or is_ordered(f, 0) or (d.ranges and d.init is None):
            return None
        if f.name not in boxes or any(r.name not in boxes for r in d.reads):
            return None
        p = _describe(state, f, boxes)
        is_open = any(not a.known or not a.extent for a in p.axes)
        return p if p.is_rectangular and p.is_affine and not is_open else None


def _has_padding(d: Definition, name: str, along: str | None) -> bool:
    """True if all reads of an operand have one padding."""
    reads = {r for r in reads_in(d.values) if r.name == name and uses_variable(r, along)}
    padded = {e: x for e, x in padded_reads(d, name).items() if uses_variable(e, along)}
    served = {r for e in padded for r in reads_in((e,)) if r.name == name}
    return (
        bool(reads)
        and reads == served
        and all(len(x.index) == len(r.index) for x in padded.values() for r in reads)
    )


def _describe(state: State, f: FuncDef, boxes: Mapping[str, Box], number: int = 0) -> Problem:
    """The problem of a definition of a func."""
    d, size = f.definitions[number], sum(t.bytes for t in f.dtypes)
    sizes, ranges = extents(f, d, boxes[f.name]), {name for name, _, _ in d.ranges}
    axes = tuple(
        Axis(v, OPEN if (n := sizes[v]) is None else n, v in ranges, n is not None) for v in d.variables
    )
    reads = [*dict.fromkeys(reads_in(d.values))]
    known = {a.name: a.extent for a in axes}
    accesses = {r: _access(state, boxes, r.name, r.index, r.dtype.bytes, known) for r in reads}
    operands = tuple(
        Operand(name, along, tuple(
            accesses[r] for r in reads if r.name == name and uses_variable(r, along)
        ), _has_padding(d, name, along))
        for name, along in separate_operands(reads, d.free)
    )  # fmt: skip
    write = _access(state, boxes, f.name, d.index, size, known, written=True)
    indices = (e for r in reads for e in r.index)
    return Problem(
        func=f.name,
        axes=axes,
        reads=tuple(accesses.values()),
        operands=operands,
        write=write,
        work=max(arithmetic_of(d), 1),
        dtype=f.dtypes[0].name,
        sum_bytes=size,
        is_rectangular=d.mask == TRUE == d.where and d.index == tuple(map(Var, f.variables)),
        is_affine=all(isinstance(atom, Var) for e in indices for atom in as_sum(e).terms),
        definition=d,
    )


def _unclamped(e: Expr) -> Expr:
    """An index without the limits of what surrounds an array."""

    def inside(n: Node) -> Node:
        if isinstance(n, Binary) and n.op in ("min", "max"):
            moving = [x for x in (n.left, n.right) if variables(x)]
            return moving[0] if len(moving) == 1 else n
        return n

    return transform(e, inside)


def _shape(state: State, boxes: Mapping[str, Box], name: str, rank: int) -> tuple[int, ...]:
    """The extents of an array, OPEN for those that only a call tells."""
    if not state.program.has_func(name):
        return tuple(n if (n := upper(e)) is not None and isinstance(e, Const) else OPEN + 1
                     for e in state.program.input(name).shape)  # fmt: skip
    if name not in boxes or any(not isinstance(e, Const) for ends in boxes[name] for e in ends):
        return (OPEN + 1,) * rank
    return shape_of(boxes[name])


def _access(
    state: State, boxes: Mapping[str, Box], name: str, index: tuple[Expr, ...], size: int,
    extents: Mapping[str, int], *, written: bool = False,
) -> Access:  # fmt: skip
    """The access at an index of variables with these extents."""
    sums, shape = [as_sum(_unclamped(e)) for e in index], _shape(state, boxes, name, len(index))
    dims, steps, data, slopes = [], dict[str, int](), set[str](), dict[str, float]()
    order = state.plan(name).order if state.program.has_func(name) else None
    place = {n: at for at, n in enumerate(order or range(len(index)))}
    for n, (e, s) in enumerate(zip(index, sums, strict=True)):
        odd = [a for a in s.terms if not isinstance(a, Var)]
        data |= {v for a in odd for v in variables(a)}
        data |= {v for r in reads_in((e,)) for x in r.index for v in variables(x)}
        dims.append(tuple((a.name, c) for a, c in s.terms.items() if isinstance(a, Var)))
        inner = prod(m for k, m in enumerate(shape) if place[k] > place[n])
        for axis, slope in _slopes(e, extents).items() if odd else ():
            slopes[axis] = slopes.get(axis, 0.0) + slope * inner
        for axis, c in dims[-1]:
            steps[axis] = steps.get(axis, 0) + c * inner
    starts = tuple(int(s.constant) for s in sums)
    known = tuple((v, x) for v, x in slopes.items() if v in data)
    return Access(
        name, size, tuple(dims), starts, shape, tuple(steps.items()), frozenset(data), written, known
    )


def _slopes(e: Expr, extents: Mapping[str, int]) -> dict[str, float]:
    """The mean growth of an index for each variable along which it grows evenly; none if data are in it."""
    names = sorted(variables(e))
    if has_data(e) or not extents.keys() >= set(names):
        return {}
    middle = {v: np.full(WARP, extents[v] // 2) for v in names}
    slopes = {}
    for v in names:
        first = max(min(extents[v] // 2, extents[v] - WARP), 0)
        values = evaluate(e, middle | {v: np.arange(first, first + WARP)}).astype(np.int64)
        moves = np.diff(values)
        mean = float(moves.mean())
        if moves.min() >= 0 and moves.max() <= 2 * max(mean, 0.5):
            slopes[v] = mean
    return slopes
