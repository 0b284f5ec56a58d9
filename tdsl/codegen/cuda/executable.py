"""Compiled kernels as a callable that copies NumPy arrays to the GPU and results back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tdsl.codegen.cuda.driver import DEFAULT_STREAM, Device, driver, read
from tdsl.codegen.cuda.launcher import POINTER, Launcher, code_of, module_for, plain
from tdsl.codegen.cuda.record import Module
from tdsl.codegen.cuda.size_formulas import argument_name
from tdsl.codegen.cuda.streams import selected_stream
from tdsl.codegen.ir.loops import Argument, BufferParam, Check, Kernel, ScalarParam
from tdsl.codegen.ir.statements import walk
from tdsl.codegen.runtime.failure import check_error
from tdsl.errors import TdslError
from tdsl.lang.expr import dtype_of
from tdsl.machine.model import Machine


def this_gpu() -> Device:
    """The GPU that kernels run on; TargetError if there is no GPU or no driver."""
    return driver().device()


class Starter(Protocol):
    """Loaded kernels: `start` launches them with addresses and numbers in the order of the parameters."""

    def start(self, values: Sequence[Any], stream: int, *, wait: bool = False) -> None:
        """Launch the kernels on a stream; with `wait`, wait for them, so that an error is of this call."""


class DeviceExecutable(ABC):
    """Kernels as a callable. `find` returns the GPU; CUDA is not loaded before the first run."""

    fast: Callable[..., Any] | None = None

    def __init__(self, params: tuple[Argument, ...], find: Callable[[], Device] = this_gpu) -> None:
        self.params, self._find = params, find

    @abstractmethod
    def launcher(self, device: Device) -> Starter:
        """The kernels loaded on a device, at the first request; TargetError if none of them runs there."""

    def run(self, arguments: Sequence[Any]) -> None:
        """Run the kernels on arrays and scalars in the order of `params`, on copies in GPU memory.

        Raises TargetError if there is no GPU, the GPU has another architecture, or a launch fails.
        """
        device = self._find()
        launcher, stream = self.launcher(device), selected_stream.get() or DEFAULT_STREAM
        values: list[Any] = []
        copies = []
        for p, value in zip(self.params, arguments, strict=True):
            if isinstance(p, BufferParam):
                array = np.ascontiguousarray(value)
                memory = device.allocate(array.nbytes, stream)
                values.append(memory.pointer)
                copies.append((p, value, array, memory))
                if not p.written:
                    memory.fill(array)
            else:
                values.append(plain(value) if isinstance(p, ScalarParam) else int(value))
        launcher.start(values, stream, wait=True)
        for p, value, array, memory in copies:
            if p.written:
                read(device, memory.pointer, array, stream)
                if array is not value:
                    value[...] = array


class CudaExecutable(DeviceExecutable):
    """A compiled module as a callable.

    `others` are the same program for other architectures, one of which runs where the module does not.
    The default schedule is that for `machine`.
    """

    def __init__(
        self, module: Module, params: tuple[Argument, ...], make: Callable[[], Kernel],
        find: Callable[[], Device] = this_gpu, others: Sequence[CudaExecutable] = (),
        machine: Machine | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, find)
        self.module, self.make = module, make
        self.machine = machine
        self.others = tuple(others)
        self._kernel: Kernel | None = None
        self._launchers: dict[int, Launcher] = {}

    @property
    def modules(self) -> tuple[Module, ...]:
        """The modules of all architectures."""
        return (self.module, *(x.module for x in self.others))

    @property
    def kernel(self) -> Kernel:
        """The loop IR that was compiled."""
        if self._kernel is None:
            self._kernel = self.make()
        return self._kernel

    def launcher(self, device: Device) -> Launcher:
        """The launcher of the kernels on a device, loaded at the first request.

        TargetError if none of the modules runs on the device.
        """
        launcher = self._launchers.get(device.ordinal)
        if launcher is None:
            formats = {argument_name(p): _format(p) for p in self.params}
            module = module_for(device, self.modules)
            chosen = next(x for x in (self, *self.others) if x.module is module)
            launcher = self._launchers[device.ordinal] = Launcher(device, module, formats, chosen._failure)
        return launcher

    def _failure(self, site: int, values: bytes) -> TdslError:
        """The error of a failed check that a kernel recorded; `values` has 8 bytes for each value shown."""
        check = next(s for s in walk(self.kernel.body) if isinstance(s, Check) and s.site == site)
        types = [dtype_of(v).numpy for v in check.values]
        shown = [np.frombuffer(values, t, 1, 8 * n)[0] for n, t in enumerate(types)]
        return check_error(self.kernel.messages[site], shown)


def _format(p: Argument) -> str:
    if isinstance(p, BufferParam):
        return POINTER
    return code_of(p.dtype.name if isinstance(p, ScalarParam) else "i64")
