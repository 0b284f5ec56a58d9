"""How many blocks of a kernel run at once on a multiprocessor, and what stops more of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

_WARP = 32
_REGISTERS = 64 << 10  # of a multiprocessor
_REGISTER_UNIT = 256  # registers that a warp gets at a time
_SHARED_UNIT = 128  # bytes that a block gets at a time
_OWN_SHARED = 1024  # bytes of a block that are the system's
_PARTS = 4  # of a multiprocessor, each with warps and registers of its own


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What the blocks on a multiprocessor share."""

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


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks that fit, by what they need; `warps` of `most` run at once.

    >>> print(Occupancy(warps=64, most=64, threads=8, registers=16, shared=30, blocks=32))
    64 of 64 warps of a multiprocessor: 8 blocks by threads, 16 by registers, 30 by shared bytes, 32 at most
    """

    warps: int
    most: int
    threads: int
    registers: int
    shared: int
    blocks: int

    def __str__(self) -> str:
        return (
            f"{self.warps} of {self.most} warps of a multiprocessor: {self.threads} blocks by threads, "
            f"{self.registers} by registers, {self.shared} by shared bytes, {self.blocks} at most"
        )


def occupancy(arch: str, block: tuple[int, int, int], registers: int, shared: int) -> Occupancy:
    """The occupancy of a kernel by the registers of its threads and the shared bytes of its blocks.

    >>> occupancy("sm_90a", (256, 1, 1), 128, 0).warps
    16
    """
    m, warps = MULTIPROCESSORS[arch], -(-prod(block) // _WARP)
    each = _up(max(registers, 1) * _WARP, _REGISTER_UNIT)
    fit = _REGISTERS // _PARTS // each * _PARTS
    by = {
        "threads": m.warps // warps,
        "registers": fit // warps,
        "shared": m.shared // _up(shared + _OWN_SHARED, _SHARED_UNIT),
        "blocks": m.blocks,
    }
    return Occupancy(min(by.values()) * warps, m.warps, **by)


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
