"""The CUDA driver, as much of it as a launch needs: devices, modules, memory, kernels."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tdsl.errors import TargetError
from tdsl.source import here

_MOST_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
Handle = ctypes.c_void_p


class Driver:
    """libcuda, initialised. Every call that fails is a TargetError with the driver's own words."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        try:
            self._lib = ctypes.CDLL(library)
        except OSError as error:
            raise TargetError(
                f"there is no CUDA driver here: {error}",
                loc=here(),
                label="this call",
                hint="run it on a machine with an NVIDIA GPU; td.emulate(f) runs the same kernels on the CPU",
            ) from None
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any, doing: str = "") -> None:
        """Call a function of the driver."""
        status = getattr(self._lib, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._lib.cuGetErrorString(status, ctypes.byref(text))
            reason = (text.value or b"unknown").decode()
            raise TargetError(
                f"{doing or name} failed: {reason} (CUDA error {status})",
                loc=here(),
                label="this call",
                hint="td.emulate(f) tells whether the kernels themselves are at fault",
            )

    def number(self, name: str, *arguments: Any) -> int:
        """An int that a function gives by its first argument."""
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def device_count(self) -> int:
        """How many GPUs there are."""
        return self.number("cuDeviceGetCount")

    def device(self, ordinal: int = 0) -> Device:
        """A GPU, whose main context becomes that of this thread where it has none."""
        if ordinal >= self.device_count():
            raise TargetError(
                "there is no GPU here", loc=here(), label="this call",
                hint="td.emulate(f) runs the same kernels on the CPU",
            )  # fmt: skip
        handle = self.number("cuDeviceGet", ordinal)
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 256, handle)
        major = self.number("cuDeviceGetAttribute", _MAJOR, handle)
        minor = self.number("cuDeviceGetAttribute", _MINOR, handle)
        context = Handle()
        self.call("cuCtxGetCurrent", ctypes.byref(context))
        if not context.value:
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
            self.call("cuCtxSetCurrent", context)
        return Device(self, name.value.decode(), f"sm_{major}{minor}")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU: its name and architecture."""

    driver: Driver
    name: str
    arch: str

    def runs(self, arch: str) -> bool:
        """True when code for an architecture runs here: the same major version, at least its minor one."""
        wanted, own = arch.removeprefix("sm_"), self.arch.removeprefix("sm_")
        if wanted.endswith("a"):
            return wanted[:-1] == own
        return wanted[:-1] == own[:-1] and int(wanted) <= int(own)

    def load(self, cubin: bytes, names: Sequence[str]) -> tuple[Handle, ...]:
        """The kernels of a cubin, by name; they stay as long as the process."""
        module, found = Handle(), []
        self.driver.call("cuModuleLoadData", ctypes.byref(module), cubin)
        for name in names:
            function = Handle()
            self.driver.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            found.append(function)
        return tuple(found)

    def allow_shared(self, function: Handle, count: int) -> None:
        """Let a kernel have so many bytes of shared memory beyond its own."""
        if count:
            self.driver.call("cuFuncSetAttribute", function, _MOST_DYNAMIC_SHARED, count)

    def allocate(self, count: int) -> Memory:
        """Bytes on the GPU, which go with the object."""
        pointer = ctypes.c_uint64()
        self.driver.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(count, 1)))
        return Memory(self.driver, pointer.value, count)

    def launch(
        self, name: str, function: Handle, grid: Sequence[int], block: Sequence[int], shared: int,
        arguments: Sequence[Any], stream: int = 0,
    ) -> None:  # fmt: skip
        """Start a kernel on ctypes values."""
        pointers = (Handle * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        self.driver.call(
            "cuLaunchKernel", function, *map(ctypes.c_uint, (*grid, *block, shared)),
            Handle(stream), pointers, None, doing=f"the launch of kernel {name!r}",
        )  # fmt: skip

    def wait(self, name: str) -> None:
        """Until all kernels have run."""
        self.driver.call("cuCtxSynchronize", doing=f"kernel {name!r}")


class Memory:
    """Bytes on a GPU."""

    def __init__(self, driver: Driver, pointer: int, count: int) -> None:
        self.driver, self.pointer, self.count = driver, pointer, count
        self.owner: object = None

    @staticmethod
    def view(driver: Driver, pointer: int, count: int, owner: object) -> Memory:
        """Bytes that belong to someone else."""
        made = Memory(driver, pointer, count)
        made.owner = owner
        return made

    def __del__(self) -> None:
        if self.owner is None:  # the context may be gone, with all of its memory
            self.driver._lib.cuMemFree_v2(ctypes.c_uint64(self.pointer))

    def fill(self, array: Any) -> None:
        """Copy a contiguous array here."""
        source = Handle(array.ctypes.data)
        size = ctypes.c_size_t(self.count)
        if self.count:
            self.driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.pointer), source, size)

    def read(self, array: Any) -> None:
        """Copy to a contiguous array, after all kernels before."""
        target = Handle(array.ctypes.data)
        size = ctypes.c_size_t(self.count)
        if self.count:
            self.driver.call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(self.pointer), size)


@functools.cache
def driver() -> Driver:
    """The driver of this process."""
    return Driver()
