"""From a Python call to a compiled kernel.

A call takes one of two ways. The fast one hands the arguments as they are to machine code that checks
them in place (`cpu/wrapper.py`); when it accepts them, nothing else happens. The slow one binds names,
converts what is not a NumPy array, checks dtypes and shapes with clear errors, chooses or builds the
variant of the program for the sizes and layouts at hand, and remembers it for the fast way.

The result is always as if every input had been copied before the first output is written: an input that
shares memory with an output is copied. Outputs that share memory with each other are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tdsl.codegen.arrays import Array, apart, as_array, as_scalar, layout_of
from tdsl.codegen.binding import (
    bind,
    bind_outputs,
    bind_sizes,
    check_shape,
    output_array,
    output_shape,
    refuse_overlap,
)
from tdsl.codegen.loops import Kernel, SizeParam
from tdsl.codegen.signature import ArrayArg, Signature, Specialisation, extent, names
from tdsl.lang.expr import Const, Size

Fast = Callable[..., Any]
Hot = Callable[[tuple[Any, ...]], Any]
_KEPT = 4  # variants tried by the fast way; each that does not fit costs about 0.1 us


class Executable(Protocol):
    """A compiled kernel.

    `fast`, where there is one, takes the arrays and scalars of `kernel.params` in order, without the sizes.
    It returns True when it ran; anything else means that some argument needs the slow way.
    """

    @property
    def kernel(self) -> Kernel:
        """What was compiled."""

    @property
    def fast(self) -> Fast | None:
        """The quick entry."""

    def run(self, arguments: Sequence[Any]) -> None:
        """Run on arrays, NumPy scalars and integers in the order of `kernel.params`."""


class Entry:
    """A compiled program as a callable.

    `call(*inputs, out=None)` takes the inputs by position or name and returns the output, or a tuple of
    them; an output of rank 0 is a NumPy scalar. `out` is memory for the outputs (an array, or a tuple or dict
    by name of several), which is then what is returned. Several threads may call at once.

    Sizes named in `dynamic` are arguments of one variant; for each combination of the others, and of
    memory layouts, `build` makes a variant on first use.
    """

    def __init__(
        self,
        signature: Signature,
        dynamic: frozenset[str],
        build: Callable[[Specialisation], Executable],
    ) -> None:
        self.signature, self.dynamic, self.build = signature, dynamic, build
        self._fixed = tuple(name for name in signature.sizes if name not in dynamic)
        self._still = tuple(dynamic.isdisjoint(names(arg)) for arg in signature.arrays)
        self._decided = set(signature.sizes) == set(_places(signature))
        self._variants: dict[Specialisation, Executable] = {}
        self._lock = threading.Lock()
        self._recent: tuple[tuple[Specialisation, Fast, Hot], ...] = ()
        self._hot: tuple[Hot, ...] = ()

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is None and not kwargs:
            for hot in self._hot:
                result = hot(args)
                if result is not None:
                    return result
        return self._general(args, kwargs, out)

    def __repr__(self) -> str:
        inputs = ", ".join(arg.name for arg in self.signature.inputs)
        outputs = ", ".join(arg.name for arg in self.signature.outputs)
        return f"<compiled {self.signature.name}({inputs}) -> {outputs}>"

    def variant(self, specialisation: Specialisation) -> Executable:
        """The executable for a specialisation, built when it is asked for first."""
        found = self._variants.get(specialisation)
        if found is not None:
            return found
        with self._lock:
            if specialisation not in self._variants:
                self._variants[specialisation] = self.build(specialisation)
            return self._variants[specialisation]

    def _general(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        values = bind(self.signature, args, kwargs)
        given = bind_outputs(self.signature, out)
        if out is None:
            return self._slow(values, given)
        if all(type(array) is np.ndarray for array in given):
            for _, fast, _ in self._recent:
                if fast(*values, *given) is True:
                    return given[0] if len(given) == 1 else given
        return self._slow(values, given)

    def _slow(self, values: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        signature = self.signature
        inputs = tuple(
            as_array(arg, value) if isinstance(arg, ArrayArg) else as_scalar(arg, value)
            for arg, value in zip(signature.inputs, values, strict=True)
        )
        taken = [
            (arg, array)
            for arg, array in zip(signature.inputs, inputs, strict=True)
            if isinstance(arg, ArrayArg)
        ]
        written = [
            (arg, output_array(arg, value))
            for arg, value in zip(signature.outputs, given, strict=True)
            if value is not None
        ]
        sizes = bind_sizes([*taken, *written])
        refuse_overlap(written)
        outputs = self._outputs({arg.name: array for arg, array in written}, sizes)
        inputs = apart(inputs, (array for _, array in written))
        self._run(inputs, outputs, sizes)
        results = tuple(
            (array if array.ndim else array[()]) if value is None else value
            for value, array in zip(given, outputs, strict=True)
        )
        return results[0] if len(results) == 1 else results

    def _outputs(self, written: dict[str, Array], sizes: dict[str, int]) -> tuple[Array, ...]:
        outputs = []
        for arg in self.signature.outputs:
            shape = output_shape(self.signature, arg, sizes)
            array = written.get(arg.name)
            if array is None:
                array = np.empty(shape, arg.dtype.numpy)
            else:
                check_shape(arg, array, shape)
            outputs.append(array)
        return tuple(outputs)

    def _run(
        self, inputs: tuple[Any, ...], outputs: tuple[Array, ...], sizes: dict[str, int]
    ) -> None:
        signature = self.signature
        # Machine code takes aligned memory only.
        targets = tuple(out if out.flags.aligned else np.empty_like(out) for out in outputs)
        arrays = (*(value for value in inputs if isinstance(value, np.ndarray)), *targets)
        specialisation = Specialisation(
            tuple((name, sizes[name]) for name in self._fixed),
            tuple(map(layout_of, arrays, self._still)),
        )
        executable = self.variant(specialisation)
        named = {
            arg.name: value
            for arg, value in zip(
                (*signature.inputs, *signature.outputs), (*inputs, *targets), strict=True
            )
        }
        executable.run(
            [
                sizes[param.name] if isinstance(param, SizeParam) else named[param.name]
                for param in executable.kernel.params
            ]
        )
        for out, target in zip(outputs, targets, strict=True):
            if out is not target:
                out[...] = target
        self._remember(specialisation, executable, sizes)

    def _remember(
        self, specialisation: Specialisation, executable: Executable, sizes: dict[str, int]
    ) -> None:
        fast = executable.fast
        if fast is None or not self._decided:
            return
        if self._recent and self._recent[0][0] == specialisation:
            return
        hot = _hot(self.signature, self.dynamic, fast, sizes)
        with self._lock:
            others = tuple(entry for entry in self._recent if entry[0] != specialisation)
            self._recent = ((specialisation, fast, hot), *others)[:_KEPT]
            self._hot = tuple(entry[2] for entry in self._recent)


def _hot(signature: Signature, dynamic: frozenset[str], fast: Fast, sizes: dict[str, int]) -> Hot:
    """A function of the positional arguments: the result, or None when they need the slow way."""
    empty = np.empty
    shapes = [
        tuple(extent(e, sizes) for e in arg.shape) if dynamic.isdisjoint(names(arg)) else None
        for arg in signature.outputs
    ]
    dtypes = [arg.dtype.numpy for arg in signature.outputs]
    if len(shapes) == 1 and shapes[0]:  # the usual case, in as few steps as there can be
        shape, dtype = shapes[0], dtypes[0]

        def one(args: tuple[Any, ...]) -> Any:
            out = empty(shape, dtype)
            return out if fast(*args, out) is True else None

        return one
    shape_of = [
        _shape_of(signature, arg) if shape is None else lambda _, shape=shape: shape
        for arg, shape in zip(signature.outputs, shapes, strict=True)
    ]
    scalar = [not arg.shape for arg in signature.outputs]

    def several(args: tuple[Any, ...]) -> Any:
        try:
            outs = [empty(f(args), dtype) for f, dtype in zip(shape_of, dtypes)]  # noqa: B905
        except (AttributeError, IndexError, TypeError, ValueError):
            return None  # an argument is missing or is no array: the slow way says so
        if fast(*args, *outs) is not True:
            return None
        results = tuple([out[()] if s else out for out, s in zip(outs, scalar)])  # noqa: B905
        return results[0] if len(results) == 1 else results

    return several


def _shape_of(signature: Signature, out: ArrayArg) -> Callable[[tuple[Any, ...]], tuple[int, ...]]:
    """The shape of an output with dynamic sizes, read from the arguments."""
    for position, arg in enumerate(signature.inputs):
        if isinstance(arg, ArrayArg) and arg.shape == out.shape:
            return lambda args: args[position].shape
    places = _places(signature)
    if all(isinstance(e, Const | Size) for e in out.shape):
        axes = [places[e.name] if isinstance(e, Size) else (-1, extent(e, {})) for e in out.shape]
        return lambda args: tuple([args[p].shape[axis] if p >= 0 else axis for p, axis in axes])

    def general(args: tuple[Any, ...]) -> tuple[int, ...]:
        sizes = {name: args[p].shape[axis] for name, (p, axis) in places.items()}
        return tuple(extent(e, sizes) for e in out.shape)

    return general


def _places(signature: Signature) -> dict[str, tuple[int, int]]:
    """The input and axis that decide each size that the inputs decide."""
    return {
        e.name: (position, axis)
        for position, arg in enumerate(signature.inputs)
        if isinstance(arg, ArrayArg)
        for axis, e in enumerate(arg.shape)
        if isinstance(e, Size)
    }
