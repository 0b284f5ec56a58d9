"""Reductions: sum, prod, min, max, any, all, mean, argmax, argmin, and any associative combiner.

A combiner of n values consists of n expressions over the leaves a0, a1, ... (the accumulators) and b0, b1,
... (the new values), and its identity. Reductions, split reductions and merges of partial results all use it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

from tdsl.core.node import frozen, post_order
from tdsl.core.source import Loc, here
from tdsl.errors import DefinitionError, TypeMismatch, counted
from tdsl.lang.casts import cast
from tdsl.lang.expr import (
    Access,
    Binary,
    Call,
    Const,
    Expr,
    Param,
    Range,
    Reduce,
    Select,
    Unary,
    Var,
)  # fmt: skip
from tdsl.lang.types import DType, as_dtype, bool_, f64, i64, u64
from tdsl.lang.value import Value, Variable, as_index, binary, check_name, convert, lift


@frozen
class Combine:
    """The combiner of a reduction: how two values (or tuples of values) become one, and the identity `init`.

    `exprs` are over Param leaves a0... and b0...; `associative` is the user's statement for custom combiners.
    """

    kind: str
    exprs: tuple[Expr, ...]
    init: tuple[Expr, ...]
    associative: bool = True

    def scalars(self) -> tuple[Param, ...]:
        """The scalar inputs that the combiner reads."""
        operands = {f"{side}{n}" for side in "ab" for n in builtins.range(len(self.exprs))}
        params = (n for n in post_order(*self.exprs) if isinstance(n, Param))
        return tuple(n for n in params if n.name not in operands)


def _combiner_params(dtypes: Sequence[DType]) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    left = tuple(Param(f"a{n}", t) for n, t in enumerate(dtypes))
    right = tuple(Param(f"b{n}", t) for n, t in enumerate(dtypes))
    return left, right


def builtin_combiner(kind: str, dtypes: tuple[DType, ...]) -> Combine:
    """The combiner of a named reduction on values of these types."""
    (a, *more_a), (b, *more_b) = _combiner_params(dtypes)
    t = dtypes[0]
    match kind:
        case "sum":
            return Combine(kind, (Binary("or" if t == bool_ else "add", a, b),), (_constant(0, t),))
        case "prod":
            return Combine(kind, (Binary("and" if t == bool_ else "mul", a, b),), (_constant(1, t),))
        case "min":
            return Combine(kind, (Binary("min", a, b),), (Const(t.high, t),))
        case "max":
            return Combine(kind, (Binary("max", a, b),), (Const(t.low, t),))
        case "any":
            return Combine(kind, (Binary("or", a, b),), (_constant(0, t),))
        case "all":
            ones = Const(True if t == bool_ else -1 if t.low < 0 else t.high, t)
            return Combine(kind, (Binary("and", a, b),), (ones,))
        case "argmin" | "argmax":
            better = _better(kind, a, b, more_a[0], more_b[0], t)
            exprs = (Select(better, b, a), Select(better, more_b[0], more_a[0]))
            worst = Const(t.high if kind == "argmin" else t.low, t)
            return Combine(kind, exprs, (worst, Const(i64.high, i64)))
        case _:
            raise AssertionError(f"no reduction {kind!r}")


def _constant(value: int, t: DType) -> Const:
    return Const(float(value) if t.is_float else bool(value) if t == bool_ else value, t)


def _better(kind: str, a: Expr, b: Expr, i: Expr, j: Expr, t: DType) -> Expr:
    """The condition that b replaces a: b is better, or equal at a smaller index; NaN wins, as in NumPy."""
    wins: Expr = Binary("lt" if kind == "argmin" else "gt", b, a)
    ties: Expr = Binary("eq", b, a)
    if t.is_float:
        a_nan, b_nan = Call("isnan", (a,), bool_), Call("isnan", (b,), bool_)
        wins = Binary("or", wins, Binary("and", b_nan, Unary("not", a_nan)))
        ties = Binary("or", ties, Binary("and", a_nan, b_nan))
    return Binary("or", wins, Binary("and", ties, Binary("lt", j, i)))


def combiner_of(r: Reduce) -> Combine:
    """The combiner of a Reduce node."""
    return Combine(r.kind, r.combine, r.init, associative=r.kind != "custom_ordered")


Axis = Variable | Sequence[Variable]


def _axes(axis: Any, loc: Loc | None) -> tuple[Expr, ...]:
    listed = axis if isinstance(axis, list | tuple) else (axis,)
    for a in listed:
        if not (isinstance(a, Value) and isinstance(a.node, Var | Range)):
            raise TypeMismatch(
                f"axis= takes loop variables, not {a!r}",
                loc=loc,
                label="this reduction",
                hint="name the variable that is summed over: axis=k, or axis=(r, s)",
            )
    names = [a.node.name for a in listed]
    if len(set(names)) < len(names) or not names:
        raise DefinitionError(
            "axis= names a variable twice" if names else "axis= names no variable",
            loc=loc,
            label="this reduction",
            hint="name each variable that is reduced over once: axis=k, or axis=(r, s)",
        )
    return tuple(a.node for a in listed)


def _reduce(kind: str, x: Value, axis: Any, loc: Loc | None) -> Value:
    c = builtin_combiner(kind, (x.dtype,))
    return Value(Reduce(kind, _axes(axis, loc), (x.node,), c.exprs, c.init, 0, x.dtype, loc=loc))


def _accumulate(kind: str, x: Any, axis: Any, dtype: Any, loc: Loc | None) -> Value:
    """A sum or product in NumPy's result type: integers in 64 bits; narrow floats in f32, then rounded."""
    v = lift(x, loc)
    if dtype is None and v.dtype.is_float:
        return cast(_reduce(kind, widen(v, loc), axis, loc), v.dtype)
    t = as_dtype(dtype) if dtype is not None else u64 if v.dtype.kind == "u" else i64
    v = widen(v, loc) if t.is_float and not t.is_narrow else v
    return _reduce(kind, Value(convert(v, t, loc)), axis, loc)


