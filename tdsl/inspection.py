"""The loop IR, source code and signature of a compiled program as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tdsl.codegen.ir.show import show
from tdsl.codegen.runtime.call import Executable
from tdsl.codegen.runtime.signature import ArrayArg, ScalarArg, Signature
from tdsl.core.notebook import Listing, page
from tdsl.core.source import here
from tdsl.errors import TargetError, did_you_mean, is_one_of
from tdsl.lang.show import show_expr
from tdsl.pipeline import apply_passes, lower_variant, make_kernel, scheduled_loops
from tdsl.target import Target
from tdsl.tilegraph.schedule import Schedule
from tdsl.variant import Variant

if TYPE_CHECKING:
    from tdsl.codegen.cuda.record import Module

STAGES = ("scheduled", "final")
KINDS = {
    "cpu": ("llvm", "asm", "python"),
    "cuda": ("cuda", "ptx"),
    "numba": ("python",),
    "python": ("python",),
}


def loops(variant: Variant, built: Executable | None, stage: str) -> Listing:
    """The loops of a variant; see `Compiled.loops`."""
    if not is_one_of(stage, STAGES):
        raise TargetError(
            f"there are no {stage!r} loops",
            loc=here(),
            label="this call",
            hint=did_you_mean(stage, STAGES),
        )
    if stage == "scheduled":
        return Listing(show(scheduled_loops(variant)))
    return Listing(show(built.kernel if built is not None else make_kernel(variant)))


def source(variant: Variant, built: Callable[[], Executable], kind: str) -> Listing:
    """The code of a variant; see `Compiled.source`."""
    kinds = KINDS[variant.target.name]
    if is_one_of(kind, ("",)):
        kind = kinds[0]
    if not is_one_of(kind, kinds):
        raise TargetError(
            f"the target {variant.target.name} has no {kind!r} source",
            loc=here(),
            label="this call",
            hint=did_you_mean(kind, kinds),
        )
    if kind == "python":
        return Listing(_python_source(variant))
    if variant.target.name == "cuda":
        from tdsl.codegen.cuda.nvrtc import ptx

        module = launch(variant, built)
        return Listing(module.source if kind == "cuda" else ptx(module.source, module.arch))
    if variant.target.level:
        return Listing(_compiler_text(variant, kind))
    from tdsl.codegen.cpu.executable import CpuExecutable

    executable = built()
    assert isinstance(executable, CpuExecutable)
    return Listing(executable.llvm if kind == "llvm" else executable.asm())


def launch(variant: Variant, built: Callable[[], Executable]) -> Module:
    """The kernels and launches of a variant on a GPU; see `Compiled.launch`."""
    check_launches(variant.target)
    from tdsl.codegen.cuda.executable import CudaExecutable

    executable = built()
    assert isinstance(executable, CudaExecutable)
    return executable.module


def check_launches(target: Target) -> None:
    """Raises TargetError for a target that is no GPU."""
    if target.name != "cuda":
        raise TargetError(
            f"the target {target.name} launches no kernels",
            loc=here(),
            label="this call",
            hint='compile for target="cuda"',
        )


def _compiler_text(variant: Variant, kind: str) -> str:
    """The LLVM IR or assembly for a CPU level that this machine may not be able to run."""
    from tdsl.codegen.cpu import jit
    from tdsl.codegen.cpu.executable import text_of
    from tdsl.machine.cpu import cpu_for

    cpu, kernel = cpu_for(variant.target.level), make_kernel(variant)
    text = text_of(kernel, cpu)
    return text if kind == "llvm" else jit.assembly(text, cpu, kernel.name)


def _python_source(variant: Variant) -> str:
    """The loops as Python source; for the CPU before vectorisation, which Python cannot express."""
    if variant.target.name == "numba":
        from tdsl.codegen.python.emit_numba import emit_numba

        return emit_numba(make_kernel(variant))
    from tdsl.codegen.python.emit import emit

    return emit(apply_passes(lower_variant(variant), Target("python")))


def compiled_page(title: str, schedule: Schedule, signature: Signature, loops: str) -> str:
    """HTML of a compiled program for a notebook; `loops` is empty if no variant is known."""
    texts = [
        ("program", str(schedule.state.program)),
        ("schedule", str(schedule) or "no directives: the default schedule"),
        ("signature", show_signature(signature)),
    ]
    return page(title, [*texts, ("loops", loops)] if loops else texts)


def show_signature(signature: Signature) -> str:
    """The inputs and outputs of a call as text, one argument on each line.

    >>> from tdsl.lang.expr import Size
    >>> from tdsl.lang.types import f32
    >>> x = ArrayArg("x", f32, (Size("N"),))
    >>> print(show_signature(Signature("f", (x, ScalarArg("c", f32)), (x,))))
    x: f32[N]
    c: f32
    -> x: f32[N]
    """
    lines = [_argument(a) for a in signature.inputs]
    lines += [f"-> {_argument(a)}" for a in signature.outputs]
    return "\n".join(lines)


def _argument(a: ArrayArg | ScalarArg) -> str:
    if isinstance(a, ScalarArg):
        return f"{a.name}: {a.dtype}"
    return f"{a.name}: {a.dtype}[{', '.join(map(show_expr, a.shape))}]"
