"""Lowers invocations of user-declared instructions to calls of the LLVM functions that the user gave."""

from __future__ import annotations

import re

from tdsl.codegen.cpu.builder import Module
from tdsl.codegen.cpu.context import Context
from tdsl.codegen.cpu.emit_expr import access
from tdsl.codegen.ir.loops import Invoke
from tdsl.errors import TargetError

_DEFINED = re.compile(r"^define\b[^@]*@([\w.$]+)\(", re.MULTILINE)


def invoke(cx: Context, s: Invoke) -> None:
    """Call the LLVM function of an instruction with the pointers and strides of its tiles."""
    declared = [i for i in cx.kernel.instructions if getattr(i, "name", None) == s.instruction]
    assert declared, f"no instruction {s.instruction}"
    args = []
    for operand in s.operands:
        buffer = cx.buffers[operand.buffer]
        at = access(cx, operand.buffer, operand.index, certain=True)
        args.append(f"ptr {at.pointer}")
        for axis in operand.axes:
            stride = buffer.strides[axis]
            if isinstance(stride, str) and buffer.dtype.bytes > 1:
                stride = cx.b.v(f"sdiv exact i64 {stride}, {buffer.dtype.bytes}")
            args.append(f"i64 {stride}")
    text = str(getattr(declared[0], "llvm", ""))
    if not text:
        raise TargetError(
            f"instruction {s.instruction!r} has no LLVM code",
            loc=getattr(declared[0], "loc", None),
            label="declared here",
            hint='pass llvm= to td.instruction, or compile for target="python"',
        )
    name = _add_definitions(cx.b.module, text)
    cx.b.do(f"call void @{name}({', '.join(args)})")


def _add_definitions(module: Module, text: str) -> str:
    """Add the functions and declarations in `text` to the module; the name of the first function."""
    names = _DEFINED.findall(text)
    assert names, "an instruction without a define"
    definition: list[str] = []
    for line in text.splitlines():
        if definition or line.startswith("define"):
            definition.append(line)
            if line.startswith("}"):
                module.declare("\n".join(definition))
                definition = []
        elif line.strip() and not line.lstrip().startswith(";"):
            module.declare(line)
    return str(names[0])
