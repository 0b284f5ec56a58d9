"""From a Python call to a compiled kernel.

A call takes one of two ways. The quick one hands the arguments as they are to machine code that checks
them in place (`cpu/wrapper.py`); when it accepts them, nothing else happens. The slow one binds names,
converts what is not a NumPy array, checks dtypes and shapes with clear errors, chooses or builds the
variant of the program for the sizes and layouts at hand, and remembers it for the quick way.

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
    apart,
    as_array,
    as_scalar,
    layout_of,
    well_placed,
)
from tdsl.codegen.runtime.binding import (
    bind,
    bind_outputs,
    bind_sizes,
    check_shape,
    output_array,
    output_shape,
    refuse_overlap,
)
from tdsl.codegen.runtime.quick_call import Quick, quick_call
from tdsl.codegen.runtime.result_memory import new_output
from tdsl.codegen.runtime.signature import ArrayArg, Signature, Specialisation, names, places

Fast = Callable[..., Any]
_KEPT = 4  # variants tried by the quick way; each that does not fit costs some 0.3 us


_entries: weakref.WeakSet[Entry] = weakref.WeakSet()


def _renew_locks() -> None:
    # A thread that was building when the process forked does not exist in the child.
    for entry in _entries:
        entry._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class Executable(Protocol):
    """A compiled kernel.

    `fast`, where there is one, takes the arrays and scalars of `params` in order, without the sizes.
    It returns True when it ran; anything else means that some argument needs the slow way.
    """

    @property
    def kernel(self) -> Kernel:
        """What was compiled."""

    @property
    def params(self) -> tuple[Argument, ...]:
        """What the kernel takes."""

    @property
    def fast(self) -> Fast | None:
        """The quick entry."""

    def run(self, arguments: Sequence[Any]) -> None:
        """Run on arrays, NumPy scalars and integers in the order of `params`."""


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
        self._decided = set(signature.sizes) == set(places(signature)) and all(
            a.is_certain or dynamic.isdisjoint(a.sizes) for a in signature.agreements
        )
        self._single = len(signature.outputs) == 1
        self._names = tuple(arg.name for arg in signature.inputs)
        self._executables: dict[Specialisation, Executable] = {}
        self._lock = threading.Lock()
        _entries.add(self)
        self._recent: list[tuple[Specialisation, Fast, Quick]] = []
        self._fast: tuple[Fast, ...] = ()
        self._quick: tuple[Quick, ...] = ()

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Run it on arrays and numbers; compiled first where these sizes and layouts are new."""
        if kwargs and len(args) + len(kwargs) == len(self._names):
            rest = self._names[len(args) :]
            if all(map(kwargs.__contains__, rest)):  # the quick way takes them in order
                args, kwargs = (*args, *map(kwargs.__getitem__, rest)), {}
        if not kwargs:
            if out is None:
                for quick in self._quick:
                    result = quick(args)
                    if result is not None:
                        return result
            elif self._single and type(out) is np.ndarray:
                for fast in self._fast:
                    if fast(*args, out) is True:
                        return out
        return self._general(args, kwargs, out)

    def __repr__(self) -> str:
        inputs = ", ".join(arg.name for arg in self.signature.inputs)
        outputs = ", ".join(arg.name for arg in self.signature.outputs)
        return f"<compiled {self.signature.name}({inputs}) -> {outputs}>"

    @property
    def executables(self) -> Mapping[Specialisation, Executable]:
        """What has been built, the last one at the end."""
        return self._executables

    def executable(self, specialisation: Specialisation) -> Executable:
        """The code for a specialisation, built when it is asked for first."""
        found = self._executables.get(specialisation)
        if found is not None:
            return found
        with self._lock:
            if specialisation not in self._executables:
                self._executables[specialisation] = self.build(specialisation)
            return self._executables[specialisation]

    def _general(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        signature = self.signature
        values = bind(signature, args, kwargs)
        given = bind_outputs(signature, out)
        inputs = tuple(
            as_array(arg, value) if isinstance(arg, ArrayArg) else as_scalar(arg, value)
            for arg, value in zip(signature.inputs, values, strict=True)
        )
        # The types that the quick way takes: plain arrays and Python numbers.
        plain = tuple(x if isinstance(x, np.ndarray) else x.item() for x in inputs)
        tried = not kwargs and (out is None or (self._single and type(out) is np.ndarray))
        if not tried or any(type(a) is not type(b) for a, b in zip(plain, values, strict=True)):
            done = self._retry(plain, given)
            if done is not None:
                return done
        return self._slow(inputs, given)

    def _retry(self, plain: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        """The quick way again, with arguments bound and converted; or None."""
        if all(array is None for array in given):
            results = (quick(plain) for quick in self._quick)
            return next((result for result in results if result is not None), None)
        if any(array is None for array in given):
            return None
        outputs = tuple(map(output_array, self.signature.outputs, given))
        if any(fast(*plain, *outputs) is True for fast in self._fast):
            return given[0] if len(given) == 1 else given
        return None

    def _slow(self, inputs: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        signature = self.signature
        taken = [
            (arg, value)
            for arg, value in zip(signature.inputs, inputs, strict=True)
            if isinstance(arg, ArrayArg)
        ]
        written = [
            (arg, output_array(arg, value))
            for arg, value in zip(signature.outputs, given, strict=True)
            if value is not None
        ]
        sizes = bind_sizes(signature, [*taken, *written])
        refuse_overlap(written)
        outputs = self._outputs({arg.name: array for arg, array in written}, sizes)
        self._run(apart(inputs, [array for _, array in written]), outputs, sizes)
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
                array = new_output(shape, arg.dtype.numpy)
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
            well_placed(targets),
        )
        executable = self.executable(specialisation)
        named = {
            arg.name: value
            for arg, value in zip(
                (*signature.inputs, *signature.outputs), (*inputs, *targets), strict=True
            )
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
        if fast is None or not self._decided:
            return
        if self._recent and self._recent[0][0] == specialisation:
            return
        fixed = {name: sizes[name] for name in self._fixed}
        quick = quick_call(self.signature, fixed, fast)
        with self._lock:
            others = [entry for entry in self._recent if entry[0] != specialisation]
            self._recent = [(specialisation, fast, quick), *others][:_KEPT]
            self._fast = tuple(fast for _, fast, _ in self._recent)
            self._quick = tuple(quick for _, _, quick in self._recent)


def quick_entries(entry: Entry) -> tuple[Fast, ...]:
    """The quick entries of the variants that ran last, for callers with arrays and outputs at hand."""
    return entry._fast
