"""One definition as a tile tree sees it: its axes, and how far accesses move in memory along each of them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tdsl.core.node import frozen
from tdsl.lang.affine import as_sum
from tdsl.lang.definition import Definition
from tdsl.lang.expr import TRUE, Const, Expr, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.schedule.properties import extents, shape_of
from tdsl.schedule.state import State, is_ordered


@frozen
class Axis:
    """A variable of a definition: its extent, and whether the definition sums over it."""

    name: str
    extent: int
    summed: bool = False


@frozen
class Access:
    """A read, or the write, of an array with elements of `size` bytes.

    `dims` has the coefficients of the axes in each index, `steps` the elements from one value of an axis to
    the next in memory.
    """

    array: str
    size: int
    dims: tuple[tuple[tuple[str, int], ...], ...]
    shape: tuple[int, ...]
    steps: tuple[tuple[str, int], ...]
    written: bool = False

    def step(self, axis: str) -> int:
        """The elements in memory from one value of an axis to the next; 0 if all are the same element."""
        return dict(self.steps).get(axis, 0)

    def uses(self, axis: str) -> bool:
        """True if values of an axis are different elements."""
        return any(name == axis for name, _ in self.steps)


@frozen
class Op:
    """A definition whose indices are affine in its axes, none of which has an order."""

    func: str
    axes: tuple[Axis, ...]
    reads: tuple[Access, ...]
    write: Access
    definition: Definition

    @property
    def accesses(self) -> tuple[Access, ...]:
        """The reads and the write."""
        return (*self.reads, self.write)

    @property
    def free(self) -> tuple[Axis, ...]:
        """The axes of the result, in the order of its dimensions."""
        return tuple(a for a in self.axes if not a.summed)

    @property
    def summed(self) -> tuple[Axis, ...]:
        """The axes that are summed over."""
        return tuple(a for a in self.axes if a.summed)

    @property
    def points(self) -> int:
        """The terms of all sums together; without sums the elements of the result."""
        return prod(a.extent for a in self.axes)

    def axis(self, name: str) -> Axis:
        """The axis with a name."""
        return next(a for a in self.axes if a.name == name)

    @staticmethod
    def of(state: State, f: FuncDef, boxes: Mapping[str, Box]) -> Op | None:
        """The operation of a func with one definition; None where a box, an order or data are in the way.

        >>> import tdsl as td
        >>> from tdsl.schedule.properties import root_boxes, unplaced_at_root
        >>> i, j, x, t = *td.vars("i j"), td.Tensor("x", (8, 100), td.f32), td.Func("t")
        >>> t[j, i] = x[i, j]
        >>> state = unplaced_at_root(td.Schedule(t).state)
        >>> op = Op.of(state, state.program.func("t"), root_boxes(state))
        >>> op.reads[0].steps, op.write.steps
        ((('i', 100), ('j', 1)), (('j', 8), ('i', 1)))
        """
        d = f.definitions[0]
        if len(f.definitions) > 1 or len(f.dtypes) > 1 or f.name not in boxes or is_ordered(f, 0):
            return None
        plain = d.mask == TRUE == d.where and (d.init is not None or not d.ranges)
        sizes = extents(f, d, boxes[f.name])
        if (
            not plain
            or not all(sizes.values())
            or any(name not in boxes for name in {r.name for r in d.reads})
        ):
            return None
        ranges = {name for name, _, _ in d.ranges}
        axes = tuple(Axis(v, sizes[v] or 1, v in ranges) for v in d.variables)
        reads = [
            _access(state, boxes, r.name, r.index, r.dtype.bytes) for r in dict.fromkeys(reads_in(d.values))
        ]
        write = _access(state, boxes, f.name, d.index, f.dtypes[0].bytes, written=True)
        if write is None or None in reads:
            return None
        return Op(f.name, axes, tuple(r for r in reads if r is not None), write, d)


def _access(
    state: State, boxes: Mapping[str, Box], name: str, index: tuple[Expr, ...], size: int, *,
    written: bool = False,
) -> Access | None:  # fmt: skip
    """The access at an index; None if the index is not affine in variables."""
    sums = [as_sum(e) for e in index]
    if any(not isinstance(atom, Var) for s in sums for atom in s.terms):
        return None
    shape = shape_of(boxes[name])
    if not state.program.has_func(name):
        shape = tuple(
            int(n.value) if isinstance(n, Const) else m
            for n, m in zip(state.program.input(name).shape, shape, strict=True)
        )
    dims = tuple(tuple((a.name, c) for a, c in s.terms.items() if isinstance(a, Var)) for s in sums)
    steps: dict[str, int] = {}
    for n, dim in enumerate(dims):
        for axis, c in dim:
            steps[axis] = steps.get(axis, 0) + c * prod(shape[n + 1 :])
    return Access(name, size, dims, shape, tuple(steps.items()), written)
