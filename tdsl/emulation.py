"""`emulate`: the kernels of a GPU on the CPU, each access watched."""

from __future__ import annotations

from typing import Protocol

from tdsl.codegen.runtime.call import Entry, Executable
from tdsl.codegen.runtime.signature import Signature, Specialisation
from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.schedule.schedule import Schedule
from tdsl.target import Target
from tdsl.variant import Variant


class Compiled(Protocol):
    """What `compile` makes."""

    signature: Signature
    dynamic: frozenset[str]
    target: Target
    latest: Specialisation | None

    def variant(self, specialisation: Specialisation) -> Variant:
        """All that decides what the code for a specialisation is."""


def emulate(compiled: Compiled) -> Entry:
    """What a program compiled for "cuda" does, run on the CPU; call it as the program.

    All blocks and threads run side by side on NumPy arrays. What could depend on their order (a race, a
    barrier that some threads do not reach), a read of memory that was never written, and an index outside
    are Hazards: the compiler must not make such kernels. A launch that a GPU of the target does not take is
    the ScheduleError or TargetError of its compilation. No GPU and nothing of CUDA is needed.

    >>> import numpy as np, tdsl as td
    >>> i, a, f = td.vars("i"), td.Tensor("a", ("N",), td.f32), td.Func("f")
    >>> f[i] = a[i] * 2
    >>> s = td.Schedule(f)
    >>> block, thread = s[f].split(i, 32)
    >>> _ = s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    >>> td.emulate(td.compile(s, target="cuda"))(np.arange(3, dtype=np.float32))
    array([0., 2., 4.], dtype=float32)

    TypeMismatch for anything that is not compiled for "cuda".
    """
    given: object = compiled
    if isinstance(given, Schedule):
        raise TypeMismatch(
            f"a schedule, as that of {given.program.name!r}, is emulated when it is compiled",
            loc=here(),
            label="this call",
            hint=_compiled_first(given),
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
        from tdsl.codegen.gpu.limits import DEFAULT_ARCH
        from tdsl.pipeline import make_kernel

        compiled.latest = specialisation
        arch = compiled.target.arch or DEFAULT_ARCH
        return EmulatedExecutable(make_kernel(compiled.variant(specialisation)), arch)

    return Entry(compiled.signature, compiled.dynamic, build)


def _compiled_first(schedule: Schedule) -> str:
    for_a_gpu = schedule.target is not None and schedule.target.name == "cuda"
    chosen = "schedule" if for_a_gpu else 'schedule, target="cuda"'
    return f"td.emulate(td.compile({chosen}))"
