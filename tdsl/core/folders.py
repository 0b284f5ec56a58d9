"""The folder of cached files, which can be deleted at any time."""

from __future__ import annotations

import functools
import os


def cache_folder() -> str:
    """The path of the cache folder; "" if the disk cache is turned off (TDSL_CACHE=0)."""
    if os.environ.get("TDSL_CACHE", "") == "0":
        return ""
    chosen = os.environ.get("TDSL_CACHE_DIR", "")
    return os.path.abspath(chosen) if chosen else _default()


@functools.cache
def _default() -> str:
    import platformdirs  # not needed if TDSL_CACHE_DIR is set

    return str(platformdirs.user_cache_dir("tdsl", appauthor=False))
