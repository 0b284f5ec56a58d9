"""`Variant`: all inputs of one compilation: state, target, machine, signature and specialisation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tdsl.codegen.ir.loops import Argument
from tdsl.codegen.runtime.fingerprint import PACKAGE, fingerprint
from tdsl.codegen.runtime.signature import Signature, Specialisation, parameters
from tdsl.core.node import frozen
from tdsl.schedule.cost.description import read
from tdsl.schedule.cost.devices import describe_gpu
from tdsl.schedule.cost.machine import Machine, described_by
from tdsl.schedule.cost.network import Received, received_by
from tdsl.schedule.instructions.instruction import instructions_of
from tdsl.schedule.nest import State
from tdsl.schedule.searched import searched_by
from tdsl.target import Target

if TYPE_CHECKING:
    from tdsl.schedule.searched import Found


@frozen
class Variant:
    """A scheduled program for a target and a specialisation; equal variants compile to the same code."""

    state: State
    target: Target
    machine: Machine
    signature: Signature
    specialisation: Specialisation

    @property
    def params(self) -> tuple[Argument, ...]:
        """The parameters of its kernel."""
        return parameters(self.signature, self.specialisation)

    def fingerprint(self) -> str:
        """A hash of the variant and of the package's code, equal in all processes: the key in caches."""
        used = instructions_of(self.state)
        return fingerprint(
            PACKAGE, self.state, used, self.target, self.machine, self.specialisation
        )


def machine_of(target: Target) -> Machine:
    """The machine model of a target: it has vectors and threads only if the backend generates code for them.

    Caches and rates are those of the stored machine description, if it describes this processor.
    """
    if target.name == "cuda":
        return describe_gpu(target.arch)
    if target.name != "cpu":
        return Machine()
    from tdsl.codegen.cpu.hierarchy import describe
    from tdsl.codegen.cpu.machine import host, processor
    from tdsl.codegen.cpu.runtime import num_threads

    machine = replace(describe(processor(target)), threads=num_threads())
    described = None if target.level else read()
    if described is None or described.cpu != host().cpu:
        return machine
    measured = described.machine
    return replace(
        machine,
        levels=measured.levels,
        rates=measured.rates,
        launch=measured.launch,
        links=measured.links,
    )


described_by(machine_of)


def _better(state: State, machine: Machine, by_recipes: State) -> Found:
    if len(state.program.funcs) == 1 or not machine.vector_bytes:
        return (
            None  # importing a search takes longer than compiling such a program, and finds nothing
        )
    from tdsl.tilegraph.unasked import better_unasked  # not needed to import tdsl

    return better_unasked(state, machine, by_recipes)


searched_by(_better)


def _busiest(state: State) -> Received | None:
    from tdsl.tilegraph.network import busiest_rank  # as above

    return busiest_rank(state)


received_by(_busiest)
