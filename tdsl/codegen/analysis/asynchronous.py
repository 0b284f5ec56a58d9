"""Test for statements that only issue asynchronous instructions."""

from __future__ import annotations

from tdsl.codegen.ir.loops import AXES, Block, For, If, Invoke, Stmt
from tdsl.machine.instructions.instruction import INSTRUCTIONS


def is_asynchronous(s: Stmt) -> bool:
    """True for invocations of asynchronous instructions, and for loops and tests that contain only these."""
    match s:
        case Invoke(instruction):
            return INSTRUCTIONS[instruction].asynchronous
        case For(_, _, _, kind) if kind not in AXES:
            return is_asynchronous(s.body)
        case If(_, then, None):
            return is_asynchronous(then)
        case Block(body):
            return bool(body) and all(map(is_asynchronous, body))
        case _:
            return False
