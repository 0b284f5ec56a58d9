"""`einsum`: sums of products of tensors, as funcs.

1. The subscripts name the axes (`subscripts.py`); a name is a loop variable.
2. An axis that one of several operands alone has is summed over first.
3. Three operands or more are multiplied in pairs (`pairing.py`); each pair is a func of its own, which
   schedules and fuses like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce as fold
from itertools import chain
from operator import mul
from typing import Any

from tdsl.errors import DefinitionError, TypeMismatch
from tdsl.lang.casts import cast
from tdsl.lang.definition import loop_variables
from tdsl.lang.expr import Var
from tdsl.lang.pad import Padded
from tdsl.lang.pairing import pairs
from tdsl.lang.reduction import sum as sum_over
from tdsl.lang.subscripts import Subscripts, parse
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import DType, as_dtype, promote
from tdsl.lang.value import Value, Variable, lift
from tdsl.source import Loc, here

UNKNOWN = 1000  # stands for an extent that is not known when the order of pairs is chosen


@dataclass(frozen=True, slots=True)
class _Term:
    """A value at the variables `names`."""

    names: tuple[str, ...]
    value: Value


def einsum(
    subscripts: str, *operands: Any, dtype: Any = None, optimize: bool = True, name: str = "einsum"
) -> Func:
    """The sum of products that the subscripts say, as `numpy.einsum`: a func called `name`.

    An operand is a tensor, a func, a number, or a value whose loop variables are named as its letters. A
    letter that occurs twice in an operand takes its diagonal. "..." stands for the axes that have no
    letter; they broadcast. Without "->" the result has those, and the letters that occur once, in their
    order. Types are NumPy's: the common one of the operands, in which is summed too, unless `dtype` is
    given.

    Three operands or more are multiplied in pairs, in the order that costs least (extents that are not
    known count as 1000), and each pair is a func; `optimize=False` makes one sum of all.

    >>> from tdsl.lang.value import vars
    >>> i, r = vars("i r")
    >>> x, b, c = (Tensor(n, tuple(s), "f32") for n, s in (("x", "IJK"), ("b", "JR"), ("c", "KR")))
    >>> einsum("ijk,jr,kr->ir", x, b, c)
    einsum[i, r] = sum(einsum_0[i, j, r] * b[j, r], axis=j)

    Raises DefinitionError, ShapeError or TypeMismatch where subscripts and operands do not fit.
    """
    loc = here()
    ranks = tuple(_rank(x, n, loc) for n, x in enumerate(operands))
    parsed = parse(subscripts, ranks, loc)
    variables: dict[str, Value] = {n: Variable(Var(n), weak=True) for n in chain(*parsed.terms)}
    sizes = _sizes(parsed, operands) if parsed.dots or len(operands) > 2 else {}
    spread = _spread(parsed, sizes)
    terms = [
        _term(x, names, variables, spread, loc)
        for names, x in zip(parsed.terms, operands, strict=True)
    ]
    t = _common(terms) if dtype is None else as_dtype(dtype)
    terms = [replace(term, value=cast(term.value, t)) for term in terms]
    if optimize and len(terms) > 1:
        return _in_pairs(terms, parsed.result, variables, sizes, name)
    return _product(terms, parsed.result, variables, name)


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
            raise TypeMismatch(
                f"operand {n} of einsum is no tensor, func or value, but {x!r}",
                loc=loc,
                label="this einsum",
                hint='td.einsum("ij,jk->ik", a, b): the subscripts come first',
            ) from None
    return None


def _sizes(parsed: Subscripts, operands: Sequence[Any]) -> dict[str, int]:
    """The extent of each axis where it is known, the largest one where they broadcast."""
    found: dict[str, int] = {}
    for names, x in zip(parsed.terms, operands, strict=True):
        if isinstance(x, Tensor | Padded | Func):
            for name, extent in zip(names, x.shape, strict=True):
                size = extent if isinstance(extent, int) else UNKNOWN
                found[name] = max(size, found.get(name, 0))
    return found


def _spread(parsed: Subscripts, sizes: dict[str, int]) -> frozenset[str]:
    """The axes under "..." along which an operand of extent 1 is repeated."""
    return frozenset(name for name in parsed.dots if sizes[name] > 1)


def _term(
    x: Any,
    names: tuple[str, ...],
    variables: dict[str, Value],
    spread: frozenset[str],
    loc: Loc | None,
) -> _Term:
    """An operand at its variables; where it is repeated it is read at 0."""
    if isinstance(x, Tensor | Padded | Func):
        extents = x.shape if spread & {*names} else (None,) * len(names)
        repeated = [
            name in spread and isinstance(extent, int) and extent == 1
            for name, extent in zip(names, extents, strict=True)
        ]
        both = list(zip(names, repeated, strict=True))
        index = tuple(0 if again else variables[name] for name, again in both)
        return _Term(tuple(dict.fromkeys(name for name, again in both if not again)), x[index])
    value = lift(x, loc)
    for name, own in loop_variables((value.node,)).items():
        if name not in names:
            raise DefinitionError(
                f"variable {name!r} of an operand is not among its subscripts {''.join(names)!r}",
                loc=loc,
                label="this einsum",
                hint=f"the letters of a value are its variables: write {''.join((*names, name))!r} for it",
            )
        if own is not None:
            variables[name] = Value(own, weak=True)
    return _Term(tuple(dict.fromkeys(names)), value)


def _common(terms: Sequence[_Term]) -> DType:
    """NumPy's common type of the operands, to which Python numbers adapt."""
    strong = [term.value for term in terms if not term.value.weak]
    return fold(promote, (v.dtype for v in strong or [term.value for term in terms]))


def _product(
    terms: Sequence[_Term], result: tuple[str, ...], variables: dict[str, Value], name: str
) -> Func:
    """The func of a product, summed over the names that the result does not have."""
    names = dict.fromkeys(chain(*(term.names for term in terms)))
    summed = [Variable(variables[n].node, weak=True) for n in names if n not in result]
    value = fold(mul, (term.value for term in terms))
    f = Func(name)
    # the type is that of the operands: NumPy's einsum does not widen
    total = sum_over(value, axis=summed, dtype=value.dtype) if summed else value
    f[tuple(variables[n] for n in result)] = total
    return f


def _in_pairs(
    terms: list[_Term], result: tuple[str, ...], variables: dict[str, Value], sizes: dict[str, int],
    name: str,
) -> Func:  # fmt: skip
    """The last func of a product that is made pair by pair."""
    made = 0

    def part(chosen: list[_Term], others: list[_Term]) -> _Term:
        nonlocal made
        needed = {*result, *chain(*(term.names for term in others))}
        kept = tuple(n for n in dict.fromkeys(chain(*(t.names for t in chosen))) if n in needed)
        f = _product(chosen, kept, variables, f"{name}_{made}")
        made += 1
        return _Term(kept, f[tuple(variables[n] for n in kept)])

    for n, term in enumerate(terms):
        others = terms[:n] + terms[n + 1 :]
        if not {*term.names} <= {*result, *chain(*(other.names for other in others))}:
            terms[n] = part([term], others)
    known = {n: max(sizes.get(n, UNKNOWN), 1) for n in variables}
    order = pairs([frozenset(t.names) for t in terms], frozenset(result), known)
    for first, second in order[:-1]:
        others = [term for n, term in enumerate(terms) if n not in (first, second)]
        terms[first] = part([terms[first], terms[second]], others)
        del terms[second]
    return _product(terms, result, variables, name)
