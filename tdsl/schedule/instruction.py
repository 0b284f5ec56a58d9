"""Instructions: a small computation on tiles, with its meaning as a program and its code per backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    and one i64 stride in elements for each of its axes. `python` does the same on array views. `strides`
    has what the text takes for granted: for an operand, its stride along each axis, None where any will do.
    """

    name: str
    meaning: Program
    llvm: str
    python: Callable[..., None] | None
    strides: tuple[tuple[str, tuple[int | None, ...]], ...] = ()
    loc: Loc | None = field(default=None, compare=False)

    def operands(self) -> tuple[str, ...]:
        """The names of the operands, the output first."""
        return (self.meaning.outputs[0], *(t.name for t in self.meaning.inputs))


INSTRUCTIONS: dict[str, Instruction] = {}


def instruction(
    name: str, meaning: Func, *, llvm: str = "", python: Callable[..., Any] | None = None,
    strides: Mapping[str, tuple[int | None, ...]] | None = None,
) -> Instruction:  # fmt: skip
    """Declare an instruction for `tensorize`.

    `meaning` is a func over tensors of constant shape: `acc[i, j] += a[i, k] * b[k, j]`, or a pure
    definition. `llvm` is a function that takes, for each operand (the output first), a pointer and the
    stride in elements along each axis. `strides={"b": (None, 1)}` are strides that the text relies on:
    tensorize refuses tiles that have others. Raises DefinitionError where extents of the meaning are not
    constants, a name is used twice, or strides are given for what is no operand.
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
    made = Instruction(name, program, llvm, python, tuple(sorted((strides or {}).items())), loc)
    _check_strides(made)
    INSTRUCTIONS[name] = made
    return made


def _check_strides(made: Instruction) -> None:
    f = made.meaning.funcs[0]
    ranks = {f.name: len(f.variables)} | {t.name: len(t.shape) for t in made.meaning.inputs}
    for operand, wanted in made.strides:
        if ranks.get(operand) != len(wanted):
            raise DefinitionError(
                f"strides of {operand!r} do not fit the operands of instruction {made.name!r}",
                loc=made.loc,
                label="this declaration",
                hint="give a stride or None for each axis of: "
                + ", ".join(f"{n} ({rank})" for n, rank in ranks.items()),
            )


def instructions_of(state: State) -> tuple[tuple[str, Program, str], ...]:
    """Name, meaning and machine text of the instructions that a schedule uses."""
    names = {t.instruction for _, plan in state.plans for t in plan.tensorizations}
    return tuple((n, INSTRUCTIONS[n].meaning, INSTRUCTIONS[n].llvm) for n in sorted(names))