def widen(v: Value, loc: Loc | None) -> Value:
    """A value in the type in which sums accumulate; products of narrow floats have widened factors."""
    if not v.dtype.is_narrow:
        return v
    wide, stack = dict[int, Expr](), [v.node]
    while stack:
        n = stack.pop()
        if not (isinstance(n, Binary) and n.op == "mul"):
            wide[id(n)] = convert(Value(n), v.dtype.summed, loc)
        elif id(n.left) in wide and id(n.right) in wide:
            wide[id(n)] = Binary("mul", wide[id(n.left)], wide[id(n.right)], loc=n.loc)
        else:
            stack += [n, *(x for x in (n.left, n.right) if id(x) not in wide)]
    return Value(wide[id(v.node)])


def sum(x: Any, axis: Axis | None = None, dtype: Any = None) -> Value:
    """The sum over loop variables, in order. As in NumPy, integers are summed in 64 bits without a `dtype`.

    Sums of f16, bf16 and floats of 8 bits are computed in f32, or in `dtype`, and rounded at the end; the
    factors of a term are multiplied in f32, too.

    >>> from tdsl.lang.tensor import Func, Tensor
    >>> from tdsl.lang.casts import cast
    >>> from tdsl.lang.value import vars
    >>> i, k = vars("i k")
    >>> a, f = Tensor("a", (3, 4), "f32"), Func("f")
    >>> f[i] = sum(a[i, k], axis=k)
    >>> f.shape
    (3,)
    """
    loc = here()
    return _accumulate("sum", x, axis, dtype, loc)


def prod(x: Any, axis: Axis | None = None, dtype: Any = None) -> Value:
    """The product over loop variables, with the types of `sum`."""
    loc = here()
    return _accumulate("prod", x, axis, dtype, loc)


def min(x: Any, axis: Axis | None = None) -> Value:
    """The smallest value over loop variables; NaN if any is NaN. The identity is the type's largest."""
    loc = here()
    return _reduce("min", lift(x, loc), axis, loc)


def max(x: Any, axis: Axis | None = None) -> Value:
    """The largest value over loop variables; NaN if any is NaN. The identity is the type's smallest."""
    loc = here()
    return _reduce("max", lift(x, loc), axis, loc)


def any(x: Any, axis: Axis | None = None) -> Value:
    """The logical or over loop variables: true if some value is not zero."""
    loc = here()
    return _reduce("any", _truth(lift(x, loc)), axis, loc)


def all(x: Any, axis: Axis | None = None) -> Value:
    """The logical and over loop variables: true if no value is zero."""
    loc = here()
    return _reduce("all", _truth(lift(x, loc)), axis, loc)


