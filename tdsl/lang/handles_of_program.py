"""`handles_of_program`: the tensors, scalars and funcs of a program, as a user writes them."""

from __future__ import annotations

from collections.abc import Mapping

from tdsl.core.node import Node, transform
from tdsl.lang.expr import ONE, Access, Expr, Read
from tdsl.lang.program import FuncDef, Input, Program, map_expressions
from tdsl.lang.simplify import add, subtract
from tdsl.lang.tensor import Func, Scalar, Tensor

Handle = Tensor | Scalar | Func


def handles_of_program(program: Program) -> dict[str, Handle]:
    """The handles of a program's inputs, scalars and funcs, by name: the inverse of `build_program`.

    >>> from tdsl.lang.build_program import build_program
    >>> from tdsl.lang.value import vars
    >>> i, a, f = vars("i"), Tensor("a", ("N",), "f32"), Func("f")
    >>> f[i] = a[i + 1] * 2
    >>> program = build_program((f,))
    >>> handles = handles_of_program(program)
    >>> build_program((handles["f"],)) == program
    True
    """
    handles: dict[str, Handle] = {t.name: _tensor(t) for t in program.inputs}
    handles |= {s.name: Scalar(s.name, s.dtype) for s in program.scalars}
    for f in program.funcs:
        handles[f.name] = _func(f, handles)
    return handles


def _tensor(t: Input) -> Tensor:
    tensor = Tensor(t.name, (), t.dtype)
    tensor.extents, tensor.loc = t.shape, t.loc
    return tensor


def _func(f: FuncDef, handles: Mapping[str, Handle]) -> Func:
    """The handle of a func; `handles` has those of all inputs and funcs that it reads, except its own."""
    func = Func(f.name)
    func.loc, func.dtypes, func.fast_math = f.loc, f.dtypes, f.fast_math
    if f.declared:
        ends = [(lo, hi) for lo, hi in f.limits if lo is not None and hi is not None]
        func._first = tuple(lo for lo, _ in ends)
        func.declared = tuple(add(subtract(hi, lo), ONE) for lo, hi in ends)

    def visit(n: Node) -> Node:
        if not isinstance(n, Read):
            return n
        source = func if n.name == f.name else handles[n.name]
        return Access(source, n.index, n.component, n.dtype, loc=n.loc)

    def by_handle(e: Expr) -> Expr:
        return transform(e, visit)

    func.definitions = [map_expressions(d, by_handle) for d in f.definitions]
    return func
