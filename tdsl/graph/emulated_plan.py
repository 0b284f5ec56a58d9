"""Plans for a GPU run by emulation, with results between kernels in one block of memory as planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tdsl.codegen.emulation.memory_counts import MemoryCounts
from tdsl.codegen.runtime.call import Entry
from tdsl.codegen.runtime.signature import dense_specialisation, parameters
from tdsl.emulation import count_kernels, emulated
from tdsl.errors import Hazard
from tdsl.graph.gpu_plan import GpuPlan
from tdsl.graph.plan import live_buffers
from tdsl.graph.values import Argument, Array, Constant, Operand, Result, Source, View, base_of

_POISON = 0xFF  # in every byte of memory that has no result: floats are NaN
_FREE = -1  # the owner of such memory


def emulate_plan(plan: GpuPlan, arrays: Sequence[Any], out: Any = None) -> Any:
    """The results of a plan for arrays in CPU memory; Hazard for a fault of kernels or of the memory plan."""
    executable: Any = _EmulatedPlan(plan)
    return Entry(plan.signature, frozenset(), lambda _: executable)(*arrays, out=out)


class _EmulatedPlan:
    """A plan as a callable of all arrays, inputs and outputs."""

    fast = None

    def __init__(self, plan: GpuPlan) -> None:
        self.plan = plan
        self.params = parameters(plan.signature, dense_specialisation(plan.signature, {}))
        kernels = {id(step.kernel): step.kernel.per_call for step in plan.steps}
        self._executables = {key: emulated(compiled) for key, compiled in kernels.items()}

    def run(self, arguments: Sequence[Any]) -> None:
        """Run all kernels in order on arrays in the order of the inputs and outputs."""
        memory = _Memory(self.plan, arguments)
        for n, step in enumerate(self.plan.steps):
            outputs = [memory.written(r, n) for r in step.outputs]
            inputs = [memory.read(x, n) for x in step.kernel.select_inputs(step.inputs)]
            self._executables[id(step.kernel)].run([*inputs, *outputs])
            memory.end(n)
        memory.copy_outputs()


class _Memory:
    """The arrays of a call; each 256 bytes of the block for results have an owner, the result there."""

    def __init__(self, plan: GpuPlan, arguments: Sequence[Any]) -> None:
        self._plan, count = plan, len(plan.trace.arguments)
        self._inputs = [np.asarray(x, order="C") for x in arguments[:count]]
        self._targets = list(arguments[count:])
        self._outputs = [x if x.flags.c_contiguous else np.empty_like(x, order="C") for x in self._targets]
        self._block = np.full(plan.memory.peak, _POISON, np.uint8)
        self._owners = np.full(-(-plan.memory.peak // plan.align), _FREE)
        self._live = live_buffers(plan.steps, plan.results, plan.outputs)
        self._numbers = {result: n for n, result in enumerate(self._live)}

    def read(self, x: Operand, step: int) -> Any:
        """The value of an input of a step; Hazard for a result that has been overwritten."""
        if not isinstance(x, Source):
            return x
        base = base_of(x)
        if isinstance(base, Result) and base in self._numbers:
            owners = self._owners[self._units(base)]
            if (owners != self._numbers[base]).any():
                raise Hazard(f"{self._name(step)} reads {self._text(base)}, which has been overwritten")
        array = self._array(base)
        return x.apply(array) if isinstance(x, View) else array

    def written(self, result: Result, step: int) -> Array:
        """The memory of a result that a step writes."""
        if result in self._numbers:
            self._set_owner(result, self._numbers[result])
        return self._array(result)

    def end(self, step: int) -> None:
        """End the life of the results that no later step reads."""
        for result, buffer in self._live.items():
            if buffer.last == step and (self._owners[self._units(result)] == self._numbers[result]).all():
                self._set_owner(result, _FREE)

    def copy_outputs(self) -> None:
        """Copy results to outputs that have gaps."""
        for target, array in zip(self._targets, self._outputs, strict=True):
            if array is not target:
                target[...] = array

    def _array(self, base: Argument | Constant | Result) -> Array:
        match base:
            case Argument(position):
                return self._inputs[position]
            case Constant(number):
                return np.asarray(self._plan.trace.constants[number], order="C")
            case Result() if base in self._plan.outputs.direct:
                array: Array = self._outputs[self._plan.outputs.direct[base]]
                return array.reshape(self._plan.results[base].shape)
            case Result():
                spec = self._plan.results[base]
                offset = self._plan.memory.offsets[base]
                if offset + spec.nbytes > self._block.nbytes:
                    raise Hazard(f"{self._text(base)} exceeds the {self._block.nbytes} bytes of the block")
                return np.ndarray(spec.shape, spec.dtype, self._block.data, offset)

    def _units(self, result: Result) -> slice:
        first, align = self._plan.memory.offsets[result], self._plan.align
        return slice(first // align, -(-(first + self._live[result].nbytes) // align))

    def _set_owner(self, result: Result, owner: int) -> None:
        units = self._units(result)
        self._owners[units] = owner
        self._block[units.start * self._plan.align : units.stop * self._plan.align] = _POISON

    def _name(self, step: int) -> str:
        return f"{self._plan.trace.name}: step {step}, {self._plan.steps[step].program.name},"

    def _text(self, result: Result) -> str:
        return f"{self._plan.results[result]} of call {self._plan.trace.calls[result.call].name}"


def count_plan(
    plan: GpuPlan, arrays: Sequence[Any], blocks: int | None, iterations: int | None
) -> MemoryCounts:
    """The transactions of all steps; without `arrays` the arguments are zeros."""
    samples, accesses = [], []
    for n, step in enumerate(plan.steps):
        values = [_counted(plan, arrays, x) for x in step.kernel.select_inputs(step.inputs)]
        counts = count_kernels(step.kernel.per_call, values, blocks, iterations)
        samples += [replace(s, kernel=f"{n}: {s.kernel}") for s in counts.samples]
        accesses += [replace(a, kernel=f"{n}: {a.kernel}") for a in counts.accesses]
    return MemoryCounts(plan.trace.name, tuple(samples), tuple(accesses))


def _counted(plan: GpuPlan, arrays: Sequence[Any], x: Operand) -> Any:
    """The value of an input; zeros for results, which are never touched where nothing depends on them."""
    if not isinstance(x, Source):
        return x
    base = base_of(x)
    spec = plan.trace.spec_of(base)
    match base:
        case Argument(position) if arrays:
            array = np.asarray(arrays[position], order="C")
        case Constant(number):
            array = np.asarray(plan.trace.constants[number], order="C")
        case _:
            array = np.zeros(spec.shape, spec.dtype)
    return x.apply(array.reshape(spec.shape)) if isinstance(x, View) else array.reshape(spec.shape)
