"""Occupancy: how many blocks of a kernel are resident on a multiprocessor, and which resource limits them."""

from __future__ import annotations

from math import prod

from tdsl.core.node import frozen
from tdsl.machine.gpu import Multiprocessor

_WARP = 32


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


def occupancy(m: Multiprocessor, block: tuple[int, int, int], registers: int, shared: int) -> Occupancy:
    """The occupancy of a kernel with `registers` for each thread and `shared` bytes for each block.

    >>> from tdsl.machine.devices import describe_gpu
    >>> occupancy(describe_gpu("sm_90a").gpu, (256, 1, 1), 128, 0).warps
    16
    """
    warps = -(-prod(block) // _WARP)
    each = _round_up(max(registers, 1) * _WARP, m.register_unit)
    fit = m.registers // m.schedulers // each * m.schedulers  # each scheduler has its own registers
    by = {
        "by_threads": m.warps // warps,
        "by_registers": fit // warps,
        "by_shared": m.shared // max(_round_up(shared + m.shared_reserved, m.shared_unit), 1),
        "blocks": m.blocks,
    }
    return Occupancy(min(by.values()) * warps, m.warps, **by)


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