def _truth(v: Value) -> Value:
    return v if v.dtype == bool_ else binary("ne", v, 0)


def mean(x: Any, axis: Axis | None = None) -> Value:
    """The sum over loop variables divided by the number of points; f64 for integers.

    For narrow floats sum and division are computed in f32, and the mean is rounded.
    """
    loc = here()
    v = lift(x, loc)
    given = v.dtype if v.dtype.is_float else f64
    v = widen(v, loc) if v.dtype.is_float else Value(convert(v, f64, loc))
    return cast(_mean(v.node, axis, v.dtype, loc), given)


def _mean(x: Expr, axis: Any, t: DType, loc: Loc | None) -> Value:
    axes = _axes(axis, loc)
    extents = [_known_extent(x, a) for a in axes]
    if None in extents or _has_conditions(x):
        # a second component counts the points
        both = builtin_combiner("sum", (t,)), builtin_combiner("sum", (i64,))
        exprs = (both[0].exprs[0], Binary("add", Param("a1", i64), Param("b1", i64)))
        init = (both[0].init[0], both[1].init[0])
        terms = (x, Const(1, i64))
        total, count = (
            Value(Reduce("custom", axes, terms, exprs, init, n, u, loc=loc)) for n, u in enumerate((t, i64))
        )
        return binary("div", total, cast(count, t))
    size = Value(extents[0], weak=True)  # type: ignore[arg-type]  # None was handled above
    for extent in extents[1:]:
        size = binary("mul", size, Value(extent, weak=True))  # type: ignore[arg-type]  # as above
    return binary("div", _reduce("sum", Value(x), axis, loc), cast(size, t))


def _known_extent(x: Expr, variable: Expr) -> Expr | None:
    """The extent of a range, or of a variable that is by itself an index of an input; None if not known."""
    if isinstance(variable, Range):
        return Binary("sub", variable.hi, variable.lo) if variable.where is None else None
    for n in post_order(x):
        if isinstance(n, Access):
            for axis, e in enumerate(n.index):
                if e == variable and "extents" in vars(n.source):
                    extent: Expr = n.source.extents[axis]
                    return extent
    return None


def extent_of(variable: Expr) -> Expr:
    """The extent of a loop variable, as a call that is replaced when ranges are inferred."""
    return Call("extent", (variable,), i64)


def _has_conditions(e: Expr) -> bool:
    return builtins.any(isinstance(n, Range) and n.where is not None for n in post_order(e))


def argmin(x: Any, axis: Axis | None = None) -> Value:
    """The i64 index of the smallest value over loop variables: the first of equals, the first NaN if any.

    Over several variables it is the row-major index into their ranges: the last variable is fastest.
    """
    return _arg_reduction("argmin", x, axis)


def argmax(x: Any, axis: Axis | None = None) -> Value:
    """The index of the largest value over loop variables, as `argmin`."""
    return _arg_reduction("argmax", x, axis)


def _arg_reduction(kind: str, x: Any, axis: Any) -> Value:
    loc = here()
    v = lift(x, loc)
    axes = _axes(axis, loc)
    position: Expr = axes[0]
    for a in axes[1:]:
        position = Binary("add", Binary("mul", position, extent_of(a)), a)
    c = builtin_combiner(kind, (v.dtype, i64))
    terms = (v.node, position)
    return Value(Reduce(kind, axes, terms, c.exprs, c.init, 1, i64, loc=loc))


