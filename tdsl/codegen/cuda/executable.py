"""Compiled kernels as a callable: NumPy arrays are copied to the GPU and back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tdsl.codegen.cuda.driver import Device, Handle, driver
from tdsl.codegen.cuda.module import Module
from tdsl.codegen.loops import Argument, BufferParam, Kernel, ScalarParam
from tdsl.errors import TargetError
from tdsl.source import here


class CudaExecutable:
    """The kernels of a module. `find` gives the GPU: nothing of CUDA is loaded before the first run."""

    fast: Callable[..., Any] | None = None

    def __init__(
        self, module: Module, params: tuple[Argument, ...], make: Callable[[], Kernel],
        find: Callable[[], Device] = lambda: driver().device(),
    ) -> None:  # fmt: skip
        self.module, self.params, self._make, self._find = module, params, make, find
        self._kernel: Kernel | None = None
        self._ready: tuple[Device, tuple[Handle, ...]] | None = None

    @property
    def kernel(self) -> Kernel:
        """The loops that were compiled."""
        if self._kernel is None:
            self._kernel = self._make()
        return self._kernel

    def run(self, arguments: Sequence[Any]) -> None:
        """Run on arrays and scalars in the order of `params`.

        Raises TargetError where there is no GPU, it is of another architecture, or a launch fails.
        """
        device, _ = self._loaded()
        held: dict[str, Any] = {}
        arrays: dict[str, Any] = {}
        for p, value in zip(self.params, arguments, strict=True):
            if isinstance(p, BufferParam):
                arrays[p.name] = array = np.ascontiguousarray(value)
                held[p.name] = memory = device.allocate(array.nbytes)
                if not p.written:
                    memory.fill(array)
            else:
                held[p.name] = value
        self.start(device, held)
        device.wait(self.module.kernels[-1].name if self.module.kernels else "")
        for p, value in zip(self.params, arguments, strict=True):
            if isinstance(p, BufferParam) and p.written:
                held[p.name].read(arrays[p.name])
                if arrays[p.name] is not value:
                    value[...] = arrays[p.name]

    def start(self, device: Device, arguments: dict[str, Any]) -> None:
        """Start the kernels on memory of the GPU and scalars, by name."""
        _, functions = self._loaded()
        values: dict[str, Any] = {}
        for p in self.params:
            if isinstance(p, BufferParam):
                values[p.name] = ctypes.c_uint64(arguments[p.name].pointer)
            elif isinstance(p, ScalarParam):
                values[p.name] = _scalar(arguments[p.name], p)
        # giving memory back waits for the kernels that use it
        between = {name: device.allocate(count) for name, count in self.module.temporaries}
        values |= {name: ctypes.c_uint64(memory.pointer) for name, memory in between.items()}
        for k, function in zip(self.module.kernels, functions, strict=True):
            given = [values[name] for name in k.arguments]
            device.launch(k.name, function, k.grid, k.block, k.shared, given)

    def _loaded(self) -> tuple[Device, tuple[Handle, ...]]:
        if self._ready is None:
            device = self._find()
            if not device.runs(self.module.arch):
                raise TargetError(
                    f"these kernels are for {self.module.arch}, and {device.name} is {device.arch}",
                    loc=here(),
                    label="this call",
                    hint=f'td.compile(..., target="cuda:{device.arch}")',
                )
            functions = device.load(self.module.cubin, [k.name for k in self.module.kernels])
            for k, function in zip(self.module.kernels, functions, strict=True):
                device.allow_shared(function, k.shared)
            self._ready = device, functions
        return self._ready


def _scalar(value: Any, p: ScalarParam) -> Any:
    """The bytes of a scalar, as an object whose address is that of the value."""
    data = np.asarray(value, p.dtype.numpy).tobytes()
    return (ctypes.c_char * len(data)).from_buffer_copy(data)
