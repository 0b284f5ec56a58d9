"""Torch tensors over the memory of NumPy arrays, and arrays over the memory of tensors, without copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.lang.types import BY_NAME, DType, from_numpy

TORCH_TYPES = {
    "bool_": torch.bool,
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "u8": torch.uint8, "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64,
    "f16": torch.float16, "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
}  # fmt: skip
DTYPES = {torch_type: BY_NAME[name] for name, torch_type in TORCH_TYPES.items()}
# NumPy and torch have no common name for these: they meet as unsigned integers of the same width.
_BITS = {"bf16": torch.uint16, "f8e4m3": torch.uint8, "f8e5m2": torch.uint8}

ToArray = Callable[[torch.Tensor], Any]
ToTensor = Callable[[Any], torch.Tensor]


def torch_type(dtype: DType) -> torch.dtype:
    """The torch type of an element type."""
    return TORCH_TYPES[dtype.name]


def has_numpy_type(dtype: DType) -> bool:
    """True if NumPy and torch have a common name for an element type."""
    return dtype.name not in _BITS


def to_array(dtype: DType) -> ToArray:
    """The function that returns an array of this element type over the memory of a CPU tensor.

    A tensor of another type gives an array of that type, which a call refuses.
    """
    if has_numpy_type(dtype):
        numpy: ToArray = torch.Tensor.numpy
        return numpy
    expected, bits, numpy_type = torch_type(dtype), _BITS[dtype.name], dtype.numpy

    def array(tensor: torch.Tensor) -> Any:
        if tensor.dtype != expected or (tensor.requires_grad and torch.is_grad_enabled()):
            return tensor.numpy()  # an array of the other type, or torch's error
        return tensor.view(bits).numpy().view(numpy_type)

    return array


def to_tensor(dtype: DType, has_axes: bool = True) -> ToTensor:
    """The function that returns a tensor over the memory of an array of this element type, or of a scalar."""
    if dtype.name in _BITS:
        expected, bits = torch_type(dtype), np.dtype(f"u{dtype.bytes}")
        return lambda array: torch.from_numpy(np.asarray(array).view(bits)).view(expected)
    return torch.from_numpy if has_axes else lambda scalar: torch.from_numpy(np.asarray(scalar))


def as_tensor(array: Any) -> torch.Tensor:
    """A torch tensor over the memory of an array, of any element type: a result of a CPU or GPU call.

    >>> import numpy as np, tdsl as td
    >>> td.torch.as_tensor(np.ones(3, td.bf16.numpy))
    tensor([1., 1., 1.], dtype=torch.bfloat16)

    TypeMismatch for what is no array.
    """
    if isinstance(array, torch.Tensor):
        return array
    if isinstance(array, np.ndarray | np.generic):
        return to_tensor(from_numpy(array.dtype), isinstance(array, np.ndarray))(array)
    if hasattr(array, "__dlpack__"):
        tensor: torch.Tensor = torch.from_dlpack(array)
        return tensor
    raise TypeMismatch(
        f"a {type(array).__name__} is no array",
        loc=here(),
        label="this call",
        hint="pass an array of NumPy, or one with DLPack",
    )
