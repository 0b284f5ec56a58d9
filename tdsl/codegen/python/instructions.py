"""Looks up the Python function of a user-declared instruction, which takes one view per tile."""

from __future__ import annotations

from collections.abc import Callable

from tdsl.codegen.ir.loops import Kernel
from tdsl.errors import TargetError
from tdsl.machine.instructions.instruction import Instruction


def instructions_of(kernel: Kernel) -> dict[str, Instruction]:
    """The instructions that a kernel may invoke, by name."""
    declared = [i for i in kernel.instructions if isinstance(i, Instruction)]
    assert len(declared) == len(kernel.instructions), "an undeclared instruction"
    return {i.name: i for i in declared}


def python_code(instruction: Instruction) -> Callable[..., None]:
    """The Python function that runs the instruction; TargetError if its declaration has none."""
    if instruction.python is None:
        raise TargetError(
            f"instruction {instruction.name!r} has no Python code",
            loc=instruction.loc,
            label="declared here",
            hint="pass python= to td.instruction",
        )
    return instruction.python
