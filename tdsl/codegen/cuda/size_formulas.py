"""Numbers of blocks and bytes as plain data: integers, or formulas in the sizes of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tdsl.codegen.ir.loops import Argument, SizeParam
from tdsl.codegen.runtime.signature import extent
from tdsl.core.source import here
from tdsl.errors import TargetError
from tdsl.lang.expr import Const, Expr
from tdsl.lang.show import show_expr
from tdsl.schedule.specialize import decode_condition, encode_condition
from tdsl.schedule.state import Illegal

Count = int | tuple[Any, ...]
_SIZE = "size "  # arrays and scalars may have the name of a size


def argument_name(p: Argument) -> str:
    """The unique name of an argument of a kernel: sizes get a prefix that other arguments do not have.

    >>> argument_name(SizeParam("N"))
    'size N'
    """
    return f"{_SIZE}{p.name}" if isinstance(p, SizeParam) else p.name


def sizes_of_arguments(arguments: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of a call, out of its arguments by `argument_name`.

    >>> sizes_of_arguments({"N": 1234, "size N": 10})
    {'N': 10}
    """
    return {n.removeprefix(_SIZE): x for n, x in arguments.items() if n.startswith(_SIZE)}


def as_count(e: int | Expr) -> Count:
    """An integer, or an expression in sizes as nested tuples; TargetError for any other expression.

    >>> from tdsl.lang.expr import Binary, Size, const
    >>> as_count(const(3)), as_count(Binary("mul", Size("N"), const(4)))
    (3, ('mul', ('size', 'N'), ('const', 4, 'i64')))
    """
    if isinstance(e, int | Const):
        return int(e if isinstance(e, int) else e.value)
    try:
        count: Count = _tuples(encode_condition(e))
    except Illegal:
        raise TargetError(
            f"a launch of {show_expr(e)} blocks or bytes cannot be told from the sizes of a call",
            loc=here(),
            label="compiled here",
            hint="leave out dynamic=: a call with other sizes compiles again",
        ) from None
    return count


def count_value(count: Count, sizes: Mapping[str, int]) -> int:
    """The value of a count for the sizes of a call.

    >>> count_value(("mul", ("size", "N"), ("const", 4, "i64")), {"N": 10})
    40
    """
    return count if isinstance(count, int) else extent(decode_condition(count), sizes)


def count_text(count: Count) -> str:
    """The text of a count.

    >>> count_text(7), count_text(("mul", ("size", "N"), ("const", 4, "i64")))
    ('7', 'N * 4')
    """
    return str(count) if isinstance(count, int) else f"{show_expr(decode_condition(count))}"


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
