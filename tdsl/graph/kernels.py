"""The kernels of a graph's groups: compiled, with constant folding of captured arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tdsl.compile import Compiled, compile
from tdsl.folded_kernel import FoldedKernel, fold_constants
from tdsl.graph.values import Call, Constant, Operand, Source, base_of
from tdsl.lang.program import Program
from tdsl.schedule.bind import bind_state
from tdsl.target import Target
from tdsl.tilegraph.schedule import Schedule


def compile_kernel(program: Program, compiled: Compiled | None, target: Target) -> FoldedKernel:
    """The kernel of a program with bound sizes; `compiled` folds no constants."""
    if any(t.constant for t in program.inputs):
        kernel = fold_constants(compile(Schedule.of_program(program), target=target))
        if kernel.once:
            return kernel
        program = mark_constants(program, ())
    return FoldedKernel(program.parameters, compiled or compile(Schedule.of_program(program), target=target))


def scheduled_kernel(call: Call) -> FoldedKernel:
    """The kernel of a call that the user has scheduled, with that schedule."""
    state = bind_state(call.compiled.state, call.sizes)
    state = replace(state, program=mark_constants(state.program, call.inputs))
    kernel = fold_constants(compile(Schedule.of_state(state), target=call.compiled.target))
    return kernel if kernel.once else FoldedKernel(kernel.parameters, call.compiled)


def mark_constants(program: Program, arguments: Sequence[Operand]) -> Program:
    """The program with exactly those inputs marked as constant whose arguments are constants."""
    constants = {
        name
        for name, x in zip(program.parameters, arguments, strict=False)
        if isinstance(x, Source) and isinstance(base_of(x), Constant)
    }
    inputs = tuple(replace(t, constant=t.name in constants) for t in program.inputs)
    return replace(program, inputs=inputs)
