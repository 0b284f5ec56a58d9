"""Directives that replace the code of a nest: specialize for a condition, tensorize."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tdsl.core.node import post_order
from tdsl.core.source import here
from tdsl.errors import did_you_mean
from tdsl.lang.expr import (
    ARITHMETIC,
    BITWISE,
    COMPARISONS,
    Binary,
    Cast,
    Const,
    Expr,
    Param,
    Size,
    Unary,
    dtype_of,
)  # fmt: skip
from tdsl.lang.types import BY_NAME, bool_
from tdsl.machine.instructions.tensor_cores import find, name_hint
from tdsl.schedule import loops as directives
from tdsl.schedule.arguments import check_arguments
from tdsl.schedule.loops import find_loop
from tdsl.schedule.state import Illegal, Specialization, State, Tensorization
from tdsl.schedule.vectorize import vectorize

# Directives on the loops of one stage, which may be part of a specialization.
LOOP_DIRECTIVES: dict[str, Callable[..., State]] = {
    "split": directives.split, "fuse": directives.fuse, "rename": directives.rename,
    "reorder": directives.reorder, "serial": directives.serial, "parallel": directives.parallel,
    "unroll": directives.unroll, "vectorize": vectorize,
}  # fmt: skip


def specialize(
    state: State, func: str, definition: int, *, cond: Any, loops: Sequence[dict[str, Any]] = ()
) -> State:
    """Add a second nest to a definition, which runs if a condition on sizes and scalars holds.

    `loops` are the directives that derive that nest from the current one.
    """
    plan = state.plan(func)
    expr = decode_condition(cond)
    if dtype_of(expr) != bool_:
        raise Illegal(
            f"a specialization needs a condition, not a value of type {dtype_of(expr)}",
            "compare it: x.shape[1] % 16 == 0",
        )
    known = {s.name for s in state.program.scalars} | set(state.program.sizes)
    for n in post_order(expr):
        if isinstance(n, Param | Size) and n.name not in known:
            raise Illegal(f"{n.name!r} is no scalar or extent of this program", did_you_mean(n.name, known))
    special = state
    for row in loops:
        rule = LOOP_DIRECTIVES.get(str(row.get("do")))
        if rule is None:
            raise Illegal(f"{row.get('do')!r} cannot be specialized", "only loops can differ")
        arguments = {k: v for k, v in row.items() if k != "do"}
        check_arguments(special, rule, arguments)
        special = rule(special, func, definition, **arguments)
    if special.program != state.program:
        raise Illegal("a specialization cannot add stages", "vectorize free loops only")
    specialization = Specialization(definition, expr, special.plan(func).nests[definition])
    return state.with_plan(
        func, replace(plan, specializations=(*plan.specializations, specialization), scheduled=True)
    )


def encode_condition(e: Expr) -> list[Any]:
    """A condition as JSON data; raises Illegal if it depends on more than extents and scalars."""
    match e:
        case Const(value, t):
            return ["const", value, t.name]
        case Size(name):
            return ["size", name]
        case Param(name, t):
            return ["param", name, t.name]
        case Binary(op, x, y):
            return [op, encode_condition(x), encode_condition(y)]
        case Unary(op, x):
            return [op, encode_condition(x)]
        case Cast(x, t, saturate):
            return ["cast", encode_condition(x), t.name, saturate]
        case _:
            raise Illegal(
                "a specialization cannot depend on data",
                "use extents and scalars of the program; for conditions on data use td.where",
            )


def decode_condition(data: Any) -> Expr:
    """The condition that `encode_condition` wrote; raises Illegal for other data."""
    match data:
        case ["const", bool() | int() | float() as value, str(t)] if t in BY_NAME:
            return Const(value, BY_NAME[t])
        case ["size", str(name)]:
            return Size(name)
        case ["param", str(name), str(t)] if t in BY_NAME:
            return Param(name, BY_NAME[t])
        case [str(op), x, y] if op in (*COMPARISONS, *ARITHMETIC, *BITWISE):
            left, right = decode_condition(x), decode_condition(y)
            if dtype_of(left) != dtype_of(right):
                raise Illegal(f"{data!r} mixes types", "cast one operand")
            return Binary(op, left, right)
        case ["cast", x, str(t), bool() as saturate] if t in BY_NAME:
            return Cast(decode_condition(x), BY_NAME[t], saturate)
        case ["not" | "neg" as op, x]:
            return Unary(op, decode_condition(x))
        case _:
            raise Illegal(
                f"{data!r} is not a condition",
                "use scalars, extents, numbers, operators and comparisons",
            )


def tensorize(state: State, func: str, definition: int, *, loop: str, instruction: str) -> State:
    """Replace a loop and its body by an instruction that computes the same.

    Shapes are checked when the program is compiled, when all extents are known.
    """
    name = find_loop(state, func, definition, loop)
    if find(instruction) is None:
        raise Illegal(
            f"there is no instruction {instruction!r}",
            f"{name_hint(instruction)}; td.instruction(name, meaning, llvm=..., cuda=...) declares others",
        )
    plan = state.plan(func)
    tensorization = Tensorization(definition, name, instruction, loc=here())
    return state.with_plan(
        func, replace(plan, tensorizations=(*plan.tensorizations, tensorization), scheduled=True)
    )
