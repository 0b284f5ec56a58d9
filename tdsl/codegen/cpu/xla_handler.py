"""`XlaHandler`: a kernel as a function that XLA calls, by its foreign function interface (FFI).

XLA passes a frame with the buffers of the operands and results. The structures are those of
`xla/ffi/api/c_api.h`, version 0.3 of the interface, which jaxlib ships. XLA asks for this version when the
function is registered, and refuses one that it does not support.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Sequence
from math import prod

from tdsl.codegen.cpu import jit
from tdsl.codegen.cpu.early_exit import NO_MEMORY
from tdsl.codegen.cpu.executable import CpuExecutable
from tdsl.codegen.cpu.ir_types import memory_type
from tdsl.codegen.ir.loops import Argument, BufferParam, ScalarParam
from tdsl.codegen.runtime.failure import CHECK_SLOTS
from tdsl.lang.expr import Const

_INVALID_ARGUMENT, _RESOURCE_EXHAUSTED = 3, 8  # codes of errors, as in absl::Status

_TEXT = """
%buffer = type { i64, ptr, i32, ptr, i64, ptr } ; size, extensions, type, data, rank, extents
%list = type { i64, ptr, i64, ptr, ptr } ; size, extensions, count, types, buffers
%frame = type { i64, ptr, ptr, ptr, i32, %list, %list } ; size, extensions, api, context, stage
%api = type { i64, ptr, %version, ptr, ptr } ; size, extensions, version, internal, create error
%version = type { i64, ptr, i32, i32 } ; size, extensions, major, minor
%metadata = type { i64, %version, i32, i64 } ; size, version, traits, type of state
%asked = type { i64, i32, ptr, ptr } ; size, 1 for metadata, next, metadata
%error = type { i64, ptr, ptr, i32 } ; size, extensions, message, code

declare i64 @kernel(ptr, ptr)
declare ptr @failure(i64, ptr)
@structure = external global i8

; The number of elements of a batch: the product of its leading extents.
define internal i64 @count(ptr %extents, i64 %axes) {
entry:
  br label %next
next:
  %axis = phi i64 [ 0, %entry ], [ %axis.1, %step ]
  %product = phi i64 [ 1, %entry ], [ %product.1, %step ]
  %done = icmp sge i64 %axis, %axes
  br i1 %done, label %end, label %step
step:
  %p = getelementptr i64, ptr %extents, i64 %axis
  %extent = load i64, ptr %p
  %product.1 = mul i64 %product, %extent
  %axis.1 = add i64 %axis, 1
  br label %next
end:
  ret i64 %product
}

; The number of the element that a buffer has for element %n of the batch: its leading extents are those of
; the batch, or 1 where all elements of the batch share its values.
define internal i64 @element(ptr %extents, ptr %batch, i64 %axes, i64 %n) {
entry:
  br label %next
next:
  %axis = phi i64 [ %axes, %entry ], [ %axis.1, %step ]
  %rest = phi i64 [ %n, %entry ], [ %rest.1, %step ]
  %stride = phi i64 [ 1, %entry ], [ %stride.1, %step ]
  %sum = phi i64 [ 0, %entry ], [ %sum.1, %step ]
  %done = icmp sle i64 %axis, 0
  br i1 %done, label %end, label %step
step:
  %axis.1 = sub i64 %axis, 1
  %p = getelementptr i64, ptr %batch, i64 %axis.1
  %count = load i64, ptr %p
  %coordinate = srem i64 %rest, %count
  %rest.1 = sdiv i64 %rest, %count
  %q = getelementptr i64, ptr %extents, i64 %axis.1
  %extent = load i64, ptr %q
  %shared = icmp eq i64 %extent, 1
  %offset = mul i64 %coordinate, %stride
  %added = select i1 %shared, i64 0, i64 %offset
  %sum.1 = add i64 %sum, %added
  %stride.1 = mul i64 %stride, %extent
  br label %next
end:
  ret i64 %sum
}

