"""From the state of a schedule to the loops that a backend compiles.

bind      named sizes become the numbers of a specialisation     schedule/bind.py
separate  outputs that are needed beyond their array             codegen/lowering/outputs.py
complete  what the schedule left open gets a default; inlined    schedule/default.py
          funcs go into their readers
lower     loops                                                  codegen/lowering/lower.py
passes    the same loops, faster                                 codegen/passes/
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tdsl.codegen.ir.loops import AXES, PARALLEL, SERIAL, BufferParam, For, Kernel, Stmt
from tdsl.codegen.ir.show import show
from tdsl.codegen.ir.statements import map_parts, walk
from tdsl.codegen.ir.verify import Verifier
from tdsl.codegen.lowering.access import check_declared
from tdsl.codegen.lowering.lower import lower
from tdsl.codegen.lowering.outputs import separate_outputs
from tdsl.codegen.passes import CUDA_PASSES, PASSES, SCALAR_PASSES
from tdsl.codegen.passes.bound_loops import bound_loops
from tdsl.codegen.passes.simplify_loops import simplify_loops
from tdsl.codegen.runtime.call import Executable
from tdsl.core.debug import run_passes, timed
from tdsl.core.source import here
from tdsl.errors import TargetError
from tdsl.lang.bounds import forget
from tdsl.lang.stored_range import keep_ranges
from tdsl.schedule.bind import bind_state
from tdsl.schedule.default import complete, decide
from tdsl.schedule.explain import Decision
from tdsl.schedule.nest import State
from tdsl.target import Target
from tdsl.variant import Variant, machine_of

if TYPE_CHECKING:
    from tdsl.codegen.cpu.cached_kernel import Way


def make_kernel(variant: Variant, vectors: bool = True) -> Kernel:
    """The loops that a backend gets; without `vectors` those of the CPU are serial or parallel only."""
    with timed("lower"):
        kernel = lowered(variant)
    kernel = after_passes(kernel if vectors else _without_vectors(kernel), variant.target, vectors)
    forget()
    return kernel


def _without_vectors(kernel: Kernel) -> Kernel:
    def plain(s: Stmt) -> Stmt:
        if isinstance(s, For) and s.kind != PARALLEL:
            s = replace(s, kind=SERIAL)
        return map_parts(s, plain)

    return replace(kernel, body=plain(kernel.body))


def plainer(variant: Variant) -> list[Way]:
    """The fallbacks at the time limit of LLVM: the default schedule of a lower level, then no vectors."""
    from tdsl.codegen.cpu.cached_kernel import Way
    from tdsl.codegen.cpu.machine import lower_level, processor

    cpu = processor(variant.target)
    ways = [Way(lambda: make_kernel(variant, vectors=False), cpu, "without vectors")]
    below = lower_level(cpu)
    if below and not any(plan.touched for _, plan in variant.state.plans):
        target = Target("cpu", below)
        lower = replace(variant, target=target, machine=machine_of(target))
        ways.insert(0, Way(lambda: make_kernel(lower), processor(target), f"for {target} instead"))
    return ways


def after_passes(kernel: Kernel, target: Target, vectors: bool = True) -> Kernel:
    """A kernel as `lowered` gives it, made ready for the backend of a target.

    TargetError for loops on axes of a GPU where the target is none, and on threads of a CPU where it is one.
    """
    _refuse_kinds(kernel, target)
    chosen = {"cpu": PASSES, "cuda": CUDA_PASSES} if vectors else {}
    passes = chosen.get(target.name, SCALAR_PASSES)
    return run_passes(kernel, passes, show=show, verify=Verifier(), name=kernel.name)


def _refuse_kinds(kernel: Kernel, target: Target) -> None:
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


def backend(kernel: Kernel, target: Target) -> Executable:
    """The code of a target for loops that are ready for it."""
    with timed("backend"):
        match target.name:
            case "cpu":
                from tdsl.codegen.cpu.executable import build as build_cpu
                from tdsl.codegen.cpu.machine import processor

                return build_cpu(kernel, processor(target))
            case "numba":
                from tdsl.codegen.python.run import NumbaExecutable

                return NumbaExecutable(kernel)
            case _:
                from tdsl.codegen.python.run import PythonExecutable

                return PythonExecutable(kernel)


def scheduled(variant: Variant) -> Kernel:
    """The loops as the schedule has them, simplified, before loops are unrolled and vector code is made."""
    return bound_loops(simplify_loops(lowered(variant)))


def lowered(variant: Variant) -> Kernel:
    """The loops of the schedule as it stands, before any pass."""
    bound = _bound(variant)
    return lower(complete(bound, variant.machine), variant.params, check_declared(bound))


def ready(variant: Variant) -> State:
    """The state that is lowered: sizes bound, every func placed, none inlined."""
    return complete(_bound(variant), variant.machine)


def decided(variant: Variant) -> tuple[State, tuple[Decision, ...]]:
    """The state that is `ready`, and what was decided for each func on the way."""
    return decide(_bound(variant), variant.machine)


def _bound(variant: Variant) -> State:
    bound = bind_state(variant.state, dict(variant.specialisation.sizes))
    arrays = [p for p in variant.params if isinstance(p, BufferParam) and not p.written]
    apart = tuple(p.name for p in arrays if p.strides and p.strides[-1] != 1)
    program = keep_ranges(bound.program)  # of what directives have added, too
    return separate_outputs(replace(bound, apart=apart, program=program))
