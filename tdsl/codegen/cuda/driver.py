"""The part of the CUDA driver API that launches need (ctypes): devices, modules, memory, streams, events."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tdsl.core.source import here
from tdsl.errors import TargetError

Handle = ctypes.c_void_p
DEFAULT_STREAM = 1  # CU_STREAM_LEGACY: the stream of libraries that have not been given another

# attributes by the names of cuda.h
MOST_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
MOST_BLOCK_SHARED = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_HAS_POOLS = 115  # CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
_RELEASE_THRESHOLD = 4  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
_ORDINAL_OF_POINTER = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT

# Errors after which the context is unusable, and with it the GPU in this process.
_STICKY_ERRORS = frozenset({214, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721})


class Driver:
    """libcuda, initialised. Every failing call raises TargetError with the driver's message."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        try:
            self.library = ctypes.CDLL(library)
        except OSError as error:
            raise TargetError(
                f"there is no CUDA driver here: {error}",
                loc=here(),
                label="this call",
                hint="run it on a machine with an NVIDIA GPU; td.emulate(f) runs the same kernels on the CPU",
            ) from None
        self.call("cuInit", 0)
        self._devices: dict[int, Device] = {}

    def call(self, name: str, *arguments: Any, doing: str = "") -> None:
        """Call a function of the driver; TargetError if it fails."""
        status = getattr(self.library, name)(*arguments)
        if status:
            self.raise_error(status, doing or name)

    def raise_error(self, status: int, doing: str) -> NoReturn:
        """Raise the TargetError for an error code of the driver."""
        text = ctypes.c_char_p()
        self.library.cuGetErrorString(status, ctypes.byref(text))
        reason = (text.value or b"unknown").decode()
        raise TargetError(
            f"{doing} failed: {reason} (CUDA error {status})",
            loc=here(),
            label="this call",
            hint="this process cannot use the GPU any more; td.emulate(f) finds such faults on the CPU"
            if status in _STICKY_ERRORS
            else "the GPU can be used further; td.emulate(f) runs the same kernels on the CPU",
        )

    def number(self, name: str, *arguments: Any) -> int:
        """The int that a function of the driver writes through its first argument."""
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def version(self) -> str:
        """The newest CUDA version that the driver supports."""
        version = self.number("cuDriverGetVersion")
        return f"{version // 1000}.{version % 1000 // 10}"

    def device_count(self) -> int:
        """The number of GPUs."""
        return self.number("cuDeviceGetCount")

    def device(self) -> Device:
        """The GPU whose context is current in this thread; if none is, GPU 0, made current."""
        context = Handle()
        self.call("cuCtxGetCurrent", ctypes.byref(context))
        ordinal = self.number("cuCtxGetDevice") if context.value else 0
        device = self._devices.get(ordinal)
        if device is None:
            if ordinal >= self.device_count():
                raise TargetError(
                    "there is no GPU here", loc=here(), label="this call",
                    hint="td.emulate(f) runs the same kernels on the CPU",
                )  # fmt: skip
            device = self._devices[ordinal] = Device(self, ordinal)
        if not context.value:
            device.make_current()
        return device


