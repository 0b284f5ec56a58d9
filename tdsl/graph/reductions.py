"""NumPy's reductions and cumulative sums on the arrays of a graph: each call is a small operator.

`RULES` defines each reduction as an expression of the language. Types, axes and errors are NumPy's: the type
of a result is what NumPy's own function returns for an array of one element.
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
from tdsl.graph.arguments import (
    as_symbol,
    axes_of,
    axis_of,
    bind_arguments,
    name_of,
    refuse_options,
)
from tdsl.graph.elementwise import element_type, index_variables, record_call
from tdsl.graph.symbol import Symbol
from tdsl.lang import reduction
from tdsl.lang.casts import cast
from tdsl.lang.functions import absolute, maximum, minimum, sqrt
from tdsl.lang.reduction import range as ordered
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import DType, as_dtype, bool_, from_numpy

Value = Any  # an expression of the index language


@frozen
class ReductionDomain:
    """The domain of a reduction: the variables `reduced` over, the other `variables`, the number of points.

    `ddof` is subtracted from the number of points for a variance, as by NumPy.
    """

    reduced: tuple[Any, ...]
    variables: tuple[Any, ...]
    points: int
    ddof: float = 0

    def reduce(self, kind: str, x: Value) -> Value:
        """The reduction `kind` of `td` over the variables `reduced`; `x` itself if there are none."""
        if not self.reduced:
            return x
        options = {"dtype": x.dtype} if kind in ("sum", "prod") else {}
        return getattr(reduction, kind)(x, axis=self.reduced, **options)

    def mean(self, x: Value) -> Value:
        """The sum divided by the number of points."""
        return self.reduce("sum", x) / self.points

    def variance(self, x: Value) -> Value:
        """The sum of squared deviations from the mean, divided by the number of points less `ddof`."""
        mean = Func("mean")
        mean[self.variables] = self.mean(x)
        deviation = x - mean[self.variables]
        return self.reduce("sum", deviation * deviation) / max(self.points - self.ddof, 0)


@frozen
class ReductionRule:
    """A reduction as an expression, the type of its terms, and NumPy's error message for an empty domain.

    `terms` is "result", "elements" or "bools": the type to which elements are converted first; sums of narrow
    floats are accumulated in f32. An empty `empty_error` means that an empty domain is no error.
    """

    value: Callable[[Value, ReductionDomain], Value]
    terms: str = "result"
    empty_error: str = ""


def _extremum_rule(kind: str, name: str) -> ReductionRule:
    empty_error = f"zero-size array to reduction operation {name} which has no identity"
    return ReductionRule(lambda x, domain: domain.reduce(kind, x), "elements", empty_error)


def _position_rule(kind: str) -> ReductionRule:
    empty_error = f"attempt to get {kind} of an empty sequence"
    return ReductionRule(lambda x, domain: domain.reduce(kind, x), "elements", empty_error)


MAX_RULE, MIN_RULE = _extremum_rule("max", "maximum"), _extremum_rule("min", "minimum")
RULES: Mapping[Any, ReductionRule] = {
    np.sum: ReductionRule(lambda x, domain: domain.reduce("sum", x)),
    np.prod: ReductionRule(lambda x, domain: domain.reduce("prod", x)),
    np.mean: ReductionRule(lambda x, domain: domain.mean(x)),
    np.var: ReductionRule(lambda x, domain: domain.variance(x)),
    np.std: ReductionRule(lambda x, domain: sqrt(domain.variance(x))),
    np.max: MAX_RULE,
    np.min: MIN_RULE,
    np.ptp: ReductionRule(lambda x, domain: domain.reduce("max", x) - domain.reduce("min", x), "elements",
        MAX_RULE.empty_error),
    np.argmax: _position_rule("argmax"),
    np.argmin: _position_rule("argmin"),
    np.any: ReductionRule(lambda x, domain: domain.reduce("any", x), "bools"),
    np.all: ReductionRule(lambda x, domain: domain.reduce("all", x), "bools"),
    np.count_nonzero: ReductionRule(
        lambda x, domain: domain.reduce("sum", cast(x, as_dtype(np.intp))), "bools"
    ),
}  # fmt: skip

ALIASES: Mapping[Any, Any] = {np.amax: np.max, np.amin: np.min}

NORMS: Mapping[Any, ReductionRule] = {
    None: ReductionRule(lambda x, domain: sqrt(domain.reduce("sum", x * x))),
    1: ReductionRule(lambda x, domain: domain.reduce("sum", absolute(x))),
    np.inf: ReductionRule(lambda x, domain: maximum(domain.reduce("max", absolute(x)), 0)),  # 0 if empty
    -np.inf: ReductionRule(
        lambda x, domain: domain.reduce("min", absolute(x)), empty_error=MIN_RULE.empty_error
    ),
}  # norms of vectors, by `ord`

REDUCTION_OF_UFUNC: Mapping[Any, Any] = {
    np.add: np.sum, np.multiply: np.prod, np.maximum: np.max, np.minimum: np.min,
    np.logical_and: np.all, np.logical_or: np.any,
}  # fmt: skip


FLOAT_ONLY = (np.var, np.std)  # reductions that refuse an integer result type
POSITIONS = (np.argmax, np.argmin)


def call_reduction(function: Callable[..., Any], *args: Any, **options: Any) -> Symbol:
    """Calls a reduction of NumPy, with NumPy's arguments, on an array of a graph."""
    arguments = bind_arguments(function, args, options)
    function = ALIASES.get(function, function)
    x, rule = as_symbol(function, arguments.pop("a")), RULES[function]
    axis, keepdims = arguments.pop("axis", None), arguments.pop("keepdims", False)
    ddof, dtype = arguments.pop("ddof", 0), arguments.pop("dtype", None)
    correction = arguments.pop("correction", ddof)
    refuse_options(function, arguments)
    result = _result_type(function, x, {} if dtype is None else {"dtype": element_type(dtype).numpy})
    if function in POSITIONS:
        axis = axis if axis is None else axis_of(function, axis, x.ndim)
        if not x.ndim:
            return _reduce_by_rule(function, rule, x.reshape(1), None, False, result)
    return _reduce_by_rule(function, rule, x, axis, keepdims, result, correction)


