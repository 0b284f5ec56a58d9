"""`FoldedKernel`: a compiled program of which parts that depend on constants only run once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import numpy as np

from tdsl.codegen.runtime.arrays import Array, aligned_empty
from tdsl.codegen.runtime.binding import output_shape
from tdsl.compile import Compiled, compile
from tdsl.pipeline import completed_state
from tdsl.schedule.constants import independent_parts, split_constants
from tdsl.schedule.state import State
from tdsl.tilegraph.schedule import Schedule

T = TypeVar("T")


OnceKey = tuple[State, tuple[object, ...]]  # cache key: a program, its inputs' addresses and layouts


@dataclass(frozen=True, slots=True, eq=False)
class FoldedKernel:
    """A compiled program: `per_call` runs in every call, the programs in `once` only once.

    `once` compute arrays from constants (packed weights, for example), which `per_call` takes after its other
    arguments. `parameters` are the parameter names of the original program.
    """

    parameters: tuple[str, ...]
    per_call: Compiled
    once: tuple[Compiled, ...] = ()

    def select_inputs(self, values: Sequence[T]) -> tuple[T, ...]:
        """The arguments of `per_call` among the `values` of the parameters."""
        return _select_inputs(self.per_call, self.parameters, values)

    def once_bytes(self, inputs: Sequence[Any]) -> dict[OnceKey, int]:
        """The bytes of the outputs of each program in `once`, by cache key; kernels may share keys."""
        return {
            self._once_key(once, inputs): sum(prod(s) * d.itemsize for s, d in _output_specs(once))
            for once in self.once
        }

    def folded_arrays(
        self, inputs: Sequence[Any], cache: dict[OnceKey, tuple[Array, ...]] | None = None
    ) -> tuple[Array, ...]:
        """Runs `once` on the `inputs`, one for each parameter, and returns the arrays that `per_call` takes.

        `cache` has the results of programs in `once` that other kernels have run, by key.
        """
        cache, arrays = {} if cache is None else cache, dict[str, Array]()
        for once in self.once:
            key = self._once_key(once, inputs)
            if key not in cache:
                cache[key] = tuple(aligned_empty(s, d) for s, d in _output_specs(once))
                once(*_select_inputs(once, self.parameters, inputs), out=cache[key])
            arrays |= zip(once.state.program.outputs, cache[key], strict=True)
        return tuple(arrays[arg.name] for arg in self.per_call.signature.inputs if arg.name in arrays)

    def _once_key(self, once: Compiled, inputs: Sequence[Any]) -> OnceKey:
        arrays = _select_inputs(once, self.parameters, inputs)
        return once.state, tuple(
            (*map(x.__array_interface__.get, _ADDRESS_FIELDS), x.strides) for x in arrays
        )


_ADDRESS_FIELDS = ("data", "shape", "typestr")


def _output_specs(once: Compiled) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shapes and types of the outputs of a program that runs once."""
    signature = once.signature
    return [(output_shape(signature, arg, {}), arg.dtype.numpy) for arg in signature.outputs]


def _select_inputs(compiled: Compiled, parameters: Sequence[str], values: Sequence[T]) -> tuple[T, ...]:
    by_parameter = dict(zip(parameters, values, strict=True))
    names = (arg.name for arg in compiled.signature.inputs)
    return tuple(by_parameter[n] for n in names if n in by_parameter)


def fold_constants(compiled: Compiled) -> FoldedKernel:
    """The kernel of a compiled program with bound sizes; funcs of constants only are moved into `once`."""
    program = compiled.state.program
    if any(t.constant for t in program.inputs):
        parts = split_constants(completed_state(compiled.variant(compiled.specialisation({}))))
        if parts is not None:
            per_call, *once = (
                compile(Schedule.of_state(s), target=compiled.target)
                for s in (parts.per_call, *independent_parts(parts.once))
            )
            return FoldedKernel(program.parameters, per_call, tuple(once))
    return FoldedKernel(program.parameters, compiled)
