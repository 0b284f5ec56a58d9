"""Calls with arrays in GPU memory: those of PyTorch, CuPy, JAX, or results of an earlier call.

Launches are asynchronous, as in these libraries. They run on the stream that `tdsl.cuda.stream` selects,
else on the current stream of the first array's library, else on the legacy default stream. That stream waits
(on the GPU) for the other streams on which arrays of the call are written.

A call takes one of two paths. The fast path serves arguments like those of an earlier call: it performs only
the indispensable checks and writes addresses into a prepared argument block (`launcher.py`). The slow path
reports errors, and prepares the fast path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tdsl.codegen.cuda.device_array import (
    DeviceArray,
    array_error,
    device_array,
    is_on_a_gpu,
    stream_of,
)
from tdsl.codegen.cuda.driver import DEFAULT_STREAM, Device, driver
from tdsl.codegen.cuda.executable import DeviceExecutable
from tdsl.codegen.cuda.fast_launch import FastCall, empty_array, fast_launch
from tdsl.codegen.cuda.launcher import plain
from tdsl.codegen.cuda.streams import selected_stream
from tdsl.codegen.ir.loops import SizeParam
from tdsl.codegen.runtime.arrays import as_scalar
from tdsl.codegen.runtime.binding import bind, bind_outputs, bind_sizes, check_shape, output_shape
from tdsl.codegen.runtime.call import Entry
from tdsl.codegen.runtime.signature import ArrayArg, Specialisation, dense_specialisation

_MAX_RECENT = 4  # variants tried on the fast path


def uses_a_gpu(args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> bool:
    """True for a call with at least one array in GPU memory."""
    outs = out.values() if isinstance(out, dict) else out if isinstance(out, tuple) else (out,)
    return any(map(is_on_a_gpu, (*args, *kwargs.values(), *outs)))


class DeviceCalls:
    """Calls of a program with arrays in GPU memory; `find` returns the GPU of the current thread."""

    def __init__(self, entry: Entry, find: Callable[[], Device] | None = None) -> None:
        self._entry, self._find = entry, find or (lambda: driver().device())
        self._fast_calls: dict[tuple[Specialisation, int, tuple[int, ...]], FastCall] = {}
        self._recent: tuple[FastCall, ...] = ()

    def call_fast(self, args: tuple[Any, ...], out: Any) -> Any:
        """The results of a call on the fast path; None if the call is like no recent one."""
        for call in self._recent:
            result = call(args, out)
            if result is not None:
                return result
        return None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """The results of a call on the slow path; None if all arrays are in CPU memory."""
        return self._call_slow(args, kwargs, out) if uses_a_gpu(args, kwargs, out) else None

    def _call_slow(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        entry, device, signature = self._entry, self._find(), self._entry.signature
        values = bind(signature, args, kwargs)
        outputs = bind_outputs(signature, out)
        stream = _stream(device, (*values, *outputs))
        bound: dict[str, Any] = {}
        for arg, value in zip(signature.inputs, values, strict=True):
            if isinstance(arg, ArrayArg):
                bound[arg.name] = device_array(arg, value, device, stream)
            else:
                bound[arg.name] = as_scalar(arg, value)
        for output, value in zip(signature.outputs, outputs, strict=True):
            if value is not None:
                if not is_on_a_gpu(value):
                    raise array_error(output, "in out= is on the CPU", "pass memory of the GPU")
                bound[output.name] = device_array(output, value, device, stream)
                _check_no_overlap(output, bound)
        arrays = [(arg, bound[arg.name]) for arg in signature.arrays if arg.name in bound]
        sizes = bind_sizes(signature, arrays)
        for output in signature.outputs:
            shape = output_shape(signature, output, sizes)
            if output.name in bound:
                check_shape(output, bound[output.name], shape)
            else:
                bound[output.name] = empty_array(device, shape, output.dtype.numpy, stream)
        fixed = {name: sizes[name] for name in signature.sizes}
        variant = dense_specialisation(signature, fixed, entry.dynamic)
        executable = entry.executable(variant)
        assert isinstance(executable, DeviceExecutable)
        launcher = executable.launcher(device)
        passed = [bound[arg.name] for arg in (*signature.inputs, *signature.outputs)]
        open_ = [fixed[p.name] for p in executable.params if isinstance(p, SizeParam)]

        def start(values: Sequence[Any], stream: int) -> None:
            launcher.start((*values, *open_), stream)

        start([x.pointer if isinstance(x, DeviceArray) else plain(x) for x in passed], stream)
        key = variant, device.ordinal, tuple(open_)
        if key not in self._fast_calls:
            shapes = {name: x.shape for name, x in bound.items() if isinstance(x, DeviceArray)}
            self._fast_calls[key] = fast_launch(signature, shapes, device, start if open_ else launcher.start)
            self._recent = tuple(self._fast_calls.values())[: -_MAX_RECENT - 1 : -1]
        results = tuple(
            bound[o.name] if value is None else value
            for o, value in zip(signature.outputs, outputs, strict=True)
        )
        return results[0] if len(results) == 1 else results


def _stream(device: Device, values: Sequence[Any]) -> int:
    """The stream of a call, after it was made to wait for the streams on which its arrays are written."""
    streams = [s for x in values if is_on_a_gpu(x) and (s := stream_of(x, device))]
    selected = selected_stream.get()
    stream = selected if selected is not None else streams[0] if streams else DEFAULT_STREAM
    for other in dict.fromkeys(streams):
        if other != stream:
            device.wait_for_stream(stream, other)
    return stream


def _check_no_overlap(output: ArrayArg, bound: dict[str, Any]) -> None:
    array = bound[output.name]
    others = {n: x for n, x in bound.items() if n != output.name and isinstance(x, DeviceArray)}
    for name, other in others.items():
        first, last = max(array.pointer, other.pointer), array.pointer + array.nbytes
        if first < min(last, other.pointer + other.nbytes):
            raise array_error(output, f"in out= shares memory with {name}", "pass other memory")
