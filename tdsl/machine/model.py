"""What a schedule knows of the machine: vectors, threads, and one memory hierarchy from registers outwards.

Memory levels are data: the caches and memory of a CPU, the levels of a GPU, and the network links to other
machines all have the same fields.
"""

from __future__ import annotations

from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import TargetError, did_you_mean


@frozen
class MemoryLevel:
    """A level of the memory hierarchy.

    One instance holds `bytes` (None: as much as is asked for), moves `line` bytes at a time and serves
    `shared_by` threads. A level is `managed` if it holds what a program puts there, otherwise it is a cache.
    `bandwidth` pairs numbers of threads, rising, with the bytes a second that they read together; it is
    empty if not measured. A link to other ranks has a `latency`, too, in seconds; 0 if its data sheet gives
    none.
    """

    name: str
    bytes: int | None
    line: int = 64
    shared_by: int = 1
    managed: bool = False
    bandwidth: tuple[tuple[int, float], ...] = ()
    latency: float | None = None

    @property
    def share(self) -> int | None:
        """The bytes of an instance for each of the threads that share it."""
        return None if self.bytes is None else self.bytes // self.shared_by

    def bytes_per_second(self, threads: int) -> float | None:
        """The bytes per second that `threads` threads read together, as measured for the nearest number.

        >>> MemoryLevel("memory", None, bandwidth=((1, 20e9), (4, 50e9))).bytes_per_second(3)
        50000000000.0
        """
        if not self.bandwidth:
            return None
        return min(self.bandwidth, key=lambda pair: (abs(pair[0] - threads), pair[0]))[1]


@frozen
class Rate:
    """The operations a second of one thread; a multiplication and its addition are two.

    `unit` is what computes them: "scalar" or "vector" for sums of products, "exp" for that function, or the
    name of a tensor instruction; `dtype` is the type of the sums.
    """

    unit: str
    dtype: str
    per_second: float


# bytes; assumed for a CPU whose caches are not known, as most of recent years have about as much
CACHES = (MemoryLevel("L1", 32 << 10), MemoryLevel("L2", 512 << 10), MemoryLevel("L3", 16 << 20))


@frozen
class Machine:
    """Vectors, threads and memory of what code runs on.

    `vector_bytes` are the bytes of a vector (0: the backend makes no vectors), `features` are LLVM's names of
    what the processor can do beyond its architecture, `registers` is the number of vector registers. `levels`
    go from the nearest to the farthest, all of one rank; `links` go on from there, to what other
    ranks have. `launch` is the time that a parallel loop takes beyond its work, in
    seconds; it and `rates` are there only where they have been measured. `block_threads` is the default
    number of threads per block on a GPU (0: not a GPU).
    """

    vector_bytes: int = 0
    threads: int = 1
    features: frozenset[str] = frozenset()
    registers: int = 16
    levels: tuple[MemoryLevel, ...] = (*CACHES, MemoryLevel("memory", None, managed=True))
    rates: tuple[Rate, ...] = ()
    launch: float | None = None
    block_threads: int = 0
    links: tuple[MemoryLevel, ...] = ()

    @property
    def has_vectors(self) -> bool:
        """True if the backend makes vectors."""
        return self.vector_bytes > 0

    @property
    def caches(self) -> tuple[MemoryLevel, ...]:
        """The caches, innermost first."""
        return tuple(x for x in self.levels if not x.managed and x.bytes is not None)

    @property
    def l1_share(self) -> int:
        """The bytes of the L1 cache for each of the threads that share it."""
        return self.caches[0].share or 0

    @property
    def l2_share(self) -> int:
        """The bytes of the L2 cache, or of the only cache, for each of the threads that share it.

        >>> Machine().l2_share >> 10
        512
        """
        return self.caches[min(1, len(self.caches) - 1)].share or 0

    @property
    def llc_bytes(self) -> int:
        """The bytes of an instance of the last-level cache (LLC)."""
        return self.caches[-1].bytes or 0

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
        same = [r for r in self.rates if r.unit == unit]
        return next((r.per_second for r in (*(r for r in same if r.dtype == dtype), *same)), None)