def reduce(
    combine: Callable[[Any, Any], Any],
    init: Any,
    values: Any,
    axis: Axis,
    *,
    associative: bool = True,
) -> Any:
    """The reduction of one value, or a tuple of values, over loop variables with a custom combiner.

    `combine(a, b)` takes the accumulator and a new value (tuples, if `values` is one) and returns the new
    accumulator; `init` is its identity. `associative=True` states that `combine` is associative and
    commutative, so that schedules may vectorise and split the reduction; False keeps the points in order.
    Returns a value, or a tuple of values.
    """
    loc = here()
    if not callable(combine):
        raise TypeMismatch(
            f"combine is a function, not {combine!r}",
            loc=loc,
            label="this reduction",
            hint="reduce(lambda a, b: a + b, 0.0, x[i, k], k)",
        )
    several = isinstance(values, list | tuple)
    terms = tuple(lift(v, loc) for v in (values if several else (values,)))
    starts = tuple(lift(v, loc) for v in (init if isinstance(init, list | tuple) else (init,)))
    if len(terms) != len(starts):
        raise TypeMismatch(
            f"init has {counted(len(starts), 'value')}, values has {len(terms)}",
            loc=loc,
            label="this reduction",
            hint="give one identity for each value that is reduced",
        )
    dtypes = [t.dtype for t in terms]
    left, right = _combiner_params(dtypes)
    a, b = tuple(Value(e) for e in left), tuple(Value(e) for e in right)
    result = combine(a, b) if several else combine(a[0], b[0])
    given = result if isinstance(result, list | tuple) else (result,)
    results = tuple(lift(r, loc) for r in given)
    if len(results) != len(terms):
        raise TypeMismatch(
            f"combine returns {counted(len(results), 'value')} for {len(terms)}",
            loc=loc,
            label="this reduction",
            hint="return a tuple with one value for each that is reduced" if several else "return one value",
        )
    exprs = _convert_to_dtypes("combine gives", results, dtypes, loc)
    identity = _convert_to_dtypes("the identity is", starts, dtypes, loc)
    _check_combiner(exprs, identity, (*left, *right), loc)
    kind, axes = "custom" if associative else "custom_ordered", _axes(axis, loc)
    nodes = tuple(t.node for t in terms)
    components = tuple(
        Value(Reduce(kind, axes, nodes, exprs, identity, n, t, loc=loc)) for n, t in enumerate(dtypes)
    )
    return components if several else components[0]


def _convert_to_dtypes(
    what: str, values: tuple[Value, ...], dtypes: list[DType], loc: Loc | None
) -> tuple[Expr, ...]:
    for v, t in zip(values, dtypes, strict=True):
        if not v.becomes(t):
            raise TypeMismatch(
                f"{what} {v.dtype} where values of type {t} are reduced",
                loc=loc,
                label="this reduction",
                hint=f"td.cast the values that are reduced to {v.dtype}, or this one to {t}",
            )
    return tuple(convert(v, t, loc) for v, t in zip(values, dtypes, strict=True))


def _check_combiner(
    exprs: tuple[Expr, ...], identity: tuple[Expr, ...], sides: tuple[Expr, ...], loc: Loc | None
) -> None:
    """Raise DefinitionError unless a combiner reads only operands and scalars, and `identity` is constant."""
    if not builtins.all(isinstance(e, Const) for e in identity):
        raise DefinitionError(
            "the identity of a reduction must be a number",
            loc=loc,
            label="init of this reduction",
            hint="combining it with a value must give the value: 0 for a sum, 1 for a product",
        )
    operands = {id(e): e.name for e in sides if isinstance(e, Param)}
    for n in post_order(*exprs):
        if isinstance(n, Access | Var | Range | Reduce):
            raise DefinitionError(
                "a combiner may use its two sides, numbers and scalars only",
                loc=n.loc or loc,
                label="used in a combiner",
                hint="put it into the values that are reduced",
            )
        if isinstance(n, Param) and n.name in operands.values() and id(n) not in operands:
            raise DefinitionError(
                f"in a combiner no scalar can be named {n.name!r}",
                loc=n.loc or loc,
                label="this call",
                hint="rename it",
            )


def range(name: str, start: Any, stop: Any, where: Any = None) -> Variable:
    """A loop variable with a given range start <= name < stop, run in order: for scans and ordered updates.

    `where` restricts the points: a condition, or a function from the variable to a condition. The bounds may
    use extents, other ranges and scalars.

    >>> range("r", 1, 256)
    r
    """
    loc = here()
    check_name(name, loc)
    lo, hi = (as_index(bound, loc, "a bound of this range") for bound in (start, stop))
    plain = Variable(Range(name, lo, hi, None, loc=loc), weak=True)
    if where is None:
        return plain
    cond = lift(where(Variable(Var(name), weak=True)) if callable(where) else where, loc)
    if cond.dtype != bool_:
        raise TypeMismatch(
            f"where= is {cond.dtype}, not a condition",
            loc=loc,
            label="this call",
            hint="where=r <= i",
        )
    return Variable(Range(name, lo, hi, cond.node, loc=loc), weak=True)
