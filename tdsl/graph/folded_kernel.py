"""`Kernel`: the compiled program of a group, and programs that run once for its constant arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

import numpy as np

from tdsl.codegen.runtime.arrays import aligned_empty
from tdsl.codegen.runtime.binding import output_shape
from tdsl.compile import Compiled, compile
from tdsl.graph.values import Array, Call, Constant, Given, Source, base_of
from tdsl.lang.program import Program
from tdsl.pipeline import ready
from tdsl.schedule.bind import bind_state
from tdsl.schedule.constants import in_parts, split_constants
from tdsl.schedule.state import State
from tdsl.target import Target
from tdsl.tilegraph.schedule import Schedule

T = TypeVar("T")


Making = tuple[State, tuple[object, ...]]  # cache key: a program and its input arrays


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """The compiled code of a group: `each` runs in every call, the programs in `once` only once.

    `once` compute arrays from constants (packed weights, for example), which `each` takes after its other
    arguments. `parameters` are the parameter names of the original program.
    """

    parameters: tuple[str, ...]
    each: Compiled
    once: tuple[Compiled, ...] = ()

    def taken(self, given: Sequence[T]) -> tuple[T, ...]:
        """The arguments of `each` among the values `given` for the parameters."""
        return _chosen(self.each, self.parameters, given)

    def made(self, given: Sequence[Any]) -> dict[Making, int]:
        """The bytes of the outputs of each program in `once`, by cache key; kernels may share keys."""
        return {
            self._making(once, given): sum(prod(s) * d.itemsize for s, d in _results(once))
            for once in self.once
        }

    def prepared(
        self, given: Sequence[Any], known: dict[Making, tuple[Array, ...]] | None = None
    ) -> tuple[Array, ...]:
        """Runs `once` on the arrays given for the parameters, and returns the arrays that `each` takes.

        `known` is a cache of results that kernels share.
        """
        known, found = {} if known is None else known, dict[str, Array]()
        for once in self.once:
            key = self._making(once, given)
            if key not in known:
                known[key] = tuple(aligned_empty(s, d) for s, d in _results(once))
                once(*_chosen(once, self.parameters, given), out=known[key])
            found |= zip(once.state.program.outputs, known[key], strict=True)
        return tuple(found[arg.name] for arg in self.each.signature.inputs if arg.name in found)

    def _making(self, once: Compiled, given: Sequence[Any]) -> Making:
        arrays = _chosen(once, self.parameters, given)
        return once.state, tuple(
            (*map(x.__array_interface__.get, _PLACE), x.strides) for x in arrays
        )


_PLACE = ("data", "shape", "typestr")


def _results(once: Compiled) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shapes and types of the outputs of a program that runs once."""
    signature = once.signature
    return [(output_shape(signature, arg, {}), arg.dtype.numpy) for arg in signature.outputs]


def _chosen(compiled: Compiled, parameters: Sequence[str], given: Sequence[T]) -> tuple[T, ...]:
    values = dict(zip(parameters, given, strict=True))
    names = (arg.name for arg in compiled.signature.inputs)
    return tuple(values[n] for n in names if n in values)


def kernel_of(program: Program, known: Compiled | None, target: Target) -> Kernel:
    """The kernel of a program with bound sizes; `known` is compiled with constants as plain inputs."""
    if any(t.constant for t in program.inputs):
        made = split(compile(Schedule.of_program(program), target=target))
        if made.once:
            return made
        program = with_constants(program, ())
    return Kernel(program.parameters, known or compile(Schedule.of_program(program), target=target))


def as_scheduled(call: Call) -> Kernel:
    """The kernel of a call that the user has scheduled, with that schedule."""
    state = bind_state(call.compiled.state, call.sizes)
    state = replace(state, program=with_constants(state.program, call.inputs))
    made = split(compile(Schedule.of_state(state), target=call.compiled.target))
    return made if made.once else Kernel(made.parameters, call.compiled)


def split(compiled: Compiled) -> Kernel:
    """The kernel of a compiled program with bound sizes; funcs of constants only are moved into `once`."""
    program = compiled.state.program
    if any(t.constant for t in program.inputs):
        found = split_constants(ready(compiled.variant(compiled.specialisation({}))))
        if found is not None:
            each, *once = (
                compile(Schedule.of_state(s), target=compiled.target)
                for s in (found.each, *in_parts(found.once))
            )
            return Kernel(program.parameters, each, tuple(once))
    return Kernel(program.parameters, compiled)


def with_constants(program: Program, given: Sequence[Given]) -> Program:
    """The program with the inputs that are given constants marked as constant, and no others."""
    never = {
        name
        for name, x in zip(program.parameters, given, strict=False)
        if isinstance(x, Source) and isinstance(base_of(x), Constant)
    }
    inputs = tuple(replace(t, constant=t.name in never) for t in program.inputs)
    return replace(program, inputs=inputs)
