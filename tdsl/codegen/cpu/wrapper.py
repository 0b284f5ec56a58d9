"""Generates the entry point of a kernel for Python: LLVM IR that checks the arguments and runs the kernel.

The entry point is a METH_FASTCALL function that reads the fields of NumPy arrays directly, so a call costs
some 0.05 us. It takes the arrays and scalars of `kernel.params` in order, without the sizes, and returns

    True    the kernel ran
    False   an argument is not exactly what the kernel was compiled for; the kernel did not run
    int     the status of the kernel if it failed

It accepts arrays of exact type numpy.ndarray with the dtype of the parameter in native byte order, aligned,
of its rank, extents and strides; outputs must be writable and contiguous, and share no byte with another
buffer; numbers must be of exact Python types and in range. `codegen/runtime/call.py` handles all other calls.

The IR has two undefined symbols that the linker resolves: `@tdsl_ndarray`, the type object numpy.ndarray, and
`@tdsl_runtime`, the structure passed to the kernel.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tdsl.codegen.ir.loops import (
    Argument,
    BufferParam,
    Kernel,
    ScalarParam,
    SizeParam,
    row_major,
)
from tdsl.codegen.runtime.failure import CHECK_SLOTS
from tdsl.core.node import frozen
from tdsl.lang.expr import Binary, Const, Expr, Size
from tdsl.lang.types import DType

# Byte offsets of the fields of PyObject, of PyArrayObject, and of PyArray_Descr.
_TYPE, _DATA, _RANK, _EXTENTS, _STRIDES, _DESCR, _FLAGS = 8, 16, 24, 32, 40, 56, 64
_BYTE_ORDER, _TYPE_NUMBER = 26, 28
_C_CONTIGUOUS, _F_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x2, 0x100, 0x400


_DECLARATIONS = """\
@tdsl_ndarray = external global i8
@tdsl_runtime = external global i8
@_Py_TrueStruct = external global i8
@_Py_FalseStruct = external global i8
@PyFloat_Type = external global i8
@PyLong_Type = external global i8
declare void @Py_IncRef(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare double @PyFloat_AsDouble(ptr)
"""


@functools.cache
def has_known_array_layout() -> bool:
    """True if arrays of this Python and NumPy have their fields at the offsets that the wrapper reads."""
    if sys.implementation.name != "cpython" or struct.calcsize("P") != 8 or sys.byteorder != "little":
        return False
    a = np.zeros((3, 5, 7), np.float32)[::-1, ::2]
    a.flags.writeable = False
    if np.ndarray.__basicsize__ < _FLAGS + 4 or type(a.dtype).__basicsize__ < _TYPE_NUMBER + 4:
        return False
    pointer, int64, int32 = ctypes.c_void_p.from_address, ctypes.c_int64, ctypes.c_int32
    extents, strides = pointer(id(a) + _EXTENTS).value, pointer(id(a) + _STRIDES).value
    return (
        pointer(id(a) + _TYPE).value == id(np.ndarray)
        and pointer(id(a) + _DATA).value == a.__array_interface__["data"][0]
        and int32.from_address(id(a) + _RANK).value == a.ndim
        and pointer(id(a) + _DESCR).value == id(a.dtype)
        and int32.from_address(id(a) + _FLAGS).value & 0x7FF == a.flags.num & 0x7FF
        and ctypes.c_char.from_address(id(a.dtype) + _BYTE_ORDER).value == b"="
        and int32.from_address(id(a.dtype) + _TYPE_NUMBER).value == a.dtype.num
        and tuple((int64 * a.ndim).from_address(extents or 0)) == a.shape
        and tuple((int64 * a.ndim).from_address(strides or 0)) == a.strides
    )


def _is_checkable(params: Iterable[Argument]) -> bool:
    passed: set[str] = set()
    needed: set[str] = set()
    for param in params:
        match param:
            case BufferParam(_, dtype, extents):
                if dtype.kind == "e" or not all(map(_is_simple, extents)):
                    return False
                passed |= {e.name for e in extents if isinstance(e, Size)}
            case ScalarParam(_, dtype):
                if dtype.is_narrow:
                    return False
            case SizeParam(name):
                needed.add(name)
    return needed <= passed


def _is_simple(e: Expr) -> bool:
    match e:
        case Const() | Size():
            return True
        case Binary("add" | "sub" | "mul" | "min" | "max", left, right):
            return _is_simple(left) and _is_simple(right)
        case Binary("floordiv" | "mod", left, Const(divisor)):
            return divisor > 0 and _is_simple(left)
        case _:
            return False


def wrapper(kernel: Kernel) -> str:
    """The function `@NAME_call` for `@NAME` of the same module, with the declarations that it needs.

    Empty if IR cannot check the arguments: arrays of ml_dtypes, whose NumPy types have no fixed numbers;
    scalars that are narrow floats, which need a library to be rounded; sizes that are the extent of no array;
    a Python or NumPy with other offsets of fields.

    >>> from tdsl.codegen.ir.loops import Block
    >>> "define ptr @f_call(ptr %self, ptr %args, i64 %nargs)" in wrapper(Kernel("f", (), Block(())))
    True
    """
    if not has_known_array_layout() or not _is_checkable(kernel.arguments):
        return ""
    w = _Writer()
    _check_and_run(w, kernel)
    return "\n".join(
        [
            _DECLARATIONS,
            # optnone: optimizing this takes longer than optimizing a small kernel, and saves 2 ns a call.
            f"define ptr @{kernel.name}_call(ptr %self, ptr %args, i64 %nargs) noinline optnone {{",
            "entry:",
            f"  %frame = alloca [{_slot_count(kernel)} x i64], align 8",
            "  %overflow = alloca i32, align 4",
            *w.lines,
            "no:",
            "  call void @Py_IncRef(ptr @_Py_FalseStruct)",
            "  ret ptr @_Py_FalseStruct",
            "}",
            "",
        ]
    )


def _slot_count(kernel: Kernel) -> int:
    strides = sum(p.strides.count(None) for p in kernel.arguments if isinstance(p, BufferParam))
    return len(kernel.arguments) + strides + CHECK_SLOTS


@dataclass
class _Writer:
    lines: list[str] = field(default_factory=list)
    values: int = 0
    blocks: int = 0

    def do(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def v(self, instruction: str) -> str:
        self.values += 1
        self.do(f"%v{self.values} = {instruction}")
        return f"%v{self.values}"

    def load(self, type_: str, base: str, offset: int) -> str:
        return self.v(f"load {type_}, ptr {self.v(f'getelementptr i8, ptr {base}, i64 {offset}')}")

    def block(self, stem: str) -> str:
        self.blocks += 1
        return f"{stem}.{self.blocks}"

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def require(self, *conditions: str) -> None:
        """Branch to %no unless all of some i1 values are true."""
        if not conditions:
            return
        conjunction = conditions[0]
        for condition in conditions[1:]:
            conjunction = self.v(f"and i1 {conjunction}, {condition}")
        next_block = self.block("ok")
        self.do(f"br i1 {conjunction}, label %{next_block}, label %no")
        self.label(next_block)

    def extreme(self, op: str, a: str, b: str) -> str:
        """The smaller (op slt) or larger (op sgt) of two i64."""
        return self.v(f"select i1 {self.v(f'icmp {op} i64 {a}, {b}')}, i64 {a}, i64 {b}")


def _check_and_run(w: _Writer, kernel: Kernel) -> None:
    passed = [param for param in kernel.arguments if not isinstance(param, SizeParam)]
    w.require(w.v(f"icmp eq i64 %nargs, {len(passed)}"))
    objects = [w.load("ptr", "%args", 8 * i) for i in range(len(passed))]
    arrays: list[_Array] = []
    slots: dict[str, list[str]] = {}
    for param, obj in zip(passed, objects, strict=True):
        if isinstance(param, BufferParam):
            arrays.append(_read_array_fields(w, param, obj))
        else:
            slots[param.name] = [_number(w, param.dtype, obj)]
    sizes = _sizes(w, arrays)
    for array in arrays:
        _check_extents(w, array, sizes)
        _check_strides(w, array)
        if array.param.align > 1:
            rest = w.v(f"and i64 {array.data}, {array.param.align - 1}")
            w.require(w.v(f"icmp eq i64 {rest}, 0"))
        slots[array.param.name] = [array.data, *_passed_strides(array)]
    _check_disjoint(w, arrays)
    slots |= {param.name: [sizes[param.name]] for param in kernel.arguments if isinstance(param, SizeParam)}
    for i, value in enumerate(value for param in kernel.arguments for value in slots[param.name]):
        w.do(f"store i64 {value}, ptr {w.v(f'getelementptr i64, ptr %frame, i64 {i}')}")
    _run(w, kernel)


def _run(w: _Writer, kernel: Kernel) -> None:
    thread = w.v("call ptr @PyEval_SaveThread()")
    status = w.v(f"call i64 @{kernel.name}(ptr %frame, ptr @tdsl_runtime)")
    w.do(f"call void @PyEval_RestoreThread(ptr {thread})")
    succeeded, failed = w.block("good"), w.block("failed")
    w.do(f"br i1 {w.v(f'icmp eq i64 {status}, 0')}, label %{succeeded}, label %{failed}")
    w.label(succeeded)
    w.do("call void @Py_IncRef(ptr @_Py_TrueStruct)")
    w.do("ret ptr @_Py_TrueStruct")
    w.label(failed)
    w.do(f"ret ptr {w.v(f'call ptr @PyLong_FromLongLong(i64 {status})')}")


@frozen
class _Array:
    """An array argument: the names of its fields as i64 values, and of its flags as i32."""

    param: BufferParam
    data: str
    extents: tuple[str, ...]
    strides: tuple[str, ...]
    flags: str


def _read_array_fields(w: _Writer, param: BufferParam, obj: str) -> _Array:
    rank = len(param.extents)
    w.require(w.v(f"icmp eq ptr {w.load('ptr', obj, _TYPE)}, @tdsl_ndarray"))
    descr, flags = w.load("ptr", obj, _DESCR), w.load("i32", obj, _FLAGS)
    order = ord("|" if param.dtype.bits == 8 else "=")
    required_flags = _ALIGNED | (_WRITEABLE if param.written else 0)
    set_flags = w.v(f"and i32 {flags}, {required_flags}")
    w.require(
        w.v(f"icmp eq i32 {w.load('i32', obj, _RANK)}, {rank}"),
        w.v(f"icmp eq i32 {w.load('i32', descr, _TYPE_NUMBER)}, {param.dtype.numpy.num}"),
        w.v(f"icmp eq i8 {w.load('i8', descr, _BYTE_ORDER)}, {order}"),
        w.v(f"icmp eq i32 {set_flags}, {required_flags}"),
    )
    extents, strides = w.load("ptr", obj, _EXTENTS), w.load("ptr", obj, _STRIDES)
    return _Array(
        param,
        w.load("i64", obj, _DATA),
        tuple(w.load("i64", extents, 8 * axis) for axis in range(rank)),
        tuple(w.load("i64", strides, 8 * axis) for axis in range(rank)),
        flags,
    )


def _number(w: _Writer, dtype: DType, obj: str) -> str:
    """The slot value of a scalar argument: a bool, int or float object of exact type, in range."""
    if dtype.kind == "b":
        yes = w.v(f"icmp eq ptr {obj}, @_Py_TrueStruct")
        w.require(w.v(f"or i1 {yes}, {w.v(f'icmp eq ptr {obj}, @_Py_FalseStruct')}"))
        return w.v(f"zext i1 {yes} to i64")
    kind = w.load("ptr", obj, _TYPE)
    if dtype.is_integer:
        value = _integer(w, obj, kind)
        low = int(dtype.low)
        high = int(min(dtype.high, (1 << 63) - 1))
        w.require(w.v(f"icmp sge i64 {value}, {low}"), w.v(f"icmp sle i64 {value}, {high}"))
        return value
    from_float, from_int, joined = w.block("float"), w.block("int"), w.block("number")
    w.do(f"br i1 {w.v(f'icmp eq ptr {kind}, @PyFloat_Type')}, label %{from_float}, label %{from_int}")
    w.label(from_float)
    a = w.v(f"call double @PyFloat_AsDouble(ptr {obj})")
    w.do(f"br label %{joined}")
    w.label(from_int)
    b = w.v(f"sitofp i64 {_integer(w, obj, kind)} to double")
    last = w.block("int")
    w.do(f"br label %{last}")
    w.label(last)
    w.do(f"br label %{joined}")
    w.label(joined)
    return _rounded(w, dtype, w.v(f"phi double [{a}, %{from_float}], [{b}, %{last}]"))


def _integer(w: _Writer, obj: str, kind: str) -> str:
    w.require(w.v(f"icmp eq ptr {kind}, @PyLong_Type"))
    value = w.v(f"call i64 @PyLong_AsLongLongAndOverflow(ptr {obj}, ptr %overflow)")
    w.require(w.v(f"icmp eq i32 {w.v('load i32, ptr %overflow')}, 0"))
    return value


def _rounded(w: _Writer, dtype: DType, value: str) -> str:
    if dtype.bits == 64:
        return w.v(f"bitcast double {value} to i64")
    narrow = w.v(f"fptrunc double {value} to float")
    wide = w.v(f"fpext float {narrow} to double")
    same = w.v(f"fcmp oeq double {wide}, {value}")
    below = w.v(f"fcmp une double {wide}, 0x7FF0000000000000")
    above = w.v(f"fcmp une double {wide}, 0xFFF0000000000000")
    w.require(w.v(f"or i1 {same}, {w.v(f'and i1 {below}, {above}')}"))  # no overflow to infinity
    return w.v(f"zext i32 {w.v(f'bitcast float {narrow} to i32')} to i64")


def _sizes(w: _Writer, arrays: Iterable[_Array]) -> dict[str, str]:
    sizes: dict[str, str] = {}
    for array in arrays:
        for e, value in zip(array.param.extents, array.extents, strict=True):
            if isinstance(e, Size):
                sizes.setdefault(e.name, value)
    return sizes


def _check_extents(w: _Writer, array: _Array, sizes: Mapping[str, str]) -> None:
    pairs = [
        (value, _extent(w, e, sizes)) for e, value in zip(array.param.extents, array.extents, strict=True)
    ]
    w.require(*(w.v(f"icmp eq i64 {a}, {b}") for a, b in pairs if a != b))


def _extent(w: _Writer, e: Expr, sizes: Mapping[str, str]) -> str:
    match e:
        case Const(value):
            return str(int(value))
        case Size(name):
            return sizes[name]
        case Binary(op, left, right):
            a, b = _extent(w, left, sizes), _extent(w, right, sizes)
        case _:
            raise AssertionError(f"not an extent: {e!r}")
    if op in ("min", "max"):
        return w.extreme("slt" if op == "min" else "sgt", a, b)
    if op in ("add", "sub", "mul"):
        return w.v(f"{op} i64 {a}, {b}")
    remainder = w.v(f"srem i64 {a}, {b}")
    negative = w.v(f"icmp slt i64 {remainder}, 0")
    if op == "mod":
        return w.v(f"add i64 {remainder}, {w.v(f'select i1 {negative}, i64 {b}, i64 0')}")
    return w.v(f"add i64 {w.v(f'sdiv i64 {a}, {b}')}, {w.v(f'sext i1 {negative} to i64')}")


def _check_strides(w: _Writer, array: _Array) -> None:
    param = array.param
    if _dense(param):
        w.require(_has_flag(w, array, _C_CONTIGUOUS))
        return
    itemsize = param.dtype.bytes
    for axis, stride in enumerate(param.strides):
        if stride is None:
            continue
        is_valid = w.v(f"icmp eq i64 {array.strides[axis]}, {stride * itemsize}")
        short = w.v(f"icmp slt i64 {array.extents[axis]}, 2")
        is_valid = w.v(f"or i1 {is_valid}, {short}")
        if stride == 1 and axis in (0, len(param.strides) - 1):
            # Empty arrays may have any strides; NumPy's contiguity flags ignore them.
            flag = _F_CONTIGUOUS if axis == 0 else _C_CONTIGUOUS
            is_valid = w.v(f"or i1 {is_valid}, {_has_flag(w, array, flag)}")
        w.require(is_valid)
    if param.written:
        # Contiguous arrays have no two elements at the same address.
        w.require(_has_flag(w, array, _C_CONTIGUOUS | _F_CONTIGUOUS))


def _has_flag(w: _Writer, array: _Array, any_of: int) -> str:
    return w.v(f"icmp ne i32 {w.v(f'and i32 {array.flags}, {any_of}')}, 0")


def _dense(param: BufferParam) -> bool:
    fixed = tuple(int(e.value) for e in param.extents if isinstance(e, Const))
    return len(fixed) == len(param.extents) and param.strides == row_major(fixed)


def _passed_strides(array: _Array) -> list[str]:
    pairs = zip(array.param.strides, array.strides, strict=True)
    return [value for constant, value in pairs if constant is None]


def _check_disjoint(w: _Writer, arrays: list[_Array]) -> None:
    if len(arrays) < 2:
        return
    ranges = [_address_range(w, array) for array in arrays]
    for i, array in enumerate(arrays):
        for j, other in enumerate(arrays):
            if array.param.written and (j < i or not other.param.written):
                (low, high), (other_low, other_high) = ranges[i], ranges[j]
                after = w.v(f"icmp uge i64 {low}, {other_high}")
                w.require(w.v(f"or i1 {after}, {w.v(f'icmp uge i64 {other_low}, {high}')}"))


def _address_range(w: _Writer, array: _Array) -> tuple[str, str]:
    """The half-open range of addresses of an array's bytes; too wide for some empty arrays."""
    itemsize = array.param.dtype.bytes
    low, high = array.data, w.v(f"add i64 {array.data}, {itemsize}")
    for extent, stride in zip(array.extents, array.strides, strict=True):
        extent_bytes = w.v(f"mul i64 {w.v(f'sub i64 {extent}, 1')}, {stride}")
        low = w.v(f"add i64 {low}, {w.extreme('slt', extent_bytes, '0')}")
        high = w.v(f"add i64 {high}, {w.extreme('sgt', extent_bytes, '0')}")
    return low, high
