"""`stop_gradient`: a value that is a constant to derivatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tdsl.core.node import Node, post_order, transform
from tdsl.core.source import here
from tdsl.lang.expr import Call
from tdsl.lang.program import Program
from tdsl.lang.value import Value, lift

NAME = "stop_gradient"


def stop_gradient(value: Any) -> Value:
    """`value`, of which derivatives are 0, as `jax.lax.stop_gradient` and `Tensor.detach` of torch.

    >>> import numpy as np, tdsl as td
    >>> i, x, loss = td.vars("i"), td.Tensor("x", (3,), td.f64), td.Func("loss")
    >>> loss[()] = td.sum(td.stop_gradient(x[i]) * x[i], axis=i)
    >>> td.compile(td.grad(loss, x))(np.array([1.0, 2.0, 3.0]))
    array([1., 2., 3.])
    """
    v = lift(value, here())
    return Value(Call(NAME, (v.node,), v.dtype)) if v.dtype.is_float and not v.weak else v


def without_stops(program: Program) -> Program:
    """The program with the operand of each `stop_gradient` in its place; only derivatives need it.

    >>> import tdsl as td
    >>> i, x, f = td.vars("i"), td.Tensor("x", (3,), td.f32), td.Func("f")
    >>> f[i] = stop_gradient(x[i]) * 2
    >>> print(td.Schedule(f).program)
    f(x: f32[3]) -> f
    f: f32 on 0 <= i < 3
      f[i] = x[i] * 2.0
    """

    def visit(n: Node) -> Node:
        return n.args[0] if isinstance(n, Call) and n.fn == NAME else n

    def stops(n: Node) -> bool:
        return isinstance(n, Call) and n.fn == NAME

    if not any(stops(n) for f in program.funcs for d in f.definitions for n in post_order(*d.expressions())):
        return program
    funcs = tuple(f.map_expressions(lambda e: transform(e, visit)) for f in program.funcs)
    return replace(program, funcs=funcs, with_stops=program)
