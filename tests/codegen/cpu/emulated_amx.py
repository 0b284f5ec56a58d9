"""AMX for machines without it: code for the level "amx" with its tile registers in memory.

The intrinsics in the text of a kernel become calls of the functions below, which know one set of registers:
such a kernel runs on one thread. A tile instruction without a configuration does nothing.
"""

from __future__ import annotations

import re

import numpy as np

import tdsl as td
from tdsl.codegen.cpu.executable import CpuExecutable, text_of
from tdsl.codegen.cpu.runtime import set_num_threads
from tdsl.codegen.ir.loops import BufferParam
from tdsl.machine.cpu import host, level
from tdsl.machine.threads import num_threads
from tdsl.pipeline import make_kernel

NEEDED = level("amx").has - {"amx-tile", "amx-bf16", "amx-int8"}
INTRINSIC = re.compile(r"@llvm\.x86\.((?:tile|tdp|ldtile|sttile)\w+)")

REGISTERS = """
@emulated.tiles = internal global [8192 x i8] zeroinitializer, align 64
@emulated.shapes = internal global [64 x i8] zeroinitializer, align 64
define internal i1 @emulated.ready() {
  %palette = load i8, ptr @emulated.shapes
  %ready = icmp eq i8 %palette, 1
  ret i1 %ready
}
define internal ptr @emulated.row(i8 %tile, i64 %row) {
  %wide = zext i8 %tile to i64
  %first = mul i64 %wide, 1024
  %offset = mul i64 %row, 64
  %at = add i64 %first, %offset
  %p = getelementptr i8, ptr @emulated.tiles, i64 %at
  ret ptr %p
}
define internal void @emulated.ldtilecfg(ptr %p) {
  %x = load <64 x i8>, ptr %p, align 1
  store <64 x i8> %x, ptr @emulated.shapes
  store [8192 x i8] zeroinitializer, ptr @emulated.tiles
  ret void
}
define internal void @emulated.sttilecfg(ptr %p) {
  %x = load <64 x i8>, ptr @emulated.shapes
  store <64 x i8> %x, ptr %p, align 1
  ret void
}
"""

MOVE = """
define internal void @emulated.NAME(i8 %tile, ptr %p, i64 %stride) {
entry:
  %ready = call i1 @emulated.ready()
  br i1 %ready, label %next, label %done
next:
  %r = phi i64 [0, %entry], [%more, %next]
  %at = mul i64 %r, %stride
  %memory = getelementptr i8, ptr %p, i64 %at
  %row = call ptr @emulated.row(i8 %tile, i64 %r)
  %x = load <64 x i8>, ptr FROM, align 1
  store <64 x i8> %x, ptr TO, align 1
  %more = add i64 %r, 1
  %go = icmp ult i64 %more, 16
  br i1 %go, label %next, label %done
done:
  ret void
}
"""

# one row of the result, one group of `contiguous` neighbours at a time
PRODUCT = """
define internal void @emulated.NAME(i8 %c, i8 %a, i8 %b) {
entry:
  %ready = call i1 @emulated.ready()
  br i1 %ready, label %next, label %done
next:
  %n = phi i64 [0, %entry], [%more, %next]
  %i = lshr i64 %n, 4
  %q = and i64 %n, 15
  %pc = call ptr @emulated.row(i8 %c, i64 %i)
  %pa = call ptr @emulated.row(i8 %a, i64 %i)
  %pb = call ptr @emulated.row(i8 %b, i64 %q)
  %first = mul i64 %q, BESIDE
  %sum0 = load <16 x WIDE>, ptr %pc, align 4
  %bs = load <SOME x SMALL>, ptr %pb, align 4
TERMS
  store <16 x WIDE> %sumBESIDE, ptr %pc, align 4
  %more = add i64 %n, 1
  %go = icmp ult i64 %more, 256
  br i1 %go, label %next, label %done
done:
  ret void
}
"""

TERM = """
  %kT = add i64 %first, T
  %paT = getelementptr SMALL, ptr %pa, i64 %kT
  %aT = load SMALL, ptr %paT
  %wideT = LEFT SMALL %aT to WIDE
  %oneT = insertelement <16 x WIDE> poison, WIDE %wideT, i64 0
  %leftT = shufflevector <16 x WIDE> %oneT, <16 x WIDE> poison, <16 x i32> zeroinitializer
  %laneT = shufflevector <SOME x SMALL> %bs, <SOME x SMALL> poison, <16 x i32> <LANES>
  %rightT = RIGHT <16 x SMALL> %laneT to <16 x WIDE>
  %productT = MUL <16 x WIDE> %leftT, %rightT
  %sumNEXT = ADD <16 x WIDE> %sumT, %productT
"""

EXTEND = {"s": "sext", "u": "zext"}


def _filled(text: str, **words: object) -> str:
    for word, value in words.items():
        text = text.replace(word, str(value))
    return text


def _product(name: str) -> str:
    floats = name == "tdpbf16ps"
    contiguous, small, wide = (2, "bfloat", "float") if floats else (4, "i8", "i32")
    left, right = ("fpext", "fpext") if floats else (EXTEND[name[4]], EXTEND[name[5]])
    mul, add = ("fmul", "fadd") if floats else ("mul", "add")
    terms = ""
    for t in range(contiguous):
        lanes = ", ".join(f"i32 {contiguous * j + t}" for j in range(16))
        term = _filled(TERM, LANES=lanes, LEFT=left, RIGHT=right, MUL=mul, ADD=add, NEXT=t + 1)
        terms += re.sub(r"(?<=[a-z, ])T\b|(?<=[a-z])T\b", str(t), term)
    return _filled(
        PRODUCT,
        NAME=name,
        TERMS=terms,
        BESIDE=contiguous,
        SOME=16 * contiguous,
        SMALL=small,
        WIDE=wide,
    )


def emulated(text: str) -> str:
    """The IR text of a kernel with AMX as calls of functions that stand beside it."""
    used = {m[1] for m in INTRINSIC.finditer(text)}
    kept = [line for line in text.splitlines() if not (line.startswith("declare") and INTRINSIC.search(line))]
    instances = [REGISTERS]
    for name in sorted(used):
        match name:
            case "tileloadd64":
                instances.append(_filled(MOVE, NAME=name, FROM="%memory", TO="%row"))
            case "tilestored64":
                instances.append(_filled(MOVE, NAME=name, FROM="%row", TO="%memory"))
            case "ldtilecfg" | "sttilecfg":
                pass
            case _:
                instances.append(_product(name))
    return INTRINSIC.sub(r"@emulated.\1", "\n".join(kept)) + "\n".join(instances)


def run_emulated(f: td.Compiled, *arrays: np.ndarray, **sizes: int) -> np.ndarray:
    """The first result of a program compiled for "cpu:amx", whose tile registers are emulated."""
    kernel = make_kernel(f.variant(f.specialisation(sizes)))
    code = CpuExecutable(kernel, emulated(text_of(kernel, level("amx"))), host())
    out = next(p for p in kernel.params if isinstance(p, BufferParam) and p.written)
    shape = tuple(int(e.value) for e in out.extents)
    result = np.full(shape, 77, out.dtype.numpy)
    before = num_threads()
    set_num_threads(1)
    try:
        code.run([*arrays, result])
    finally:
        set_num_threads(before)
    return result
