"""Binds the arguments of a call to the signature: inputs by name, `out=` arrays, named sizes, shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tdsl.codegen.runtime.arrays import (
    Array,
    as_array,
    declaration_of,
    overlaps_itself,
    share_memory,
)
from tdsl.codegen.runtime.signature import ArrayArg, Signature, extent, size_names
from tdsl.core.node import post_order
from tdsl.core.source import here
from tdsl.errors import Related, ShapeError, TypeMismatch, counted, did_you_mean
from tdsl.lang.affine import as_sum
from tdsl.lang.agreement import Agreement
from tdsl.lang.expr import Const, Expr, Size
from tdsl.lang.program import bind_expr
from tdsl.lang.show import show_expr
from tdsl.lang.sizes import check_agreement


def bind(
    signature: Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    extra: str = "results go in out=",
) -> tuple[Any, ...]:
    """The values of the inputs in the order of the signature.

    TypeMismatch for missing, unknown or repeated arguments, with hint `extra` for too many.
    """
    known = [arg.name for arg in signature.inputs]
    name = signature.name
    if len(args) > len(known):
        raise _argument_error(
            f"{name} takes {counted(len(known), 'argument')}, got {len(args)} positional",
            extra if known else "",
        )
    values = dict(zip(known, args, strict=False))
    for key, value in kwargs.items():
        if key not in known:
            raise _argument_error(f"{name} has no argument {key!r}", did_you_mean(key, known))
        if key in values:
            raise _argument_error(f"{name} got {key!r} by position and by name", "pass it once")
        values[key] = value
    missing = [arg for arg in signature.inputs if arg.name not in values]
    if missing:
        listed = ", ".join(repr(arg.name) for arg in missing)
        raise _argument_error(
            f"{name} needs {listed}, too",
            f"it takes {counted(len(known), 'argument')}: {', '.join(known)}",
            tuple(place for arg in missing for place in declaration_of(arg)),
        )
    return tuple(values[key] for key in known)


def bind_outputs(signature: Signature, out: Any) -> tuple[Any, ...]:
    """The array in `out=` for each output, None for an output to be allocated.

    `out` is an array if there is one output, a tuple with one entry for each output, or a dict by name.
    """
    known = [arg.name for arg in signature.outputs]
    if out is None:
        return (None,) * len(known)
    if isinstance(out, dict):
        for key in out:
            if key not in known:
                raise _argument_error(f"{signature.name} has no output {key!r}", did_you_mean(key, known))
        return tuple(out.get(name) for name in known)
    if isinstance(out, tuple):
        if len(out) != len(known):
            raise _argument_error(
                f"out= has {counted(len(out), 'entry', 'entries')}, "
                f"but {signature.name} has {counted(len(known), 'output')}",
                f"in order: {', '.join(known)}; None allocates one",
            )
        return out
    if len(known) > 1:
        raise _argument_error(
            f"{signature.name} has {counted(len(known), 'output')}, out= is one {type(out).__name__}",
            f"pass a tuple or dict of arrays: {', '.join(known)}",
        )
    return (out,)


def _argument_error(message: str, hint: str, related: Iterable[Related] = ()) -> TypeMismatch:
    return TypeMismatch(message, loc=here(), label="this call", related=related, hint=hint)


def output_array(arg: ArrayArg, value: Any) -> Array:
    """The array of an `out=` entry; TypeMismatch for another type or read-only memory.

    ShapeError if two of its elements share memory."""
    try:
        array = as_array(arg, value)
    except TypeMismatch as error:  # a converted copy would not write the caller's memory
        hint = f"pass a writable array of {arg.dtype.numpy}, or leave out= away"
        raise _argument_error(f"out= of {error.message}", hint, declaration_of(arg)) from None
    if isinstance(value, np.generic) or not array.flags.writeable:
        raise _argument_error(
            f"{arg.name} in out= is read-only", "pass memory of your own", declaration_of(arg)
        )
    if overlaps_itself(array):
        raise ShapeError(
            f"elements of {arg.name} in out= share memory: strides {array.strides} bytes "
            f"for shape {array.shape}",
            loc=here(), label="this call", related=declaration_of(arg), hint="pass a copy",
        )  # fmt: skip
    return array


def check_outputs_disjoint(outputs: Sequence[tuple[ArrayArg, Array]]) -> None:
    """ShapeError if two outputs share memory, as the result would depend on the order of writes."""
    for i, (arg, array) in enumerate(outputs):
        for other, memory in outputs[:i]:
            if share_memory(array, memory):
                raise ShapeError(
                    f"the outputs {other.name} and {arg.name} share memory",
                    loc=here(), label="this call", related=(*declaration_of(other), *declaration_of(arg)),
                    hint="give each output memory of its own in out=",
                )  # fmt: skip


def bind_sizes(signature: Signature, arrays: Sequence[tuple[ArrayArg, Array]]) -> dict[str, int]:
    """The value of each named size, from the arrays of a call.

    ShapeError if an array has another rank or extent than declared, if a size gets two values, or if one
    variable runs over axes of different extents. Extents of outputs that are expressions: `check_shape`.
    """
    sizes: dict[str, int] = {}
    size_axes: SizeAxes = {}
    for arg, array in arrays:
        if array.ndim != len(arg.shape):
            raise _wrong_shape(arg, array.shape, _shape_text(arg.shape))
        for axis, (actual, e) in enumerate(zip(array.shape, arg.shape, strict=True)):
            if isinstance(e, Const) and actual != e.value:
                reason = _agreement_reason(signature, arg, axis)
                hint, places = reason and AGREE_HINT, _agreement_accesses(signature, arg, axis)
                raise _wrong_shape(arg, array.shape, _shape_text(arg.shape) + reason, None, hint, places)
            if isinstance(e, Size) and sizes.setdefault(e.name, actual) != actual:
                places = _agreement_accesses(signature, arg, axis)
                raise _conflicting_sizes(e.name, sizes, size_axes, arg, axis, array, places)
            if isinstance(e, Size):
                size_axes.setdefault(e.name, (arg, axis))
    for arg, array in arrays:
        for axis, e in enumerate(arg.shape):
            if arg in signature.inputs and not isinstance(e, Const | Size):
                _check_expression(signature, arg, array, axis, sizes, size_axes)
    for a in signature.agreements:
        if a.sizes <= sizes.keys() and len({extent(e, sizes) for e, *_ in a.sides}) > 1:
            check_agreement(a, sizes, AGREE_HINT)
    return sizes


AGREE_HINT = "pass arrays that agree"
SizeAxes = dict[str, tuple[ArrayArg, int]]  # the array and axis that determine a size


def _check_expression(
    signature: Signature,
    arg: ArrayArg,
    array: Array,
    axis: int,
    sizes: dict[str, int],
    size_axes: SizeAxes,
) -> None:
    """Check an extent that is an expression; a size with no value yet is computed from it."""
    actual, e = array.shape[axis], arg.shape[axis]
    size_exprs = [n for n in post_order(e) if isinstance(n, Size)]
    for unbound in (n for n in size_exprs if n.name not in sizes):
        terms = as_sum(bind_expr(e, sizes))
        times = terms.terms.get(unbound, 0)
        value, rest = divmod(actual - terms.constant, times) if times else (0, 1)
        if {*terms.terms} != {unbound} or rest or value < 0:
            text = f"{_shape_text(arg.shape)}, in which no argument decides {unbound.name}"
            raise _wrong_shape(arg, array.shape, text, hint=f"td.compile(..., {unbound.name}=...)")
        sizes[unbound.name] = value
        size_axes[unbound.name] = arg, axis
    expected = extent(e, sizes)
    if actual == expected:
        return
    reason = ", ".join(
        f"{n.name} is {sizes[n.name]} by axis {size_axes[n.name][1]} of {size_axes[n.name][0].name}"
        for n in size_exprs
    )
    raise _wrong_shape(
        arg,
        array.shape,
        f"{_shape_text(arg.shape)}: axis {axis} has {actual}, not {expected} elements, as {reason}"
        f"{_agreement_reason(signature, arg, axis)}",
        size_axes[size_exprs[0].name][0],
        AGREE_HINT,
        _agreement_accesses(signature, arg, axis),
    )


def _agreement_of(signature: Signature, arg: ArrayArg, axis: int) -> Agreement | None:
    """The agreement by which an extent of an argument must equal another one; None without one."""
    return next(
        (a for a in signature.agreements if (arg.name, axis) in [side[1:3] for side in a.sides]),
        None,
    )


def _agreement_reason(signature: Signature, arg: ArrayArg, axis: int) -> str:
    agreement = _agreement_of(signature, arg, axis)
    if agreement is None:
        return ""
    others = [side for side in agreement.sides if side[1:3] != (arg.name, axis)]
    return "".join(
        f"; {agreement.variable!r} runs over axis {n} of {name!r}, too" for _, name, n, _ in others
    )


def _agreement_accesses(signature: Signature, arg: ArrayArg, axis: int) -> tuple[Related, ...]:
    agreement = _agreement_of(signature, arg, axis)
    return () if agreement is None else agreement.related


def _conflicting_sizes(
    name: str, sizes: Mapping[str, int], size_axes: SizeAxes, arg: ArrayArg, axis: int, array: Array,
    places: Iterable[Related],
) -> ShapeError:  # fmt: skip
    first, first_axis = size_axes[name]
    detail = (
        f": {name} is {sizes[name]} by axis {first_axis} of {first.name}, "
        f"but {array.shape[axis]} by axis {axis} of {arg.name}"
    )
    hint = f"{name} is one extent: pass arrays that agree, or declare two names"
    return _wrong_shape(arg, array.shape, _shape_text(arg.shape) + detail, first, hint, places)


def _wrong_shape(
    arg: ArrayArg,
    actual: tuple[int, ...],
    expected: str,
    other: ArrayArg | None = None,
    hint: str = "",
    places: Iterable[Related] = (),
) -> ShapeError:
    rank = len(arg.shape)
    if not hint and len(actual) != rank:
        needed = counted(rank, "dimension is", "dimensions are")
        axes = ", ".join(["0"] * (len(actual) - rank) + [":"] * rank) or "()"
        more = ", ".join(["None"] * (rank - len(actual)) + [":"] * len(actual))
        part, whole = f"take a part, such as {arg.name}[{axes}]", f"add axes: {arg.name}[{more}]"
        advice = part if len(actual) > rank else whole
        hint = f"{needed} needed: reshape it, or {advice}"
    elif not hint:
        hint = f"pass an array of shape {expected}; an extent with a name for a number may differ"
    related = declaration_of(arg) if other in (None, arg) else (*declaration_of(arg), *declaration_of(other))
    return ShapeError(
        f"{arg.name} has shape {actual}, expected {expected}",
        loc=here(), label="this call", related=(*related, *places), hint=hint,
    )  # fmt: skip


def _shape_text(shape: tuple[Expr, ...]) -> str:
    return f"({', '.join(map(show_expr, shape))}{',' if len(shape) == 1 else ''})"


def output_shape(signature: Signature, arg: ArrayArg, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an output; ShapeError if the arguments do not determine an extent, or it is negative."""
    for name in size_names(arg):
        if name not in sizes:
            raise ShapeError(
                f"no argument of {signature.name} decides the size {name} of {arg.name}",
                loc=here(), label="this call", related=declaration_of(arg),
                hint=f"pass out= with an array for {arg.name}",
            )  # fmt: skip
    shape = tuple(extent(e, sizes) for e in arg.shape)
    if min(shape, default=0) < 0:
        given = ", ".join(f"{name} = {sizes[name]}" for name in dict.fromkeys(size_names(arg)))
        raise ShapeError(
            f"{arg.name} would have shape {shape}, for {given}",
            loc=here(), label="this call", related=declaration_of(arg),
            hint="the arguments are too small",
        )  # fmt: skip
    return shape


def check_shape(arg: ArrayArg, array: Array, shape: tuple[int, ...], hint: str = "") -> None:
    """ShapeError unless `array` has the given shape; the default hint is that for an output."""
    if array.shape != shape:
        hint = hint or f"pass out= of shape {shape}, or leave it away"
        raise _wrong_shape(arg, array.shape, str(shape), hint=hint)
