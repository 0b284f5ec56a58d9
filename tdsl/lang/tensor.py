"""`Tensor`, `Scalar` and `Func`: the handles with which a user writes a program.

Handles compare by identity. A func collects its definitions; `build_program.py` turns the funcs and inputs
reachable from the outputs into a canonical `Program`.
"""

from __future__ import annotations

import contextlib
from typing import Any

from tdsl.core.node import transform
from tdsl.core.notebook import page
from tdsl.core.source import Loc, here
from tdsl.errors import (
    DefinitionError,
    ShapeError,
    Suggesting,
    TdslError,
    TypeMismatch,
    checked_call,
    counted,
)  # fmt: skip
from tdsl.lang.definition import (
    Definition,
    check_acyclic,
    check_pure,
    check_update,
    common_reduction,
    convert_same_kind,
    define,
    free_variables_as_ranges,
    loop_variables,
    reads,
    reads_of_other_points,
    recognise_combine,
    show_definition,
)  # fmt: skip
from tdsl.lang.expr import (
    Access,
    Binary,
    Expr,
    Param,
    Range,
    Reduce,
    Var,
    const,
)
from tdsl.lang.extents import as_shape, extent_value
from tdsl.lang.func_value import FuncValue, Increment, TupleValue
from tdsl.lang.handle import Handle, next_creation_number
from tdsl.lang.reduction import Combine, builtin_combiner
from tdsl.lang.types import DType, TensorType, as_dtype
from tdsl.lang.value import UNKNOWN_TYPE, Value, as_index, check_name, lift


def _index_nodes(name: str, rank: int, index: Any, loc: Loc | None) -> tuple[Expr, ...]:
    given = index if isinstance(index, tuple) else (index,)
    if len(given) != rank:
        raise ShapeError(
            f"{name!r} has {counted(rank, 'dimension')}, indexed with {len(given)}",
            loc=loc,
            label="this access",
            hint=f"write {name}[{', '.join('ijklmnpq'[:rank]) or '()'}]",
        )
    return tuple(as_index(i, loc) for i in given)


