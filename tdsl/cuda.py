"""What there is of CUDA on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdsl.codegen.cuda.streams import stream as stream
from tdsl.errors import TargetError, suggesting


def is_available() -> bool:
    """True when compiled kernels can run here: there is a CUDA driver, and a GPU."""
    return device_name() != ""


def device_name() -> str:
    """The name of the GPU, or nothing where there is none."""
    from tdsl.codegen.cuda.driver import driver

    try:
        return driver().device().name
    except TargetError:
        return ""


if not TYPE_CHECKING:  # a type checker sees which names there are
    __getattr__ = suggesting("td.cuda", ("device_name", "is_available", "stream"))
