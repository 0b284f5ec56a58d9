"""Generates the fast path of calls with GPU arrays: a Python function for one variant.

The function passes to the driver what `launcher.py` has prepared, after the checks that no call can omit. It
may cost only a few microseconds, of which each loop over arguments would take a part; therefore, as in
`fast_call.py`, it is generated as text in which the loops over arguments are unrolled.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from tdsl.codegen.cuda.device_array import ALIGNED, CUDA, DeviceArray
from tdsl.codegen.cuda.driver import DEFAULT_STREAM, Device
from tdsl.codegen.cuda.streams import selected_stream
from tdsl.codegen.ir.loops import row_major
from tdsl.codegen.runtime.dlpack_exchange import BorrowedTensor, device_word, exchange, kind_word
from tdsl.codegen.runtime.signature import ArrayArg, ScalarArg, Signature

Shape = tuple[int, ...]
FastCall = Callable[[tuple[Any, ...], Any], Any]

# The Python types that `struct` packs directly, by kind of element type; ml_dtypes take the slow path.
_PLAIN = {"f": float, "i": int, "u": int, "b": bool, "e": None}

_HEAD = """\
def call(args, out):
    stream = chosen()
    library = None
    borrowed = spare.pop() if spare else BorrowedTensor()
    try:
        {inputs} = args
"""
_OUTPUTS = """\
        if out is not None:
            {outputs} = out
"""
_ARRAY = """\
        kind = type(a{n})
        if kind is DeviceArray:
            if a{n}.like != like{n}:
                return None
            p{n}, own = a{n}.pointer, a{n}.stream
        else:
            table = exchange(kind)
            if table is None:
                return None
            table.export(a{n}, borrowed.address)
            p{n} = borrowed.data + borrowed.byte_offset
            if (
                borrowed.device != device or borrowed.kind != kind{n} or p{n} % {aligned}
                or borrowed.shape[:{rank}] != shape{n}
                or (borrowed.strides and borrowed.strides[:{rank}] != strides{n})
            ):
                return None
            if table is library:
                own = stream
            else:
                library, own = table, table.stream({cuda}, {ordinal}) or {default}
        if own != stream:
            if stream is not None:
                return None
            stream = own
"""
_TAIL = """\
    except (BufferError, TypeError, ValueError):
        return None  # the slow path reports the error
    finally:
        spare.append(borrowed)
    stream = stream or {default}
"""


def fast_launch(
    signature: Signature, shapes: Mapping[str, Shape], device: Device, start: Callable[..., None]
) -> FastCall:
    """The fast path of a variant: a function of a call's inputs and `out=` that returns the results.

    It returns None if the call needs the slow path. `shapes` has the shapes of the variant's arrays; `start`
    launches the kernels, given addresses and numbers, and a stream.
    """
    namespace: dict[str, Any] = {
        "chosen": selected_stream.get, "spare": _spare, "BorrowedTensor": BorrowedTensor,
        "exchange": exchange, "start": start,
        "DeviceArray": DeviceArray, "device": device_word(CUDA, device.ordinal), "gpu": device,
        "allocate": device.allocate, "error": struct.error,
        "__name__": __name__,  # which `source.here` passes over
    }  # fmt: skip
    for n, arg in enumerate((*signature.inputs, *signature.outputs)):
        namespace[f"plain{n}"] = _PLAIN[arg.dtype.kind]
        if isinstance(arg, ArrayArg):
            shape = shapes[arg.name]
            namespace |= {
                f"like{n}": (shape, arg.dtype.numpy, device), f"kind{n}": kind_word(len(shape), arg.dtype),
                f"shape{n}": list(shape), f"strides{n}": list(row_major(shape)),
                f"tuple{n}": shape, f"type{n}": arg.dtype.numpy,
                f"bytes{n}": prod(shape) * arg.dtype.bytes,
            }  # fmt: skip
    exec(_text(signature, shapes, device), namespace)
    call: FastCall = namespace["call"]
    return call


_spare: list[BorrowedTensor] = []  # reusable, one for each call in progress


def _text(signature: Signature, shapes: Mapping[str, Shape], device: Device) -> str:
    first = len(signature.inputs)
    outputs = range(first, first + len(signature.outputs))
    text = _HEAD.format(inputs=_tuple([f"a{n}" for n in range(first)]))
    for n, arg in enumerate(signature.inputs):
        text += _check(n, arg, shapes, device)
    single = len(outputs) == 1
    text += _OUTPUTS.format(outputs=f"a{first}" if single else _tuple([f"a{n}" for n in outputs]))
    for n, arg in zip(outputs, signature.outputs, strict=True):
        text += _indented(_check(n, arg, shapes, device))
    text += _TAIL.format(default=DEFAULT_STREAM)
    text += "    if out is None:\n"
    for n in outputs:
        text += f"        m{n} = allocate(bytes{n}, stream)\n"
        text += f"        p{n} = m{n}.pointer\n"
        text += f"        r{n} = DeviceArray(gpu, p{n}, tuple{n}, type{n}, m{n}, stream)\n"
    results = [f"r{n}" for n in outputs]
    text += f"        out = {results[0] if single else _tuple(results)}\n"
    overlaps = _overlaps(signature, shapes)
    if overlaps:
        text += f"    elif {' or '.join(overlaps)}:\n        return None\n"
    values = [f"p{n}" for n in range(first + len(outputs))]
    return text + (
        f"    try:\n        start({_tuple(values)}, stream)\n"
        "    except error:\n        return None  # a number that its type does not hold\n"
        "    return out\n"
    )


def _check(n: int, arg: ArrayArg | ScalarArg, shapes: Mapping[str, Shape], device: Device) -> str:
    if isinstance(arg, ScalarArg):
        return f"        p{n} = a{n}\n        if type(p{n}) is not plain{n}:\n            return None\n"
    rank, ordinal = len(shapes[arg.name]), device.ordinal
    return _ARRAY.format(n=n, rank=rank, ordinal=ordinal, aligned=ALIGNED, cuda=CUDA, default=DEFAULT_STREAM)


def _overlaps(signature: Signature, shapes: Mapping[str, Shape]) -> list[str]:
    """Conditions, as text, under which an output shares memory with an earlier array argument."""
    sizes = [
        (n, prod(shapes[arg.name]) * arg.dtype.bytes)
        for n, arg in enumerate((*signature.inputs, *signature.outputs))
        if isinstance(arg, ArrayArg)
    ]
    return [
        f"p{n} < p{m} + {other} and p{m} < p{n} + {size}"
        for n, size in sizes
        for m, other in sizes
        if m < n and n >= len(signature.inputs)
    ]


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def empty_array(device: Device, shape: Shape, dtype: Any, stream: int) -> DeviceArray:
    """A new array, allocated in the order of a stream, whose work may write it."""
    memory = device.allocate(prod(shape) * dtype.itemsize, stream)
    return DeviceArray(device, memory.pointer, shape, dtype, memory, stream)
