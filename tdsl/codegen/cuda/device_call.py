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
    device_array,
    is_on_a_gpu,
    refused,
    stream_of,
)
from tdsl.codegen.cuda.driver import DEFAULT_STREAM, Device, driver
from tdsl.codegen.cuda.executable import CudaExecutable
from tdsl.codegen.cuda.fast_launch import FastCall, fast_launch, made
from tdsl.codegen.cuda.launcher import plain
from tdsl.codegen.cuda.streams import chosen
from tdsl.codegen.ir.loops import SizeParam
from tdsl.codegen.runtime.arrays import as_scalar
from tdsl.codegen.runtime.binding import bind, bind_outputs, bind_sizes, check_shape, output_shape
from tdsl.codegen.runtime.call import Entry
from tdsl.codegen.runtime.signature import ArrayArg, Specialisation, dense_specialisation

_KEPT = 4  # variants tried on the fast path


def uses_a_gpu(args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> bool:
    """True for a call with at least one array in GPU memory."""
    outs = out.values() if isinstance(out, dict) else out if isinstance(out, tuple) else (out,)
    return any(map(is_on_a_gpu, (*args, *kwargs.values(), *outs)))


class DeviceCalls:
    """Calls of a program with arrays in GPU memory; `find` returns the GPU of the current thread."""

    def __init__(self, entry: Entry, find: Callable[[], Device] | None = None) -> None:
        self._entry, self._find = entry, find or (lambda: driver().device())
        self._known: dict[tuple[Specialisation, int, tuple[int, ...]], FastCall] = {}
        self._recent: tuple[FastCall, ...] = ()

    def again(self, args: tuple[Any, ...], out: Any) -> Any:
        """The results of a call on the fast path; None if the call is like no recent one."""
        for quick in self._recent:
            found = quick(args, out)
            if found is not None:
                return found
        return None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """The results of a call on the slow path; None if all arrays are in CPU memory."""
        return self._slow(args, kwargs, out) if uses_a_gpu(args, kwargs, out) else None

    def _slow(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        entry, device, signature = self._entry, self._find(), self._entry.signature
        values = bind(signature, args, kwargs)
        given = bind_outputs(signature, out)
        stream = _stream(device, (*values, *given))
        held: dict[str, Any] = {}
        for arg, value in zip(signature.inputs, values, strict=True):
            if isinstance(arg, ArrayArg):
                held[arg.name] = device_array(arg, value, device, stream)
            else:
                held[arg.name] = as_scalar(arg, value)
        for output, value in zip(signature.outputs, given, strict=True):
            if value is not None:
                if not is_on_a_gpu(value):
                    raise refused(output, "in out= is on the CPU", "pass memory of the GPU")
                held[output.name] = device_array(output, value, device, stream)
                _check_apart(output, held)
        arrays = [(arg, held[arg.name]) for arg in signature.arrays if arg.name in held]
        sizes = bind_sizes(signature, arrays)
        for output in signature.outputs:
            shape = output_shape(signature, output, sizes)
            if output.name in held:
                check_shape(output, held[output.name], shape)
            else:
                held[output.name] = made(device, shape, output.dtype.numpy, stream)
        fixed = {name: sizes[name] for name in signature.sizes}
        variant = dense_specialisation(signature, fixed, entry.dynamic)
        executable = entry.executable(variant)
        assert isinstance(executable, CudaExecutable)
        launcher = executable.launcher(device)
        passed = [held[arg.name] for arg in (*signature.inputs, *signature.outputs)]
        open_ = [fixed[p.name] for p in executable.params if isinstance(p, SizeParam)]

        def start(values: Sequence[Any], stream: int) -> None:
            launcher.start((*values, *open_), stream)

        start([x.pointer if isinstance(x, DeviceArray) else plain(x) for x in passed], stream)
        key = variant, device.ordinal, tuple(open_)
        if key not in self._known:
            shapes = {name: x.shape for name, x in held.items() if isinstance(x, DeviceArray)}
            self._known[key] = fast_launch(
                signature, shapes, device, start if open_ else launcher.start
            )
            self._recent = tuple(self._known.values())[: -_KEPT - 1 : -1]
        results = tuple(
            held[o.name] if value is None else value
            for o, value in zip(signature.outputs, given, strict=True)
        )
        return results[0] if len(results) == 1 else results


def _stream(device: Device, values: Sequence[Any]) -> int:
    """The stream of a call, after it was made to wait for the streams on which its arrays are written."""
    own = [s for x in values if is_on_a_gpu(x) and (s := stream_of(x, device))]
    asked = chosen.get()
    stream = asked if asked is not None else own[0] if own else DEFAULT_STREAM
    for other in dict.fromkeys(own):
        if other != stream:
            device.follow(stream, other)
    return stream


def _check_apart(output: ArrayArg, held: dict[str, Any]) -> None:
    own = held[output.name]
    others = {n: x for n, x in held.items() if n != output.name and isinstance(x, DeviceArray)}
    for name, other in others.items():
        first, last = max(own.pointer, other.pointer), own.pointer + own.nbytes
        if first < min(last, other.pointer + other.nbytes):
            raise refused(output, f"in out= shares memory with {name}", "pass other memory")
