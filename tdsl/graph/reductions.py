"""NumPy's reductions and cumulative sums on the arrays of a graph: each call is a small operator.

`RULES` defines each reduction as an expression of the language. Types, axes and errors are NumPy's: the type
of a result is that of NumPy's own function on an array of one element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from operator import add, mul
from typing import Any

import numpy as np

from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import ShapeError, TypeMismatch, counted
from tdsl.graph.arguments import axes_of, axis_of, bound, name_of, refuse, symbol
from tdsl.graph.elementwise import element_type, made_of, tensor_index
from tdsl.graph.symbol import Symbol
from tdsl.lang import reduction
from tdsl.lang.casts import cast
from tdsl.lang.functions import absolute, maximum, sqrt
from tdsl.lang.reduction import range as ordered
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import DType, as_dtype, bool_, from_numpy

Value = Any  # of the index language


@frozen
class Over:
    """The domain of a reduction: the variables reduced over, their number of points, the variables `kept`.

    `less` is subtracted from the number of points for a variance (`ddof` of NumPy).
    """

    axes: tuple[Any, ...]
    kept: tuple[Any, ...]
    points: int
    less: float = 0

    def of(self, kind: str, x: Value) -> Value:
        """The reduction `kind` of `td` over the axes; `x` itself if there are none."""
        if not self.axes:
            return x
        exact = {"dtype": x.dtype} if kind in ("sum", "prod") else {}
        return getattr(reduction, kind)(x, axis=self.axes, **exact)

    def mean(self, x: Value) -> Value:
        """The sum divided by the number of points."""
        return self.of("sum", x) / self.points

    def variance(self, x: Value) -> Value:
        """The sum of squared deviations from the mean, divided by the number of points less `less`."""
        mean = Func("mean")
        mean[self.kept] = self.mean(x)
        left = x - mean[self.kept]
        return self.of("sum", left * left) / max(self.points - self.less, 0)


@frozen
class Rule:
    """A reduction as an expression, the type of its terms, and NumPy's error message for an empty domain.

    `terms` is "result", "elements" or "bools": the type to which elements are converted first; sums of narrow
    floats are accumulated in f32. An empty `nothing` means that an empty domain is no error.
    """

    value: Callable[[Value, Over], Value]
    terms: str = "result"
    nothing: str = ""


def _extreme(kind: str, name: str) -> Rule:
    nothing = f"zero-size array to reduction operation {name} which has no identity"
    return Rule(lambda x, over: over.of(kind, x), "elements", nothing)


def _place(kind: str) -> Rule:
    nothing = f"attempt to get {kind} of an empty sequence"
    return Rule(lambda x, over: over.of(kind, x), "elements", nothing)


MAX, MIN = _extreme("max", "maximum"), _extreme("min", "minimum")
RULES: Mapping[Any, Rule] = {
    np.sum: Rule(lambda x, over: over.of("sum", x)),
    np.prod: Rule(lambda x, over: over.of("prod", x)),
    np.mean: Rule(lambda x, over: over.mean(x)),
    np.var: Rule(lambda x, over: over.variance(x)),
    np.std: Rule(lambda x, over: sqrt(over.variance(x))),
    np.max: MAX,
    np.min: MIN,
    np.ptp: Rule(lambda x, over: over.of("max", x) - over.of("min", x), "elements", MAX.nothing),
    np.argmax: _place("argmax"),
    np.argmin: _place("argmin"),
    np.any: Rule(lambda x, over: over.of("any", x), "bools"),
    np.all: Rule(lambda x, over: over.of("all", x), "bools"),
    np.count_nonzero: Rule(
        lambda x, over: over.of("sum", cast(x, as_dtype(np.intp))), "bools"
    ),
}  # fmt: skip

ALIASES: Mapping[Any, Any] = {np.amax: np.max, np.amin: np.min}

NORMS: Mapping[Any, Rule] = {
    None: Rule(lambda x, over: sqrt(over.of("sum", x * x))),
    1: Rule(lambda x, over: over.of("sum", absolute(x))),
    np.inf: Rule(lambda x, over: maximum(over.of("max", absolute(x)), 0)),  # of nothing 0
    -np.inf: Rule(lambda x, over: over.of("min", absolute(x)), nothing=MIN.nothing),
}  # of vectors

OF_UFUNC: Mapping[Any, Any] = {
    np.add: np.sum, np.multiply: np.prod, np.maximum: np.max, np.minimum: np.min,
    np.logical_and: np.all, np.logical_or: np.any,
}  # fmt: skip


NO_FRACTIONS = (np.var, np.std)  # reductions that refuse an integer result type
PLACES = (np.argmax, np.argmin)


def reduced(function: Callable[..., Any], *args: Any, **options: Any) -> Symbol:
    """Calls a reduction of NumPy, with NumPy's arguments, on an array of a graph."""
    given = bound(function, args, options)
    function = ALIASES.get(function, function)
    x, rule = symbol(function, given.pop("a")), RULES[function]
    axis, keepdims = given.pop("axis", None), given.pop("keepdims", False)
    ddof, dtype = given.pop("ddof", 0), given.pop("dtype", None)
    less = given.pop("correction", ddof)
    refuse(function, given)
    result = _result(function, x, {} if dtype is None else {"dtype": element_type(dtype).numpy})
    if function in PLACES:
        axis = axis if axis is None else axis_of(function, axis, x.ndim)
        if not x.ndim:
            return _by_rule(function, rule, x.reshape(1), None, False, result)
    return _by_rule(function, rule, x, axis, keepdims, result, less)


