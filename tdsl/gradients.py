"""`td.vjp`, `td.grad` and `td.value_and_grad`: gradients of funcs, operators and graphs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tdsl.core.source import here
from tdsl.errors import DefinitionError, ShapeError, TypeMismatch, counted, did_you_mean
from tdsl.lang.extents import extent_value
from tdsl.lang.gradients.stop_gradient import stop_gradient as stop_gradient
from tdsl.lang.types import TensorType
from tdsl.op import Operator


def vjp(outputs: Any, wrt: Any, seed: Any = None) -> Any:
    """The adjoints of `wrt`, given the adjoints `seed` of the outputs: a vector-Jacobian product.

    `outputs` is a func of floats, or a list of them, and `seed` the derivative of a scalar by it: a tensor or
    func of its shape, or a number; one for each output. `wrt` are tensors, scalars and funcs: the result has
    one func for each, of its shape and element type, in a tuple if `wrt` is a list.

    Of an operator and names of its parameters it is an operator: its parameters are those of the operator,
    then an adjoint for each output, named d_<output>, with a number if a parameter has this name. There is no
    `seed` then.

    The results are funcs as any others: they are compiled, scheduled, fused and differentiated again. Sums of
    f16 and bf16 are computed in f32, as in `td.sum`.

    >>> import numpy as np, tdsl as td
    >>> i, j, k = td.vars("i j k")
    >>> x, w, dy = (td.Tensor(n, (2, 2), td.f64) for n in ("x", "w", "dy"))
    >>> y = td.Func("y")
    >>> y[i, j] = td.sum(x[i, k] * w[k, j], axis=k)
    >>> dx, dw = td.vjp(y, [x, w], dy)
    >>> dx
    d_x[i, k] = sum(dy[i, j] * w[k, j], axis=j) for j in range(0, 2)

    Raises DefinitionError where an operator, reduction or update has no derivative, with its line; ShapeError
    for a seed of another shape.
    """
    from tdsl.lang.gradients.vjp import adjoints

    differentiable = _gradient_method(outputs)
    if differentiable is not None:
        if seed is not None:
            raise TypeMismatch(
                f"td.vjp of {outputs.name!r} takes no seed",
                loc=here(),
                label="this call",
                hint="the result takes the adjoint of each output, after the parameters",
            )
        return differentiable(wrt, has_seeds=True)
    if seed is None:
        raise TypeMismatch(
            "td.vjp needs the adjoint of each output",
            loc=here(),
            label="this call",
            hint="td.vjp(y, [x], td.Tensor('dy', y.shape, td.f32)); for a loss td.grad(loss, [x])",
        )
    listed, seeds = _listed(outputs), _listed(seed)
    if not listed:
        raise TypeMismatch(
            "td.vjp needs one output or more",
            loc=here(),
            label="this call",
            hint="give the funcs whose adjoints are the seeds",
        )
    if len(listed) != len(seeds):
        raise ShapeError(
            f"there are {counted(len(listed), 'output')} and {counted(len(seeds), 'seed')}",
            loc=here(),
            label="this call",
            hint="give one seed for each output",
        )
    results = adjoints(listed, _listed(wrt), seeds)
    return results if isinstance(wrt, list | tuple) else results[0]


def grad(output: Any, wrt: Any) -> Any:
    """The derivatives of a func of rank 0, a loss, by each of `wrt`, as `vjp` with the seed 1.

    Of an operator and names of its parameters it is an operator with the same parameters.

    >>> import numpy as np, tdsl as td
    >>> i, x, loss = td.vars("i"), td.Tensor("x", (3,), td.f64), td.Func("loss")
    >>> loss[()] = td.sum(x[i] ** 2, axis=i)
    >>> td.compile(td.grad(loss, x))(np.array([1.0, 2.0, 3.0]))
    array([2., 4., 6.])
    >>> @td.op
    ... def distance(a: td.f64["N"], b: td.f64["N"]):
    ...     d = td.Func("d")
    ...     d[()] = td.sum((a[i] - b[i]) ** 2, axis=i)
    ...     return d
    >>> td.grad(distance, "b")(np.ones(3), np.zeros(3))
    array([-2., -2., -2.])

    Raises ShapeError for a func of another rank.
    """
    from tdsl.lang.gradients.vjp import adjoints, check_scalar

    differentiable = _gradient_method(output)
    if differentiable is not None:
        return differentiable(wrt, has_seeds=False)
    check_scalar(output)
    results = adjoints((output,), _listed(wrt), (1.0,))
    return results if isinstance(wrt, list | tuple) else results[0]


def value_and_grad(of: Any, wrt: Any) -> Any:
    """The results of an operator or graph and their derivatives, as `grad`, as one operator or graph.

    An operator returns its result and the derivatives in one tuple; a graph returns its result, and the
    derivatives as `grad` nests them.

    >>> import numpy as np, tdsl as td
    >>> step = td.value_and_grad(td.Graph(lambda w, x: np.mean((x @ w["a"]) ** 2)), "w")
    >>> loss, dw = step({"a": np.ones(2)}, np.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> loss.item(), dw["a"]
    (29.0, array([24., 34.]))

    Raises TypeMismatch for funcs: `td.compile((loss, *td.grad(loss, wrt)))` has both.
    """
    differentiable = _gradient_method(of)
    if differentiable is None:
        raise TypeMismatch(
            f"td.value_and_grad takes an operator or a graph, not {type(of).__name__}",
            loc=here(),
            label="this call",
            hint="for funcs: td.compile((loss, *td.grad(loss, [x, w])))",
        )
    return differentiable(wrt, has_seeds=False, has_value=True)


def _gradient_method(of: Any) -> Callable[..., Any] | None:
    """What builds the derivatives of an operator or a graph; None for funcs."""
    if isinstance(of, Operator):
        return functools.partial(_operator, of)
    method: Callable[..., Any] | None = getattr(type(of), "__tdsl_gradient__", None)
    return None if method is None else functools.partial(method, of)


def _listed(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, list | tuple) else (x,)


def _operator(op: Operator, wrt: Any, has_seeds: bool, has_value: bool = False) -> Operator:
    """The operator of the derivatives of an operator by parameters given by name."""
    from tdsl.lang.gradients.contribution import unused_name

    names, call = _listed(wrt), "vjp" if has_seeds else "grad"
    if not names:
        raise TypeMismatch(
            f"td.{call} of operator {op.name!r} needs the name of one parameter or more",
            loc=here(),
            label="this call",
            hint=f"td.{call}({op.name}, {next(iter(inspect.signature(op.function).parameters), 'x')!r})",
        )
    if not has_seeds and len(op.program.outputs) > 1:
        raise ShapeError(
            f"operator {op.name!r} has {counted(len(op.program.outputs), 'output')}; td.grad takes one",
            loc=here(),
            label="this call",
            hint=f"give the adjoint of each output: td.vjp({op.name}, {names[0]!r})",
        )
    parameters = dict(inspect.signature(op.function).parameters)
    for name in names:
        if name not in parameters:
            raise DefinitionError(
                f"operator {op.name!r} has no parameter {name!r}",
                loc=here(),
                label="this call",
                hint=did_you_mean(name, parameters),
            )
    types = inspect.get_annotations(op.function, eval_str=True)
    inputs = {name: types[name] for name in parameters}
    outputs = [op.program.func(name) for name in op.program.outputs] if has_seeds else []
    for f in outputs:
        shape = tuple(map(extent_value, f.array_shape(here())))
        inputs[unused_name(f"d_{f.name}", inputs)] = TensorType(f.dtypes[0], shape)

    def function(*arguments: Any) -> Any:
        given = dict(zip(inputs, arguments, strict=True))
        results = op.function(*arguments[: len(parameters)])
        handles = [given[name] for name in names]
        if has_seeds:
            return vjp(_listed(results), handles, arguments[len(parameters) :])
        return (*_listed(results), *grad(results, handles)) if has_value else grad(results, handles)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    declared = [inspect.Parameter(name, kind, annotation=t) for name, t in inputs.items()]
    function.__name__ = function.__qualname__ = f"d_{op.name}"
    function.__doc__ = f"The derivatives of {op.name} by {', '.join(names)}."
    function.__annotations__ = inputs
    function.__signature__ = inspect.Signature(declared)  # type: ignore[attr-defined]  # as inspect allows
    return Operator(function, here())
