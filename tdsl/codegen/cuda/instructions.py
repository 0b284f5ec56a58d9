"""Lowers instructions that a group of threads runs together (mma, wgmma) to calls of device functions."""

from __future__ import annotations

from typing import Any

from tvm import tirx as T  # noqa: N812  # as its own documentation calls it

from tdsl.codegen.cuda.expressions import Expressions
from tdsl.codegen.ir.loops import Invoke, Operand, Stmt, Store
from tdsl.codegen.ir.statements import walk
from tdsl.lang.expr import ZERO, Var, const
from tdsl.machine.instructions.instruction import INSTRUCTIONS
from tdsl.machine.instructions.layout import point

TIR = Any

_KINDS = {128: 1, 64: 2, 32: 3}  # swizzle modes of wgmma matrix descriptors, by bytes


def invoke(e: Expressions, s: Invoke, number: TIR) -> TIR:
    """The call of an instruction's device function with pointers to, or descriptors of, its operands.

    `number` is the index of the thread in its group.
    """
    chosen = INSTRUCTIONS[s.instruction]
    points, given = dict(chosen.points), []
    lane = Var("lane of a group")
    e.scalars[lane.name] = number
    facts, e.facts = e.facts, e.facts.with_range(lane.name, ZERO, const(chosen.threads - 1))
    for operand, called in zip(s.operands, chosen.operands(), strict=True):
        if called in chosen.descriptors:
            given.append(_descriptor(e, operand))
            continue
        if chosen.tensor_memory and operand is s.operands[0]:
            first = T.Cast("uint32", e.offset(operand.buffer, operand.index))
            given.append(T.Add(e.tensor_columns[operand.buffer], first))
            continue
        memory, _ = e.buffers[operand.buffer]
        index = list(operand.index)
        start = point(points.get(called, ()), [index[axis] for axis in operand.axes], lane)
        for axis, i in zip(operand.axes, start, strict=True):
            index[axis] = i
        at = e.offset(operand.buffer, tuple(index))
        given.append(T.address_of(T.BufferLoad(memory, [at])))
    e.facts = facts
    e.used.add(chosen.name)
    return T.Evaluate(T.call_extern("void", chosen.name, *given))


def _descriptor(e: Expressions, o: Operand) -> TIR:
    """The wgmma descriptor of a matrix in shared memory: address, strides in bytes and swizzle mode."""
    (memory, _), swizzle = e.buffers[o.buffer], e.swizzles[o.buffer]
    pitch = 16 // swizzle.chunk * swizzle.width
    numbers = (swizzle.height * pitch, 8 * pitch, _KINDS[pitch])
    e.used.add("tdsl_wgmma_descriptor")
    place = T.address_of(T.BufferLoad(memory, [e.index(e.in_panels(o.buffer, o.index))]))
    return T.call_extern("uint64", "tdsl_wgmma_descriptor", place, *(T.const(n, "int32") for n in numbers))


def stores_for_descriptors(body: Stmt) -> bool:
    """True if threads store what instructions read through the async proxy: by descriptors, or in bulk."""
    read, stored = set(), set()
    for s in walk(body):
        if isinstance(s, Invoke):
            chosen = INSTRUCTIONS[s.instruction]
            named = zip(s.operands, chosen.operands(), strict=True)
            read |= {o.buffer for o, called in named if chosen.bulk or called in chosen.descriptors}
        elif isinstance(s, Store):
            stored.add(s.buffer)
    return bool(read & stored)
