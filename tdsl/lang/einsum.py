"""`einsum`: sums of products of tensors, as funcs.

1. The subscripts name the axes (`subscripts.py`); a name is a loop variable.
2. An axis that occurs in only one of several operands, and not in the result, is summed over first.
3. Three operands or more are contracted pairwise (`contraction_order.py`); each pair is a separate func,
   which can be scheduled and fused like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce as fold
from itertools import chain
from operator import mul
from typing import Any

import numpy as np

from tdsl.core.node import frozen, post_order
from tdsl.core.source import Loc, here
from tdsl.errors import DefinitionError, TypeMismatch
from tdsl.lang.casts import cast
from tdsl.lang.contraction_order import contraction_order
from tdsl.lang.definition import loop_variables
from tdsl.lang.expr import ONE, ZERO, Access, Const, Expr, Var
from tdsl.lang.pad import Padded
from tdsl.lang.reduction import sum as sum_over
from tdsl.lang.show import show_expr
from tdsl.lang.subscripts import Subscripts, parse
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import DType, as_dtype, promote
from tdsl.lang.value import Value, Variable, lift

ASSUMED_EXTENT = 1000  # the value assumed for an unknown extent when the contraction order is chosen


@frozen
class _Term:
    """An operand: its value, indexed by the variables `names`."""

    names: tuple[str, ...]
    value: Value


def einsum(
    subscripts: str, *operands: Any, dtype: Any = None, optimize: bool = True, name: str = "einsum"
) -> Func:
    """A func named `name` that computes the sum of products of the subscripts, as `numpy.einsum`.

    An operand is a tensor, a func, a number, or a value whose loop variables have the names of its letters. A
    letter that occurs twice in an operand selects its diagonal. "..." is for the axes without a letter; they
    broadcast. Without "->" the result has these axes, then the letters that occur once, in alphabetical
    order. An axis of extent 1 is broadcast if the same letter has another extent in another operand. The
    result has the common type of the operands, which is also that of the sum (narrow floats are summed in f32
    and rounded at the end), unless `dtype` is given. A call of the compiled func takes the operands in order.

    Three operands or more are contracted pairwise, in the order of least cost (unknown extents count as
    1000), each pair in a separate func; with `optimize=False` all are contracted in one sum.

    >>> from tdsl.lang.value import vars
    >>> i, r = vars("i r")
    >>> x, b, c = (Tensor(n, tuple(s), "f32") for n, s in (("x", "IJK"), ("b", "JR"), ("c", "KR")))
    >>> einsum("ijk,jr,kr->ir", x, b, c)
    einsum[i, r] = sum(einsum_0[i, j, r] * b[j, r], axis=j)

    Raises DefinitionError, ShapeError or TypeMismatch if subscripts and operands do not match.
    """
    loc = here()
    ranks = tuple(_rank(x, n, loc) for n, x in enumerate(operands))
    parsed = parse(subscripts, ranks, loc)
    variables: dict[str, Value] = {n: Variable(Var(n), weak=True) for n in chain(*parsed.terms)}
    infer = bool(parsed.dots) or len(operands) > 2
    extents = [_extents(x, len(names), infer=infer) for names, x in zip(parsed.terms, operands, strict=True)]
    several = _extents_by_axis(parsed, extents)
    terms = [
        _term(x, names, variables, _broadcast_axes(x, names, shape, several, parsed.dots), loc)
        for names, x, shape in zip(parsed.terms, operands, extents, strict=True)
    ]
    t = _common_dtype(terms) if dtype is None else as_dtype(dtype)
    exact = t.summed if dtype is None else t
    terms = [replace(term, value=cast(term.value, exact)) for term in terms]
    whole = {n: min(e - {ONE} or e, key=show_expr, default=None) for n, e in several.items()}
    if optimize and len(terms) > 1:
        sizes = {n: int(e.value) if isinstance(e, Const) else ASSUMED_EXTENT for n, e in whole.items()}
        f = _contract_pairwise(terms, parsed.result, variables, sizes, name, t)
    else:
        f = _sum_of_products(terms, parsed.result, variables, name, t)
    f._operands, f._extents = operands, tuple(whole[n] for n in parsed.result)
    return f


def _rank(x: Any, n: int, loc: Loc | None) -> int | None:
    """The number of dimensions of an operand; None for a value."""
    if isinstance(x, Tensor | Padded):
        return x.ndim
    if isinstance(x, Func):
        rank = x.ndim
        if len(x.dtypes) == 1:
            return rank
        raise TypeMismatch(
            f"operand {n} of einsum is {x.name!r}, which has {len(x.dtypes)} values",
            loc=loc,
            label="this einsum",
            hint=f"pass one of them: g[...] = {x.name}[...][0]",
        )
    if isinstance(x, list | tuple | str) or not isinstance(x, Value):
        try:
            lift(x, loc)
        except TypeMismatch:
            hint = 'td.einsum("ij,jk->ik", a, b): the subscripts come first'
            if isinstance(x, np.ndarray):
                t = f'td.Tensor("a{n}", {x.shape}, "{x.dtype}")'
                hint = f"declare it, a{n} = {t}, and pass the array to what td.compile gives"
            raise TypeMismatch(
                f"operand {n} of einsum is no tensor, func or value, but "
                + ("an array" if isinstance(x, np.ndarray) else repr(x)),
                loc=loc,
                label="this einsum",
                hint=hint,
            ) from None
    return None


Extents = tuple[Expr | None, ...]  # the extents of an operand; None if not known


def _extents(x: Any, rank: int, *, infer: bool) -> Extents:
    """The extents of an operand; those of a func follow from its bare accesses or its inferred domain."""
    if isinstance(x, Tensor):
        return x.extents
    if isinstance(x, Padded):
        return tuple(extent for _, extent in x.box)
    if not isinstance(x, Func):
        return (None,) * rank
    known = tuple(_extent(x, dim) for dim in range(rank))
    if not infer or None not in known:
        return known
    return tuple(extent if first == ZERO else None for first, extent in x._domain())


def _extent(f: Func, dim: int) -> Expr | None:
    """The extent of a func along a dimension, if all tensors that its variable indexes by itself have it."""
    extents: set[Expr] = set()
    seen, stack = set[tuple[int, int]](), [(f, dim)]
    while stack:
        f, dim = stack.pop()
        known = f.declared or f._extents
        if known:
            extents |= {e for e in (known[dim],) if e is not None}
        elif (id(f), dim) not in seen and f.definitions:
            seen.add((id(f), dim))
            variable = f.definitions[0].index[dim]
            for n in post_order(*f.definitions[0].values):
                if isinstance(n, Access):
                    source: Any = n.source
                    axes = [axis for axis, e in enumerate(n.index) if e == variable]
                    if isinstance(source, Tensor):
                        extents |= {source.extents[axis] for axis in axes}
                    else:
                        stack += [(source, axis) for axis in axes]
    return extents.pop() if len(extents) == 1 else None


def _extents_by_axis(parsed: Subscripts, extents: Sequence[Extents]) -> dict[str, set[Expr]]:
    """The distinct known extents of each axis, by name of the axis."""
    by_axis: dict[str, set[Expr]] = {}
    for name, extent in zip(chain(*parsed.terms), chain(*extents), strict=True):
        by_axis.setdefault(name, set()).update(() if extent is None else (extent,))
    return by_axis


def _broadcast_axes(
    x: Any, names: tuple[str, ...], extents: Extents, several: dict[str, set[Expr]],
    dots: tuple[str, ...],
) -> set[str]:  # fmt: skip
    """The axes along which an operand is broadcast: its extent is 1, that of another operand is not."""
    by_axis = {n: {e for m, e in zip(names, extents, strict=True) if m == n} for n in names}
    ones = {n for n in names if by_axis[n] == {ONE} and several[n] != {ONE}}
    return ones.intersection(dots) if isinstance(x, Padded) else ones


def _term(
    x: Any,
    names: tuple[str, ...],
    variables: dict[str, Value],
    repeated: set[str],
    loc: Loc | None,
) -> _Term:
    """An operand indexed by its variables; along the axes `repeated` it is read at 0."""
    if isinstance(x, Tensor | Padded | Func):
        index = tuple(0 if name in repeated else variables[name] for name in names)
        return _Term(tuple(name for name in dict.fromkeys(names) if name not in repeated), x[index])
    value = lift(x, loc)
    for name, range_node in loop_variables((value.node,)).items():
        if name not in names:
            raise DefinitionError(
                f"variable {name!r} of an operand is not among its subscripts {''.join(names)!r}",
                loc=loc,
                label="this einsum",
                hint=f"the letters of a value are its variables: write {''.join((*names, name))!r} for it",
            )
        if range_node is not None:
            variables[name] = Value(range_node, weak=True)
    return _Term(tuple(dict.fromkeys(names)), value)


def _common_dtype(terms: Sequence[_Term]) -> DType:
    """NumPy's common type of the operands; Python numbers (weak values) count only if all are."""
    strong = [term.value for term in terms if not term.value.weak]
    return fold(promote, (v.dtype for v in strong or [term.value for term in terms]))


