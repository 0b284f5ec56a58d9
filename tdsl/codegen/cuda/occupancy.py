"""Occupancy: how many blocks of a kernel are resident on a multiprocessor, and which resource limits them."""

from __future__ import annotations

from math import prod

from tdsl.core.node import frozen

_WARP = 32
_REGISTERS = 64 << 10  # registers of a multiprocessor
_REGISTER_UNIT = 256  # registers; a warp's count is rounded up to a multiple
_SHARED_UNIT = 128  # bytes; a block's shared memory is rounded up to a multiple
_SYSTEM_SHARED = 1024  # bytes of shared memory that the system reserves in each block
_PARTITIONS = 4  # partitions of a multiprocessor, each with its own warps and registers


@frozen
class Multiprocessor:
    """Limits of a multiprocessor: resident warps, resident blocks, bytes of shared memory."""

    warps: int
    blocks: int
    shared: int


MULTIPROCESSORS = {
    "sm_80": Multiprocessor(64, 32, 164 << 10),
    "sm_86": Multiprocessor(48, 16, 100 << 10),
    "sm_89": Multiprocessor(48, 24, 100 << 10),
    "sm_90": Multiprocessor(64, 32, 228 << 10),
    "sm_90a": Multiprocessor(64, 32, 228 << 10),
}


@frozen
class Occupancy:
    """The resident `warps` of at most `most`, and how many blocks each resource allows (`by_...`, `blocks`).

    >>> print(Occupancy(warps=64, most=64, by_threads=8, by_registers=16, by_shared=30, blocks=32))
    64 of 64 warps of a multiprocessor: 8 blocks by threads, 16 by registers, 30 by shared bytes, 32 at most
    """

    warps: int
    most: int
    by_threads: int
    by_registers: int
    by_shared: int
    blocks: int

    def __str__(self) -> str:
        return (
            f"{self.warps} of {self.most} warps of a multiprocessor: {self.by_threads} blocks by threads, "
            f"{self.by_registers} by registers, {self.by_shared} by shared bytes, {self.blocks} at most"
        )


def occupancy(arch: str, block: tuple[int, int, int], registers: int, shared: int) -> Occupancy:
    """The occupancy of a kernel with `registers` for each thread and `shared` bytes for each block.

    >>> occupancy("sm_90a", (256, 1, 1), 128, 0).warps
    16
    """
    m, warps = MULTIPROCESSORS[arch], -(-prod(block) // _WARP)
    each = _round_up(max(registers, 1) * _WARP, _REGISTER_UNIT)
    fit = _REGISTERS // _PARTITIONS // each * _PARTITIONS
    by = {
        "by_threads": m.warps // warps,
        "by_registers": fit // warps,
        "by_shared": m.shared // _round_up(shared + _SYSTEM_SHARED, _SHARED_UNIT),
        "blocks": m.blocks,
    }
    return Occupancy(min(by.values()) * warps, m.warps, **by)


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
