"""Instructions: a small computation on tiles, with its meaning as a program and its code per backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tdsl.errors import DefinitionError, TypeMismatch
from tdsl.lang.program import Program, build_program
from tdsl.lang.tensor import Func, is_func
from tdsl.lang.value import check_name
from tdsl.schedule.nest import State
from tdsl.source import Loc, here


@dataclass(frozen=True, slots=True)
class Instruction:
    """`meaning` is a program with one update whose loops are all constant.

    The operands are the output tile, then the input tiles in the order of the meaning's inputs. `llvm` is
    the text of a function `define void @NAME(...)` with, for each operand, a pointer to its first element
    and one i64 stride in elements for each of its axes. `python` does the same on array views.
    """

    name: str
    meaning: Program
    llvm: str
    python: Callable[..., None] | None
    loc: Loc | None = field(default=None, compare=False)


INSTRUCTIONS: dict[str, Instruction] = {}


def instruction(
    name: str, meaning: Func, *, llvm: str = "", python: Callable[..., Any] | None = None
) -> Instruction:
    """Declare an instruction for `tensorize`.

    `meaning` is a func over tensors of constant shape: `acc[i, j] += a[i, k] * b[k, j]`, or a pure
    definition. Raises DefinitionError where its extents are not constants or a name is used twice.
    """
    loc = here()
    check_name(name, loc)
    if not is_func(meaning):
        raise TypeMismatch(
            f"the meaning of instruction {name!r} must be a func, not {type(meaning).__name__}",
            loc=loc,
            label="this declaration",
            hint="define it: a td.Func over td.Tensor operands",
        )
    program = build_program((meaning,))
    if program.sizes or len(program.funcs) != 1:
        raise DefinitionError(
            f"the meaning of instruction {name!r} must be one func over tensors of constant shape",
            loc=loc,
            label="this declaration",
            hint='declare the operands with numbers: td.Tensor("a", (8, 4), td.f32)',
        )
    known = INSTRUCTIONS.get(name)
    if known is not None and known.loc != loc:
        raise DefinitionError(
            f"there is already an instruction {name!r}",
            loc=loc,
            label="this declaration",
            related=((known.loc, "declared here"),),
            hint="choose another name",
        )
    if not llvm and python is None:
        raise DefinitionError(
            f"instruction {name!r} has no code",
            loc=loc,
            label="this declaration",
            hint="pass llvm= or python=",
        )
    made = Instruction(name, program, llvm, python, loc)
    INSTRUCTIONS[name] = made
    return made


def instructions_of(state: State) -> tuple[tuple[str, Program, str], ...]:
    """Name, meaning and machine text of the instructions that a schedule uses."""
    names = {t.instruction for _, plan in state.plans for t in plan.tensorizations}
    return tuple((n, INSTRUCTIONS[n].meaning, INSTRUCTIONS[n].llvm) for n in sorted(names))
