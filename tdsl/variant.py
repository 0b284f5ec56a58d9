"""`Variant`: all inputs of one compilation: state, target, machine, signature and specialisation."""

from __future__ import annotations

from tdsl.codegen.ir.loops import Argument
from tdsl.codegen.runtime.fingerprint import fingerprint, package_hash
from tdsl.codegen.runtime.signature import Signature, Specialisation, parameters
from tdsl.core.node import frozen
from tdsl.machine.instructions.instruction import INSTRUCTIONS
from tdsl.machine.model import Machine
from tdsl.schedule.state import State
from tdsl.target import Target


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
        names = sorted({t.instruction for _, p in self.state.plans for t in p.tensorizations})
        instructions = tuple(INSTRUCTIONS[n].identity() for n in names)
        return fingerprint(
            package_hash(), self.state, instructions, self.target, self.machine, self.specialisation
        )
