"""Launches the kernels of a module on one GPU, repeatedly and at low cost.

Launch configurations and parameter arrays are prepared once: a call writes its arguments into a block of
memory and passes addresses to the driver. Concurrent calls of several threads use one block each.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tdsl.codegen.cuda.driver import MOST_BLOCK_SHARED, MOST_DYNAMIC_SHARED, Device, Handle, Memory, read
from tdsl.codegen.cuda.record import KernelRecord, Module
from tdsl.codegen.cuda.size_formulas import count_value, sizes_of_arguments
from tdsl.codegen.cuda.tensor_maps import TensorMap
from tdsl.codegen.cuda.timing import fill
from tdsl.codegen.gpu.launches import ARRIVED_BLOCKS, FAILED_CHECK
from tdsl.codegen.gpu.limits import check_grid
from tdsl.core.source import here
from tdsl.errors import TargetError, TdslError
from tdsl.lang.types import from_numpy
from tdsl.machine.devices import arch_for
from tdsl.machine.gpu import capability, is_ptx, runs_on

_SLOT = 8  # bytes of an argument
_CODES = {
    "bool_": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I",
    "u64": "Q", "f8e4m3": "B", "f8e5m2": "B", "f16": "e", "bf16": "H", "f32": "f", "f64": "d",
}  # fmt: skip
POINTER = "Q"
_POINTER = struct.Struct(f"={POINTER}")


def code_of(dtype: str) -> str:
    """The `struct` format of a scalar, padded to a slot of 8 bytes.

    >>> code_of("f32"), code_of("i64")
    ('f4x', 'q')
    """
    code = _CODES[dtype]
    return f"{code}{_SLOT - struct.calcsize(code)}x" if struct.calcsize(code) < _SLOT else code


def plain(value: Any) -> Any:
    """A NumPy scalar as `struct` packs it: a Python number, or the bits of an ml_dtypes float."""
    t = from_numpy(value.dtype)
    return int(value.view(f"u{t.bytes}")) if t.kind == "e" else value.item()


def module_for(device: Device, modules: Sequence[Module]) -> Module:
    """The module for the architecture nearest to that of a device; PTX only if no machine code runs there.

    TargetError if none runs.
    """
    fitting = [m for m in modules if runs_on(m.arch, device.arch)]
    if not fitting:
        known = ", ".join(f"{m.arch} (PTX)" if is_ptx(m.arch) else m.arch for m in modules)
        arch = arch_for(device.arch)
        ending = f"cuda:{arch}" if arch else "cuda:sm_90,sm_120"
        newer = "" if arch else ", whose PTX later GPUs run; the first is sm_75"
        raise TargetError(
            f"these kernels are for {known}, and {device.name} is {device.arch}",
            loc=here(), label="this call", hint=f'td.compile(..., target="{ending}"){newer}',
        )  # fmt: skip
    nearest = max(fitting, key=lambda m: (not is_ptx(m.arch), capability(m.arch), m.arch))
    most = device.attribute(MOST_BLOCK_SHARED) if is_ptx(nearest.arch) else 0
    large = next((k for k in nearest.kernels if k.shared > most), None) if most else None
    if large is not None:
        arch = arch_for(device.arch) or device.arch
        raise TargetError(
            f"kernel {large.name!r} of the PTX for {nearest.arch} takes {large.shared} bytes of shared "
            f"memory, and a block of {device.name} {most} at most",
            loc=here(), label="this call", hint=f'add its architecture: target="cuda:...,{arch}"',
        )  # fmt: skip
    return nearest


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((f"{kind}_{axis}", ctypes.c_uint) for kind in ("grid", "block") for axis in "xyz"),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute with an int as its value."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_int),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


# the kernel may start before the previous kernel of the stream ends
_EARLY = _Attribute(6, 0, 1, b"")  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_COOPERATIVE = _Attribute(2, 0, 1, b"")  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE: all blocks are resident at a time


# a configuration, its address, the function, the address of the parameter array, and the name of the kernel
LaunchRow = tuple[LaunchConfig, int, int | None, int, str]


class ArgumentBlock:
    """Memory for the arguments of one call, and the launch configurations and parameter arrays."""

    def __init__(
        self, kernels: Sequence[KernelRecord], functions: Sequence[Handle], places: dict[str, int]
    ) -> None:
        self.values = ctypes.create_string_buffer(_SLOT * max(len(places), 1))
        first = ctypes.addressof(self.values)
        self.launches: list[LaunchRow] = []
        self._pointers = []
        self.maps: list[tuple[TensorMap, int]] = []  # with the offset of its array's address
        for k, function in zip(kernels, functions, strict=True):
            grid = (n if isinstance(n, int) else 1 for n in k.grid)
            attribute = _EARLY if k.early else _COOPERATIVE if k.cooperative else None
            attributes = ctypes.addressof(attribute) if attribute else None
            config = LaunchConfig(*grid, *k.block, k.shared, None, attributes, int(attribute is not None))
            maps = [TensorMap(tile) for tile in k.maps]
            self.maps += [(m, _SLOT * places[m.tile.array]) for m in maps]
            pointers = (Handle * max(len(k.arguments) + len(maps), 1))(
                *(first + _SLOT * places[name] for name in k.arguments), *(m.address for m in maps)
            )
            self._pointers.append(pointers)
            row = ctypes.addressof(config), function.value, ctypes.addressof(pointers)
            self.launches.append((config, *row, k.name))


class Launcher:
    """The kernels of a module, loaded on a device that runs it; `formats` has the `struct` formats by name.

    `failure` returns the error of a failed check for its site and the values of its message, 8 bytes each.
    """

    def __init__(
        self, device: Device, module: Module, formats: dict[str, str],
        failure: Callable[[int, bytes], TdslError] | None = None,
    ) -> None:  # fmt: skip
        self.device, self.module = device, module
        self._functions = device.load(module.code, [k.name for k in module.kernels])
        for k, function in zip(module.kernels, self._functions, strict=True):
            if k.shared:
                device.driver.call("cuFuncSetAttribute", function, MOST_DYNAMIC_SHARED, k.shared)
        formats = formats | {name: POINTER for name, _ in module.temporaries}
        self._places = {name: n for n, name in enumerate(formats)}
        self._pack = struct.Struct("=" + "".join(formats.values())).pack_into
        self._launch: Any = device.driver.library.cuLaunchKernelEx
        self._launch.argtypes = [Handle] * 4
        self._blocks: list[ArgumentBlock] = []
        counts = [*(n for k in module.kernels for n in k.grid), *(n for _, n in module.temporaries)]
        self._open = any(not isinstance(n, int) for n in counts)  # some depend on sizes
        names = [name for name, _ in module.temporaries]
        self._record = names.index(FAILED_CHECK) if FAILED_CHECK in names else None
        self._zeroed = [names.index(x) for x in (FAILED_CHECK, ARRIVED_BLOCKS) if x in names]
        self._failure = failure

    def start(self, values: Sequence[Any], stream: int, *, wait: bool = False) -> None:
        """Launch the kernels on a stream, with addresses and numbers in the order of `formats`.

        `wait` synchronises after each kernel, so that an error names the kernel that failed. Raises
        TargetError if the driver refuses a launch, and struct.error for a number out of its type's range.
        """
        # temporaries are freed in stream order, after the kernels that use them
        sizes = sizes_of_arguments(dict(zip(self._places, values, strict=False))) if self._open else {}
        temporaries = [
            self.device.allocate(count_value(n, sizes), stream) for _, n in self.module.temporaries
        ]
        for place in self._zeroed:
            fill(temporaries[place], 0, stream)
        try:
            block = self._blocks.pop()
        except IndexError:
            block = self.new_block()
        try:
            self.write(block, (*values, *[m.pointer for m in temporaries]))
            for n, row in enumerate(block.launches):
                if self._open and not self._set_grid(row[0], self.module.kernels[n], sizes):
                    continue
                self.launch(row, stream)
                if wait:
                    self.device.wait(f"kernel {row[-1]!r}", stream)
        finally:
            self._blocks.append(block)
        if self._record is not None:
            self._raise_failure(temporaries[self._record], stream)

    def new_block(self) -> ArgumentBlock:
        """A block for the arguments of calls of the kernels."""
        return ArgumentBlock(self.module.kernels, self._functions, self._places)

    def write(self, block: ArgumentBlock, values: Sequence[Any]) -> None:
        """Write the arguments of a call, and the addresses of the temporaries, to a block."""
        self._pack(block.values, 0, *values)
        for tile, place in block.maps:
            (array,) = _POINTER.unpack_from(block.values, place)
            tile.point_to(self.device.driver, array)

    def launch(self, row: LaunchRow, stream: int) -> None:
        """Launch one kernel of a block on a stream; TargetError if the driver refuses it."""
        config, address, function, pointers, name = row
        config.stream = stream
        status = self._launch(address, function, pointers, None)
        if status:
            arguments = address, function, pointers, None
            self.device.retry(status, self._launch, arguments, f"the launch of kernel {name!r}")

    @property
    def zeroes(self) -> bool:
        """True if a call writes zeros to memory before the kernels, to record failures or arrived blocks."""
        return bool(self._zeroed)

    def _set_grid(self, config: LaunchConfig, kernel: KernelRecord, sizes: dict[str, int]) -> bool:
        """Set the grid of a launch for the sizes of a call; False if the grid has no blocks.

        TargetError for a grid that exceeds the limits of a launch.
        """
        grid = [count_value(n, sizes) for n in kernel.grid]
        check_grid(kernel.name, grid)
        config.grid_x, config.grid_y, config.grid_z = grid
        return all(grid)

    def _raise_failure(self, record: Memory, stream: int) -> None:
        """Raise the error of the first check that failed, if any; waits for all kernels."""
        data = np.empty(record.count, np.uint8)
        read(self.device, record.pointer, data, stream)
        site, values = int(data[:_SLOT].view(np.int64)[0]), data[_SLOT:].tobytes()
        if site and self._failure is not None:
            raise self._failure(site - 1, values)
        if site:
            raise TargetError(
                f"check {site} of kernel {self.module.kernels[-1].name!r} failed",
                loc=here(), label="this call", hint="pass arguments for which the condition holds",
            )  # fmt: skip