class Device:
    """A GPU: its name, architecture, memory and streams."""

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.driver, self.ordinal = driver, ordinal
        self._handle = driver.number("cuDeviceGet", ordinal)
        name = ctypes.create_string_buffer(256)
        driver.call("cuDeviceGetName", name, 256, self._handle)
        major, minor = self.attribute(_MAJOR), self.attribute(_MINOR)
        self.name, self.arch = name.value.decode(), f"sm_{major}{minor}"
        self._has_pool = bool(self.attribute(_HAS_POOLS))
        if self._has_pool:
            pool, most = Handle(), ctypes.c_uint64(2**64 - 1)
            driver.call("cuDeviceGetDefaultMemPool", ctypes.byref(pool), self._handle)
            # otherwise the pool returns memory to the system at each synchronisation
            driver.call("cuMemPoolSetAttribute", pool, _RELEASE_THRESHOLD, ctypes.byref(most))
            self._allocate_async = driver.library.cuMemAllocAsync
            self._free_async = driver.library.cuMemFreeAsync
            self._allocate_async.argtypes = [ctypes.c_void_p, ctypes.c_size_t, Handle]
            self._free_async.argtypes = [ctypes.c_uint64, Handle]

    def attribute(self, which: int) -> int:
        """The value of an attribute, `which` of CU_DEVICE_ATTRIBUTE_*."""
        return self.driver.number("cuDeviceGetAttribute", which, self._handle)

    def make_current(self) -> None:
        """Make the primary context of the GPU current in this thread."""
        context = Handle()
        self.driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._handle)
        self.driver.call("cuCtxSetCurrent", context)

    def retry(self, status: int, function: Callable[..., int], arguments: Sequence[Any], doing: str) -> None:
        """Handle a failed call: if this thread had no CUDA context, make it current and call again."""
        if status == _NO_CONTEXT:
            self.make_current()
            status = function(*arguments)
        if status:
            self.driver.raise_error(status, doing)

    def load(self, code: bytes, names: Sequence[str]) -> tuple[Handle, ...]:
        """The kernels of a cubin, or of PTX, with these names; they stay loaded until the process ends."""
        module, functions = Handle(), []
        self.driver.call("cuModuleLoadData", ctypes.byref(module), code)
        for name in names:
            function = Handle()
            self.driver.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            functions.append(function)
        return tuple(functions)

    def allocate(self, count: int, stream: int = DEFAULT_STREAM) -> Memory:
        """Allocate `count` bytes of GPU memory in stream order; freed when the returned object is deleted."""
        pointer = ctypes.c_uint64()
        if self._has_pool:
            status = self._allocate_async(ctypes.byref(pointer), count or 1, stream)
        else:
            size = ctypes.c_size_t(count or 1)
            status = self.driver.library.cuMemAlloc_v2(ctypes.byref(pointer), size)
        if status:
            self.driver.raise_error(status, f"making an array of {count} bytes")
        return Memory(self, pointer.value, count, stream)

    def release(self, memory: Memory) -> None:
        """Free memory after the work enqueued on its stream so far."""
        if self._has_pool:
            self._free_async(memory.pointer, memory.stream)
        else:
            self.driver.library.cuMemFree_v2(ctypes.c_uint64(memory.pointer))  # synchronises

    def has_address(self, pointer: int) -> bool:
        """True for an address in the memory of this GPU, according to the driver."""
        ordinal = ctypes.c_int(-1)
        status = self.driver.library.cuPointerGetAttribute(
            ctypes.byref(ordinal), _ORDINAL_OF_POINTER, ctypes.c_uint64(pointer)
        )
        return not status and ordinal.value == self.ordinal

    def wait(self, doing: str, stream: int = DEFAULT_STREAM) -> None:
        """Wait for all work on a stream."""
        self.driver.call("cuStreamSynchronize", Handle(stream), doing=doing)

    def wait_for_stream(self, stream: int, other: int) -> None:
        """Make later work on `stream` wait for the work enqueued on `other` so far."""
        event = Event(self)
        event.record(other)
        self.driver.call("cuStreamWaitEvent", Handle(stream), event.handle, 0)


class Memory:
    """Allocated GPU memory of `count` bytes, for the work of a stream; freed when the object is deleted."""

    __slots__ = ("count", "device", "pointer", "stream")

    def __init__(self, device: Device, pointer: int, count: int, stream: int) -> None:
        self.device, self.pointer, self.count, self.stream = device, pointer, count, stream

    def __del__(self) -> None:
        # errors are ignored: the context may be destroyed, with all of its memory
        self.device.release(self)

    def fill(self, array: Any) -> None:
        """Copy a contiguous NumPy array into this memory, and wait for the copy."""
        if self.count:
            source, size = Handle(array.ctypes.data), ctypes.c_size_t(self.count)
            place, stream = ctypes.c_uint64(self.pointer), Handle(self.stream)
            self.device.driver.call("cuMemcpyHtoDAsync_v2", place, source, size, stream)
            self.device.wait("the copy to the GPU", self.stream)  # the array may change afterwards


def read(device: Device, pointer: int, array: Any, stream: int) -> None:
    """Copy GPU memory at `pointer` into a contiguous NumPy array, after all work on a stream."""
    if array.nbytes:
        target, size = Handle(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        place = ctypes.c_uint64(pointer)
        device.driver.call("cuMemcpyDtoHAsync_v2", target, place, size, Handle(stream))
    device.wait("what ran before a copy from the GPU", stream)


class Event:
    """A CUDA event: a point of a stream that can be waited for and has a time stamp."""

    def __init__(self, device: Device) -> None:
        self.device, self.handle = device, Handle()
        device.driver.call("cuEventCreate", ctypes.byref(self.handle), 0)

    def __del__(self) -> None:
        self.device.driver.library.cuEventDestroy_v2(self.handle)

    def record(self, stream: int = DEFAULT_STREAM) -> None:
        """Record the event after the work enqueued on a stream so far."""
        self.device.driver.call("cuEventRecord", self.handle, Handle(stream))

    def milliseconds_since(self, start: Event) -> float:
        """The milliseconds from the event `start` to this event; waits for this event."""
        passed = ctypes.c_float()
        call = self.device.driver.call
        call("cuEventSynchronize", self.handle)
        call("cuEventElapsedTime", ctypes.byref(passed), start.handle, self.handle)
        return passed.value


@functools.cache
def driver() -> Driver:
    """The driver of this process."""
    return Driver()
