"""The exceptions that a call raises when a run-time check of its kernel fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tdsl.codegen.ir.loops import Message
from tdsl.codegen.ir.show import message_text
from tdsl.core.source import Loc, here
from tdsl.errors import IndexBoundError, RequireError, TargetError, TdslError

CHECK_SLOTS = 8
"""The number of slots of the call frame in which a kernel stores the values of a failed check."""

RED_ZONE_OVERWRITTEN = -2
"""The status if a kernel wrote outside of the first buffer that it allocates, less n for buffer n."""


def check_error(message: Message, values: Sequence[Any]) -> TdslError:
    """The exception of a failed check: IndexBoundError for an access out of bounds, else RequireError.

    Its location is the user's source line. `values` are the Python or NumPy scalars of the message.

    >>> print(check_error(Message("require", ("row ", " is empty"), "blur.py:7"), (3,)))
    row 3 is empty [require TD0100]
      at blur.py:7  required here
      ...
      hint: pass arguments for which the condition holds
    """
    text = message_text(message, tuple(v.item() if hasattr(v, "item") else v for v in values))
    call = here()
    related = () if call is None else ((call, "in this call"),)
    if message.kind == "bounds":
        return IndexBoundError(
            text,
            loc=_parse_location(message.where),
            label="this access",
            related=related,
            hint="pass larger arrays, or keep the index inside with td.pad or td.clip",
        )
    return RequireError(
        text,
        loc=_parse_location(message.where),
        label="required here",
        related=related,
        hint="pass arguments for which the condition holds",
    )


def red_zone_error(kernel: str, name: str) -> TargetError:
    """The TargetError for a kernel that wrote outside of a buffer it allocates (TDSL_DEBUG=canaries).

    >>> print(red_zone_error("blur_kernel", "rows"))
    kernel 'blur_kernel' writes beyond the memory of 'rows' [target TD0270]
      ...
      hint: this is a mistake of the code generator, not of the program: please report it
    """
    return TargetError(
        f"kernel {kernel!r} writes beyond the memory of {name!r}",
        loc=here(),
        label="this call",
        hint="this is a mistake of the code generator, not of the program: please report it",
    )


def _parse_location(where: str) -> Loc | None:
    """The location for the text `file:line`; None for an empty text."""
    file, _, line = where.rpartition(":")
    return Loc(file, int(line)) if file else None