class Tensor(Handle, Suggesting):
    """An input array: a name, extents (integers or names), an element type.

    >>> from tdsl.lang.types import f32
    >>> image = Tensor("image", ("H", 4), f32)
    >>> image.shape[1], image.ndim, image.dtype
    (4, 2, f32)

    Raises DefinitionError, ShapeError or TypeMismatch for a bad name, extent or element type.
    """

    def __init__(self, name: str, shape: Any, dtype: Any) -> None:
        self.loc = here()
        check_name(name, self.loc)
        self.name, self.dtype = name, as_dtype(dtype)
        self.extents = as_shape(shape, self.loc)
        self._created = next_creation_number()

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents: an int if constant, else a value that can be used in expressions."""
        return tuple(extent_value(e) for e in self.extents)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.extents)

    def __getitem__(self, index: Any) -> Value:
        loc = here()
        return Value(Access(self, _index_nodes(self.name, self.ndim, index, loc), 0, self.dtype, loc=loc))

    def __setitem__(self, index: Any, value: Any) -> None:
        raise DefinitionError(
            f"{self.name!r} is an input; it cannot be defined",
            loc=here(),
            label="this definition",
            hint="define a td.Func",
        )

    def __repr__(self) -> str:
        extents = ", ".join(repr(extent_value(e)) for e in self.extents)
        return f"Tensor({self.name!r}, ({extents}{',' if self.ndim == 1 else ''}), {self.dtype})"


class Scalar(Value):
    """An input number: a name and an element type, usable as a value.

    >>> Scalar("eps", "f32") * 2
    eps * 2.0
    """

    __slots__ = ("loc",)

    @checked_call
    def __init__(self, name: str, dtype: Any) -> None:
        self.loc = here()
        check_name(name, self.loc)
        Value.__init__(self, Param(name, as_dtype(dtype), created=next_creation_number(), loc=self.loc))

    @property
    def name(self) -> str:
        """The name of the argument of a call."""
        return self.node.name  # type: ignore[union-attr]  # a Param


class Func(Handle, Suggesting):
    """A computed tensor: one pure definition `f[i, j] = ...`, then updates in order.

    A func is defined at all integer points; the range that is computed follows from the tensors it reads,
    from its consumers, or from `shape`. A tuple on the right makes it tuple-valued: `f[i][0]` is a component.
    """

    def __init__(self, name: str, shape: Any = None) -> None:
        self.loc = here()
        check_name(name, self.loc)
        self.name = name
        self.definitions: list[Definition] = []
        self.dtypes: tuple[DType, ...] = ()
        self.declared: tuple[Expr, ...] | None = None
        self._first: tuple[Expr, ...] = ()  # the first index of each declared extent, if not 0
        self.fast_math = False
        self._operands: tuple[Any, ...] = ()  # the operands, if this is the result of an einsum
        self._extents: tuple[Expr | None, ...] = ()  # the known extents of the result of an einsum
        if shape is not None:
            self.declared = as_shape(shape, self.loc)

    @property
    def ndim(self) -> int:
        """The number of dimensions; DefinitionError before the first definition."""
        return len(self._pure_definition().index)

    @property
    def dtype(self) -> DType:
        """The element type (of the first component)."""
        self._pure_definition()
        return self.dtypes[0]

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents of the range that is computed if this func is an output; see `domain`."""
        return tuple(extent_value(e) for _, e in self._domain())

    @property
    def domain(self) -> tuple[tuple[Any, Any], ...]:
        """(first index, extent) of each dimension; element 0 of the output array is at the first index."""
        return tuple((extent_value(lo), extent_value(e)) for lo, e in self._domain())

    def _domain(self) -> tuple[tuple[Expr, Expr], ...]:
        from tdsl.lang.build_program import build_program

        self._pure_definition()
        if self.declared is not None:  # no program is built: a chain of n funcs needs n domains
            return tuple(zip(self._first or (const(0),) * len(self.declared), self.declared, strict=True))
        program = build_program((self,))
        return program.func(program.outputs[0]).output_box(here())

    def _pure_definition(self) -> Definition:
        if not self.definitions:
            raise DefinitionError(
                f"func {self.name!r} has no definition",
                loc=here(),
                label="needed here",
                related=((self.loc, "made here"),),
                hint=f"write {self.name}[i, j] = ...",
            )
        return self.definitions[0]

    def with_shape(self, *shape: Any) -> Func:
        """Declare the extents of this func, which limits it to 0 <= index < extent; returns the func."""
        loc = here()
        extents = as_shape(shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape, loc)
        if self.definitions and len(extents) != self.ndim:
            raise ShapeError(
                f"{self.name!r} has {counted(self.ndim, 'dimension')}, the shape has {len(extents)}",
                loc=loc,
                label="this shape",
                related=((self.definitions[0].loc, "defined here"),),
                hint="give one extent for each dimension",
            )
        self.declared = extents
        return self

    def __getitem__(self, index: Any) -> Any:
        loc = here()
        if not self.definitions:
            given = index if isinstance(index, tuple) else (index,)
            nodes = tuple(as_index(i, loc) for i in given)
            return FuncValue(Access(self, nodes, 0, UNKNOWN_TYPE, loc=loc))
        nodes = _index_nodes(self.name, self.ndim, index, loc)
        if len(self.dtypes) > 1:
            return TupleValue(Access(self, nodes, 0, self.dtypes[0], loc=loc), self.dtypes)
        return FuncValue(Access(self, nodes, 0, self.dtypes[0], loc=loc))

    def __setitem__(self, index: Any, value: Any) -> None:
        loc = here()
        given = index if isinstance(index, tuple) else (index,)
        nodes = tuple(as_index(i, loc) for i in given)
        if self.definitions and len(nodes) != self.ndim:
            _index_nodes(self.name, self.ndim, index, loc)
        self._check_declared(len(nodes), loc)
        if isinstance(value, Increment):
            self._increment(nodes, value, loc)
        elif not self.definitions:
            self._define(nodes, value, loc)
        else:
            self._update(nodes, value, loc)

    def _check_declared(self, rank: int, loc: Loc | None) -> None:
        if self.declared is not None and len(self.declared) != rank:
            raise ShapeError(
                f"{self.name!r} has {counted(rank, 'dimension')}, its shape has {len(self.declared)}",
                loc=loc,
                label="this definition",
                related=((self.loc, "made here"),),
                hint="give one extent for each dimension",
            )

    def _increment(self, index: tuple[Expr, ...], marker: Increment, loc: Loc | None) -> None:
        if not self.definitions:
            self._define_identity(index, marker.kind, marker.value.dtype, loc)
        value = convert_same_kind(marker.value, self.dtypes[0], self.name, loc)
        self._add_update(index, (value,), builtin_combiner(marker.kind, (self.dtypes[0],)), loc)

    def _define_identity(self, index: tuple[Expr, ...], kind: str, t: DType, loc: Loc | None) -> None:
        """Add the pure definition that an update of an undefined func implies: its combiner's identity."""
        names = [e.name if isinstance(e, Var) else f"{self.name}_{n}" for n, e in enumerate(index)]
        if len(set(names)) < len(names):
            names = [f"{self.name}_{n}" for n in range(len(index))]
        pure = tuple(Var(n) for n in names)
        self.dtypes = (t,)
        self.definitions.append(define(pure, builtin_combiner(kind, (t,)).init, None, loc, pure=True))

    def _define(self, index: tuple[Expr, ...], value: Any, loc: Loc | None) -> None:
        if isinstance(value, tuple) and not value:
            raise DefinitionError(
                f"{self.name!r} is defined by no values",
                loc=loc,
                label="this definition",
                hint="write a value, or a tuple of several",
            )
        values = tuple(_lift_or_self(v, self, loc) for v in (value if isinstance(value, tuple) else (value,)))
        started = self._self_min_max(index, values)
        if started is not None:
            kind, other = started
            self._define_identity(index, kind, other.dtype, loc)
            self._add_update(index, (other.node,), builtin_combiner(kind, (other.dtype,)), loc)
            return
        nodes = tuple(v.node for v in values)
        if any(reads(n, self) for n in nodes):
            raise DefinitionError(
                f"{self.name!r} is read before it is defined",
                loc=loc,
                label="this definition",
                hint=f"define {self.name} first, then update it over a td.range",
            )
        is_reduction, hoisted = common_reduction(nodes) is not None, _HoistedFuncs()
        nodes = tuple(self._hoist(n, hoisted, top=is_reduction) for n in nodes)
        check_pure(self.name, index, nodes, loc)
        self.dtypes = tuple(v.dtype for v in values)
        self.definitions.append(define(index, nodes, None, loc, pure=True))

    def _self_min_max(self, index: tuple[Expr, ...], values: tuple[Value, ...]) -> tuple[str, Value] | None:
        match [v.node for v in values]:
            case [Binary("min" | "max" as op, Access(source, indices), other)] if (
                source is self and indices == index and not reads(other, self)
            ):
                return op, Value(other)
        return None

    def _update(self, index: tuple[Expr, ...], value: Any, loc: Loc | None) -> None:
        given = tuple(value) if isinstance(value, tuple | TupleValue) else (value,)
        if len(given) != len(self.dtypes):
            raise TypeMismatch(
                f"{self.name!r} has {counted(len(self.dtypes), 'value')}, this update gives {len(given)}",
                loc=loc,
                label="this update",
                hint="write a tuple with one value for each",
            )
        nodes = tuple(
            convert_same_kind(lift(v, loc), t, self.name, loc)
            for v, t in zip(given, self.dtypes, strict=True)
        )
        combine, nodes = recognise_combine(self, index, nodes)
        self._add_update(index, nodes, combine, loc)

    def _add_update(
        self,
        index: tuple[Expr, ...],
        values: tuple[Expr, ...],
        combine: Combine | None,
        loc: Loc | None,
    ) -> None:
        hoisted = _HoistedFuncs()
        values = tuple(self._hoist(v, hoisted, top=False) for v in values)
        update = define(index, values, combine, loc, pure=False)
        others = reads_of_other_points(self, update)
        if update.ranges and others:
            update = free_variables_as_ranges(update, others, self._domain())
        check_update(self.name, self, update, loc)
        check_acyclic(self.name, self, update, loc)
        if combine is None and not update.ranges and not any(reads(v, self) for v in values):
            whole = all(isinstance(e, Var) for e in index) and len(set(index)) == len(index)
            if whole:
                raise DefinitionError(
                    f"{self.name!r} is defined twice",
                    loc=loc,
                    label="this would replace every value",
                    related=((self.definitions[0].loc, "first definition"),),
                    hint="use another td.Func, or an update such as += or over a td.range",
                )
        self.definitions.append(update)

    def _hoist(self, e: Expr, hoisted: _HoistedFuncs, *, top: bool) -> Expr:
        """The expression with each reduction (not one at the `top`) replaced by a read of a new func."""
        if top and isinstance(e, Reduce):
            terms = tuple(self._hoist(t, hoisted, top=False) for t in e.terms)
            return e if terms == e.terms else _with_terms(e, terms)

        def visit(n: Any) -> Any:
            if not isinstance(n, Reduce):
                return n
            key = (n.kind, n.axes, n.terms, n.combine, n.init)
            if key not in hoisted:
                hoisted[key] = _reduction_func(f"{self.name}_{n.kind}", n)
            f, outer = hoisted[key]
            return Access(f, outer, n.component, n.dtype, loc=n.loc)

        return transform(e, visit)

    def _func_name(self) -> str:
        return self.name

    def _attribute_hint(self, name: str) -> str:
        functions = {"compile": f"td.compile({self.name})", "schedule": f"td.Schedule({self.name})"}
        return functions.get(name, "") or Suggesting._attribute_hint(self, name)

    def __repr__(self) -> str:
        return show_func(self) if self.definitions else f"Func({self.name!r})"

    def _repr_html_(self) -> str:
        from tdsl.lang.build_program import build_program

        texts = [("definitions", repr(self))]
        if self.definitions:
            with contextlib.suppress(TdslError):  # the program is still incomplete, or is wrong
                texts.append(("program", str(build_program((self,)))))
        return page(f"Func {self.name}", texts)


