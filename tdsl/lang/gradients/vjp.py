"""`vjp`: the adjoints of tensors, scalars and funcs, given those of the outputs of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tdsl.core.source import here
from tdsl.errors import DefinitionError, ShapeError, TypeMismatch, counted
from tdsl.lang.access_boxes import propagate, reads_of_func, update_closure
from tdsl.lang.build_program import inferred_program
from tdsl.lang.expr import ONE, TRUE, ZERO, Read, Var
from tdsl.lang.gradients.activity import active_sources, check_output
from tdsl.lang.gradients.adjoints import Backward, ranges_at
from tdsl.lang.gradients.contribution import Boxes, Contribution
from tdsl.lang.gradients.paddings import with_paddings
from tdsl.lang.gradients.versions import with_versions
from tdsl.lang.program import FuncDef, Program
from tdsl.lang.regions import Box, intersection_box
from tdsl.lang.simplify import subtract
from tdsl.lang.tensor import Func, Scalar, Tensor
from tdsl.lang.value import Value, convert, lift


def adjoints(outputs: Sequence[Func], wrt: Sequence[Any], seeds: Sequence[Any]) -> tuple[Func, ...]:
    """The adjoints of `wrt` as funcs, given those of the outputs: tensors, funcs or numbers.

    Raises DefinitionError for an output that is no func of floats, for one of `wrt` on which no output
    depends, and for an operator or update without a derivative on the way; ShapeError for a seed of another
    shape.
    """
    for f in outputs:
        _check_func(f)
    program, handles = inferred_program(tuple(outputs))
    names = [_name_of(x, handles, program) for x in wrt]
    for name in program.outputs:
        check_output(program, program.func(name))
    program = with_versions(with_paddings(program, handles), handles)
    boxes = _realised_boxes(program, names)
    active = active_sources(program, names) & boxes.keys()
    backward = Backward(program, handles, boxes, active, {*names})
    for name, seed in zip(program.outputs, seeds, strict=True):
        _add_seed(backward, program.func(name), seed)
    backward.run()
    return tuple(_result(backward, x, name) for x, name in zip(wrt, names, strict=True))


def _check_func(f: object) -> None:
    if not isinstance(f, Func):
        raise TypeMismatch(
            f"a gradient is taken of a func, not of {type(f).__name__}",
            loc=here(),
            label="this call",
            hint="of a function of arrays: td.grad(td.Graph(function), 'w')"
            if callable(f)
            else "define it: loss = td.Func('loss'), loss[()] = ...",
        )
    f._pure_definition()


def check_scalar(f: Any) -> None:
    """Raise ShapeError unless a func has rank 0."""
    _check_func(f)
    if f.ndim:
        raise ShapeError(
            f"{f.name!r} has {counted(f.ndim, 'dimension')}; td.grad takes a func with none",
            loc=here(),
            label="this call",
            related=((f.definitions[0].loc, "defined here"),),
            hint="sum it, loss[()] = td.sum(...), or give the adjoint of each element: td.vjp(f, wrt, seed)",
        )


def _name_of(x: Any, handles: dict[str, Any], program: Program) -> str:
    """The name by which a program reads a tensor, scalar or func."""
    if isinstance(x, Scalar):
        name = x.name if any(s.name == x.name for s in program.scalars) else ""
    elif isinstance(x, Tensor | Func):
        name = next((n for n, handle in handles.items() if handle is x), "")
    else:
        raise TypeMismatch(
            f"a derivative is taken by tensors, scalars and funcs, not by {type(x).__name__}",
            loc=here(),
            label="this call",
            hint="td.grad(loss, [x, w])",
        )
    if not name:
        raise DefinitionError(
            f"no output depends on {x.name!r}",
            loc=here(),
            label="in this gradient",
            related=((x.loc, "declared here"),),
            hint=f"its derivative is 0; take {x.name} out",
        )
    if isinstance(x, Func) and len(x.dtypes) > 1:
        raise DefinitionError(
            f"{x.name!r} has several values; a derivative is taken by one",
            loc=here(),
            label="in this gradient",
            related=((x.definitions[0].loc, "defined here"),),
            hint=f"give it a func: y[...] = {x.name}[...][0]",
        )
    if not x.dtype.is_float:
        raise DefinitionError(
            f"{x.name!r} holds {x.dtype}: there is no derivative by integers",
            loc=here(),
            label="in this gradient",
            related=((x.loc, "declared here"),),
            hint=f"take {x.name} out, or declare it with a type of floats",
        )
    return name


def _realised_boxes(program: Program, wrt: Sequence[str]) -> Boxes:
    """The boxes of inputs, and of funcs as far as elements of them are needed; all of the funcs in `wrt`."""

    def reads(f: FuncDef, box: Box) -> dict[str, Box]:
        touched = reads_of_func(f, box, ranges_at)
        of_funcs = {n: box for n, box in touched.items() if program.has_func(n)}
        return {n: intersection_box(box, program.func(n).limits) for n, box in of_funcs.items()}

    def computed(f: FuncDef, box: Box) -> Box:
        return update_closure(f, box, ranges_at)

    roots: dict[str, Box] = {}
    for f in (f for f in program.funcs if f.name in (*program.outputs, *wrt)):
        f.output_box(None)
        roots[f.name] = f.natural
    boxes = propagate(reversed(program.funcs), roots, reads, computed)
    boxes |= {t.name: tuple((ZERO, subtract(e, ONE)) for e in t.shape) for t in program.inputs}
    boxes |= {s.name: () for s in program.scalars}
    return Boxes(boxes, {f.name: f.limits for f in program.funcs})


def _add_seed(backward: Backward, f: FuncDef, seed: Any) -> None:
    """Add a seed to the adjoint of an output."""
    first = [lo for lo, _ in f.natural]
    value: Value
    if isinstance(seed, Tensor | Func):
        name = backward.name_of_seed(seed, f)
        at = tuple(subtract(Var(v), lo) for v, lo in zip(f.variables, first, strict=True) if lo is not None)
        value = Value(Read(name, at, 0, seed.dtype))
    else:
        value = lift(seed, here())
    if not (value.dtype.is_float or value.weak):
        raise TypeMismatch(
            f"the seed of {f.name!r} is {value.dtype}; an adjoint is a float",
            loc=here(),
            label="this call",
            hint=f"give a tensor of {f.dtypes[0]}",
        )
    target = Read(f.name, tuple(Var(v) for v in f.variables), 0, f.dtypes[0])
    ranges = dict(zip(f.variables, f.natural, strict=True))
    adjoint = convert(value, f.dtypes[0].summed, None)
    backward.add(Contribution(target, ranges, TRUE, TRUE, adjoint))


def _result(backward: Backward, x: Any, name: str) -> Func:
    """The func of the adjoint of `x`, of which all readers have been visited."""
    if isinstance(x, Func):
        return backward.result(name, [Var(v) for v in backward.program.func(name).variables], x.dtype)
    rank = x.ndim if isinstance(x, Tensor) else 0
    return backward.result(name, backward.axes_of(name, rank), x.dtype)
