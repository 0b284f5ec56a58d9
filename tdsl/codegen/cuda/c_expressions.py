"""Rewrites C expressions as TVM prints them, with as few parentheses as a reader needs.

    c_ptr[((i * 4) + j)] = ((float)a_ptr[(i + 0)])      ->      c_ptr[i * 4 + j] = (float)a_ptr[i + 0]

Precedence climbing (Pratt, 1973) over the operators that TVM uses; each node is its text and its precedence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from tdsl.core.node import frozen

_TOKEN = re.compile(
    r"\s*(?:(?P<float>-?0x[0-9a-f.]+p[+-]\d+f?)(?:/\*.*?\*/)?"
    r"|(?P<number>(?:\d+\.\d*|\d+)(?:e[+-]?\d+)?[uUlLfF]*)"
    r'|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<name>tdsl_\w+<[^<>()]*>|[A-Za-z_]\w*(?:::\w+)*)"
    r"|(?P<operator><<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|->|[-+*/%&|^~!<>=?:.,()\[\]{}]))"
)
_TYPE = re.compile(
    r"(?:(?:un)?signed )?(?:void|char|short|int|long long|long|float|double|bool|half|nv_bfloat16|uint|uchar"
    r"|ushort|u?int\d+_t|half\d|nv_bfloat16\d|(?:u?char|u?short|u?int|u?longlong|float|double)\d) ?\**"
)
_LEVELS = (
    ("=",), ("?",), ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="),
    ("<<", ">>"), ("+", "-"), ("*", "/", "%"),
)  # fmt: skip
_PRECEDENCE = {op: n for n, ops in enumerate(_LEVELS) for op in ops}
_UNARY, _POSTFIX = len(_LEVELS), len(_LEVELS) + 1
_BITS = {"|", "^", "&", "<<", ">>"}  # parenthesised in other operators, as compilers advise
_SUFFIXES = {"unsigned int": "u", "long long": "ll", "unsigned long long": "ull"}  # of literals
_C_NAMES = {
    "int64_t": "long long", "uint64_t": "unsigned long long", "uint": "unsigned int",
    "uchar": "unsigned char", "ushort": "unsigned short", "int8_t": "signed char", "int16_t": "short",
    "int32_t": "int", "uint8_t": "unsigned char", "uint16_t": "unsigned short", "uint32_t": "unsigned int",
}  # fmt: skip


@frozen
class Text:
    """A printed expression: its text, its precedence, and its operator or "" for none.

    `parts` are the texts of the operands, of a call with the name of the function first.
    """

    text: str
    precedence: int
    operator: str = ""
    parts: tuple[str, ...] = ()


class UnknownSyntax(Exception):
    """The text is no expression that this file reads."""


def c_name(kind: str) -> str:
    """The name of a type of TVM's text in C++, without typedefs.

    >>> c_name("uint64_t*"), c_name("float4*")
    ('unsigned long long*', 'float4*')
    """
    base = kind.rstrip("* ")
    return _C_NAMES.get(base, base) + kind[len(base) :].replace(" ", "")


def tidied(text: str, scalars: Callable[[str], bool] = lambda name: False) -> Text:
    """An expression or assignment, printed; `scalars` tells which arrays of one element are scalars.

    >>> tidied("c[((i * 4) + j)] = ((float)(x - (y - 0x1p+1f/*2.0*/)))").text
    'c[i * 4 + j] = (float)(x - (y - 2.0f))'
    >>> tidied("((int64_t)x) * ((int64_t)4)").text
    '(long long)x * 4ll'
    >>> tidied("*(float4*)(p + (i * 4)) = f((&(a[0])), ((uint)3))").text
    '*(float4*)&p[i * 4] = f(&a[0], 3u)'
    """
    parser = _Parser(_tokens(text), scalars)
    result = parser.expression(0)
    if parser.at < len(parser.tokens):
        raise UnknownSyntax(text)
    return result


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, at, text = [], 0, text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise UnknownSyntax(text)
        tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return tokens


class _Parser:
    """Reads tokens from `at` on."""

    def __init__(self, tokens: Sequence[tuple[str, str]], scalars: Callable[[str], bool]) -> None:
        self.tokens, self.scalars, self.at = tokens, scalars, 0

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> tuple[str, str]:
        if self.at >= len(self.tokens) or (expected and self.peek() != expected):
            raise UnknownSyntax(f"{self.peek()!r} where {expected!r} is expected")
        self.at += 1
        return self.tokens[self.at - 1]

    def expression(self, least: int) -> Text:
        """An expression of operators of precedence `least` or more."""
        left = self.unary()
        while (op := self.peek()) in _PRECEDENCE and _PRECEDENCE[op] >= least:
            self.take()
            level = _PRECEDENCE[op]
            if op == "?":
                yes = self.expression(0)
                self.take(":")
                no = self.expression(level)
                text = f"{_inside(left, level + 1)} ? {yes.text} : {no.text}"
                left = Text(text, level, op)
            else:
                right = self.expression(level if op == "=" else level + 1)
                left = _binary(op, level, left, right)
        return left

    def unary(self) -> Text:
        op = self.peek()
        if op in ("-", "!", "~", "*", "&", "++", "--"):
            self.take()
            x = self.unary()
            if op == "*":
                return _dereferenced(x)
            space = " " if op == "-" and x.text.startswith("-") else ""
            return Text(f"{op}{space}{_inside(x, _UNARY)}", _UNARY, op, (x.text,))
        if op == "(" and (kind := self.cast()):
            return _cast(kind, self.unary())
        return self.postfix()

    def cast(self) -> str:
        """The type of the cast at this place, or "" if there is none."""
        end = self.at + 1
        while end < len(self.tokens) and self.tokens[end][1] != ")" and end < self.at + 6:
            end += 1
        words = [t for _, t in self.tokens[self.at + 1 : end]]
        kind = " ".join(w for w in words if w != "*") + "*" * words.count("*")
        if end + 1 >= len(self.tokens) or not _TYPE.fullmatch(kind):
            return ""
        self.at = end + 1
        return kind

    def postfix(self) -> Text:
        kind, token = self.take()
        match kind:
            case "float":
                x = Text(_decimal(token), _POSTFIX)
            case "operator" if token == "(":
                x = self.expression(0)
                self.take(")")
            case "operator":
                raise UnknownSyntax(token)
            case _:
                x = Text(token, _POSTFIX)
        while (op := self.peek()) in ("(", "[", ".", "->"):
            self.take()
            base = _inside(x, _POSTFIX)
            if op == "(":
                args = self.arguments()
                x = Text(f"{base}({', '.join(args)})", _POSTFIX, "call", (base, *args))
            elif op == "[":
                index = self.expression(0).text
                self.take("]")
                whole = base if index == "0" and self.scalars(base) else f"{base}[{index}]"
                x = Text(whole, _POSTFIX)
            else:
                x = Text(f"{base}{op}{self.take()[1]}", _POSTFIX)
        return x

    def arguments(self) -> list[str]:
        args: list[str] = []
        while self.peek() != ")":
            args.append(_inside(self.expression(0), 1))
            if self.peek() == ",":
                self.take()
        self.take(")")
        return args


def _inside(x: Text, least: int) -> str:
    return x.text if x.precedence >= least else f"({x.text})"


def _binary(op: str, level: int, left: Text, right: Text) -> Text:
    def side(x: Text, least: int) -> str:
        mixed = x.operator in _PRECEDENCE and x.operator != op and op != "="
        unclear = mixed and (
            x.operator in _BITS or op in _BITS or (x.precedence == level and level == _PRECEDENCE["*"])
            or (op == "||" and x.operator == "&&")
        )  # fmt: skip
        return f"({x.text})" if unclear else _inside(x, least)

    first, second = side(left, level + (op == "=")), side(right, level + (op != "="))
    return Text(f"{first} {op} {second}", level, op, (first, right.text))


def _dereferenced(x: Text) -> Text:
    """*(T*)(p + i) as *(T*)&p[i], *(T*)(p + 0) as *(T*)p."""
    if x.operator == "cast" and len(x.parts) == 3:
        kind, base, index = x.parts
        return Text(f"*({kind}){base if index == '0' else f'&{base}[{index}]'}", _UNARY, "*")
    return Text(f"*{_inside(x, _UNARY)}", _UNARY, "*")


def _cast(kind: str, x: Text) -> Text:
    name = c_name(kind)
    if x.operator == "+" and name.endswith("*") and x.parts[0].isidentifier():
        return Text(f"({name}){_inside(x, _UNARY)}", _UNARY, "cast", (name, *x.parts))
    if name in _SUFFIXES and x.text.isdigit():
        return Text(f"{x.text}{_SUFFIXES[name]}", _POSTFIX)
    if name == "bool" and x.text in ("0", "1"):
        return Text(("false", "true")[int(x.text)], _POSTFIX)
    return Text(f"({name}){_inside(x, _UNARY)}", _UNARY, "cast", (name,))


def _decimal(hexadecimal: str) -> str:
    """The shortest decimal literal of the same value."""
    single = hexadecimal.endswith("f")
    value = float.fromhex(hexadecimal.rstrip("f") if single else hexadecimal)
    return f"{np.float32(value)!s}f" if single else repr(value)