def show_func(f: Func) -> str:
    """The definitions of a func, one on each line, with the ranges of their variables.

    >>> from tdsl.lang.reduction import range, sum
    >>> from tdsl.lang.value import vars
    >>> i, k = vars("i k")
    >>> a, f, r = Tensor("a", (3, 4), "f32"), Func("f"), range("r", 1, 3)
    >>> f[i] = sum(a[i, k], axis=k)
    >>> f[r] += f[r - 1] * 2
    >>> print(show_func(f))
    f[i] = sum(a[i, k], axis=k)
    f[r] += f[r - 1] * 2.0 for r in range(1, 3)
    """
    return "\n".join(show_definition(f.name, d) for d in f.definitions)


# the funcs of the reductions in one definition, by the reduction: equal ones share a func
_HoistedFuncs = dict[tuple[Any, ...], tuple["Func", tuple[Expr, ...]]]


def _lift_or_self(v: Any, func: Func, loc: Loc | None) -> Value:
    if isinstance(v, FuncValue) and v.dtype is UNKNOWN_TYPE and v.node.source is func:  # type: ignore[union-attr]  # an Access
        return v
    return lift(v, loc)


def _with_terms(r: Reduce, terms: tuple[Expr, ...]) -> Reduce:
    return Reduce(r.kind, r.axes, terms, r.combine, r.init, r.component, r.dtype, loc=r.loc)


