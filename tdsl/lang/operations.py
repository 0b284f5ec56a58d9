"""The operations of a definition, counted once for everyone who asks how much work it is.

The unit is an issue: one instruction of the arithmetic units, on a number or on a vector of numbers. A
multiplication and the addition that follows it are one. Index arithmetic is free.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from tdsl.core.node import Node, children, frozen, pre_order
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import (
    TRUE,
    Access,
    Binary,
    Call,
    Cast,
    Const,
    Param,
    Read,
    Select,
    Unary,
    dtype_of,
)  # fmt: skip
from tdsl.lang.types import DType, bool_

PLAIN, PRODUCT, FMA, CONVERT = "plain", "product", "fma", "convert"  # an addition, a comparison, ... is plain
PRODUCTS = frozenset({PRODUCT, FMA})
BY_LANE = frozenset({"mod", "int_div_64"})  # operations that vectors do one number after another

# issues for numbers of up to 32 bits, and for longer ones
_ISSUES = {
    PLAIN: (1, 1), PRODUCT: (1, 1), FMA: (1, 1), CONVERT: (1, 1),
    "div": (7, 10), "sqrt": (10, 17), "rsqrt": (17, 27), "hypot": (24, 24),
    "mod": (80, 80), "int_div": (29, 29), "int_div_64": (15, 15), "int_pow": (8, 12),
    "random": (30, 30),
}  # fmt: skip
DIVISIONS = frozenset({"div", "sqrt", "rsqrt", "hypot"})  # by a unit of their own
_BY_CONSTANT = 10  # issues of a division of integers by a constant
# issues of functions of floats on a vector of any number of lanes
FUNCTIONS = {
    "exp": (24, 41), "exp2": (24, 43), "expm1": (28, 56), "log": (48, 67),
    "log2": (48, 67), "log10": (48, 67), "log1p": (52, 69), "sin": (23, 43),
    "cos": (26, 55), "tan": (85, 75), "arcsin": (36, 58), "arccos": (36, 58),
    "arctan": (33, 51), "arctan2": (45, 64), "sinh": (56, 68), "cosh": (48, 62),
    "tanh": (42, 80), "arcsinh": (72, 96), "arccosh": (72, 96), "arctanh": (72, 96),
    "erf": (62, 110), "sigmoid": (33, 45), "pow": (145, 222),
}  # fmt: skip
_CHEAP_CALLS = {
    "fma", "isnan", "isinf", "isfinite", "floor", "ceil", "trunc", "round", "copysign", "popcount",
    "clz", "ctz",
}  # fmt: skip
_FREE_CALLS = ("reinterpret", "extent")


@frozen
class Operations:
    """`count` times an operation on numbers of a type, whose results change with the variables `needs`.

    `op` is PLAIN, PRODUCT, FMA (a product with the addition to it), CONVERT (to another type), or the name of
    a division or a function.
    """

    op: str
    dtype: DType
    needs: frozenset[str]
    count: int


@functools.lru_cache(1 << 12)
def operations_of(d: Definition) -> tuple[Operations, ...]:
    """The operations of one point of a definition, with those that combine the terms of a reduction.

    >>> import tdsl as td
    >>> i, k, f = *td.vars("i k"), td.Func("f")
    >>> a, b = td.Tensor("a", (9, 9), td.f32), td.Tensor("b", (9,), td.f32)
    >>> f[i] = td.sum(a[i, k] * td.exp(b[k]), axis=k)
    >>> for x in operations_of(td.Schedule(f).program.func("f").definitions[0]):
    ...     print(x.op, x.dtype, sorted(x.needs), x.count)
    exp f32 ['k'] 1
    fma f32 ['i', 'k'] 1
    """
    counts: dict[tuple[str, DType, frozenset[str]], int] = {}
    for op, dtype, count, needs in (*_of_values(d), *_of_combiner(d)):
        if count:
            key = op, dtype, needs
            counts[key] = counts.get(key, 0) + count
    return tuple(Operations(*key, count) for key, count in counts.items())


def issues_of(d: Definition) -> int:
    """The issues of one point of a definition."""
    return sum(x.count * issues(x.op, x.dtype) for x in operations_of(d))


def arithmetic_of(d: Definition, along: str | None = None) -> int:
    """The arithmetic of one point of a definition, in additions or multiplications; conversions are free.

    With a variable `along`, only operations that depend on it.
    """
    chosen = (x for x in operations_of(d) if x.op != CONVERT and (along is None or along in x.needs))
    return sum(x.count * (2 if x.op == FMA else issues(x.op, x.dtype)) for x in chosen)


def issues(op: str, dtype: DType) -> int:
    """The issues of an operation on numbers of a type.

    >>> from tdsl.lang.types import f32, f64
    >>> issues("plain", f32), issues("div", f64), issues("exp", f64)
    (1, 10, 41)
    """
    by_size = _ISSUES.get(op) or FUNCTIONS.get(op) or FUNCTIONS["exp"]
    return by_size[dtype.bits > 32]


def without_indices(n: Node) -> tuple[Node, ...]:
    """The children of a node; none for a read, whose children are indices."""
    return () if isinstance(n, Read | Access) else children(n)


Counted = tuple[str, DType, int, frozenset[str]]


def _of_values(d: Definition) -> Iterator[Counted]:
    """The operations of the values; an addition to a product is one with it."""
    fused = set[int]()
    if d.combine is not None and d.combine.kind == "sum":
        fused = {id(v) for v in d.values if is_product(v)}
    for n in pre_order(*d.values, inside=without_indices):
        if isinstance(n, Const | Read | Param) or id(n) in fused:
            continue
        op, dtype, count = operation_of(n)
        needs = variables(n)  # type: ignore[arg-type]  # what is in a value is an Expr
        if isinstance(n, Binary) and n.op in ("add", "sub"):
            product = next((x for x in (n.left, n.right) if is_product(x)), None)
            if product is not None:
                fused.add(id(product))
                op = FMA
        yield op, dtype, count, needs


def is_product(e: Node | None) -> bool:
    """True for a multiplication."""
    return isinstance(e, Binary) and e.op == "mul"


def _of_combiner(d: Definition) -> Iterator[Counted]:
    """The operations that combine a value with those before it."""
    if d.combine is None:
        return
    everything = frozenset(d.variables)
    if d.combine.kind == "sum":
        for e, v in zip(d.combine.exprs, d.values, strict=True):
            yield FMA if is_product(v) else PLAIN, dtype_of(e), 1, everything
        return
    exprs = d.combine.exprs
    differ = [variables(v) for v in d.values]
    used = [{n.name for n in pre_order(e) if isinstance(n, Param)} for e in exprs]
    for _ in exprs:  # transitively: a value depends on all values that its expression uses
        differ = [needs.union(*_needed(names, differ)) for needs, names in zip(differ, used, strict=True)]
    for n in pre_order(*exprs):
        if not isinstance(n, Const | Param):
            names = {x.name for x in pre_order(n) if isinstance(x, Param)}
            yield *operation_of(n), frozenset[str]().union(*_needed(names, differ))


def _needed(names: Iterable[str], differ: list[frozenset[str]]) -> Iterator[frozenset[str]]:
    """The variables of the combined values whose names are among those of operands."""
    return (x for n, x in enumerate(differ) if {f"a{n}", f"b{n}"} & set(names))


def operation_of(n: Node) -> tuple[str, DType, int]:
    """The operation of a node, the type of its operands, and how often it is done: 0 for what is none."""
    match n:
        case Binary(op, left, right):
            dtype = dtype_of(left)
            match op:
                case "mul":
                    return PRODUCT, dtype, 1
                case "div":
                    return "div", dtype, 1
                case "pow":
                    return "pow" if dtype.is_float else "int_pow", dtype, 1
                case "floordiv" | "mod" if dtype.is_float:
                    return "mod", dtype, 1
                case "floordiv" | "mod" if isinstance(right, Const):
                    return PLAIN, dtype, _BY_CONSTANT
                case "floordiv" | "mod":
                    return "int_div_64" if dtype.bits > 32 else "int_div", dtype, 1
                case _:
                    return PLAIN, dtype, 1
        case Call(fn, _, dtype):
            return PLAIN if fn in _CHEAP_CALLS else fn, dtype, int(fn not in _FREE_CALLS)
        case Unary(_, x):
            return PLAIN, dtype_of(x), 1
        case Select(cond, yes):
            return PLAIN, dtype_of(yes), int(cond != TRUE)
        case Cast(x, dtype):
            old = dtype_of(x)
            return CONVERT, max(dtype, old, key=lambda t: t.bits), _conversions(old, dtype)
        case _:
            return PLAIN, bool_, 0


def _conversions(old: DType, new: DType) -> int:
    """The issues in which a vector of a type becomes one of another type."""
    if old == new or bool_ in (old, new):
        return 0
    if old.is_narrow or new.is_narrow:
        return 1 if 16 in (old.bits, new.bits) and new.bits >= old.bits else 4
    return 0 if old.is_integer and new.is_integer and old.bits == new.bits else 1
