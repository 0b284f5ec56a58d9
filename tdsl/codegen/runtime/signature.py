"""Signatures of compiled programs (inputs and outputs) and specialisations (sizes, strides, alignment)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import field
from math import prod

from tdsl.codegen.ir.loops import Argument, BufferParam, ScalarParam, SizeParam, row_major
from tdsl.core.node import frozen, post_order
from tdsl.core.source import Loc
from tdsl.lang.agreement import Agreement
from tdsl.lang.expr import Binary, Cast, Const, Expr, Select, Size, Unary
from tdsl.lang.program import bind_expr
from tdsl.lang.types import DType


@frozen
class ArrayArg:
    """An array argument or output. Extents are `Const`, `Size`, or any integer expression of these. `loc` is
    the source location of its declaration.
    """

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    loc: Loc | None = None


@frozen
class ScalarArg:
    """A scalar argument."""

    name: str
    dtype: DType
    loc: Loc | None = None


@frozen
class Signature:
    """The inputs of a compiled program in the order of a call, and its outputs in the order of the result.

    `agreements` are the constraints that some extents are equal, with the accesses that imply them.
    """

    name: str
    inputs: tuple[ArrayArg | ScalarArg, ...]
    outputs: tuple[ArrayArg, ...]
    agreements: tuple[Agreement, ...] = field(default=(), compare=False)

    @property
    def arrays(self) -> tuple[ArrayArg, ...]:
        """The array inputs, then the outputs."""
        return (*(arg for arg in self.inputs if isinstance(arg, ArrayArg)), *self.outputs)

    @property
    def sizes(self) -> tuple[str, ...]:
        """The named extents, in the order in which they first occur."""
        return tuple(dict.fromkeys(name for arg in self.arrays for name in size_names(arg)))


Layout = tuple[int | None, ...]
ALIGN = 64  # bytes: a cache line, and the widest vector
LARGE = 1 << 20  # bytes from which an output is allocated aligned and from a pool


@frozen
class Specialisation:
    """The sizes, strides and alignment that one variant of a program is compiled for.

    `sizes` are the named sizes fixed at compile time. `layouts` has the strides in elements of each array,
    inputs then outputs: all of them for a dense row-major array whose extents are fixed; else None, except
    for one axis with unit stride, which has 1. `aligned` promises that large outputs begin at a multiple of
    `ALIGN` bytes, as outputs that a call allocates do.
    """

    sizes: tuple[tuple[str, int], ...]
    layouts: tuple[Layout, ...]
    aligned: bool = True


def parameters(signature: Signature, variant: Specialisation) -> tuple[Argument, ...]:
    """The parameters of a variant's kernel: inputs, outputs, then the sizes that are not fixed.

    >>> from dataclasses import replace
    >>> from tdsl.lang.types import f32
    >>> x = ArrayArg("x", f32, (Size("R"), Size("C")))
    >>> f = Signature("f", (x, ScalarArg("s", f32)), (replace(x, name="y"),))
    >>> [p.name for p in parameters(f, Specialisation((("C", 3),), ((None, 1), (None, 1))))]
    ['x', 's', 'y', 'R']
    """
    sizes, layouts = dict(variant.sizes), iter(variant.layouts)
    params: list[Argument] = []
    for position, arg in enumerate((*signature.inputs, *signature.outputs)):
        if isinstance(arg, ScalarArg):
            params.append(ScalarParam(arg.name, arg.dtype))
        else:
            extents = tuple(bind_expr(e, sizes) for e in arg.shape)
            written = position >= len(signature.inputs)
            align = ALIGN if written and variant.aligned and is_large(extents, arg.dtype) else 1
            params.append(BufferParam(arg.name, arg.dtype, extents, next(layouts), written, align))
    return (*params, *(SizeParam(name) for name in signature.sizes if name not in sizes))


def is_large(extents: tuple[Expr, ...], dtype: DType) -> bool:
    """True for an array of constant extents and at least `LARGE` bytes."""
    constants = [int(e.value) for e in extents if isinstance(e, Const)]
    return len(constants) == len(extents) and prod(constants) * dtype.bytes >= LARGE


def dense_specialisation(
    signature: Signature,
    sizes: Mapping[str, int],
    dynamic: AbstractSet[str] = frozenset(),
    aligned: bool = True,
) -> Specialisation:
    """The variant for row-major arrays; `sizes` has a value for each size that is not dynamic.

    >>> from tdsl.lang.types import f32
    >>> x = ArrayArg("x", f32, (Size("R"), Size("C")))
    >>> dense_specialisation(Signature("f", (x,), (x,)), {"R": 2, "C": 3}).layouts
    ((3, 1), (3, 1))
    >>> dense_specialisation(Signature("f", (x,), (x,)), {"C": 3}, {"R"}).layouts
    ((None, 1), (None, 1))
    """
    layouts: list[Layout] = []
    for arg in signature.arrays:
        if dynamic.isdisjoint(size_names(arg)):
            layouts.append(row_major(tuple(extent(e, sizes) for e in arg.shape)))
        else:
            layouts.append((*(None,) * (len(arg.shape) - 1), 1))
    fixed = tuple((name, sizes[name]) for name in signature.sizes if name not in dynamic)
    return Specialisation(fixed, tuple(layouts), aligned)


def size_names(arg: ArrayArg) -> Iterator[str]:
    """The names of the sizes in the extents of an array."""
    return (e.name for e in post_order(*arg.shape) if isinstance(e, Size))


def size_sources(signature: Signature) -> dict[str, tuple[int, int]]:
    """For each size that is an extent of an input: the position of the input, and the axis."""
    sources: dict[str, tuple[int, int]] = {}
    for position, arg in enumerate(signature.inputs):
        if isinstance(arg, ArrayArg):
            for axis, e in enumerate(arg.shape):
                if isinstance(e, Size):
                    sources.setdefault(e.name, (position, axis))
    return sources


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def extent(e: Expr, sizes: Mapping[str, int]) -> int:
    """The value of an extent for given values of the sizes.

    >>> from tdsl.lang.expr import const
    >>> extent(Binary("sub", Size("N"), const(2)), {"N": 10})
    8
    """
    match e:
        case Const(value):
            return int(value)
        case Size(name):
            return sizes[name]
        case Binary(op, left, right):
            return _OPERATORS[op](extent(left, sizes), extent(right, sizes))
        case Unary("neg", x):
            return -extent(x, sizes)
        case Select(cond, yes, no):
            return extent(yes if extent(cond, sizes) else no, sizes)
        case Cast(x):
            return extent(x, sizes)
        case _:
            raise AssertionError(f"not an extent: {e!r}")
