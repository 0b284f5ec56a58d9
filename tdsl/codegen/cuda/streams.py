"""The context manager `stream`, which selects the CUDA stream of calls."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any, Self

from tdsl.core.source import here
from tdsl.errors import TypeMismatch

selected_stream: ContextVar[int | None] = ContextVar("selected_stream", default=None)
_HANDLES = ("cuda_stream", "ptr", "handle")  # attributes of the streams of PyTorch, CuPy, numba and others


class stream:
    """A context manager in which calls of compiled programs run on a given CUDA stream.

    The stream is an object of PyTorch, CuPy, or another library (with `__cuda_stream__`), or the CUstream
    handle as an integer. TypeMismatch for anything else.

    >>> with stream(7):
    ...     selected_stream.get()
    7
    """

    def __init__(self, which: Any) -> None:
        self.handle = handle_of(which)
        self._tokens: list[Token[int | None]] = []

    def __enter__(self) -> Self:
        self._tokens.append(selected_stream.set(self.handle))
        return self

    def __exit__(self, *_: object) -> None:
        selected_stream.reset(self._tokens.pop())


def handle_of(which: Any) -> int:
    """The CUstream handle of a stream as an integer; 1 (legacy) for the default stream 0.

    >>> handle_of(0), handle_of(12)
    (1, 12)
    """
    handle = which
    if hasattr(which, "__cuda_stream__"):
        _, handle = which.__cuda_stream__()
    elif not isinstance(which, int):
        handle = next((getattr(which, x) for x in _HANDLES if hasattr(which, x)), None)
    value = getattr(handle, "value", handle)  # a number of ctypes
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeMismatch(
            f"{which!r} is no stream of a GPU", loc=here(), label="this stream",
            hint="pass a stream of PyTorch or CuPy, or the number that the driver knows it by",
        )  # fmt: skip
    return value or 1
