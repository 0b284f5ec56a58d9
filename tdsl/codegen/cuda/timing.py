"""Measures run times on a GPU by CUDA events, with cold caches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from tdsl.codegen.cuda.driver import DEFAULT_STREAM, Device, Event, Handle, Memory

_FLUSH_BYTES = 256 << 20  # bytes written to flush the L2 cache, more than any GPU has
_WARM_UPS = 3  # warm-up runs


class Clock:
    """Measures the time of work on a stream of a device, each run with cold caches."""

    def __init__(self, device: Device, stream: int = DEFAULT_STREAM) -> None:
        self.device, self.stream = device, stream
        self._flush_memory = device.allocate(_FLUSH_BYTES, stream)

    def times(self, start: Callable[[], object], count: int) -> list[float]:
        """The milliseconds of each of `count` runs of `start`, after some warm-up runs."""
        events = []
        for n in range(_WARM_UPS + count):
            fill(self._flush_memory, n % 2, self.stream)
            before, after = Event(self.device), Event(self.device)
            before.record(self.stream)
            start()
            after.record(self.stream)
            events.append((before, after))
        return [after.milliseconds_since(before) for before, after in events[_WARM_UPS:]]

    def copy_bandwidth(self, count: int = 20) -> float:
        """The bandwidth of a device-to-device memcpy, in bytes read and written per second."""
        to = self.device.allocate(_FLUSH_BYTES, self.stream)
        best = min(self.times(lambda: copy(self._flush_memory, to, self.stream), count))
        return 2 * _FLUSH_BYTES / best * 1e3


def fill(memory: Memory, byte: int, stream: int) -> None:
    """Set all bytes of GPU memory to a value (an asynchronous memset)."""
    memory.device.driver.call(
        "cuMemsetD8Async", ctypes.c_uint64(memory.pointer), ctypes.c_ubyte(byte),
        ctypes.c_size_t(memory.count), Handle(stream),
    )  # fmt: skip


def copy(source: Memory, target: Memory, stream: int) -> None:
    """Copy GPU memory to GPU memory of at least the same size, asynchronously."""
    source.device.driver.call(
        "cuMemcpyDtoDAsync_v2", ctypes.c_uint64(target.pointer), ctypes.c_uint64(source.pointer),
        ctypes.c_size_t(source.count), Handle(stream),
    )  # fmt: skip
