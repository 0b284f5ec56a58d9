"""Calls with arrays that are on a GPU already: those of PyTorch, CuPy, JAX, or of an earlier call.

Kernels are started and not waited for, as these libraries do; what is started later on the default stream
runs after them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tdsl.codegen.arrays import as_array, as_scalar, declared
from tdsl.codegen.binding import bind, bind_outputs, bind_sizes, check_shape, output_shape
from tdsl.codegen.call import Entry
from tdsl.codegen.cuda.driver import Device, Memory, driver
from tdsl.codegen.cuda.executable import CudaExecutable
from tdsl.codegen.dlpack import device_of, exported
from tdsl.codegen.loops import row_major
from tdsl.codegen.signature import ArrayArg, dense
from tdsl.errors import TypeMismatch
from tdsl.source import here

_ALIGNED = 16  # bytes, of the widest access


class DeviceArray:
    """A row-major array on a GPU: what a call gives that was given such arrays.

    Other libraries take it without a copy (`torch.as_tensor(x, device="cuda")`, `cupy.asarray(x)`); `numpy()`
    waits for it and copies it. `owner` keeps the memory.
    """

    def __init__(self, pointer: int, shape: tuple[int, ...], dtype: Any, owner: object) -> None:
        self.pointer, self.shape, self.dtype, self.owner = pointer, shape, np.dtype(dtype), owner
        self.ndim, self.nbytes = len(shape), prod(shape) * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"<DeviceArray of {self.dtype}, shape {self.shape}>"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3, "shape": self.shape, "typestr": self.dtype.str, "strides": None,
            "data": (self.pointer, False),
        }  # fmt: skip

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values, when all kernels before have run."""
        made = np.empty(self.shape, self.dtype)
        Memory.view(driver(), self.pointer, self.nbytes, self.owner).read(made)
        return made


def uses_a_gpu(args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> bool:
    """True for a call with some array that only a GPU can read."""
    outs = out.values() if isinstance(out, dict) else out if isinstance(out, tuple) else (out,)
    return any(map(is_on_a_gpu, (*args, *kwargs.values(), *outs)))


def is_on_a_gpu(value: Any) -> bool:
    """True for an array that only a GPU can read."""
    if isinstance(value, np.ndarray | np.generic | int | float):
        return False
    if hasattr(value, "__cuda_array_interface__"):
        return True
    return hasattr(value, "__dlpack_device__") and (device_of(value) or "").startswith("cuda")


def device_array(arg: ArrayArg, value: Any, device: Device) -> DeviceArray:
    """`value` on the GPU: as it is where it is there, or a copy of one on the CPU.

    Raises TypeMismatch for another element type, and for memory that is not row-major and aligned.
    """
    if not is_on_a_gpu(value):
        array = np.ascontiguousarray(as_array(arg, value))
        memory = device.allocate(array.nbytes)
        memory.fill(array)
        return DeviceArray(memory.pointer, array.shape, array.dtype, memory)
    if isinstance(value, DeviceArray):
        pointer, shape, strides, dtype = value.pointer, value.shape, None, value.dtype
    elif hasattr(value, "__dlpack__"):
        pointer, shape, strides, dtype = exported(value)
    else:
        about = value.__cuda_array_interface__
        pointer, shape, strides = about["data"][0], tuple(about["shape"]), about.get("strides")
        dtype = np.dtype(about["typestr"])
    if dtype != arg.dtype.numpy:
        raise _refused(
            arg, f"has dtype {dtype}, expected {arg.dtype.numpy}", "convert it on the GPU"
        )
    rows = tuple(n * dtype.itemsize for n in row_major(shape))
    if not _is_dense(shape, strides, rows):
        hint = "pass a contiguous copy: x.contiguous(), or cupy.ascontiguousarray(x)"
        raise _refused(arg, f"is not contiguous: strides {strides} bytes", hint)
    if pointer % _ALIGNED:
        raise _refused(arg, f"begins at no multiple of {_ALIGNED} bytes", "pass a copy")
    return DeviceArray(pointer, shape, dtype, value)


def _is_dense(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, rows: tuple[int, ...]
) -> bool:
    if strides is None or 0 in shape:
        return True
    return all(n == 1 or s == own for n, s, own in zip(shape, strides, rows, strict=True))


def _refused(arg: ArrayArg, what: str, hint: str) -> TypeMismatch:
    return TypeMismatch(
        f"{arg.name} {what}", loc=here(), label="this call", related=declared(arg), hint=hint
    )


def call_on_device(
    entry: Entry, args: Sequence[Any], kwargs: dict[str, Any], out: Any,
    find: Callable[[], Device] = lambda: driver().device(),
) -> Any:  # fmt: skip
    """Call a compiled program with arrays on a GPU; the results are there, too."""
    signature, device = entry.signature, find()
    values = bind(signature, args, kwargs)
    given = bind_outputs(signature, out)
    held: dict[str, Any] = {}
    for arg, value in zip(signature.inputs, values, strict=True):
        if isinstance(arg, ArrayArg):
            held[arg.name] = device_array(arg, value, device)
        else:
            held[arg.name] = as_scalar(arg, value)
    for output, value in zip(signature.outputs, given, strict=True):
        if value is not None:
            if not is_on_a_gpu(value):
                raise _refused(output, "in out= is on the CPU", "pass memory of the GPU")
            held[output.name] = device_array(output, value, device)
            _check_apart(output, held)
    arrays = [(arg, held[arg.name]) for arg in signature.arrays if arg.name in held]
    sizes = bind_sizes(arrays)
    for output in signature.outputs:
        shape = output_shape(signature, output, sizes)
        if output.name in held:
            check_shape(output, held[output.name], shape)
        else:
            memory = device.allocate(prod(shape) * output.dtype.bytes)
            held[output.name] = DeviceArray(memory.pointer, shape, output.dtype.numpy, memory)
    fixed = {name: sizes[name] for name in signature.sizes}
    executable = entry.executable(dense(signature, fixed, entry.dynamic))
    assert isinstance(executable, CudaExecutable)
    executable.start(device, {p.name: held[p.name] for p in executable.params})
    results = tuple(
        held[o.name] if value is None else value
        for o, value in zip(signature.outputs, given, strict=True)
    )
    return results[0] if len(results) == 1 else results


def _check_apart(output: ArrayArg, held: dict[str, Any]) -> None:
    own = held[output.name]
    others = {n: x for n, x in held.items() if n != output.name and isinstance(x, DeviceArray)}
    for name, other in others.items():
        first, last = max(own.pointer, other.pointer), own.pointer + own.nbytes
        if first < min(last, other.pointer + other.nbytes):
            raise _refused(output, f"in out= shares memory with {name}", "pass other memory")
