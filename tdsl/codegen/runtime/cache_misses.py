"""Counts last-level cache misses by the processor's performance counters (Linux perf_event_open)."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable

HARDWARE, CACHE_MISSES = 0, 3  # numbers in linux/perf_event.h
SIZE = 128  # bytes of struct perf_event_attr
FLAGS = 1 << 0 | 1 << 1 | 1 << 5 | 1 << 6  # disabled, inherited by threads, without kernel and hypervisor
ENABLE, DISABLE = 0x2400, 0x2401
CALLS = {"x86_64": 298, "aarch64": 241}


def last_level_misses(run: Callable[[], object]) -> str:
    """One line of text: the last-level cache misses while `run` executes, or why they cannot be counted."""
    misses = count_event(HARDWARE, CACHE_MISSES, run)
    if isinstance(misses, str):
        return f"the processor's own counters are not there: {misses}"
    return f"the processor counted {misses:,} misses of its last cache, {64 * misses / 1e6:.3f} MB"


def count_event(kind: int, event: int, run: Callable[[], object]) -> int | str:
    """The number of perf events of a type and config while `run` executes; a str, the reason, if unavailable.

    Events of threads that were started before are not counted.
    """
    number = CALLS.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return "this system has no perf_event_open"
    import fcntl

    attributes = bytearray(SIZE)
    struct.pack_into("IIQ", attributes, 0, kind, SIZE, event)
    struct.pack_into("Q", attributes, 40, FLAGS)
    library = ctypes.CDLL(None, use_errno=True)
    buffer = (ctypes.c_char * SIZE).from_buffer(attributes)
    file = library.syscall(number, buffer, 0, -1, -1, 0)
    if file < 0:
        return os.strerror(ctypes.get_errno())
    try:
        fcntl.ioctl(file, ENABLE, 0)
        run()
        fcntl.ioctl(file, DISABLE, 0)
        return int(struct.unpack("Q", os.read(file, 8))[0])
    finally:
        os.close(file)
