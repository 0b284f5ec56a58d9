"""The compilation pipeline from the state of a schedule to the loop IR that a backend compiles.

bind      replaces named sizes by the numbers of a variant       schedule/bind.py
separate  computes outputs needed beyond their array in a        codegen/lowering/outputs.py
          temporary, then copies
complete  adds the default schedule; substitutes inlined funcs   tilegraph/default.py
          into their readers
lower     generates loop IR                                      codegen/lowering/lower.py
passes    optimises the loop IR                                  codegen/passes/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tdsl.autoschedule.explain import Decision
from tdsl.codegen.ir.loops import AXES, PARALLEL, SERIAL, BufferParam, For, Kernel, Stmt
from tdsl.codegen.ir.show import show
from tdsl.codegen.ir.statements import map_parts, walk
from tdsl.codegen.ir.verify import Verifier
from tdsl.codegen.lowering.bounds_checks import check_declared
from tdsl.codegen.lowering.lower import lower
from tdsl.codegen.lowering.outputs import separate_outputs
from tdsl.codegen.passes import PASSES, SCALAR_PASSES
from tdsl.codegen.passes.bound_loops import bound_loops
from tdsl.codegen.passes.simplify_loops import simplify_loops
from tdsl.codegen.runtime.call import Executable
from tdsl.core.debug import run_passes, timed
from tdsl.core.source import here
from tdsl.errors import TargetError
from tdsl.lang.bounds import clear_facts
from tdsl.lang.value_ranges import annotate_value_ranges
from tdsl.schedule.bind import bind_state
from tdsl.schedule.state import State
from tdsl.target import Target
from tdsl.tilegraph.default import complete, decide
from tdsl.variant import Variant

if TYPE_CHECKING:
    from tdsl.codegen.cpu.cached_kernel import Fallback

_PARTS_OF_REGISTERS = (0.75, 0.5)  # of a thread's, for which a schedule is chosen again if its kernels spill


def make_kernel(variant: Variant, vectors: bool = True) -> Kernel:
    """The loop IR that a backend compiles; with `vectors=False` CPU loops are serial or parallel only."""
    with timed("lower"):
        kernel = lower_variant(variant)
    kernel = apply_passes(kernel if vectors else _serial_loops(kernel), variant.target, vectors)
    clear_facts()
    return kernel


def _serial_loops(kernel: Kernel) -> Kernel:
    def serial(s: Stmt) -> Stmt:
        if isinstance(s, For) and s.kind != PARALLEL:
            s = replace(s, kind=SERIAL)
        return map_parts(s, serial)

    return replace(kernel, body=serial(kernel.body))


def fallbacks(variant: Variant) -> list[Fallback]:
    """If LLVM exceeds its time limit: the default schedule for a lower ISA level, then scalar code."""
    from tdsl.codegen.cpu.cached_kernel import Fallback
    from tdsl.machine.cpu import cpu_for, next_lower_isa

    cpu = cpu_for(variant.target.level)
    candidates = [Fallback(lambda: make_kernel(variant, vectors=False), cpu, "without vectors")]
    level = next_lower_isa(cpu)
    if level and not any(plan.scheduled for _, plan in variant.state.plans):
        target = Target("cpu", level)
        lower = replace(variant, target=target, machine=target.machine())
        candidates.insert(
            0,
            Fallback(lambda: make_kernel(lower), cpu_for(target.level), f"for {target} instead"),
        )
    return candidates


def with_fewer_registers(variant: Variant) -> Iterator[Variant]:
    """A variant for a GPU, then the same where default schedules have fewer registers for a thread.

    Only those whose schedule differs from the previous one's.
    """
    yield variant
    gpu, before = variant.machine.gpu, completed_state(variant)
    assert gpu is not None, "only a GPU spills"
    for part in _PARTS_OF_REGISTERS:
        fewer = replace(gpu, registers_per_thread=int(part * gpu.registers_per_thread))
        candidate = replace(variant, machine=replace(variant.machine, gpu=fewer))
        state = completed_state(candidate)
        if state != before:
            yield candidate
        before = state


def apply_passes(kernel: Kernel, target: Target, vectors: bool = True) -> Kernel:
    """Runs the passes of a target's backend on a kernel from `lower_variant`.

    TargetError for loops bound to axes of a GPU on other targets, and for parallel loops on a GPU.
    """
    _check_loop_kinds(kernel, target)
    passes = _passes_of(target) if vectors else SCALAR_PASSES
    return run_passes(kernel, passes, show=show, verify=Verifier(), name=kernel.name)


def _passes_of(target: Target) -> Sequence[Callable[[Kernel], Kernel]]:
    match target.name:
        case "cpu":
            return PASSES
        case "cuda":
            from tdsl.codegen.passes.gpu_passes import CUDA_PASSES

            return CUDA_PASSES
        case _:
            return SCALAR_PASSES


def _check_loop_kinds(kernel: Kernel, target: Target) -> None:
    gpu = target.name == "cuda"
    for s in walk(kernel.body):
        if isinstance(s, For) and not gpu and s.kind in AXES:
            raise TargetError(
                f"loop {s.name!r} runs on {s.kind}, and the target {target.name} is no GPU",
                loc=here(),
                label="compiled here",
                hint='compile for target="cuda"',
            )
        if isinstance(s, For) and gpu and s.kind == PARALLEL:
            raise TargetError(
                f"loop {s.name!r} is parallel, on threads of a CPU, and the target {target} is a GPU",
                loc=here(),
                label="compiled here",
                hint='bind(loop, "blockIdx.x") or bind(loop, "threadIdx.x") in place of parallel(loop)',
            )


def build_executable(kernel: Kernel, target: Target) -> Executable:
    """The executable for cpu, numba or python of a kernel after its passes."""
    with timed("backend"):
        match target.name:
            case "cpu":
                from tdsl.codegen.cpu.executable import build as build_cpu
                from tdsl.machine.cpu import cpu_for

                return build_cpu(kernel, cpu_for(target.level))
            case "numba":
                from tdsl.codegen.python.run import NumbaExecutable

                return NumbaExecutable(kernel)
            case _:
                from tdsl.codegen.python.run import PythonExecutable

                return PythonExecutable(kernel)


def scheduled_loops(variant: Variant) -> Kernel:
    """The loops of the schedule, simplified, before unrolling and vectorisation."""
    return bound_loops(simplify_loops(lower_variant(variant)))


def lower_variant(variant: Variant) -> Kernel:
    """The loops of the completed schedule, before any pass."""
    bound = _bound_state(variant)
    on_gpu = variant.target.name == "cuda"  # whose tensor maps describe the arrays of a call
    return lower(complete(bound, variant.machine), variant.params, check_declared(bound), merged=not on_gpu)


def completed_state(variant: Variant) -> State:
    """The state that is lowered: sizes bound, a place for every func, inlined funcs substituted."""
    return complete(_bound_state(variant), variant.machine)


def completed_with_decisions(variant: Variant) -> tuple[State, tuple[Decision, ...]]:
    """The state as from `completed_state`, and the decisions of the default schedule for each func."""
    return decide(_bound_state(variant), variant.machine)


def _bound_state(variant: Variant) -> State:
    bound = bind_state(variant.state, dict(variant.specialisation.sizes))
    arrays = [p for p in variant.params if isinstance(p, BufferParam) and not p.written]
    strided = tuple(p.name for p in arrays if p.strides and p.strides[-1] != 1)
    gaps = tuple(p.name for p in variant.params if isinstance(p, BufferParam) and not p.is_dense)
    program = annotate_value_ranges(bound.program)  # also ranges of funcs that directives have added
    return separate_outputs(replace(bound, strided_inputs=strided, with_gaps=gaps, program=program))
