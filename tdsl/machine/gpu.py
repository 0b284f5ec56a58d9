"""What only GPUs have: the limits of a multiprocessor, and what an architecture can do."""

from __future__ import annotations

from tdsl.core.node import frozen

# the first compute capability with each; one that ends in "a" has it on no other architecture
FEATURES = {
    "ldmatrix": "75",
    "mma": "80",  # with 32 bytes of terms, as in `instructions.tensor_cores.MMAS`; sm_75 has smaller ones
    "cp.async": "80",
    "cache_hint": "80",  # loads with a policy of eviction from L2
    "bf16": "80",  # arithmetic and conversions
    "dmma": "80",  # products of f64 by tensor cores
    "f8": "89",  # conversions and products by tensor cores
    "clusters": "90",
    "tma": "90",
    "pdl": "90",  # programmatic dependent launch: a kernel starts before the previous one ends
    "mbarrier": "90",  # with a wait that suspends the thread
    "wgmma": "90a",
    "tcgen05": "100a",  # products with sums in tensor memory
    "block_scale": "120a",  # products of block-scaled operands by warps
}


@frozen
class Multiprocessor:
    """The architecture of a GPU, and the limits and figures of one multiprocessor.

    `warps` and `blocks` are the most that are resident; `registers` are 32-bit ones, of which a warp takes a
    multiple of `register_unit`, and a thread at most `registers_per_thread`. Blocks share `shared` bytes,
    of which each takes a multiple of `shared_unit`, and `shared_reserved` beyond what it asks for; the most
    that it can ask for are the bytes of the memory level "shared". `clock` is in cycles a second, in each of
    which every one of the `schedulers` issues an instruction of a warp. `latency` is the seconds that a load
    takes from global memory. Bandwidths and rates are in the `Machine`.
    """

    arch: str
    clock: float
    schedulers: int
    warps: int
    blocks: int
    registers: int
    register_unit: int
    registers_per_thread: int
    shared: int
    shared_unit: int
    shared_reserved: int
    latency: float


def capability(arch: str) -> int:
    """The compute capability of an architecture, without its point.

    >>> capability("sm_90a"), capability("sm_120")
    (90, 120)
    """
    return int("".join(c for c in arch if c.isdigit()))


def is_ptx(arch: str) -> bool:
    """True for the name of PTX for an architecture, such as "compute_90", which drivers assemble."""
    return arch.startswith("compute_")


def runs_on(arch: str, gpu: str) -> bool:
    """True if code for `arch` runs on a GPU: of the same major version and its minor one or a later one.

    Code for an architecture that ends in "a" runs on no other, PTX on all later ones.

    >>> runs_on("sm_80", "sm_86"), runs_on("sm_80", "sm_90"), runs_on("sm_90a", "sm_90")
    (True, False, True)
    >>> runs_on("compute_90", "sm_120"), runs_on("compute_90", "sm_89")
    (True, False)
    """
    code, present = capability(arch), capability(gpu)
    if arch.endswith("a"):
        return code == present
    return code <= present and (is_ptx(arch) or code // 10 == present // 10)


def has(arch: str, first: str) -> bool:
    """True if an architecture has what came with the compute capability `first`.

    >>> has("sm_90a", "80"), has("sm_90", "90a"), has("sm_100a", "90a")
    (True, False, False)
    """
    return arch == f"sm_{first}" if first.endswith("a") else capability(arch) >= int(first)


def features_of(arch: str) -> frozenset[str]:
    """The features of an architecture.

    >>> sorted(features_of("sm_80"))
    ['bf16', 'cache_hint', 'cp.async', 'dmma', 'ldmatrix', 'mma']
    """
    return frozenset(name for name, first in FEATURES.items() if has(arch, first))