define ptr @handler(ptr %frame) {
entry:
  %extension.p = getelementptr %frame, ptr %frame, i32 0, i32 1
  %extension = load ptr, ptr %extension.p
  %is.call = icmp eq ptr %extension, null
  br i1 %is.call, label %execute, label %extended
extended:
  %type.p = getelementptr %asked, ptr %extension, i32 0, i32 1
  %type = load i32, ptr %type.p
  %is.asked = icmp eq i32 %type, 1
  br i1 %is.asked, label %answer, label %execute
answer:
  %metadata.p = getelementptr %asked, ptr %extension, i32 0, i32 3
  %metadata = load ptr, ptr %metadata.p
  %major = getelementptr %metadata, ptr %metadata, i32 0, i32 1, i32 2
  store i32 0, ptr %major
  %minor = getelementptr %metadata, ptr %metadata, i32 0, i32 1, i32 3
  store i32 3, ptr %minor
  %traits = getelementptr %metadata, ptr %metadata, i32 0, i32 2
  store i32 0, ptr %traits
  ret ptr null
execute:
  %slots = alloca [SLOTS x i64], align 16
  %values = getelementptr i64, ptr %slots, i64 PARAMS
  %error = alloca %error
  %operands.p = getelementptr %frame, ptr %frame, i32 0, i32 5, i32 4
  %operands = load ptr, ptr %operands.p
  %results.p = getelementptr %frame, ptr %frame, i32 0, i32 6, i32 4
  %results = load ptr, ptr %results.p
LOAD
  %rank.p = getelementptr %buffer, ptr %buffer.FIRST, i32 0, i32 4
  %rank = load i64, ptr %rank.p
  %axes = sub i64 %rank, RANK
  %count = call i64 @count(ptr %extents.FIRST, i64 %axes)
  br label %next
next:
  %n = phi i64 [ 0, %execute ], [ %n.1, %ran ]
  %done = icmp sge i64 %n, %count
  br i1 %done, label %end, label %run
run:
STORE
  %status = call i64 @kernel(ptr %slots, ptr @structure)
  %n.1 = add i64 %n, 1
  %succeeded = icmp eq i64 %status, 0
  br i1 %succeeded, label %ran, label %failed
ran:
  br label %next
end:
  ret ptr null
failed:
  %message = call ptr @failure(i64 %status, ptr %values)
  %no.memory = icmp eq i64 %status, NO_MEMORY
  %code = select i1 %no.memory, i32 EXHAUSTED, i32 INVALID
  store %error { i64 32, ptr null, ptr null, i32 0 }, ptr %error
  %message.p = getelementptr %error, ptr %error, i32 0, i32 2
  store ptr %message, ptr %message.p
  %code.p = getelementptr %error, ptr %error, i32 0, i32 3
  store i32 %code, ptr %code.p
  %api.p = getelementptr %frame, ptr %frame, i32 0, i32 2
  %api = load ptr, ptr %api.p
  %create.p = getelementptr %api, ptr %api, i32 0, i32 4
  %create = load ptr, ptr %create.p
  %created = call ptr %create(ptr %error)
  ret ptr %created
}
"""
_LOAD = """\
  %buffer.p.N = getelementptr ptr, ptr %LIST, i64 AT
  %buffer.N = load ptr, ptr %buffer.p.N
  %data.p.N = getelementptr %buffer, ptr %buffer.N, i32 0, i32 3
  %data.N = load ptr, ptr %data.p.N
  %extents.p.N = getelementptr %buffer, ptr %buffer.N, i32 0, i32 5
  %extents.N = load ptr, ptr %extents.p.N"""
_ELEMENT = """\
  %element.N = call i64 @element(ptr %extents.N, ptr %extents.FIRST, i64 %axes, i64 %n)
  %offset.N = mul i64 %element.N, BYTES
  %at.N = getelementptr i8, ptr %data.N, i64 %offset.N
  %slot.N = getelementptr i64, ptr %slots, i64 N
"""
_STORE_ARRAY = "  store ptr %at.N, ptr %slot.N, align 8"
_STORE_NUMBER = """\
  %number.N = load TYPE, ptr %at.N
  store i64 0, ptr %slot.N, align 8
  store TYPE %number.N, ptr %slot.N, align 8"""


class XlaHandler:
    """The handler of an executable of dense arrays with constant extents, at `address`.

    Operands are the inputs, numbers as arrays of rank 0, and results the outputs. All may have more leading
    extents: those of a batch, or 1 for an operand that its elements share. The kernel runs for each element.
    The code is mapped into memory during the lifetime of this object; XLA reports no end of its use.
    """

    def __init__(self, executable: CpuExecutable) -> None:
        self._executable, self._messages = executable, dict[int, ctypes.Array[ctypes.c_char]]()
        self._failure = _FAILURE(self._message)
        kernel, structure = executable.addresses
        failure = ctypes.cast(self._failure, ctypes.c_void_p).value
        assert failure is not None
        imports = {"kernel": kernel, "structure": structure, "failure": failure}
        file = jit.emit_object(handler_text(executable.params), executable.target, "handler")
        self._code = jit.load(file, ["handler"], imports, "handler")
        self.address = self._code.address("handler")

    def _message(self, status: int, values: int) -> int:
        """The address of the message of a failed call, valid until the next one of this thread."""
        message = ctypes.create_string_buffer(str(self._executable.failure(status, values)).encode())
        self._messages[threading.get_ident()] = message
        return ctypes.addressof(message)


_FAILURE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


def handler_text(params: Sequence[Argument]) -> str:
    """The IR of `@handler`, for a kernel with these parameters."""
    buffers = [p for p in params if isinstance(p, BufferParam | ScalarParam)]
    written = [isinstance(p, BufferParam) and p.written for p in buffers]
    assert len(buffers) == len(params) and sorted(written) == written, "sizes are known, outputs are last"
    first = written.index(True)
    load, store = [], []
    for n, p in enumerate(buffers):
        position, source = (n, "operands") if n < first else (n - first, "results")
        load.append(_filled(_LOAD, N=str(n), LIST=source, AT=str(position)))
        if isinstance(p, ScalarParam):
            text, size, kind = _STORE_NUMBER, p.dtype.bytes, memory_type(p.dtype)
        else:
            assert None not in p.strides, "arrays are dense"
            text, size, kind = _STORE_ARRAY, _bytes(p), "ptr"
        store.append(_filled(_ELEMENT + text, N=str(n), FIRST=str(first), BYTES=str(size), TYPE=kind))
    output = buffers[first]
    assert isinstance(output, BufferParam)
    return _filled(
        _TEXT, SLOTS=str(len(params) + CHECK_SLOTS), PARAMS=str(len(params)), FIRST=str(first),
        RANK=str(len(output.extents)), NO_MEMORY=str(NO_MEMORY), EXHAUSTED=str(_RESOURCE_EXHAUSTED),
        INVALID=str(_INVALID_ARGUMENT), LOAD="\n".join(load), STORE="\n".join(store),
    )  # fmt: skip


def _filled(text: str, **values: str) -> str:
    """The text with a value for each word in capitals."""
    return re.sub(r"\b[A-Z][A-Z_]*\b", lambda word: values[word[0]], text)


def _bytes(p: BufferParam) -> int:
    """The bytes of an array of constant extents."""
    return prod(int(e.value) for e in p.extents if isinstance(e, Const)) * p.dtype.bytes
