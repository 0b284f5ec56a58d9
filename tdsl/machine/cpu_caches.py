"""The unmeasured machine model of a CPU: vector features, and the caches that the system reports."""

from __future__ import annotations

import functools
import os

from tdsl.machine.cpu import CpuTarget
from tdsl.machine.model import CACHES, Machine, MemoryLevel

FOLDER = "/sys/devices/system/cpu/cpu0/cache"


@functools.cache
def describe(target: CpuTarget) -> Machine:
    """The machine model of `target` with the caches of this machine, one thread, and no measured times."""
    vector, registers = target.vector_bytes, target.vector_registers
    file = MemoryLevel("registers", registers * vector, vector, managed=True)
    memory = MemoryLevel("memory", None, managed=True)
    return Machine(vector, 1, target.has, registers, (file, *caches(), memory))


def caches(folder: str = FOLDER) -> tuple[MemoryLevel, ...]:
    """The data caches, innermost first; `CACHES` if the system does not report them.

    `folder` has the layout of `/sys/devices/system/cpu/cpu0/cache` in Linux.
    """
    try:
        cache_levels = [_cache(os.path.join(folder, name)) for name in sorted(os.listdir(folder))]
    except (OSError, ValueError):
        return CACHES
    levels = tuple(sorted((c for c in cache_levels if c is not None), key=lambda level: level.name))
    return levels or CACHES


def _cache(folder: str) -> MemoryLevel | None:
    """The cache that a folder describes; None for an instruction cache, and for a folder of other data."""
    if not os.path.basename(folder).startswith("index") or _text(folder, "type") == "Instruction":
        return None
    size = _text(folder, "size")
    scale = {"K": 10, "M": 20, "G": 30}[size[-1]] if size[-1:] in ("K", "M", "G") else 0
    return MemoryLevel(
        f"L{int(_text(folder, 'level'))}",
        int(size.rstrip("KMG")) << scale,
        int(_text(folder, "coherency_line_size")),
        count(_text(folder, "shared_cpu_list")),
    )


def _text(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read().strip()


def count(processors: str) -> int:
    """The number of processors in a list in Linux's format.

    >>> count("0-3,8,10-11")
    7
    """
    total = 0
    for part in processors.split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total
