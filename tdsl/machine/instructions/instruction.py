"""`Instruction`: an intrinsic on tiles, with its semantics as a program and its code for each backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tdsl.core.node import frozen
from tdsl.core.source import Loc, here
from tdsl.errors import DefinitionError, TypeMismatch, did_you_mean
from tdsl.lang.build_program import build_program
from tdsl.lang.expr import Const, Expr
from tdsl.lang.program import Program
from tdsl.lang.tensor import Func, is_func
from tdsl.lang.value import check_name
from tdsl.machine.instructions.layout import Digit, Layout, layout_of, points_of


@dataclass(frozen=True, slots=True)
class RegisterFile:
    """A file of tile registers, such as AMX's, and the LLVM code to use it.

    `load` and `store` are instructions with {register} (0 .. count-1), {pointer} and {stride}, the bytes
    from one row of the tile to the next. A function that uses the file runs `begin` first and `end` last,
    with {state} for a pointer to `state` bytes of its stack. `declarations` are the global declarations
    that this code needs.
    """

    name: str
    count: int
    load: str
    store: str
    state: int = 0
    begin: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    declarations: tuple[str, ...] = ()


@frozen
class Instruction:
    """A tensor intrinsic: its semantics `meaning`, a program of one func with constant extents, and its code.

    The operands are the output tile, then the input tiles in the order of the meaning's inputs. `llvm` is
    the text of a function `define void @NAME(...)` with, for each operand, a pointer to its first element
    and one i64 stride in elements for each of its axes. `python` does the same on array views. `strides`
    has the strides that the text assumes: for an operand, its stride along each axis, None for any stride.
    With `registers` the operands are in that register file, and `llvm` is one instruction on its registers.

    `cuda` is the text of a device function that `threads` threads call collectively, for GPUs of `arch` and
    later, or of `arch` alone if it ends in "a". It takes a pointer for each operand: to the thread's
    registers if the operand is a fragment, with the layout in `fragments`; otherwise into memory: `points`
    has the element each lane points to. For an operand in `descriptors` it takes the descriptor of a matrix
    in swizzled shared memory instead of a pointer. An `asynchronous` instruction runs concurrently
    with its threads, which must wait for it before they access its operands. With `tensor_memory` its sums
    are in tensor memory while such instructions run; its text takes the first column of the output there.
    With `bulk` its text copies rows from shared to global memory by TMA: each begins at a multiple of so many
    bytes.
    """

    name: str
    meaning: Program
    llvm: str
    python: Callable[..., None] | None
    strides: tuple[tuple[str, tuple[int | None, ...]], ...] = ()
    registers: RegisterFile | None = None
    cuda: str = ""
    fragments: tuple[tuple[str, Layout], ...] = ()
    points: tuple[tuple[str, tuple[Digit, ...]], ...] = ()
    threads: int = 32
    arch: str = ""
    descriptors: tuple[str, ...] = ()
    asynchronous: bool = False
    tensor_memory: bool = False
    bulk: int = 0
    loc: Loc | None = field(default=None, compare=False)

    def operands(self) -> tuple[str, ...]:
        """The names of the operands, the output first."""
        return (self.meaning.outputs[0], *(t.name for t in self.meaning.inputs))

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the operands, the output first."""
        box = self.meaning.funcs[0].output_box(self.loc)
        shapes = [tuple(extent for _, extent in box), *(t.shape for t in self.meaning.inputs)]
        return tuple(tuple(map(_constant, shape)) for shape in shapes)

    def identity(self) -> tuple[object, ...]:
        """All that code which uses the instruction depends on, for the fingerprint of that code."""
        on_gpu: tuple[object, ...] = ()
        if self.cuda:
            on_gpu = (self.cuda, self.fragments, self.points, self.threads, self.arch)
            on_gpu += (self.descriptors, self.asynchronous, self.tensor_memory, self.bulk)
        return (self.name, self.meaning, self.llvm, self.registers, *on_gpu)


def _constant(extent: Expr) -> int:
    assert isinstance(extent, Const), "the tile of an instruction is constant"
    return int(extent.value)


INSTRUCTIONS: dict[str, Instruction] = {}


