"""LLVM IR of the entry of an exported kernel: a C function that selects a level and calls the kernel for it.

NAME(inputs, sizes, outputs)     checks the arguments, fills the frame, calls @NAME_LEVEL
NAME_set_threads(count)          how many threads parallel loops use
@init                            when the library is loaded: starts the runtime, asks the processor
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tdsl.codegen.cpu.ir_types import memory_type
from tdsl.codegen.ir.loops import Argument, BufferParam, ScalarParam, SizeParam
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import TargetError
from tdsl.lang.expr import Binary, Const, Expr, Size, const

OK, WRONG_ARGUMENT, FAILED_CHECK, NO_MEMORY, NO_LEVEL = range(5)  # what a call returns


@frozen
class CpuidBits:
    """Bits that a level of x86-64 needs in ecx of leaf 1, ebx of leaf 7, ecx of leaf 80000001, and XCR0."""

    leaf1: int = 0
    leaf7: int = 0
    extended: int = 0
    xcr0: int = 0


def _bits(*numbers: int) -> int:
    return sum(1 << n for n in numbers)


_V2 = _bits(0, 9, 13, 19, 20, 23)  # SSE3, SSSE3, CX16, SSE4.1, SSE4.2, POPCNT
_V3 = _V2 | _bits(12, 22, 27, 28, 29)  # FMA, MOVBE, OSXSAVE, AVX, F16C
X86_LEVELS = {
    "sse2": CpuidBits(),
    "sse4": CpuidBits(_V2),
    "avx2": CpuidBits(_V3, _bits(3, 5, 8), _bits(5), 0x6),  # BMI, AVX2, BMI2; LZCNT
    "avx512": CpuidBits(_V3, _bits(3, 5, 8, 16, 17, 28, 30, 31), _bits(5), 0xE6),  # F, DQ, CD, BW, VL
}
"""The levels that an entry can select, by name, from the oldest processors to the newest."""

_ASK_X86 = """
define internal { i32, i32, i32, i32 } @cpuid(i32 %leaf) {
  %r = call { i32, i32, i32, i32 } asm sideeffect "xchgq %rbx, ${1:q}\\0Acpuid\\0Axchgq %rbx, ${1:q}",
    "={ax},=&r,={cx},={dx},0,2,~{dirflag},~{fpsr},~{flags}"(i32 %leaf, i32 0)
  ret { i32, i32, i32, i32 } %r
}

define internal i32 @xcr0(i1 %allowed) {
entry:
  br i1 %allowed, label %ask, label %none
ask:
  %r = call { i32, i32 } asm sideeffect "xgetbv", "={ax},={dx},{cx},~{dirflag},~{fpsr},~{flags}"(i32 0)
  %low = extractvalue { i32, i32 } %r, 0
  ret i32 %low
none:
  ret i32 0
}
"""


def entry_text(
    name: str, levels: Sequence[str], params: Sequence[Argument], c_params: Sequence[Argument]
) -> str:
    """The IR of the entry of a library with a kernel `@NAME_LEVEL` for each level, oldest first.

    `params` are the parameters of the kernels, `c_params` those of the C function.
    """
    return "\n".join(
        [
            *(f"declare i64 @{name}_{level}(ptr, ptr)" for level in levels),
            _RUNTIME.replace("NAME", name),
            _level_text(levels),
            call_text(name, levels, params, c_params),
        ]
    )


_RUNTIME = """
@runtime = internal global [3 x ptr] [ptr @NAME_tdsl_parallel_for, ptr @ignore, ptr null]
@level = internal global i32 -1
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }]
  [{ i32, ptr, ptr } { i32 65535, ptr @init, ptr null }]
@NAME_tdsl_threads = external global i64
@NAME_tdsl_region = external global ptr

define internal void @ignore(ptr %handle, i64 %site, ptr %values) {
  ret void
}

define internal void @init() {
  %failed = call i32 @NAME_tdsl_pool_start()
  store ptr @NAME_tdsl_pool, ptr @NAME_tdsl_region
  %cores = call i64 @sysconf(i32 84)
  %some = call i64 @llvm.smax.i64(i64 %cores, i64 1)
  store atomic i64 %some, ptr @NAME_tdsl_threads monotonic, align 8
  %child = call i32 @pthread_atfork(ptr null, ptr null, ptr @NAME_tdsl_pool_reset)
  %best = call i32 @ask()
  store i32 %best, ptr @level
  ret void
}

