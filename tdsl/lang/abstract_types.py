"""Element types that the arrays of a call decide: of operators with parameters such as `floating["M"]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tdsl.core.source import here
from tdsl.errors import TypeMismatch, counted
from tdsl.lang.types import ALL, AbstractDType, DType, TensorType, as_dtype


def abstract_types(annotations: Mapping[str, Any]) -> tuple[AbstractDType, ...]:
    """The abstract element types of annotations, each once, in the order of the parameters."""
    types = (a.dtype if isinstance(a, TensorType) else a for a in annotations.values())
    return tuple(dict.fromkeys(t for t in types if isinstance(t, AbstractDType)))


def concrete(annotation: Any, decided: Mapping[AbstractDType, DType]) -> Any:
    """`annotation` with the decided element type in place of an abstract one.

    >>> from tdsl.lang.types import floating, i8
    >>> concrete(floating["N"], {floating: i8}), concrete(floating, {floating: i8}), concrete(i8, {})
    (i8['N'], i8, i8)
    """
    match annotation:
        case AbstractDType():
            return decided[annotation]
        case TensorType(AbstractDType() as t, shape):
            return TensorType(decided[t], shape)
        case _:
            return annotation


def check_types(
    operator: str, abstract: Sequence[AbstractDType], given: Sequence[Any]
) -> tuple[DType, ...]:  # fmt: skip
    """`given` as element types, one for each abstract type of an operator; TypeMismatch for others."""
    types = ", ".join(f"td.{t.example}" for t in abstract)
    if len(given) != len(abstract):
        hint = f"write {operator}[{types}]" if abstract else f"{operator} is of certain types: leave them out"
        raise TypeMismatch(
            f"operator {operator!r} takes {counted(len(abstract), 'element type')} in brackets, "
            f"not {len(given)}",
            loc=here(),
            label="these types",
            hint=hint,
        )
    decided = tuple(map(as_dtype, given))
    for t, dtype in zip(abstract, decided, strict=True):
        if dtype not in t:
            raise TypeMismatch(
                f"{dtype} is not a type of td.{t}, which operator {operator!r} takes",
                loc=here(),
                label="these types",
                hint=f"there are: {_names_of(t)}",
            )
    return decided


def _names_of(t: AbstractDType) -> str:
    return ", ".join(x.name for x in ALL if x in t)


def types_of_arrays(
    operator: str, annotations: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[DType, ...]:  # fmt: skip
    """The element types that the arrays of a call decide for the abstract types of an operator, in order.

    Numbers of Python do not decide. TypeMismatch if two arrays differ, if one has a type that is not of the
    abstract type, or if no array decides a type.
    """
    first: dict[AbstractDType, tuple[str, DType]] = {}
    for name, annotation in annotations.items():
        t = annotation.dtype if isinstance(annotation, TensorType) else annotation
        if not isinstance(t, AbstractDType) or (dtype := _dtype_of(values.get(name))) is None:
            continue
        if dtype not in t:
            raise TypeMismatch(
                f"{name} has element type {dtype}; operator {operator!r} takes a type of td.{t} for it",
                loc=here(),
                label="this call",
                hint=f"convert it to one of these: {_names_of(t)}",
            )
        other, decided = first.setdefault(t, (name, dtype))
        if decided is not dtype:
            raise TypeMismatch(
                f"{other} has element type {decided}, {name} has {dtype}; operator {operator!r} takes one "
                f"type for td.{t}",
                loc=here(),
                label="this call",
                hint=f"convert one of them: {name}.astype({other}.dtype)",
            )
    abstract = abstract_types(annotations)
    for t in abstract:
        if t not in first:
            types = ", ".join(f"td.{x.example}" for x in abstract)
            raise TypeMismatch(
                f"no array of this call has the element type of td.{t}, which operator {operator!r} takes",
                loc=here(),
                label="this call",
                hint=f"pass arrays, or say the type: {operator}[{types}](...)",
            )
    return tuple(first[t][1] for t in abstract)


def _dtype_of(value: Any) -> DType | None:
    """The element type of an array of any library, a type or a NumPy number; None for anything else."""
    if isinstance(value, DType):
        return value
    dtype = getattr(value, "dtype", None)
    if dtype is None and not isinstance(value, int | float | complex | list | tuple | str | None):
        try:
            dtype = np.asarray(memoryview(value)).dtype
        except (TypeError, ValueError):  # no buffer, or of a format that NumPy does not know
            return None
    if dtype is None:
        return None
    return as_dtype(dtype if isinstance(dtype, np.dtype | DType | type) else str(dtype).rpartition(".")[2])
