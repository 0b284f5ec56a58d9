"""`GpuPlan`: a graph compiled for a GPU: kernels that take whole arrays, launched in order on one stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tdsl.codegen.cuda.device_array import ALIGNED, is_on_a_gpu, shape_and_type
from tdsl.codegen.cuda.device_call import DeviceCalls
from tdsl.codegen.runtime.call import Entry
from tdsl.compile import compile
from tdsl.folded_kernel import FoldedKernel
from tdsl.graph.elementwise import record_copy
from tdsl.graph.gpu_launches import GraphExecutable
from tdsl.graph.groups import Groups, is_unscheduled
from tdsl.graph.kernels import mark_constants
from tdsl.graph.merge import merge
from tdsl.graph.plan import KernelCompiler, Plan, assign_outputs, group_name, stored_results
from tdsl.graph.steps import Step
from tdsl.graph.symbol import Symbol
from tdsl.graph.trace import Trace
from tdsl.graph.values import Result, Source, Spec, View, as_array
from tdsl.graph.views import dense_offset
from tdsl.schedule.bind import bind_state
from tdsl.target import Target
from tdsl.tilegraph.schedule import Schedule


class GpuPlan(Plan):
    """A plan for a GPU; `capture` is true if its launches are captured as a CUDA graph.

    Results between kernels are in one block of GPU memory, at offsets by liveness.
    """

    align = 256  # bytes, as of cudaMalloc

    def __init__(
        self, trace: Trace, outputs: Sequence[Source], groups: Groups, paths: Sequence[str],
        compile_kernel: KernelCompiler, target: Target, capture: bool,
    ) -> None:  # fmt: skip
        self.target, self.capture = target, capture
        super().__init__(trace, outputs, groups, paths, compile_kernel)

    def _build_steps(self, compile_kernel: KernelCompiler) -> tuple[Step, ...]:
        """A step for each group, whose kernel reads a view without gaps as an array, others by index."""
        calls, base_spec, steps = self.trace.calls, self.trace.spec_of, list[Step]()
        stored = stored_results(calls, self.sources, self.groups)

        def is_input(view: View) -> bool:
            offset = dense_offset(view, base_spec(view.base))
            return offset is not None and offset % ALIGNED == 0

        for group in self.groups:
            results = [Result(n, k) for n in group for k in range(len(calls[n].results))]
            kept = [r for r in results if r in stored] or results
            merged = merge(calls, group, kept, group_name(calls, group), base_spec, is_input)
            first, program = calls[group[0]], mark_constants(merged.program, ())
            if is_unscheduled(first):
                kernel = compile_kernel(program, None)
            else:
                state = replace(bind_state(first.compiled.state, first.sizes), program=program)
                compiled = compile(Schedule.of_state(state), target=self.target)
                kernel = FoldedKernel(program.parameters, compiled)
            steps.append(Step(kernel, program, merged.inputs, merged.outputs))
        return tuple(steps)

    def _prepare_calls(self) -> None:
        self.executable = executable = GraphExecutable(self, self.capture)
        self._calls = Entry(self.signature, frozenset(), lambda _: executable)  # type: ignore[arg-type,return-value]  # several kernels
        self._device_calls = DeviceCalls(self._calls)

    def call(self, arrays: tuple[Any, ...]) -> Any:
        """The outputs, on the GPU if one of the arrays is there; None for arrays of other shapes or types."""
        result = self._device_calls.call_fast(arrays, None)
        if result is not None:
            return result
        if any(array_and_spec(x)[1] != spec for x, spec in zip(arrays, self.trace.arguments, strict=True)):
            return None
        results = self.write(arrays, None)
        return results[0] if len(results) == 1 else results

    def write(self, arrays: Sequence[Any], out: Any) -> tuple[Any, ...]:
        """The outputs, written to the arrays in `out`; see `td.compile`."""
        result = self._device_calls.call_fast(tuple(arrays), out)
        if result is None:
            result = self._device_calls(tuple(arrays), {}, out)
        if result is None:
            result = self._calls(*arrays, out=out)
        return (result,) if len(self.outputs.specs) == 1 else tuple(result)


def array_and_spec(x: Any) -> tuple[Any, Spec]:
    """An array of any library as calls take it, and its spec; a placeholder for a type."""
    if is_on_a_gpu(x):
        return x, Spec(*shape_and_type(x))
    array = as_array(x)
    return array, Spec(array.shape, array.dtype)


def with_copies(trace: Trace, outputs: Sequence[Source]) -> list[Source]:
    """The outputs of a graph, with copies recorded for those that no kernel would write otherwise."""
    copied = assign_outputs(trace, outputs).copied
    return [
        record_copy(
            Symbol(trace, source, source.spec if isinstance(source, View) else trace.spec_of(source))
        ).source
        if n in copied
        else source
        for n, source in enumerate(outputs)
    ]  # fmt: skip