define void @NAME_set_threads(i32 %count) {
  %wide = sext i32 %count to i64
  %some = call i64 @llvm.smax.i64(i64 %wide, i64 1)
  store atomic i64 %some, ptr @NAME_tdsl_threads monotonic, align 8
  ret void
}

declare void @NAME_tdsl_parallel_for(ptr, ptr, i64)
declare i32 @NAME_tdsl_pool_start()
declare void @NAME_tdsl_pool_reset()
declare void @NAME_tdsl_pool(ptr, i64)
declare i64 @sysconf(i32)
declare i32 @pthread_atfork(ptr, ptr, ptr)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
"""


def _level_text(levels: Sequence[str]) -> str:
    """`@ask`: the number of the newest level that this processor and its system have; -1 if none."""
    if levels[0] not in X86_LEVELS:
        return "define internal i32 @ask() {\n  ret i32 0\n}\n"
    lines = [
        _ASK_X86,
        "define internal i32 @ask() {",
        "  %one = call { i32, i32, i32, i32 } @cpuid(i32 1)",
        "  %leaf1 = extractvalue { i32, i32, i32, i32 } %one, 2",
        "  %seven = call { i32, i32, i32, i32 } @cpuid(i32 7)",
        "  %leaf7 = extractvalue { i32, i32, i32, i32 } %seven, 1",
        "  %last = call { i32, i32, i32, i32 } @cpuid(i32 -2147483647)",
        "  %extended = extractvalue { i32, i32, i32, i32 } %last, 2",
        f"  %saves = and i32 %leaf1, {_bits(27)}",
        "  %allowed = icmp ne i32 %saves, 0",
        "  %xcr0 = call i32 @xcr0(i1 %allowed)",
    ]
    best = "-1"
    for n, level in enumerate(levels):
        needed, terms = X86_LEVELS[level], []
        for word in ("leaf1", "leaf7", "extended", "xcr0"):
            mask = getattr(needed, word)
            lines.append(f"  %{word}.{n} = and i32 %{word}, {mask}")
            lines.append(f"  %has.{word}.{n} = icmp eq i32 %{word}.{n}, {mask}")
            terms.append(f"%has.{word}.{n}")
        for m, term in enumerate(terms[1:]):
            before = terms[0] if m == 0 else f"%all.{n}.{m - 1}"
            lines.append(f"  %all.{n}.{m} = and i1 {before}, {term}")
        lines.append(f"  %best.{n} = select i1 %all.{n}.{len(terms) - 2}, i32 {n}, i32 {best}")
        best = f"%best.{n}"
    return "\n".join([*lines, f"  ret i32 {best}", "}", ""])


class _Entry:
    """The lines of the C function, and the IR value of each named size."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def value(self, text: str) -> str:
        """A new IR value."""
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text}")
        return f"%v{self.count}"

    def extent(self, e: Expr) -> str:
        """The IR value of an extent."""
        match e:
            case Const(value):
                return str(int(value))
            case Size(name):
                return f"%size.{name}"
            case Binary("add" | "sub" | "mul" as op, left, right):
                return self.value(f"{op} i64 {self.extent(left)}, {self.extent(right)}")
            case Binary("min" | "max" as op, left, right):
                return self.value(
                    f"call i64 @llvm.s{op}.i64(i64 {self.extent(left)}, i64 {self.extent(right)})"
                )
            case Binary("floordiv", left, Const(k)) if k > 0:
                x = self.extent(left)  # rounded down: of x - k + 1 where x is negative
                lower = self.value(f"sub i64 {x}, {int(k) - 1}")
                negative = self.value(f"icmp slt i64 {x}, 0")
                numerator = self.value(f"select i1 {negative}, i64 {lower}, i64 {x}")
                return self.value(f"sdiv i64 {numerator}, {int(k)}")
            case _:
                from tdsl.lang.show import show_expr

                raise TargetError(
                    f"the extent {show_expr(e)} cannot be computed by an exported function",
                    loc=here(),
                    label="this export",
                    hint="leave the sizes in it out of dynamic=: the library is for fixed ones then",
                )


