"""`td.vjp` and `td.grad`: gradients of funcs."""

from __future__ import annotations

from typing import Any

from tdsl.core.source import here
from tdsl.errors import ShapeError, counted


def vjp(outputs: Any, wrt: Any, seed: Any) -> Any:
    """The adjoints of `wrt`, given the adjoints `seed` of the outputs: a vector-Jacobian product.

    `outputs` is a func of floats, or a list of them, and `seed` the derivative of a scalar by it: a tensor or
    func of its shape, or a number; one for each output. `wrt` are tensors, scalars and funcs: the result has
    one func for each, of its shape and element type, in a tuple if `wrt` is a list.

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

    listed, seeds = _listed(outputs), _listed(seed)
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

    >>> import numpy as np, tdsl as td
    >>> i, x, loss = td.vars("i"), td.Tensor("x", (3,), td.f64), td.Func("loss")
    >>> loss[()] = td.sum(x[i] ** 2, axis=i)
    >>> td.compile(td.grad(loss, x))(np.array([1.0, 2.0, 3.0]))
    array([2., 4., 6.])

    Raises ShapeError for a func of another rank.
    """
    from tdsl.lang.gradients.vjp import adjoints, check_scalar

    check_scalar(output)
    results = adjoints((output,), _listed(wrt), (1.0,))
    return results if isinstance(wrt, list | tuple) else results[0]


def _listed(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, list | tuple) else (x,)
