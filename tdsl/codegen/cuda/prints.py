"""Lowers print statements to calls of CUDA's printf, prefixed with the block and thread index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tvm import tirx as T  # noqa: N812  # as its own documentation calls it
from tvm.ir import StringImm

from tdsl.codegen.cuda.expressions import Expressions
from tdsl.codegen.gpu.launches import THREAD_PREFIX
from tdsl.codegen.ir.loops import AXES, Message, Print
from tdsl.lang.expr import Expr, dtype_of
from tdsl.lang.types import bool_

TIR = Any


def lower_print(e: Expressions, axes: Mapping[str, TIR], s: Print, message: Message) -> TIR:
    """The TIR of a print statement under its condition; `axes` has the block and thread indices."""
    forms, values = zip(*(_format_and_value(e, x) for x in s.values), strict=True) if s.values else ((), ())
    parts = [part.replace("%", "%%") for part in message.parts]
    text = THREAD_PREFIX.format(*["%d"] * len(AXES[1:])) + "".join(
        part + form for part, form in zip(parts, (*forms, "\n"), strict=True)
    )
    quoted = StringImm(json.dumps(text, ensure_ascii=False)[1:-1])
    call = T.call_extern("int32", "printf", quoted, *(axes[a] for a in AXES[1:]), *values)
    return T.IfThenElse(e.value(s.cond), T.Evaluate(call), None)


def _format_and_value(e: Expressions, x: Expr) -> tuple[str, TIR]:
    """The printf format of a value, and the value cast to the type that this format takes."""
    t, value = dtype_of(x), e.value(x)
    if t == bool_:
        return "%s", e.call("tdsl_word", "handle", value)
    if t.is_float:
        return "%.8g", T.Cast("float64", e.widen(t, value))
    wide, form = ("uint64", "%llu") if t.kind == "u" else ("int64", "%lld")
    return form, T.Cast(wide, value)
