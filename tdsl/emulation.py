"""`td.emulate`: runs GPU kernels on the CPU and checks each memory access, as compute-sanitizer does."""

from __future__ import annotations

from typing import Protocol

from tdsl.codegen.runtime.call import Entry, Executable
from tdsl.codegen.runtime.signature import Signature, Specialisation
from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.target import Target
from tdsl.tilegraph.schedule import Schedule
from tdsl.variant import Variant


class Compiled(Protocol):
    """The part of `tdsl.compile.Compiled` that `emulate` uses."""

    signature: Signature
    dynamic: frozenset[str]
    target: Target
    latest: Specialisation | None

    def variant(self, specialisation: Specialisation) -> Variant:
        """The variant for a specialisation: all that determines its code."""


def emulate(compiled: Compiled) -> Entry:
    """An emulator on the CPU of a program compiled for "cuda"; call it as the program.

    All blocks and threads run in lockstep on NumPy arrays. Results that depend on the order of threads (a
    race, a barrier that some threads do not reach), reads of uninitialised memory, and indices out of bounds
    raise Hazard: the compiler must not generate such kernels. A launch beyond the limits of the target's GPU
    raises the ScheduleError or TargetError of its compilation. Neither a GPU nor CUDA software is needed.

    >>> import numpy as np, tdsl as td
    >>> i, a, f = td.vars("i"), td.Tensor("a", ("N",), td.f32), td.Func("f")
    >>> f[i] = a[i] * 2
    >>> s = td.Schedule(f)
    >>> block, thread = s[f].split(i, 32)
    >>> _ = s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    >>> td.emulate(td.compile(s, target="cuda"))(np.arange(3, dtype=np.float32))
    array([0., 2., 4.], dtype=float32)

    TypeMismatch if `compiled` is not compiled for "cuda".
    """
    argument: object = compiled
    if isinstance(argument, Schedule):
        raise TypeMismatch(
            f"a schedule, as that of {argument.program.name!r}, is emulated when it is compiled",
            loc=here(),
            label="this call",
            hint=_example_call(argument),
        )
    if getattr(getattr(compiled, "target", None), "name", "") != "cuda":
        raise TypeMismatch(
            f"only what is compiled for a GPU can be emulated, not {compiled!r}",
            loc=here(),
            label="this call",
            hint='td.compile(schedule, target="cuda")',
        )

    def build(specialisation: Specialisation) -> Executable:
        from tdsl.codegen.emulation.run import EmulatedExecutable
        from tdsl.pipeline import make_kernel

        compiled.latest = specialisation
        return EmulatedExecutable(make_kernel(compiled.variant(specialisation)), compiled.target.arch)

    return Entry(compiled.signature, compiled.dynamic, build)


def _example_call(schedule: Schedule) -> str:
    for_a_gpu = schedule.target is not None and schedule.target.name == "cuda"
    arguments = "schedule" if for_a_gpu else 'schedule, target="cuda"'
    return f"td.emulate(td.compile({arguments}))"
