"""`call_signature`: the signature of a compiled program as Python shows it."""

from __future__ import annotations

import inspect
from keyword import iskeyword
from typing import Any

from tdsl.codegen.runtime.signature import ArrayArg, ScalarArg, Signature
from tdsl.lang.expr import Const, Expr
from tdsl.lang.show import show_expr
from tdsl.lang.types import TensorType


def call_signature(signature: Signature) -> inspect.Signature:
    """The parameters of a call for `inspect.signature`, help and completion, with the types of arguments.

    >>> from tdsl.lang.expr import Size, const
    >>> from tdsl.lang.types import f32
    >>> x = ArrayArg("x", f32, (Size("N"), const(4)))
    >>> str(call_signature(Signature("f", (x, ScalarArg("c", f32)), (x,))))
    "(x: f32['N', 4], c: f32, *, out: Any = None)"
    """

    def annotation(arg: ArrayArg | ScalarArg) -> Any:
        if isinstance(arg, ScalarArg):
            return arg.dtype
        return TensorType(arg.dtype, tuple(_written(e) for e in arg.shape))

    named = all(a.name.isidentifier() and not iskeyword(a.name) for a in signature.inputs)
    names = [a.name if named else f"array_{n}" for n, a in enumerate(signature.inputs)]  # of a graph: p[0]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    given = [
        inspect.Parameter(n, kind, annotation=annotation(a))
        for n, a in zip(names, signature.inputs, strict=True)
    ]
    out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Any)
    return inspect.Signature([*given, out])


def _written(extent: Expr) -> int | str:
    return int(extent.value) if isinstance(extent, Const) else show_expr(extent)