def _result_type(function: Callable[..., Any], x: Symbol, options: dict[str, Any]) -> DType:
    """The element type of the result of NumPy's function for the type of `x`."""
    try:
        result_type = from_numpy(np.asarray(function(np.ones(1, x.dtype), axis=0, **options)).dtype)
    except TypeError as error:
        if isinstance(error, TypeMismatch):
            raise
        raise TypeMismatch(
            f"{name_of(function)} of {x.dtype}: {error}",
            loc=here(),
            label="this call",
            hint="convert the array first: x.astype(np.float32)",
        ) from None
    if function in FLOAT_ONLY and not result_type.is_float:
        raise TypeMismatch(
            f"{name_of(function)} in {result_type} would truncate",
            loc=here(),
            label="this call",
            hint="leave dtype= away, or name a float",
        )
    return result_type


def call_ufunc_method(
    ufunc: np.ufunc, method: str, args: tuple[Any, ...], options: Mapping[str, Any]
) -> Symbol:
    """`np.add.reduce(x)` and similar ufunc methods, along the first axis by default."""
    functions: Mapping[Any, Any] = {
        "reduce": REDUCTION_OF_UFUNC,
        "accumulate": CUMULATIVE_OF_UFUNC,
    }.get(method, {})
    if ufunc not in functions:
        raise TypeMismatch(
            f"np.{ufunc.__name__}.{method} does not take arrays of a graph",
            loc=here(),
            label="this call",
            hint=f"{method} is known of {', '.join(f'np.{u.__name__}' for u in functions) or 'no function'}",
        )
    arguments = dict(zip(("a", "axis", "dtype", "out", "keepdims"), args, strict=False)) | dict(options)
    arguments.setdefault("axis", 0)
    function = functions[ufunc]
    return (call_reduction if method == "reduce" else cumulate)(function, **arguments)