def _reduction_func(name: str, r: Reduce) -> tuple[Func, tuple[Expr, ...]]:
    """A new func that computes a reduction, and the index at which the enclosing expression reads it."""
    f = Func(name)
    f.loc = r.loc
    bound = {a.name for a in r.axes if isinstance(a, Var | Range)}
    outer = {
        n: range_node or Var(n)
        for n, range_node in loop_variables((*r.terms, *r.axes)).items()
        if n not in bound
    }
    values = tuple(
        Reduce(r.kind, r.axes, r.terms, r.combine, r.init, n, t.dtype, loc=r.loc)
        for n, t in enumerate(lift(Value(x)) for x in r.init)
    )
    f.dtypes = tuple(v.dtype for v in values)
    f.definitions.append(define(tuple(Var(n) for n in outer), values, None, r.loc, pure=True))
    return f, tuple(outer.values())


def is_func(x: object) -> bool:
    """True if `x` is a Func."""
    return isinstance(x, Func)


def tensor_from_annotation(name: str, annotation: Any, loc: Loc | None) -> Tensor | Scalar | None:
    """The input declared by a parameter `name: f32["M", "K"]` or `name: f32`; None for other annotations."""
    handle: Tensor | Scalar
    match annotation:
        case TensorType(dtype, shape):
            handle = Tensor(name, shape, dtype)
        case DType():
            handle = Scalar(name, annotation)
        case _:
            return None
    handle.loc = loc
    return handle
