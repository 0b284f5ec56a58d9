"""Tensor maps (CUtensorMap): TMA descriptors of boxes of an array, encoded by the driver."""

from __future__ import annotations

import ctypes

from tdsl.codegen.cuda.driver import Driver
from tdsl.codegen.gpu.tensor_map_specs import TensorMapSpec
from tdsl.codegen.ir.loops import row_major
from tdsl.core.node import frozen
from tdsl.lang.types import BY_NAME

_BYTES, _ALIGN = 128, 64  # size and alignment of a CUtensorMap, in bytes
# CUtensorMapDataType; copies depend only on the size of the type
_TYPES = {
    "u8": 0, "i8": 0, "bool_": 0, "u16": 1, "i16": 1, "u32": 2, "i32": 3, "u64": 4, "i64": 5, "f16": 6,
    "f32": 7, "f64": 8, "bf16": 9, "f8e4m3": 0, "f8e5m2": 0,
}  # fmt: skip
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle
_L2_128B = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B


@frozen
class TensorMapEncoding:
    """The arguments of `cuTensorMapEncodeTiled` for an array: innermost dimensions first, strides in bytes.

    `strides` leaves out the innermost one, and has a zero if there is no other.
    """

    dtype: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


def encoding_of(tile: TensorMapSpec) -> TensorMapEncoding:
    """The arguments with which the driver encodes a tensor map."""
    size = BY_NAME[tile.dtype].bytes
    strides = [n * size for n in reversed(row_major(tile.shape)[:-1])] or [0]
    return TensorMapEncoding(
        _TYPES[tile.dtype], tile.shape[::-1], tuple(strides), tile.box[::-1], _SWIZZLES[tile.swizzle]
    )


class TensorMap:
    """The tensor map of an array for boxes of one shape, at a fixed aligned `address`."""

    def __init__(self, tile: TensorMapSpec) -> None:
        self.tile, self._of = tile, 0
        self._memory = ctypes.create_string_buffer(_BYTES + _ALIGN)
        first = ctypes.addressof(self._memory)
        self.address = first + -first % _ALIGN

    def point_to(self, driver: Driver, array: int) -> None:
        """Encode the map for the array at an address, unless it already is."""
        if array == self._of:
            return
        e = encoding_of(self.tile)
        rank = len(e.extents)
        driver.call(
            "cuTensorMapEncodeTiled", ctypes.c_void_p(self.address), e.dtype,
            ctypes.c_uint32(rank), ctypes.c_void_p(array),
            (ctypes.c_uint64 * rank)(*e.extents), (ctypes.c_uint64 * len(e.strides))(*e.strides),
            (ctypes.c_uint32 * rank)(*e.box), (ctypes.c_uint32 * rank)(*[1] * rank),
            0, e.swizzle, _L2_128B, 0, doing=f"the tensor map of {self.tile.array!r}",
        )  # fmt: skip
        self._of = array
