"""A kernel of a graph: what runs in each call, and what is made once, of arrays that never change."""

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
from tdsl.schedule.nest import State
from tdsl.schedule.schedule import Schedule
from tdsl.target import Target

T = TypeVar("T")


Making = tuple[State, tuple[object, ...]]  # a program that runs once, and the arrays that it takes


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A compiled program, and others: `once` make of constants what `each` takes after the other arguments.

    `parameters` are those of the program.
    """

    parameters: tuple[str, ...]
    each: Compiled
    once: tuple[Compiled, ...] = ()

    def taken(self, given: Sequence[T]) -> tuple[T, ...]:
        """What `each` takes of what is given for the parameters."""
        return _chosen(self.each, self.parameters, given)

    def made(self, given: Sequence[Any]) -> dict[Making, int]:
        """The bytes of what is made once of the arrays that are given; another kernel may make the same."""
        return {
            self._making(once, given): sum(prod(s) * d.itemsize for s, d in _results(once))
            for once in self.once
        }

    def prepared(
        self, given: Sequence[Any], known: dict[Making, tuple[Array, ...]] | None = None
    ) -> tuple[Array, ...]:
        """What is made once of the arrays that are given for the parameters; `known` has it for others."""
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
    """Shapes and types of what is made once."""
    signature = once.signature
    return [(output_shape(signature, arg, {}), arg.dtype.numpy) for arg in signature.outputs]


def _chosen(compiled: Compiled, parameters: Sequence[str], given: Sequence[T]) -> tuple[T, ...]:
    values = dict(zip(parameters, given, strict=True))
    names = (arg.name for arg in compiled.signature.inputs)
    return tuple(values[n] for n in names if n in values)


def kernel_of(program: Program, known: Compiled | None, target: Target) -> Kernel:
    """The kernel of a program of known sizes; `known` is compiled of it without its constants."""
    if any(t.constant for t in program.inputs):
        made = split(compile(Schedule.of_program(program), target=target))
        if made.once:
            return made
        program = with_constants(program, ())
    return Kernel(program.parameters, known or compile(Schedule.of_program(program), target=target))


def as_scheduled(call: Call) -> Kernel:
    """The kernel of a call whose schedule the user has written."""
    state = bind_state(call.compiled.state, call.sizes)
    state = replace(state, program=with_constants(state.program, call.inputs))
    made = split(compile(Schedule.of_state(state), target=call.compiled.target))
    return made if made.once else Kernel(made.parameters, call.compiled)


def split(compiled: Compiled) -> Kernel:
    """The kernel of a compiled program whose sizes are known, with what is made of constants apart."""
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
    """The program with what never changes declared so; with nothing given, none."""
    never = {
        name
        for name, x in zip(program.parameters, given, strict=False)
        if isinstance(x, Source) and isinstance(base_of(x), Constant)
    }
    inputs = tuple(replace(t, constant=t.name in never) for t in program.inputs)
    return replace(program, inputs=inputs)