def instruction(
    name: str, meaning: Func, *, llvm: str = "", python: Callable[..., Any] | None = None,
    strides: Mapping[str, tuple[int | None, ...]] | None = None, registers: RegisterFile | None = None,
    cuda: str = "", fragments: Mapping[str, Callable[..., Any]] | None = None,
    points: Mapping[str, Callable[..., Any]] | None = None, threads: int = 32, arch: int | str = 80,
    descriptors: tuple[str, ...] = (), asynchronous: bool = False, tensor_memory: bool = False, bulk: int = 0,
) -> Instruction:  # fmt: skip
    """Declare an instruction for `tensorize`.

    `meaning` is a func over tensors of constant shape: `acc[i, j] += a[i, k] * b[k, j]`, or a pure
    definition. `llvm` is a function that takes, for each operand (the output first), a pointer and the
    stride in elements along each axis. `strides={"b": (None, 1)}` are strides that the text relies on:
    tensorize refuses tiles with other strides. With `registers` the operands are tiles in that register
    file, their rows contiguous in memory, and accumulators stay in registers throughout the reduction loops;
    `llvm` is then one call of an intrinsic, with {a}, {b}, ... for the registers of operands by name.

    `cuda` is a device function called NAME for GPUs of sm_`arch` and later (sm_90a alone for "90a"), with a
    pointer for each operand, which `threads` threads call collectively. `fragments` has the operands that are
    distributed over registers of these threads: a function from the index of an element to its lane and its
    register, on NumPy arrays. For an operand in memory, `points` is a function from the lane to the index of
    the element each lane points to; by default the first element.

        fragments={"acc": lambda i, j: (i % 8 * 4 + j // 2, i // 8 * 2 + j % 2)}
        points={"tile": lambda lane: (lane % 16, lane // 16 * 8)}

    Operands in `descriptors` are passed as matrix descriptors (`wgmma`) of swizzled shared memory.
    With `asynchronous` the compiler inserts the fence, commit and wait of groups of invocations; with
    `tensor_memory`, too, it moves the output, a fragment with a row of 32-bit elements for each thread, to
    tensor memory before such a group and back after the wait (`tcgen05`). With `bulk` the text copies rows of
    shared to global memory by TMA: each lane points to a row, which begins at a multiple of so many bytes.

    Raises DefinitionError if extents of the meaning are not constants, a name is used twice, strides are
    given for a name that is no operand, or a layout is not a weighted sum of digits of the index that is
    one-to-one.
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
    if not llvm and not cuda and python is None:
        raise DefinitionError(
            f"instruction {name!r} has no code",
            loc=loc,
            label="this declaration",
            hint="pass llvm=, cuda= or python=",
        )
    stride_patterns = tuple(sorted((strides or {}).items()))
    instr = Instruction(name, program, llvm, python, stride_patterns, registers, loc=loc)
    _check_strides(instr)
    if registers is not None:
        _check_call(instr)
        instr = replace(
            instr,
            strides=tuple(zip(instr.operands(), map(_row_strides, instr.shapes()), strict=True)),
        )
    if cuda:
        instr = replace(
            instr,
            cuda=cuda,
            threads=threads,
            arch=str(arch),
            descriptors=descriptors,
            asynchronous=asynchronous,
            tensor_memory=tensor_memory,
            bulk=bulk,
        )
        instr = replace(
            instr, fragments=_layouts(instr, fragments or {}), points=_points(instr, points or {})
        )
    INSTRUCTIONS[name] = instr
    return instr


def _layouts(instr: Instruction, rules: Mapping[str, Callable[..., Any]]) -> tuple[tuple[str, Layout], ...]:
    shapes = _shapes_of(instr, rules, "fragments")
    layouts = []
    for operand, rule in sorted(rules.items()):
        layout = layout_of(shapes[operand], instr.threads, rule)
        if layout is None:
            raise DefinitionError(
                f"the layout of {operand!r} of instruction {instr.name!r} does not map "
                f"{prod(shapes[operand])} elements one-to-one to registers of {instr.threads} threads",
                loc=instr.loc,
                label="this declaration",
                hint="return (lane, register), made of floor divisions and remainders of the index",
            )
        layouts.append((operand, layout))
    return tuple(layouts)


def _points(
    instr: Instruction, rules: Mapping[str, Callable[..., Any]]
) -> tuple[tuple[str, tuple[Digit, ...]], ...]:
    shapes = _shapes_of(instr, rules, "points")
    return tuple(
        (operand, points_of(instr.threads, len(shapes[operand]), rule))
        for operand, rule in sorted(rules.items())
    )


def _shapes_of(instr: Instruction, rules: Mapping[str, object], what: str) -> dict[str, tuple[int, ...]]:
    shapes = dict(zip(instr.operands(), instr.shapes(), strict=True))
    unknown = sorted(rules.keys() - shapes.keys())
    if unknown:
        raise DefinitionError(
            f"{what} names {unknown[0]!r}, which is no operand of instruction {instr.name!r}",
            loc=instr.loc,
            label="this declaration",
            hint=did_you_mean(unknown[0], shapes),
        )
    return shapes


def _check_call(instr: Instruction) -> None:
    try:
        line = instr.llvm.format(**dict.fromkeys(instr.operands(), 0))
    except (KeyError, IndexError, ValueError):
        line = ""
    if not line.startswith("call void @"):
        operands = ", ".join(f"i8 {{{name}}}" for name in instr.operands())
        raise DefinitionError(
            f"the code of instruction {instr.name!r} is no call on registers",
            loc=instr.loc,
            label="this declaration",
            hint=f'name the registers of its operands: llvm="call void @NAME({operands})"',
        )


def _row_strides(shape: tuple[int, ...]) -> tuple[int | None, ...]:
    """The strides of a tile with contiguous rows: any stride along the first axis, dense along the others."""
    return (None, *(prod(shape[n + 1 :]) for n in range(1, len(shape))))


def _check_strides(instr: Instruction) -> None:
    f = instr.meaning.funcs[0]
    ranks = {f.name: len(f.variables)} | {t.name: len(t.shape) for t in instr.meaning.inputs}
    for operand, pattern in instr.strides:
        if ranks.get(operand) != len(pattern):
            raise DefinitionError(
                f"strides of {operand!r} do not fit the operands of instruction {instr.name!r}",
                loc=instr.loc,
                label="this declaration",
                hint="give a stride or None for each axis of: "
                + ", ".join(f"{n} ({rank})" for n, rank in ranks.items()),
            )