def _sum_of_products(
    terms: Sequence[_Term], result: tuple[str, ...], variables: dict[str, Value], name: str,
    rounded: DType | None = None,
) -> Func:  # fmt: skip
    """A func of the product of `terms`, summed over the variables that are not in `result`."""
    names = dict.fromkeys(chain(*(term.names for term in terms)))
    summed = [Variable(variables[n].node, weak=True) for n in names if n not in result]
    value = fold(mul, (term.value for term in terms))
    f = Func(name)
    # the type is that of the operands: NumPy's einsum does not widen
    total = sum_over(value, axis=summed, dtype=value.dtype) if summed else value
    f[tuple(variables[n] for n in result)] = total if rounded is None else cast(total, rounded)
    return f


def _contract_pairwise(
    terms: list[_Term], result: tuple[str, ...], variables: dict[str, Value], sizes: dict[str, int],
    name: str, rounded: DType,
) -> Func:  # fmt: skip
    """The func of the whole product, contracted pairwise: each other pair is a func that it reads."""
    count = 0

    def part(chosen: list[_Term], others: list[_Term]) -> _Term:
        nonlocal count
        needed = {*result, *chain(*(term.names for term in others))}
        kept = tuple(n for n in dict.fromkeys(chain(*(t.names for t in chosen))) if n in needed)
        f = _sum_of_products(chosen, kept, variables, f"{name}_{count}")
        count += 1
        return _Term(kept, f[tuple(variables[n] for n in kept)])

    for n, term in enumerate(terms):
        others = terms[:n] + terms[n + 1 :]
        if not {*term.names} <= {*result, *chain(*(other.names for other in others))}:
            terms[n] = part([term], others)
    known = {n: max(sizes.get(n, ASSUMED_EXTENT), 1) for n in variables}
    order = contraction_order([frozenset(t.names) for t in terms], frozenset(result), known)
    for first, second in order[:-1]:
        others = [term for n, term in enumerate(terms) if n not in (first, second)]
        terms[first] = part([terms[first], terms[second]], others)
        del terms[second]
    return _sum_of_products(terms, result, variables, name, rounded)