def norm(*args: Any, **options: Any) -> Symbol:
    """`np.linalg.norm` of vectors, and of all elements of a matrix."""
    arguments = bind_arguments(np.linalg.norm, args, options)
    x, order = as_symbol(np.linalg.norm, arguments["x"]), arguments.get("ord")
    axis, keepdims = arguments.get("axis"), arguments.get("keepdims", False)
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
    return _reduce_by_rule(np.linalg.norm, NORMS[order], x, axes, keepdims, result)


def _reduce_by_rule(
    function: Callable[..., Any], rule: ReductionRule, x: Symbol, axis: Any, keepdims: Any, result: DType,
    ddof: float = 0,
) -> Symbol:  # fmt: skip
    axes = axes_of(function, axis, x.ndim)
    shape = tuple(n for d, n in enumerate(x.shape) if d not in axes)
    points = prod([x.shape[d] for d in axes])
    if rule.empty_error and not points and 0 not in shape:
        raise ShapeError(
            f"{name_of(function)}: {rule.empty_error}",
            loc=here(),
            label="this call",
            hint=f"the array has shape {x.shape}: test the extents first, they are known",
        )
    index = index_variables(x.ndim)
    variables = tuple(i for d, i in enumerate(index) if d not in axes)
    domain = ReductionDomain(tuple(index[d] for d in axes), variables, points, ddof)
    a, out = Tensor("a", x.shape, from_numpy(x.dtype)), Func(function.__name__, shape=shape)
    out[variables] = cast(rule.value(_term(a[index], rule, result), domain), result)
    reduced = record_call(x.trace, out, {a: x})
    shape_with_ones = tuple(1 if d in axes else n for d, n in enumerate(x.shape))
    return reduced.reshape(shape_with_ones) if keepdims else reduced


def _term(element: Value, rule: ReductionRule, result: DType) -> Value:
    """An element converted to the type that the rule takes."""
    match rule.terms:
        case "elements":
            return element
        case "bools":
            return cast(element, bool_)
        case _:
            return cast(cast(element, result), result.summed)


def running_max(a: Any, axis: Any = 0, dtype: Any = None) -> Any:
    """`np.maximum.accumulate`, in the form of `np.cumsum`."""
    return np.maximum.accumulate(a, axis, dtype)


def running_min(a: Any, axis: Any = 0, dtype: Any = None) -> Any:
    """`np.minimum.accumulate`, in the form of `np.cumsum`."""
    return np.minimum.accumulate(a, axis, dtype)


CUMULATIVE: Mapping[Any, Callable[[Value, Value], Value]] = {
    np.cumsum: add,
    np.cumprod: mul,
    running_max: maximum,
    running_min: minimum,
}
CUMULATIVE_OF_UFUNC: Mapping[Any, Any] = {
    np.add: np.cumsum, np.multiply: np.cumprod, np.maximum: running_max, np.minimum: running_min,
}  # fmt: skip


def cumulate(function: Callable[..., Any], *args: Any, **options: Any) -> Symbol:
    """`np.cumsum` or `np.cumprod`, with NumPy's arguments: an update over an ordered range along the axis."""
    arguments = bind_arguments(function, args, options)
    x, axis, dtype = (
        as_symbol(function, arguments.pop("a")),
        arguments.pop("axis", None),
        arguments.pop("dtype", None),
    )
    refuse_options(function, arguments)
    if axis is None or not x.ndim:
        x, axis = x.reshape(-1), 0
    axis = axis_of(function, axis, x.ndim)
    result = _result_type(function, x, {} if dtype is None else {"dtype": element_type(dtype).numpy})
    index = index_variables(x.ndim)
    a, out = Tensor("a", x.shape, from_numpy(x.dtype)), Func(function.__name__, shape=x.shape)
    out[index] = cast(a[index], result)
    at = ordered("at", 1, x.shape[axis])
    point, before = ((*index[:axis], n, *index[axis + 1 :]) for n in (at, at - 1))
    out[point] = CUMULATIVE[function](out[point], out[before])
    return record_call(x.trace, out, {a: x})
