"""Looking inside a compiled program: its loops and its code as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tdsl.codegen.call import Executable
from tdsl.codegen.loops import Kernel
from tdsl.codegen.show import show
from tdsl.codegen.signature import ArrayArg, ScalarArg, Signature, Specialisation
from tdsl.errors import TargetError, did_you_mean
from tdsl.lang.show import show_expr, show_program
from tdsl.notebook import Listing, page
from tdsl.pipeline import make_kernel, scheduled
from tdsl.schedule.fluent import Schedule
from tdsl.schedule.nest import State
from tdsl.source import here
from tdsl.target import Target

STAGES = ("scheduled", "final")
KINDS = {"cpu": ("llvm", "asm", "python"), "numba": ("python",), "python": ("python",)}


class Inspected(Protocol):
    """What is looked into: a `Compiled`."""

    schedule: Schedule
    state: State
    target: Target
    signature: Signature

    @property
    def variants(self) -> Mapping[Specialisation, Executable]:
        """What has been built."""

    def variant(self, specialisation: Specialisation) -> Executable:
        """The executable for a specialisation, built when it is asked for first."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it."""


def loops(f: Inspected, specialisation: Specialisation, stage: str) -> Listing:
    """The loops of a variant; see `Compiled.loops`."""
    if stage not in STAGES:
        raise TargetError(
            f"there are no {stage!r} loops",
            loc=here(),
            hint=did_you_mean(stage, STAGES),
        )
    if stage == "scheduled":
        return Listing(show(scheduled(f.state, f.target, f.signature, specialisation)))
    return Listing(show(final_kernel(f, specialisation)))


def final_kernel(f: Inspected, specialisation: Specialisation) -> Kernel:
    """The loops that the backend gets for a variant."""
    built = f.variants.get(specialisation)
    if built is not None:
        return built.kernel
    return make_kernel(f.state, f.target, f.signature, specialisation)


def source(f: Inspected, specialisation: Specialisation, kind: str) -> Listing:
    """The code of a variant; see `Compiled.source`."""
    kinds = KINDS[f.target.name]
    kind = kind or kinds[0]
    if kind not in kinds:
        raise TargetError(
            f"the target {f.target.name} has no {kind!r} source",
            loc=here(),
            hint=did_you_mean(kind, kinds),
        )
    if kind == "python":
        return Listing(_python(f, specialisation))
    from tdsl.codegen.cpu.executable import CpuExecutable

    executable = f.variant(specialisation)
    assert isinstance(executable, CpuExecutable)
    return Listing(executable.llvm if kind == "llvm" else executable.asm())


def _python(f: Inspected, specialisation: Specialisation) -> str:
    """The loops as Python; those of the CPU without vector code, which Python cannot say."""
    if f.target.name == "numba":
        from tdsl.codegen.python.emit_numba import emit_numba

        return emit_numba(final_kernel(f, specialisation))
    from tdsl.codegen.python.emit import emit

    return emit(make_kernel(f.state, Target("python"), f.signature, specialisation))


def compiled_page(f: Inspected, specialisation: Specialisation | None) -> str:
    """HTML for a notebook; the loops are there when a variant is known."""
    texts = [
        ("program", show_program(f.state.program)),
        ("schedule", str(f.schedule) or "no directives: the default schedule"),
        ("signature", show_signature(f.signature)),
    ]
    if specialisation is not None:
        texts.append(("loops", loops(f, specialisation, "scheduled")))
    return page(repr(f).strip("<>"), texts)


def show_signature(signature: Signature) -> str:
    """What a call takes and gives, an argument a line.

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
