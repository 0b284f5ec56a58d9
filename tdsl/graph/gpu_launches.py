"""Launches of a plan on a GPU: one block of memory for results, constants copied once, and a CUDA graph.

A call with other addresses than the one before replaces the arguments of those kernels that use them in the
CUDA graph. Nothing is captured where kernels check conditions, since later kernels must not run then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tdsl.codegen.cuda.driver import Device, Memory
from tdsl.codegen.cuda.executable import CudaExecutable, DeviceExecutable, Starter, this_gpu
from tdsl.codegen.cuda.launcher import ArgumentBlock, Launcher, plain
from tdsl.codegen.cuda.size_formulas import count_value
from tdsl.codegen.cuda.stream_capture import CapturedGraph
from tdsl.codegen.runtime.signature import dense_specialisation, parameters
from tdsl.graph.plan import Plan
from tdsl.graph.steps import Step
from tdsl.graph.values import Argument, Array, Base, Constant, Operand, Result, Source, View, base_of
from tdsl.graph.views import dense_offset

_NUMBER = -1  # the base of a value that is no address
Value = tuple[int, Any]  # base: a number in the table of addresses, or _NUMBER; the offset, or the number


class GraphExecutable(DeviceExecutable):
    """The kernels of a plan as a callable of all arrays, inputs and outputs.

    With `capture` their launches are captured as a CUDA graph.
    """

    def __init__(self, plan: Plan, capture: bool, find: Callable[[], Device] = this_gpu) -> None:
        signature = plan.signature
        super().__init__(parameters(signature, dense_specialisation(signature, {})), find)
        self._plan, self._capture = plan, capture
        self._launchers: dict[int, GraphLauncher] = {}

    def launcher(self, device: Device) -> Starter:
        """The kernels, loaded on a device together with the constants, at the first request."""
        if device.ordinal not in self._launchers:
            self._launchers[device.ordinal] = GraphLauncher(device, self._plan, self._capture)
        return self._launchers[device.ordinal]


class GraphLauncher:
    """The kernels of a plan, loaded on a device, and memory of calls, which later calls use again."""

    def __init__(self, device: Device, plan: Plan, capture: bool) -> None:
        self.device, self.name, self.nbytes = device, plan.trace.name, plan.memory.peak
        self.launchers = [_launcher(step, device) for step in plan.steps]
        self.captures = capture and not any(x.zeroes for x in self.launchers)
        self.arguments = len(plan.trace.arguments) + len(plan.outputs.specs)
        self._constants: dict[int, Memory] = {}
        self.constants: list[int] = []  # addresses
        places = _Places(plan, self._constant)
        self.values = [[places.value(x) for x in _operands(step)] for step in plan.steps]
        self._free: list[_Run] = []

    def start(self, values: Sequence[int], stream: int, *, wait: bool = False) -> None:
        """Launch all kernels on a stream, with the addresses of inputs and outputs."""
        try:
            run = self._free.pop()
        except IndexError:
            run = _Run(self, stream)
        try:
            run.start(values, stream, wait)
        finally:
            self._free.append(run)

    def _constant(self, number: int, array: Array) -> int:
        """The place of a constant among the addresses of constants; copies it to the device at first."""
        if number not in self._constants:
            dense = np.asarray(array, order="C")
            memory = self._constants[number] = self.device.allocate(dense.nbytes)
            memory.fill(dense)
            self.constants.append(memory.pointer)
        return [*self._constants].index(number)


class _Run:
    """Memory for a call: results between kernels, arguments, and the CUDA graph that has their addresses."""

    def __init__(self, launcher: GraphLauncher, stream: int) -> None:
        self._launcher, self._stream = launcher, stream
        device = launcher.device
        self._memory = device.allocate(launcher.nbytes, stream)
        spaces = [_offsets(x) for x in launcher.launchers]
        size = max((size for _, size in spaces), default=0) if launcher.captures else 0
        self._space = device.allocate(size, stream)  # for memory between the kernels of a step
        self._temporaries = [[self._space.pointer + offset for offset in offsets] for offsets, _ in spaces]
        self._blocks: list[ArgumentBlock] = [x.new_block() for x in launcher.launchers]
        self._graph: CapturedGraph | None = None
        self._addresses: tuple[int, ...] = ()

    def start(self, addresses: Sequence[int], stream: int, wait: bool) -> None:
        """Launch all kernels on a stream, after the last call with this memory."""
        device = self._launcher.device
        if stream != self._stream:
            device.wait_for_stream(stream, self._stream)
            self._stream = self._memory.stream = self._space.stream = stream  # the one that frees memory
        if not self._launcher.captures:
            for n, launcher in enumerate(self._launcher.launchers):
                launcher.start(self._values(n, addresses), stream, wait=wait)
            return
        if self._graph is None or self._addresses != addresses:
            self._set_addresses(tuple(addresses))
        assert self._graph is not None
        self._graph.start(stream)
        if wait:
            device.wait(f"graph {self._launcher.name!r}", stream)

    def _values(self, step: int, addresses: Sequence[int]) -> list[Any]:
        """The values of a step in a call. Bases are arguments, the block of results, then constants."""
        table = (*addresses, self._memory.pointer, *self._launcher.constants)
        return [x if base == _NUMBER else table[base] + x for base, x in self._launcher.values[step]]

    def _set_addresses(self, addresses: tuple[int, ...]) -> None:
        """Replace the addresses of arguments in the CUDA graph, or capture one."""
        changed = {n for n, (a, b) in enumerate(zip(addresses, self._addresses, strict=False)) if a != b}
        captured, self._addresses = self._graph, ()  # until all are replaced
        number = 0
        for n, (launcher, block) in enumerate(zip(self._launcher.launchers, self._blocks, strict=True)):
            if captured is None or not changed.isdisjoint(base for base, _ in self._launcher.values[n]):
                launcher.write(block, (*self._values(n, addresses), *self._temporaries[n]))
                for k, (config, _, function, pointers, _) in enumerate(block.launches):
                    if captured is not None and not captured.update(number + k, config, function, pointers):
                        captured = None
            number += len(block.launches)
        if captured is None:
            for n, (launcher, block) in enumerate(zip(self._launcher.launchers, self._blocks, strict=True)):
                launcher.write(block, (*self._values(n, addresses), *self._temporaries[n]))
            self._graph = None
            captured = CapturedGraph(self._launcher.device, self._launcher.name, self._launch_all)
        self._graph, self._addresses = captured, addresses

    def _launch_all(self, stream: int, launched: Callable[[], None]) -> None:
        for launcher, block in zip(self._launcher.launchers, self._blocks, strict=True):
            for row in block.launches:
                launcher.launch(row, stream)
                launched()


class _Places:
    """Where the arrays of a plan are: for each a base address, by its number in a call, and an offset."""

    def __init__(self, plan: Plan, constant: Callable[[int, Array], int]) -> None:
        self._plan, self._constant = plan, constant
        self._inputs = len(plan.trace.arguments)
        self._memory = self._inputs + len(plan.outputs.specs)

    def value(self, x: Operand) -> Value:
        """The base and offset of an array, or a number."""
        if not isinstance(x, Source):
            return _NUMBER, plain(x)
        base = base_of(x)
        offset = dense_offset(x, self._plan.trace.spec_of(base)) if isinstance(x, View) else 0
        assert offset is not None, "other views are read by index"
        number, start = self._array(base)
        return number, start + offset

    def _array(self, base: Base) -> tuple[int, int]:
        match base:
            case Argument(position):
                return position, 0
            case Constant(number):
                return self._memory + 1 + self._constant(number, self._plan.trace.constants[number]), 0
            case Result() if base in self._plan.outputs.direct:
                return self._inputs + self._plan.outputs.direct[base], 0
            case Result():
                return self._memory, self._plan.memory.offsets[base]


def _operands(step: Step) -> tuple[Operand, ...]:
    """The values of a kernel in the order of its parameters."""
    return (*step.kernel.select_inputs(step.inputs), *step.outputs)


def _launcher(step: Step, device: Device) -> Launcher:
    compiled = step.kernel.per_call
    executable = compiled.executable(dense_specialisation(compiled.signature, {}))
    assert isinstance(executable, CudaExecutable)
    return executable.launcher(device)


def _offsets(launcher: Launcher) -> tuple[list[int], int]:
    """The offsets of the memory between the kernels of a step, and the size of all."""
    offsets, size = [], 0
    for _, count in launcher.module.temporaries:
        offsets.append(size)
        size += -(-count_value(count, {}) // 256) * 256
    return offsets, size
