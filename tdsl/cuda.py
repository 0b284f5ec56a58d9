"""`td.cuda`: queries of the GPU of this machine, and the stream that kernels are launched on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdsl.codegen.cuda.streams import stream as stream
from tdsl.errors import TargetError, module_getattr

__all__ = ["device_name", "is_available", "stream"]


def is_available() -> bool:
    """True if compiled kernels can run on this machine: it has a CUDA driver and a GPU."""
    return device_name() != ""


def device_name() -> str:
    """The name of the GPU, or an empty string if this machine has none."""
    from tdsl.codegen.cuda.driver import driver

    try:
        return driver().device().name
    except TargetError:
        return ""


if not TYPE_CHECKING:  # a type checker reports unknown names itself
    __getattr__ = module_getattr("td.cuda", __all__)


def __dir__() -> list[str]:
    return [*__all__]
