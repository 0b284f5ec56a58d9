"""Requests from Linux the permission to use the tile registers of AMX, 8 KB more state for each thread."""

from __future__ import annotations

import ctypes
import functools
import sys
import warnings

_ARCH_PRCTL = 158  # the number of the system call arch_prctl on x86-64
_REQUEST, _TILE_DATA = 0x1023, 18  # ARCH_REQ_XCOMP_PERM and the number of the XTILEDATA state


@functools.cache
def may_use_tiles() -> bool:
    """Request the tile registers of this processor, once; False, with a warning, if the system refuses.

    The permission holds for all threads of the process and for its children.
    """
    if _request():
        return True
    warnings.warn(
        "the system does not let this process use AMX: bf16 and int8 products use AVX instead",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


def _request() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    system = ctypes.CDLL(None, use_errno=True)
    return int(system.syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA)) == 0
