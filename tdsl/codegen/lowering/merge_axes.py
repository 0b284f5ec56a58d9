"""Axes of arrays that a schedule reads and writes as one: a dense array is one with fewer dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tdsl.codegen.ir.kernel_names import KernelNames
from tdsl.codegen.ir.loops import Argument, BufferParam, row_major
from tdsl.lang.expr import Const, Expr, const
from tdsl.lang.program import Axis, Program


def merge_axes(
    program: Program, names: KernelNames, params: tuple[Argument, ...]
) -> tuple[tuple[Argument, ...], dict[str, tuple[Axis, ...]]]:
    """The parameters of a kernel with the dimensions of flattened inputs and outputs; the axes of these.

    An array with other strides than those of a dense one keeps its dimensions.
    """
    arrays = {t.name: (t.shape, t.array) for t in program.inputs if t.array}
    for name in program.outputs:
        f = program.func(name)
        if f.array:
            extents = tuple(extent for _, extent in f.output_box(None))
            arrays |= dict.fromkeys(names.components(f), (extents, f.array))
    merged, axes_of = list[Argument](), dict[str, tuple[Axis, ...]]()
    for p in params:
        if p.name in arrays and isinstance(p, BufferParam):
            extents, axes = arrays[p.name]
            p, axes_of[p.name] = _merge(p, extents, axes)
        merged.append(p)
    return tuple(merged), axes_of


def _merge(
    p: BufferParam, extents: Sequence[Expr], axes: tuple[Axis, ...]
) -> tuple[BufferParam, tuple[Axis, ...]]:
    """A parameter, and its axes, with adjacent axes of one dimension merged.

    >>> from tdsl.lang.types import f32
    >>> axes = (Axis(0, const(3), const(2)), Axis(0, const(1), const(3)))
    >>> p, axes = _merge(BufferParam("x", f32, (const(2), const(3)), (3, 1), False), (const(6),), axes)
    >>> p.strides, axes == (Axis(0),)
    ((1,), True)
    """
    shape = [int(e.value) for e in p.extents if isinstance(e, Const)]
    steps = [int(a.step.value) for a in axes if isinstance(a.step, Const)]
    if len(steps) < len(axes) or not p.is_dense:
        return p, axes
    groups: list[list[int]] = []
    for n, axis in enumerate(axes):
        before = groups[-1][-1] if groups else -1
        if groups and axes[before].dim == axis.dim and steps[before] == steps[n] * shape[n]:
            groups[-1].append(n)
        else:
            groups.append([n])
    if len(groups) == len(axes):
        return p, axes
    sizes = [prod(shape[n] for n in group) for group in groups]
    merged = []
    for group, size in zip(groups, sizes, strict=True):
        first, last = axes[group[0]], axes[group[-1]]
        is_whole = steps[group[-1]] == 1 and extents[first.dim] == const(size)
        merged.append(Axis(first.dim) if is_whole else replace(last, extent=const(size)))
    flat = replace(
        p, extents=tuple(map(const, sizes)), strides=row_major(tuple(sizes)), shape=p.extents
    )  # fmt: skip
    return flat, tuple(merged)
