"""`td.emulate`: runs GPU kernels on the CPU and checks each memory access, as compute-sanitizer does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from tdsl.codegen.runtime.call import Entry, Executable
from tdsl.codegen.runtime.signature import ArrayArg, ScalarArg, Signature, Specialisation, extent
from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.schedule.state import State
from tdsl.target import Target
from tdsl.tilegraph.schedule import Schedule
from tdsl.variant import Variant

if TYPE_CHECKING:
    from tdsl.codegen.emulation.memory_counts import MemoryCounts
    from tdsl.codegen.ir.loops import Kernel


class Compiled(Protocol):
    """The part of `tdsl.compile.Compiled` that emulation uses."""

    state: State
    signature: Signature
    dynamic: frozenset[str]
    target: Target
    latest: Specialisation | None

    def variant(self, specialisation: Specialisation) -> Variant:
        """The variant for a specialisation: all that determines its code."""

    def specialisation(self, sizes: Mapping[str, int]) -> Specialisation:
        """The specialisation for dense arrays of these sizes, or the latest."""


@runtime_checkable
class Emulated(Protocol):
    """What has emulation of its own: the part of `td.Graph` that emulation uses."""

    def emulate(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """The results of a call, by emulation."""

    def count_memory(
        self, *args: Any, blocks: int | None = None, iterations: int | None = None, **kwargs: Any
    ) -> MemoryCounts:
        """The memory transactions of a call."""


def emulate(compiled: Compiled | Emulated) -> Callable[..., Any]:
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

    For a `td.Graph` the emulator is its method `emulate`.

    TypeMismatch if `compiled` is not compiled for "cuda".
    """
    check_for_gpu(compiled)
    if isinstance(compiled, Emulated):
        return compiled.emulate

    def build(specialisation: Specialisation) -> Executable:
        from tdsl.codegen.emulation.run import EmulatedExecutable

        return EmulatedExecutable(*_lowered(compiled, specialisation))

    return Entry(compiled.signature, compiled.dynamic, build)


def emulated(compiled: Compiled) -> Executable:
    """The emulation of a program whose sizes are known, on dense arrays."""
    from tdsl.codegen.emulation.run import EmulatedExecutable

    return EmulatedExecutable(*_lowered(compiled, compiled.specialisation({})))


def count_memory(
    compiled: Compiled | Emulated, *arrays: Any, blocks: int | None = None, iterations: int | None = None,
    **sizes: int,
) -> MemoryCounts:  # fmt: skip
    """The memory transactions of a program compiled for "cuda", counted for each access of its kernels.

    For global memory these are the sectors of 32 bytes that each warp touches, beside the bytes that it uses;
    for shared memory the wavefronts that bank conflicts cost, beside the least number. Atomic updates of one
    word by several threads of a warp are conflicts, too. Arrays begin at multiples of 256 bytes, as those of
    cudaMalloc do.

    `arrays` are the arguments of a call; without them all are zeros, of the `sizes` by name. `blocks` and
    `iterations` estimate the counts of large sizes from so many blocks of each kernel, and so many iterations
    of each serial loop; intermediate results on which indices depend should then not come from other blocks.

    >>> import tdsl as td
    >>> i, j = td.vars("i j")
    >>> a, f = td.Tensor("a", (64, 64), td.f32), td.Func("f")
    >>> f[i, j] = a[j, i] * 2
    >>> s = td.Schedule(f)
    >>> _ = s[f].bind(i, "blockIdx.x").bind(j, "threadIdx.x")
    >>> counts = td.count_memory(td.compile(s, target="cuda"))
    >>> for access in counts.accesses:
    ...     print(access.site, access.requests, access.sectors, access.sector_efficiency)
    load a[f_j, f_i] in f 128 4096 0.125
    store f[f_i, f_j] 128 512 1.0

    TypeMismatch if `compiled` is not compiled for "cuda", and for numbers that are not positive.
    """
    check_for_gpu(compiled)
    for name, value in (("blocks", blocks), ("iterations", iterations)):
        if value is not None and value < 1:
            raise TypeMismatch(
                f"{name} must be a positive integer or None, not {value!r}",
                loc=here(),
                label="this call",
                hint=f"{name}=16",
            )
    if isinstance(compiled, Emulated):
        return compiled.count_memory(*arrays, blocks=blocks, iterations=iterations, **sizes)
    return count_kernels(compiled, arrays, blocks, iterations, sizes)


def count_kernels(
    compiled: Compiled, arrays: Sequence[Any], blocks: int | None, iterations: int | None,
    sizes: Mapping[str, int] = {},
) -> MemoryCounts:  # fmt: skip
    """The memory transactions of a program; see `count_memory`."""
    from tdsl.codegen.emulation.count_accesses import CountingExecutable

    program = compiled.state.program
    places = {f.name: f.definitions[0].loc or f.loc for f in program.funcs}
    counts: list[MemoryCounts] = []

    def build(specialisation: Specialisation) -> Executable:
        kernel, arch = _lowered(compiled, specialisation)
        return CountingExecutable(kernel, arch, places, counts, blocks, iterations)

    entry = Entry(compiled.signature, compiled.dynamic, build)
    if not arrays:
        known = {**dict(compiled.specialisation(sizes).sizes), **sizes}
        arrays, sizes = tuple(_zeros(a, known) for a in compiled.signature.inputs), {}
    entry(*arrays, **sizes)
    return counts[0]


def _zeros(a: ArrayArg | ScalarArg, sizes: Mapping[str, int]) -> Any:
    """Zeros for an argument; memory that nothing reads is never touched."""
    return np.zeros(
        tuple(extent(e, sizes) for e in a.shape) if isinstance(a, ArrayArg) else (), a.dtype.numpy
    )


def _lowered(compiled: Compiled, specialisation: Specialisation) -> tuple[Kernel, str]:
    """The kernel of a variant, and the architecture that it is compiled for."""
    from tdsl.pipeline import make_kernel

    compiled.latest = specialisation
    return make_kernel(compiled.variant(specialisation)), compiled.target.archs[0]


def check_for_gpu(compiled: object) -> None:
    """Raise TypeMismatch for what is not compiled for a GPU."""
    if isinstance(compiled, Schedule):
        raise TypeMismatch(
            f"a schedule, as that of {compiled.program.name!r}, is emulated when it is compiled",
            loc=here(),
            label="this call",
            hint=_example_call(compiled),
        )
    if getattr(getattr(compiled, "target", None), "name", "") != "cuda":
        raise TypeMismatch(
            f"only what is compiled for a GPU can be emulated, not {compiled!r}",
            loc=here(),
            label="this call",
            hint='td.compile(schedule, target="cuda"), or td.Graph(f, target="cuda")',
        )


def _example_call(schedule: Schedule) -> str:
    for_a_gpu = schedule.target is not None and schedule.target.name == "cuda"
    arguments = "schedule" if for_a_gpu else 'schedule, target="cuda"'
    return f"td.emulate(td.compile({arguments}))"
