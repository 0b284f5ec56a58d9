"""`Handle`: the base of indexable objects; arithmetic on one without an index raises an error."""

from __future__ import annotations

import itertools
import numbers
from typing import Any

from tdsl.core.source import Loc, here
from tdsl.errors import DefinitionError, TypeMismatch

# The next number of an input, in order of creation, which sorts the arguments of a call. It takes no part in
# equality, and occurs in no text or cache key.
next_creation_number = itertools.count().__next__


class Handle:
    """A tensor, a func, a padding, or the values of a tuple-valued func.

    Operators and iteration are refused with a TdslError; handles compare by identity.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def refusal(self, loc: Loc | None) -> TypeMismatch:
        """The error for the use of this handle as a value, without an index."""
        name = getattr(self, "name", "")
        return TypeMismatch(
            f"{type(self).__name__} {name!r} is used without an index",
            loc=loc,
            label="a value is needed here",
            hint=f"read it at a point: {name}[i, j]",
        )

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise self.refusal(here())

    __array_ufunc__ = __array_function__ = _refuse

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __pow__ = __rpow__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refuse
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __pos__ = __invert__ = __abs__ = _refuse

    def __eq__(self, other: object) -> Any:
        if isinstance(other, numbers.Number):
            raise self.refusal(here())
        return NotImplemented

    def __ne__(self, other: object) -> Any:
        if isinstance(other, numbers.Number):
            raise self.refusal(here())
        return NotImplemented

    def __iter__(self) -> Any:
        raise iteration_error(f"{type(self).__name__} {getattr(self, 'name', '')!r}")


def iteration_error(what: str) -> DefinitionError:
    """The error for a Python loop over a handle or value; `what` names the object."""
    return DefinitionError(
        f"{what} cannot be iterated over",
        loc=here(),
        label="iterated over here",
        hint='index it with variables, i, j = td.vars("i j"), which stand for all points at once',
    )


def number_error() -> TypeMismatch:
    """The error for the conversion of an expression to a Python number, as by a function of `math`."""
    return TypeMismatch(
        "an expression has no number while a program is written",
        loc=here(),
        label="a number is taken here",
        hint="use the function of tdsl or NumPy, such as td.exp(x) or np.exp(x), and td.cast(x, td.f32)",
    )
