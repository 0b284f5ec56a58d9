"""The parameters of exported functions in C: their order, types, names, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tdsl.codegen.ir.loops import Argument, BufferParam, ScalarParam, SizeParam
from tdsl.codegen.runtime.signature import ArrayArg
from tdsl.lang.show import show_expr
from tdsl.lang.types import DType

C_TYPES = {
    "f32": "float", "f64": "double", "bool_": "uint8_t",
    **{f"{k}{b}": f"{'u' * (k == 'u')}int{b}_t" for k in "iu" for b in (8, 16, 32, 64)},
}  # fmt: skip
KEYWORDS = frozenset({
    "auto", "bool", "break", "case", "catch", "char", "class", "const", "continue", "default",
    "delete", "do", "double", "else", "enum", "extern", "false", "float", "for", "goto", "if",
    "inline", "int", "long", "namespace", "new", "operator", "private", "public", "register",
    "restrict", "return", "short", "signed", "sizeof", "static", "struct", "switch", "template",
    "this", "throw", "true", "try", "typedef", "union", "unsigned", "using", "void", "volatile",
    "while",
})  # fmt: skip
"""Words that name nothing in C and C++."""


def c_parameters(params: Sequence[Argument]) -> list[Argument]:
    """The parameters of the C function: inputs and numbers, sizes, outputs."""
    inputs = [
        p for p in params if isinstance(p, ScalarParam) or (isinstance(p, BufferParam) and not p.written)
    ]
    sizes = [p for p in params if isinstance(p, SizeParam)]
    return [*inputs, *sizes, *(p for p in params if isinstance(p, BufferParam) and p.written)]


def c_type(dtype: DType) -> str:
    """The type of a number, or of an element of an array."""
    return C_TYPES.get(dtype.name) or f"uint{dtype.bits}_t"  # narrow floats by their bits


def c_name(name: str) -> str:
    """A name in C for a name of a program."""
    return f"{name}_" if name in KEYWORDS else re.sub(r"\W", "_", name, flags=re.ASCII)


def c_names(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """A name in C for each name of a program, like it, and none of them twice or one of `taken`.

    >>> c_names(["n", "n", "int"], {"n_"})
    ['n', 'n__', 'int_']
    """
    used, result = {*taken}, list[str]()
    for name in names:
        chosen = c_name(name)
        while chosen in used:
            chosen += "_"
        used.add(chosen)
        result.append(chosen)
    return result


def declarations(params: Sequence[Argument]) -> list[str]:
    """The declarations of the parameters of a function in C."""
    return [_declaration(p, name) for p, name in zip(params, c_names(p.name for p in params), strict=True)]


def _declaration(p: Argument, name: str) -> str:
    match p:
        case BufferParam(_, dtype):
            return f"{'' if p.written else 'const '}{c_type(dtype)} *{name}"
        case ScalarParam(_, dtype):
            return f"{c_type(dtype)} {name}"
        case SizeParam():
            return f"int64_t {name}"


def meaning(p: Argument, arrays: Mapping[str, ArrayArg]) -> str:
    """A description of a parameter for a comment of a header."""
    match p:
        case BufferParam(name, dtype):
            shape = ", ".join(map(show_expr, arrays[name].shape)) if name in arrays else ""
            return f"{'output' if p.written else 'input'}, {dtype}[{shape}]"
        case ScalarParam(_, dtype):
            return f"a number, {dtype}"
        case SizeParam(name):
            uses = [
                f"axis {n} of {a.name}"
                for a in arrays.values()
                for n, e in enumerate(a.shape)
                if show_expr(e) == name
            ]
            return f"the extent {name}: {', '.join(uses)}"
