"""A kernel of a graph: what runs in each call, and what is made once, of arrays that never change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

import numpy as np

from tdsl.codegen.arrays import aligned_empty
from tdsl.codegen.binding import output_shape
from tdsl.compile import Compiled, compile
from tdsl.graph.values import Array, Call, Constant, Given, Source, base_of
from tdsl.lang.program import Program
from tdsl.pipeline import ready
from tdsl.schedule.bind import bind_state
from tdsl.schedule.constants import split_constants
from tdsl.schedule.fluent import Schedule
from tdsl.target import Target

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A compiled program, or two: `once` makes of constants what `each` takes after the other arguments.

    `parameters` are those of the program.
    """

    parameters: tuple[str, ...]
    each: Compiled
    once: Compiled | None = None

    def taken(self, given: Sequence[T]) -> tuple[T, ...]:
        """What `each` takes of what is given for the parameters."""
        return _chosen(self.each, self.parameters, given)

    @property
    def nbytes(self) -> int:
        """The bytes of what is made once."""
        return sum(prod(shape) * dtype.itemsize for shape, dtype in self._made())

    def prepared(self, given: Sequence[Any]) -> tuple[Array, ...]:
        """What is made once, for the arrays that are given for the parameters."""
        if self.once is None:
            return ()
        made = [aligned_empty(shape, dtype) for shape, dtype in self._made()]
        self.once(*_chosen(self.once, self.parameters, given), out=tuple(made))
        return tuple(made)

    def _made(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shapes and types of what is made once."""
        if self.once is None:
            return []
        signature = self.once.signature
        return [(output_shape(signature, arg, {}), arg.dtype.numpy) for arg in signature.outputs]


def _chosen(compiled: Compiled, parameters: Sequence[str], given: Sequence[T]) -> tuple[T, ...]:
    values = dict(zip(parameters, given, strict=True))
    names = (arg.name for arg in compiled.signature.inputs)
    return tuple(values[n] for n in names if n in values)


def kernel_of(program: Program, known: Compiled | None, target: Target) -> Kernel:
    """The kernel of a program of known sizes; `known` is compiled of it without its constants."""
    if any(t.constant for t in program.inputs):
        made = split(compile(Schedule.of_program(program), target=target))
        if made.once is not None:
            return made
        program = with_constants(program, ())
    return Kernel(program.parameters, known or compile(Schedule.of_program(program), target=target))


def as_scheduled(call: Call) -> Kernel:
    """The kernel of a call whose schedule the user has written."""
    state = bind_state(call.compiled.state, call.sizes)
    state = replace(state, program=with_constants(state.program, call.inputs))
    made = split(compile(Schedule.of_state(state), target=call.compiled.target))
    return made if made.once is not None else Kernel(made.parameters, call.compiled)


def split(compiled: Compiled) -> Kernel:
    """The kernel of a compiled program whose sizes are known, with what is made of constants apart."""
    program = compiled.state.program
    if any(t.constant for t in program.inputs):
        found = split_constants(ready(compiled.variant(compiled.specialisation({}))))
        if found is not None:
            once, each = (
                compile(Schedule.of_state(s), target=compiled.target)
                for s in (found.once, found.each)
            )
            return Kernel(program.parameters, each, once)
    return Kernel(program.parameters, compiled)


def with_constants(program: Program, given: Sequence[Given]) -> Program:
    """The program with what never changes declared so; with nothing given, none."""
    never = {
        name
        for name, x in zip(program.parameters, given, strict=False)
        if isinstance(x, Source) and isinstance(base_of(x), Constant)
    }
    inputs = tuple(replace(t, constant=t.name in never) for t in program.inputs)
    return replace(program, inputs=inputs)
