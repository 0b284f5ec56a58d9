"""What a schedule knows of the machine: vectors, threads, and one memory hierarchy from registers outwards.

Memory levels are data: the caches and memory of a CPU, the levels of a GPU, and the network links to other
machines all have the same fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import DefinitionError, TargetError, did_you_mean
from tdsl.machine.gpu import Multiprocessor, has
from tdsl.machine.instructions.tensor_cores import find, name_hint

Figure = TypeVar("Figure")
ByThreads = tuple[tuple[int, float], ...]  # (threads, figure), threads rising; () if not measured


@frozen
class MemoryLevel:
    """A level of the memory hierarchy.

    One instance has `bytes` by its data sheet (None: as much as is asked for), moves `line` bytes at a time
    and serves `shared_by` threads. A level is `managed` if it holds what a program puts there, else it is
    a cache. What is measured is paired with numbers of threads, rising: `effective`, the bytes of an instance
    that stay while so many threads use it, and the bytes a second that they read together (`bandwidth`),
    write (`write_bandwidth`), and write with non-temporal stores (`non_temporal_bandwidth`). A link to other
    ranks has a `latency`, too, in seconds; 0 if its data sheet gives none.
    """

    name: str
    bytes: int | None
    line: int = 64
    shared_by: int = 1
    managed: bool = False
    bandwidth: ByThreads = ()
    latency: float | None = None
    effective: tuple[tuple[int, int], ...] = ()
    write_bandwidth: ByThreads = ()
    non_temporal_bandwidth: ByThreads = ()

    def bytes_per_second(self, threads: int) -> float | None:
        """The bytes per second that `threads` threads read together, as measured for the nearest number.

        >>> MemoryLevel("memory", None, bandwidth=((1, 20e9), (4, 50e9))).bytes_per_second(3)
        50000000000.0
        """
        return of_nearest(self.bandwidth, threads)

    def write_cost(self, threads: int, *, non_temporal: bool = False) -> float | None:
        """The bytes that could be read in the time that one byte takes to be written; None if not measured.

        An ordinary store reads the line first, which makes it about 2; a non-temporal store does not.

        >>> memory = MemoryLevel("memory", None, bandwidth=((1, 20e9),), write_bandwidth=((1, 10e9),))
        >>> memory.write_cost(1), memory.write_cost(1, non_temporal=True)
        (2.0, None)
        """
        written = self.non_temporal_bandwidth if non_temporal else self.write_bandwidth
        if not written or not self.bandwidth:
            return None
        count, speed = of_nearest([(n, (n, speed)) for n, speed in written], threads) or (1, 1.0)
        return (self.bytes_per_second(count) or 0.0) / speed


def of_nearest(pairs: Sequence[tuple[int, Figure]], threads: int) -> Figure | None:
    """The figure that was measured for the number of threads that is nearest; None if there is none."""
    if not pairs:
        return None
    return min(pairs, key=lambda pair: (abs(pair[0] - threads), pair[0]))[1]


@frozen
class Rate:
    """The operations a second of one thread; a multiplication and its addition are two.

    `unit` is what computes them: "scalar" or "vector" for sums of products, "add", "div", "sqrt", "exp" and
    other functions for vectors of values, the name of a tensor instruction, or "tensor" on a GPU. `dtype` is
    the type of the sums or values; of tensor cores that of the operands, f32 for tf32. `latency` is the
    seconds of one operation that waits for the one before, of sums of products those of the addition; None
    if not measured.
    """

    unit: str
    dtype: str
    per_second: float
    latency: float | None = None


PAGE_BYTES = 4096  # of x86-64 and of most ARM systems; first caches have as many bytes in a way
UNMEASURED_LLC = (
    16 << 20
)  # bytes for each thread; what a last-level cache that was not measured is trusted with

# bytes; assumed for a CPU whose caches are not known, as most of recent years have about as much
CACHES = (MemoryLevel("L1", 32 << 10), MemoryLevel("L2", 512 << 10), MemoryLevel("L3", 16 << 20))


@frozen
class Machine:
    """Vectors, threads and memory of what code runs on.

    `vector_bytes` are the bytes of a vector (0: the backend makes no vectors), `features` are LLVM's names of
    what the processor can do beyond its architecture, `registers` is the number of vector registers. `levels`
    go from the nearest to the farthest, all of one rank; `links` go on from there, to what other
    ranks have. On a GPU, which has a `gpu`, threads are multiprocessors, `features` those of `gpu.FEATURES`,
    and `block_threads` is the default number of threads per block (0: not a GPU).

    The rest is there only if it was measured. `launch` pairs numbers of threads with the seconds that a
    parallel loop takes beyond its work, and `barrier` those of a parallel loop straight after another in the
    same kernel. One thread `gathers` so many elements a second from the nearest cache. `page` is the seconds
    that an access to another page of memory takes beyond its bytes, `first_touch` those of a page that the
    system has yet to provide. `hidden` is the part of the time of memory that overlaps with arithmetic, from
    0 to 1. Results of `non_temporal_from` bytes and more are written faster by non-temporal stores; infinity
    if none is.
    """

    vector_bytes: int = 0
    threads: int = 1
    features: frozenset[str] = frozenset()
    registers: int = 16
    levels: tuple[MemoryLevel, ...] = (*CACHES, MemoryLevel("memory", None, managed=True))
    rates: tuple[Rate, ...] = ()
    launch: ByThreads = ()
    block_threads: int = 0
    links: tuple[MemoryLevel, ...] = ()
    barrier: ByThreads = ()
    gathers: float | None = None
    page: float | None = None
    first_touch: float | None = None
    hidden: float | None = None
    non_temporal_from: float | None = None
    gpu: Multiprocessor | None = None

    @property
    def arch(self) -> str:
        """The architecture of a GPU, such as "sm_90a"; "" for a CPU."""
        return "" if self.gpu is None else self.gpu.arch

    def supports(self, instruction: str) -> bool:
        """True if the GPU has a tensor core instruction; DefinitionError if none has that name.

        >>> from tdsl.machine.devices import describe_gpu
        >>> ampere = describe_gpu("sm_80")
        >>> ampere.supports("mma_m16n8k16_f16_f16"), ampere.supports("mma_m16n8k32_f8e4m3_f8e4m3")
        (True, False)
        """
        known = find(instruction)
        if known is None:
            raise DefinitionError(
                f"there is no instruction {instruction!r}",
                loc=here(),
                label="this question",
                hint=name_hint(instruction),
            )
        return bool(known.cuda) and self.gpu is not None and has(self.gpu.arch, known.arch)

    @property
    def has_vectors(self) -> bool:
        """True if the backend makes vectors."""
        return self.vector_bytes > 0

    @property
    def caches(self) -> tuple[MemoryLevel, ...]:
        """The caches, innermost first."""
        return tuple(x for x in self.levels if not x.managed and x.bytes is not None)

    def capacity(self, level: MemoryLevel) -> int | None:
        """The bytes of an instance of a level that stay there for `threads` threads; None for no limit.

        The size of a last-level cache is not believed, as virtual machines report that of the whole host, and
        as others use it, too: unless it was measured, it has at most UNMEASURED_LLC for each thread.

        >>> reported = MemoryLevel("L3", 480 << 20, shared_by=2)
        >>> Machine(threads=2, levels=(reported,)).capacity(reported) >> 20
        32
        """
        measured = of_nearest(level.effective, self.threads)
        if measured is not None or level.bytes is None:
            return measured
        is_last = level.name == self.caches[-1].name if self.caches else False
        return min(level.bytes, UNMEASURED_LLC * self.threads) if is_last else level.bytes

    @property
    def l1_share(self) -> int:
        """The bytes of the L1 cache for each of the threads that share it."""
        return self.share(self.caches[0]) or 0

    @property
    def l2_share(self) -> int:
        """The bytes of the L2 cache, or of the only cache, for each of the threads that share it.

        >>> Machine().l2_share >> 10
        512
        """
        return self.share(self.caches[min(1, len(self.caches) - 1)]) or 0

    def share(self, level: MemoryLevel) -> int | None:
        """The bytes of a level that stay there for each of the threads that share it; None for no limit."""
        size = self.capacity(level)
        return None if size is None else size // level.shared_by

    @property
    def llc_bytes(self) -> int:
        """The bytes of an instance of the last-level cache (LLC) that stay there."""
        return self.capacity(self.caches[-1]) or 0

    def level(self, name: str) -> MemoryLevel:
        """The memory level with a name, in capital letters or not; TargetError if there is none.

        >>> Machine().level("l2").bytes >> 10
        512
        """
        match = next((x for x in self.levels if x.name.lower() == str(name).lower()), None)
        if match is None:
            raise TargetError(
                f"the memory of this machine has no level {name!r}",
                loc=here(),
                label="this level",
                hint=did_you_mean(name, [x.name for x in self.levels]),
            )
        return match

    def rate(self, unit: str, dtype: str = "f32") -> float | None:
        """The operations per second of one thread on a unit: of `dtype`, or of another type if unknown."""
        return next((r.per_second for r in self._rates_of(unit, dtype)), None)

    def latency(self, unit: str, dtype: str = "f32") -> float | None:
        """The seconds of an operation that waits for the one before: of `dtype`, or of another type."""
        return next((r.latency for r in self._rates_of(unit, dtype) if r.latency is not None), None)

    def _rates_of(self, unit: str, dtype: str) -> list[Rate]:
        """The rates of a unit, that of `dtype` first."""
        return sorted((r for r in self.rates if r.unit == unit), key=lambda r: r.dtype != dtype)
