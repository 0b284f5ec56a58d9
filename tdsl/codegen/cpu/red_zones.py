"""Red zones around the memory of kernels, under TDSL_DEBUG=canaries.

Each buffer that a kernel allocates is extended by a zone of BYTES on both sides. Buffer and zones are filled
with a pattern on allocation, and the zones are compared with it when the buffer is freed: a store out of
bounds is an error that names the func. The pattern is a NaN in every float type and a large number in
wide integers, so a load out of bounds, or of uninitialised memory, shows in the results.
"""

from __future__ import annotations

from tdsl.codegen.cpu.context import Context
from tdsl.codegen.cpu.early_exit import emit_failure
from tdsl.codegen.ir.loops import Alloc, Kernel
from tdsl.codegen.ir.statements import walk
from tdsl.codegen.runtime.failure import RED_ZONE_OVERWRITTEN

BYTES = 256  # bytes of one zone; a multiple of the alignment of any buffer

# The bytes of the pattern alternate between 0xff and 0x7f, from an even address on: words of 0x7fff.
_FUNCTIONS = f"""\
define internal void @tdsl.guard(ptr %first, i64 %bytes) noinline nounwind {{
entry:
  %begin = getelementptr i8, ptr %first, i64 {-BYTES}
  %end = add i64 %bytes, {2 * BYTES}
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %after, %next ]
  %at = getelementptr i8, ptr %begin, i64 %k
  %odd = trunc i64 %k to i1
  %byte = select i1 %odd, i8 127, i8 -1
  store i8 %byte, ptr %at
  %after = add i64 %k, 1
  %more = icmp ult i64 %after, %end
  br i1 %more, label %next, label %done
done:
  ret void
}}

define internal i1 @tdsl.touched(ptr %first, i64 %bytes) noinline nounwind {{
entry:
  %begin = getelementptr i8, ptr %first, i64 {-BYTES}
  %inside = add i64 %bytes, {BYTES}
  br label %next
next:
  %n = phi i64 [ 0, %entry ], [ %after, %good ]
  %above = icmp uge i64 %n, {BYTES}
  %skipped = select i1 %above, i64 %bytes, i64 0
  %k = add i64 %n, %skipped
  %at = getelementptr i8, ptr %begin, i64 %k
  %odd = trunc i64 %k to i1
  %want = select i1 %odd, i8 127, i8 -1
  %byte = load i8, ptr %at
  %same = icmp eq i8 %byte, %want
  br i1 %same, label %good, label %bad
good:
  %after = add i64 %n, 1
  %more = icmp ult i64 %after, {2 * BYTES}
  br i1 %more, label %next, label %done
done:
  ret i1 false
bad:
  ret i1 true
}}
"""


def allocated_names(kernel: Kernel) -> tuple[str, ...]:
    """The names of the buffers that a kernel allocates, each once, in the order of the loop IR."""
    return tuple(dict.fromkeys(s.name for s in walk(kernel.body) if isinstance(s, Alloc)))


def fill(cx: Context, block: str, size: str) -> str:
    """Fill both zones and `size` bytes between them with the pattern; the pointer behind the first zone."""
    guard, touched = _FUNCTIONS.split("\n\n")
    cx.b.declare(guard)
    cx.b.declare(touched)
    first = cx.b.v(f"getelementptr i8, ptr {block}, i64 {BYTES}")
    cx.b.do(f"call void @tdsl.guard(ptr {first}, i64 {size})")
    return first


def check(cx: Context, name: str, first: str, size: str) -> None:
    """Fail with the status of the buffer `name` if a zone around it has been overwritten."""
    with cx.b.exit_if(cx.b.get(f"call i1 @tdsl.touched(ptr {first}, i64 {size})")):
        emit_failure(cx, RED_ZONE_OVERWRITTEN - cx.b.module.guarded.index(name), [])
