"""Calls of compiled programs from Python: dispatch to the variant that fits the arguments.

A call takes a fast path or a slow path. The fast path passes the arguments unchanged to machine code that
checks them (`cpu/wrapper.py`) and runs the kernel if it accepts them. The slow path binds names, converts
arguments that are not NumPy arrays, checks dtypes and shapes with clear errors, chooses or builds the
variant for the sizes and layouts of the arguments, and adds it to those of the fast path.

The result is always as if every input had been copied before the first output is written: an input that
shares memory with an output is copied. Outputs that share memory with each other are refused.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tdsl.codegen.ir.loops import Argument, Kernel, SizeParam
from tdsl.codegen.runtime.arrays import (
    Array,
    are_aligned,
    as_array,
    as_scalar,
    copy_overlapping,
    layout_of,
)
from tdsl.codegen.runtime.binding import (
    bind,
    bind_outputs,
    bind_sizes,
    check_outputs_disjoint,
    check_shape,
    output_array,
    output_shape,
)
from tdsl.codegen.runtime.call_signature import call_signature
from tdsl.codegen.runtime.fast_call import FastCall, fast_call
from tdsl.codegen.runtime.result_memory import new_output
from tdsl.codegen.runtime.signature import (
    ArrayArg,
    Signature,
    Specialisation,
    size_names,
    size_sources,
)

Fast = Callable[..., Any]
_MOST_RECENT = 4  # variants that the fast path tries; each one that does not fit costs some 0.3 us


_entries: weakref.WeakSet[Entry] = weakref.WeakSet()


def _replace_locks() -> None:
    # A thread that held a lock to build when the process forked does not exist in the child.
    for entry in _entries:
        entry._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_locks)


class Executable(Protocol):
    """A compiled kernel.

    `fast`, if not None, takes the arrays and scalars of `params` in order, without the sizes.
    It returns True if it ran the kernel; any other result means that an argument needs the slow path.
    """

    @property
    def kernel(self) -> Kernel:
        """The kernel in the loop IR."""

    @property
    def params(self) -> tuple[Argument, ...]:
        """The parameters of the kernel."""

    @property
    def fast(self) -> Fast | None:
        """The entry point of the fast path."""

    def run(self, arguments: Sequence[Any]) -> None:
        """Run on arrays, NumPy scalars and integers in the order of `params`."""


class Entry:
    """A compiled program as a callable.

    `call(*inputs, out=None)` takes the inputs by position or name and returns the output, or a tuple of
    several; an output of rank 0 is a NumPy scalar. `out` has arrays for the outputs (one array, or a tuple or
    dict by name), which are then written and returned. Several threads may call at once.

    Sizes named in `dynamic` are run-time arguments of a variant; for each combination of the other sizes and
    of memory layouts, `build` compiles a variant on first use.
    """

    def __init__(
        self,
        signature: Signature,
        dynamic: frozenset[str],
        build: Callable[[Specialisation], Executable],
    ) -> None:
        self.signature, self.dynamic, self.build = signature, dynamic, build
        self._fixed = tuple(name for name in signature.sizes if name not in dynamic)
        self._static_arrays = tuple(dynamic.isdisjoint(size_names(arg)) for arg in signature.arrays)
        self._sizes_are_inferable = set(signature.sizes) == set(size_sources(signature)) and all(
            a.is_certain or dynamic.isdisjoint(a.sizes) for a in signature.agreements
        )
        self.__signature__ = call_signature(signature)
        self._single = len(signature.outputs) == 1
        self._names = tuple(arg.name for arg in signature.inputs)
        self._executables: dict[Specialisation, Executable] = {}
        self._lock = threading.Lock()
        _entries.add(self)
        self._recent: list[tuple[Specialisation, Fast, FastCall]] = []
        self._fast: tuple[Fast, ...] = ()
        self.quick_calls: tuple[FastCall, ...] = ()  # of the latest variants; None if one does not fit

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Run the program on arrays and numbers; compiles a variant first for new sizes or layouts."""
        if kwargs and len(args) + len(kwargs) == len(self._names):
            rest = self._names[len(args) :]
            if all(map(kwargs.__contains__, rest)):  # the fast path takes positional arguments
                args, kwargs = (*args, *map(kwargs.__getitem__, rest)), {}
        if not kwargs:
            if out is None:
                for quick in self.quick_calls:
                    result = quick(args)
                    if result is not None:
                        return result
            elif self._single and type(out) is np.ndarray:
                for fast in self._fast:
                    if fast(*args, out) is True:
                        return out
        return self._bind_and_call(args, kwargs, out)

    def __repr__(self) -> str:
        inputs = ", ".join(arg.name for arg in self.signature.inputs)
        outputs = ", ".join(arg.name for arg in self.signature.outputs)
        return f"<compiled {self.signature.name}({inputs}) -> {outputs}>"

    @property
    def executables(self) -> Mapping[Specialisation, Executable]:
        """The variants that have been built, in order of building."""
        return self._executables

    def executable(self, specialisation: Specialisation) -> Executable:
        """The compiled code of a specialisation, built on first use."""
        executable = self._executables.get(specialisation)
        if executable is not None:
            return executable
        with self._lock:
            if specialisation not in self._executables:
                self._executables[specialisation] = self.build(specialisation)
            return self._executables[specialisation]

    def _bind_and_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        signature = self.signature
        values = bind(signature, args, kwargs)
        outputs_given = bind_outputs(signature, out)
        inputs = tuple(
            as_array(arg, value) if isinstance(arg, ArrayArg) else as_scalar(arg, value)
            for arg, value in zip(signature.inputs, values, strict=True)
        )
        # The types that the fast path takes: plain arrays and Python numbers.
        fast_args = tuple(x if isinstance(x, np.ndarray) else x.item() for x in inputs)
        fast_path_tried = not kwargs and (out is None or (self._single and type(out) is np.ndarray))
        if not fast_path_tried or any(type(a) is not type(b) for a, b in zip(fast_args, values, strict=True)):
            done = self._call_fast(fast_args, outputs_given)
            if done is not None:
                return done
        return self._call_slow(inputs, outputs_given)

    def _call_fast(self, fast_args: tuple[Any, ...], outputs_given: tuple[Any, ...]) -> Any:
        """The result of the fast path for bound and converted arguments; None if no variant accepts them."""
        if all(array is None for array in outputs_given):
            results = (quick(fast_args) for quick in self.quick_calls)
            return next((result for result in results if result is not None), None)
        if any(array is None for array in outputs_given):
            return None
        outputs = tuple(map(output_array, self.signature.outputs, outputs_given))
        if any(fast(*fast_args, *outputs) is True for fast in self._fast):
            return outputs_given[0] if len(outputs_given) == 1 else outputs_given
        return None

    def _call_slow(self, inputs: tuple[Any, ...], outputs_given: tuple[Any, ...]) -> Any:
        signature = self.signature
        input_arrays = [
            (arg, value)
            for arg, value in zip(signature.inputs, inputs, strict=True)
            if isinstance(arg, ArrayArg)
        ]
        given_outputs = [
            (arg, output_array(arg, value))
            for arg, value in zip(signature.outputs, outputs_given, strict=True)
            if value is not None
        ]
        sizes = bind_sizes(signature, [*input_arrays, *given_outputs])
        check_outputs_disjoint(given_outputs)
        outputs = self._outputs({arg.name: array for arg, array in given_outputs}, sizes)
        self._run(copy_overlapping(inputs, [array for _, array in given_outputs]), outputs, sizes)
        results = tuple(
            (array if array.ndim else array[()]) if value is None else value
            for value, array in zip(outputs_given, outputs, strict=True)
        )
        return results[0] if len(results) == 1 else results

    def _outputs(self, given_outputs: dict[str, Array], sizes: dict[str, int]) -> tuple[Array, ...]:
        outputs = []
        for arg in self.signature.outputs:
            shape = output_shape(self.signature, arg, sizes)
            array = given_outputs.get(arg.name)
            if array is None:
                array = new_output(shape, arg.dtype.numpy)
            else:
                check_shape(arg, array, shape)
            outputs.append(array)
        return tuple(outputs)

    def _run(self, inputs: tuple[Any, ...], outputs: tuple[Array, ...], sizes: dict[str, int]) -> None:
        signature = self.signature
        # Machine code requires aligned memory.
        targets = tuple(out if out.flags.aligned else np.empty_like(out) for out in outputs)
        arrays = (*(value for value in inputs if isinstance(value, np.ndarray)), *targets)
        specialisation = Specialisation(
            tuple((name, sizes[name]) for name in self._fixed),
            tuple(map(layout_of, arrays, self._static_arrays)),
            are_aligned(targets),
        )
        executable = self.executable(specialisation)
        named = {
            arg.name: value
            for arg, value in zip((*signature.inputs, *signature.outputs), (*inputs, *targets), strict=True)
        }
        executable.run(
            [
                sizes[param.name] if isinstance(param, SizeParam) else named[param.name]
                for param in executable.params
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
        if fast is None or not self._sizes_are_inferable:
            return
        if self._recent and self._recent[0][0] == specialisation:
            return
        fixed = {name: sizes[name] for name in self._fixed}
        quick = fast_call(self.signature, fixed, fast)
        with self._lock:
            others = [entry for entry in self._recent if entry[0] != specialisation]
            self._recent = [(specialisation, fast, quick), *others][:_MOST_RECENT]
            self._fast = tuple(fast for _, fast, _ in self._recent)
            self.quick_calls = tuple(quick for _, _, quick in self._recent)


def fast_entries(entry: Entry) -> tuple[Fast, ...]:
    """The fast entry points of the latest variants, for callers that pass arrays and outputs themselves."""
    return entry._fast