def call_text(
    name: str, levels: Sequence[str], params: Sequence[Argument], c_params: Sequence[Argument]
) -> str:
    """The IR of the C function: it calls `@NAME_LEVEL` with `@runtime`, for the level numbered `@level`."""
    b = _Entry()
    slots = [slot for p in params for slot in _slots(b, p)]
    wrong = [b.value(f"icmp slt i64 {e}, 0") for e in _distinct_extents(b, params)]
    for p in params:
        if isinstance(p, BufferParam):
            count = "1"
            for e in p.extents:
                count = b.value(f"mul i64 {count}, {b.extent(e)}")
            some, null = b.value(f"icmp ne i64 {count}, 0"), b.value(f"icmp eq ptr %arg.{p.name}, null")
            wrong.append(b.value(f"and i1 {some}, {null}"))
    any_wrong = "false"
    for w in wrong:
        any_wrong = b.value(f"or i1 {any_wrong}, {w}")
    arguments = ", ".join(f"{_c_type(p)} %{_prefix(p)}.{p.name}" for p in c_params)
    cases = " ".join(f"i32 {n}, label %run.{level}" for n, level in enumerate(levels))
    lines = [
        f"define i32 @{name}({arguments}) {{",
        "entry:",
        f"  %frame = alloca [{len(slots) + 16} x i64], align 16",
        *b.lines,
        f"  br i1 {any_wrong}, label %wrong, label %fill",
        "fill:",
        "  %chosen = load i32, ptr @level",
    ]
    for n, (kind, value) in enumerate(slots):
        lines.append(f"  %slot.{n} = getelementptr i64, ptr %frame, i64 {n}")
        lines.append(f"  store i64 0, ptr %slot.{n}, align 8")
        lines.append(f"  store {kind} {value}, ptr %slot.{n}, align 8")
    lines.append(f"  switch i32 %chosen, label %none [ {cases} ]")
    for level in levels:
        lines += [
            f"run.{level}:",
            f"  %status.{level} = call i64 @{name}_{level}(ptr %frame, ptr @runtime)",
            "  br label %done",
        ]
    phi = ", ".join(f"[ %status.{level}, %run.{level} ]" for level in levels)
    lines += [
        "done:",
        f"  %status = phi i64 {phi}",
        "  %failed = icmp sgt i64 %status, 0",
        "  %empty = icmp slt i64 %status, 0",
        f"  %after = select i1 %empty, i32 {NO_MEMORY}, i32 {OK}",
        f"  %result = select i1 %failed, i32 {FAILED_CHECK}, i32 %after",
        "  ret i32 %result",
        f"wrong:\n  ret i32 {WRONG_ARGUMENT}",
        f"none:\n  ret i32 {NO_LEVEL}",
        "}",
    ]
    return "\n".join(lines)


def _slots(b: _Entry, p: Argument) -> Iterable[tuple[str, str]]:
    """The type and value of each slot of a parameter in the frame: a pointer and its strides in bytes."""
    match p:
        case BufferParam():
            strides, stride = list[str](), str(p.dtype.bytes)
            for e in reversed(p.extents):
                strides.insert(0, stride)
                stride = b.value(f"mul i64 {stride}, {b.extent(e)}")
            yield "ptr", f"%arg.{p.name}"
            yield from (("i64", s) for s, known in zip(strides, p.strides, strict=True) if known is None)
        case SizeParam(name):
            yield "i64", f"%size.{name}"
        case ScalarParam(name, dtype):
            yield memory_type(dtype), f"%arg.{name}"


def _distinct_extents(b: _Entry, params: Sequence[Argument]) -> list[str]:
    extents = dict.fromkeys(e for p in params if isinstance(p, BufferParam) for e in p.extents)
    return [b.extent(e) for e in extents if e != const(0) and not isinstance(e, Const)]


def _prefix(p: Argument) -> str:
    return "size" if isinstance(p, SizeParam) else "arg"


def _c_type(p: Argument) -> str:
    match p:
        case BufferParam():
            return "ptr"
        case SizeParam():
            return "i64"
        case ScalarParam(_, dtype):
            return memory_type(dtype)