def _result(function: Callable[..., Any], x: Symbol, typed: dict[str, Any]) -> DType:
    """The element type of the result of NumPy's function for the type of `x`."""
    try:
        found = from_numpy(np.asarray(function(np.ones(1, x.dtype), axis=0, **typed)).dtype)
    except TypeError as error:
        if isinstance(error, TypeMismatch):
            raise
        raise TypeMismatch(
            f"{name_of(function)} of {x.dtype}: {error}",
            loc=here(),
            label="this call",
            hint="convert the array first: x.astype(np.float32)",
        ) from None
    if function in NO_FRACTIONS and not found.is_float:
        raise TypeMismatch(
            f"{name_of(function)} in {found} has no fractions",
            loc=here(),
            label="this call",
            hint="leave dtype= away, or name a float",
        )
    return found


def of_ufunc(
    ufunc: np.ufunc, method: str, args: tuple[Any, ...], options: Mapping[str, Any]
) -> Symbol:
    """`np.add.reduce(x)` and similar ufunc methods, along the first axis by default."""
    known: Mapping[Any, Any] = {"reduce": OF_UFUNC, "accumulate": RUNNING_OF_UFUNC}.get(method, {})
    if ufunc not in known:
        raise TypeMismatch(
            f"np.{ufunc.__name__}.{method} does not take arrays of a graph",
            loc=here(),
            label="this call",
            hint=f"{method} is known of {', '.join(f'np.{u.__name__}' for u in known) or 'no function'}",
        )
    given = dict(zip(("a", "axis", "dtype", "out", "keepdims"), args, strict=False)) | dict(options)
    given.setdefault("axis", 0)
    function = known[ufunc]
    return (reduced if method == "reduce" else running)(function, **given)


def norm(*args: Any, **options: Any) -> Symbol:
    """`np.linalg.norm` of vectors, and of all elements of a matrix."""
    given = bound(np.linalg.norm, args, options)
    x, order = symbol(np.linalg.norm, given["x"]), given.get("ord")
    axis, keepdims = given.get("axis"), given.get("keepdims", False)
    axes = axes_of(np.linalg.norm, axis, x.ndim)
    if (order == "fro" and len(axes) == 2) or (order == 2 and len(axes) == 1):
        order = None
    if order not in NORMS or (order is not None and len(axes) != 1):
        raise TypeMismatch(
            f"np.linalg.norm with ord={order!r} along {counted(len(axes), 'axis', 'axes')} "
            "does not take arrays of a graph",
            loc=here(),
            label="this call",
            hint="ord= of vectors, along one axis, is None, 1, 2, inf or -inf; of matrices None or 'fro'",
        )
    result = from_numpy(np.linalg.norm(np.ones(1, x.dtype), order).dtype)
    return _by_rule(np.linalg.norm, NORMS[order], x, axes, keepdims, result)


def _by_rule(
    function: Callable[..., Any], rule: Rule, x: Symbol, axis: Any, keepdims: Any, result: DType,
    less: float = 0,
) -> Symbol:  # fmt: skip
    axes = axes_of(function, axis, x.ndim)
    shape = tuple(n for d, n in enumerate(x.shape) if d not in axes)
    points = prod([x.shape[d] for d in axes])
    if rule.nothing and not points and 0 not in shape:
        raise ShapeError(
            f"{name_of(function)}: {rule.nothing}",
            loc=here(),
            label="this call",
            hint=f"the array has shape {x.shape}: look at the extents first, they are known",
        )
    index = tensor_index(x.ndim)
    kept = tuple(i for d, i in enumerate(index) if d not in axes)
    over = Over(tuple(index[d] for d in axes), kept, points, less)
    a, out = Tensor("a", x.shape, from_numpy(x.dtype)), Func(function.__name__, shape=shape)
    out[kept] = cast(rule.value(_term(a[index], rule, result), over), result)
    made = made_of(x.trace, out, {a: x})
    whole = tuple(1 if d in axes else n for d, n in enumerate(x.shape))
    return made.reshape(whole) if keepdims else made


def _term(element: Value, rule: Rule, result: DType) -> Value:
    """An element converted to the type that the rule takes."""
    match rule.terms:
        case "elements":
            return element
        case "bools":
            return cast(element, bool_)
        case _:
            return cast(cast(element, result), result.summed)


RUNNING: Mapping[Any, Callable[[Value, Value], Value]] = {
    np.cumsum: add,
    np.cumprod: mul,
}
RUNNING_OF_UFUNC: Mapping[Any, Any] = {np.add: np.cumsum, np.multiply: np.cumprod}


def running(function: Callable[..., Any], *args: Any, **options: Any) -> Symbol:
    """`np.cumsum` or `np.cumprod`, with NumPy's arguments: an update over an ordered range along the axis."""
    given = bound(function, args, options)
    x, axis, dtype = (
        symbol(function, given.pop("a")),
        given.pop("axis", None),
        given.pop("dtype", None),
    )
    refuse(function, given)
    if axis is None or not x.ndim:
        x, axis = x.reshape(-1), 0
    axis = axis_of(function, axis, x.ndim)
    result = _result(function, x, {} if dtype is None else {"dtype": element_type(dtype).numpy})
    index = tensor_index(x.ndim)
    a, out = Tensor("a", x.shape, from_numpy(x.dtype)), Func(function.__name__, shape=x.shape)
    out[index] = cast(a[index], result)
    at = ordered("at", 1, x.shape[axis])
    here_, before = ((*index[:axis], n, *index[axis + 1 :]) for n in (at, at - 1))
    out[here_] = RUNNING[function](out[here_], out[before])
    return made_of(x.trace, out, {a: x})
