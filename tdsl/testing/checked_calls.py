"""`checked_calls`: calls of compiled programs, compared with the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tdsl.codegen.runtime.call import Entry
from tdsl.compile import Compiled
from tdsl.errors import TdslError
from tdsl.testing.reference import bound_call, compare, reference
from tdsl.tuning.oracle import points, rounding_tolerance


@contextmanager
def checked_calls(limit: int) -> Iterator[list[str]]:
    """Compares calls in a block with the interpreter; gives the reasons why some were not.

    Programs that evaluate more than `limit` points are not compared.
    """
    call, skipped = Entry.__call__, list[str]()

    def checked(self: Entry, *args: Any, out: Any = None, **named: Any) -> Any:
        if not isinstance(self, Compiled):
            return call(self, *args, out=out, **named)
        expected, rtol = None, 0.0
        try:
            program, (_, sizes) = self.schedule.program, bound_call(self, args, named)
            count, rtol = points(program, sizes), rounding_tolerance(program, sizes)
            if count <= limit:
                expected = reference(self, args, named)  # before the call: `out` may be an input
            else:
                skipped.append("they evaluate too many points")
        except TdslError as error:  # the call raises it, too, or what is said here is seen
            skipped.append(f"{type(error).__name__} {error.message}")
        result = call(self, *args, out=out, **named)
        if expected is not None:
            compare(self, result, expected, rtol)
        return result

    Entry.__call__ = checked  # type: ignore[method-assign]  # calls of all programs
    try:
        yield skipped
    finally:
        Entry.__call__ = call  # type: ignore[method-assign]  # as before the block
