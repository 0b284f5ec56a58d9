"""The values that indexing a func returns, and in-place updates such as `f[i] += e`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partialmethod
from typing import Any

from tdsl.core.source import Loc, here
from tdsl.errors import (
    DefinitionError,
    IndexBoundError,
    TypeMismatch,
    counted,
)  # fmt: skip
from tdsl.lang.expr import (
    Access,
)
from tdsl.lang.handle import Handle
from tdsl.lang.types import DType
from tdsl.lang.value import UNKNOWN_TYPE, Value, binary, lift


class TupleValue(Handle):
    """An element of a tuple-valued func: indexing it with a number gives a component."""

    __slots__ = ("access", "parts")

    def __init__(self, access: Access, dtypes: Sequence[DType]) -> None:
        self.access = access
        self.parts = tuple(
            Value(Access(access.source, access.index, n, t, loc=access.loc)) for n, t in enumerate(dtypes)
        )

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.parts))})"

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Any:
        return iter(self.parts)

    def __getitem__(self, component: Any) -> Value:
        if not isinstance(component, int) or not -len(self) <= component < len(self):
            raise IndexBoundError(
                f"{self.name!r} has {counted(len(self), 'value')}, there is no value {component!r}",
                loc=here(),
                label="this value",
                hint=f"count from 0: [0] to [{len(self) - 1}]",
            )
        return self.parts[component]

    @property
    def name(self) -> str:
        """The name of the func."""
        return str(self.access.source.name)

    def refusal(self, loc: Loc | None) -> TypeMismatch:
        """The error for the use of the whole tuple where one value is needed."""
        return TypeMismatch(
            f"{self.name!r} has {counted(len(self), 'value')}, one is needed",
            loc=loc,
            label="a value is needed here",
            hint=f"choose one: {self.name}[...][0]",
        )


class Increment:
    """The operand of an update `f[i] += e`, passed from `__iadd__` to `__setitem__`."""

    __slots__ = ("access", "kind", "value")

    def __init__(self, access: Access, kind: str, value: Value) -> None:
        self.access, self.kind, self.value = access, kind, value


class FuncValue(Value):
    """An element of a func, which can be updated in place.

    `+=`, `-=` and `*=` are combiners: on a func without a definition they start from the identity, and their
    points may be visited in any order. Every other in-place operator reads the current value.
    """

    __slots__ = ()

    def __iadd__(self, other: Any) -> Any:
        return Increment(self.node, "sum", lift(other))  # type: ignore[arg-type]  # an Access

    def __isub__(self, other: Any) -> Any:
        return Increment(self.node, "sum", -lift(other))  # type: ignore[arg-type]  # an Access

    def __imul__(self, other: Any) -> Any:
        return Increment(self.node, "prod", lift(other))  # type: ignore[arg-type]  # an Access

    def _read_and_update(self, op: str, symbol: str, other: Any) -> Value:
        if self.dtype is UNKNOWN_TYPE:
            name = self.node.source.name  # type: ignore[union-attr]  # an Access
            raise DefinitionError(
                f"`{symbol}=` changes a value, but func {name!r} has no definition yet",
                loc=here(),
                label="this update",
                hint=f"first write {name}[...] = ...; only +=, -= and *= have a value to start from",
            )
        return binary(op, self, other)

    __iand__ = partialmethod(_read_and_update, "and", "&")
    __ior__ = partialmethod(_read_and_update, "or", "|")
    __ixor__ = partialmethod(_read_and_update, "xor", "^")
    __itruediv__ = partialmethod(_read_and_update, "div", "/")
    __ifloordiv__ = partialmethod(_read_and_update, "floordiv", "//")
    __imod__ = partialmethod(_read_and_update, "mod", "%")
    __ipow__ = partialmethod(_read_and_update, "pow", "**")
    __ilshift__ = partialmethod(_read_and_update, "shl", "<<")
    __irshift__ = partialmethod(_read_and_update, "shr", ">>")
