"""Pickling of objects that replace a function of a module, as decorators do: by the name of the function."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def reduce_by_name(x: Any, function: Any) -> tuple[Any, ...] | None:
    """What `__reduce__` of `x` returns if `x` replaces `function` in its module; None if it does not.

    >>> import os
    >>> reduce_by_name(os.fspath, os.fspath)[1], reduce_by_name("another", os.fspath)
    (('posix', 'fspath'), None)
    """
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", "")
    try:
        return (_look_up, (module, name)) if _attribute(sys.modules[module], name) is x else None
    except (KeyError, AttributeError):
        return None


def _look_up(module: str, name: str) -> Any:
    return _attribute(import_module(module), name)


def _attribute(value: Any, name: str) -> Any:
    for part in name.split("."):
        value = getattr(value, part)
    return value
