"""Finds and loads an OpenMP library: LLVM's, Intel's or GNU's."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Iterator
from typing import Any


class OpenMP:
    """A loaded OpenMP library, with the entry points of GNU's, which LLVM's and Intel's have too."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        self.path = path
        self.gnu = "gomp" in os.path.basename(path)
        self.parallel = _address(library.GOMP_parallel)
        self.in_parallel = _address(library.omp_in_parallel)
        library.omp_get_max_threads()  # LLVM's reads its environment at the first call


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def find_openmp() -> OpenMP | None:
    """The best OpenMP library that can be loaded, or None."""
    # Waiting threads must not spin for long: with the defaults of GNU's library a matrix product in
    # NumPy after a kernel takes 50 times as long on two cores; LLVM's threads spin for 200 ms.
    settings = {}
    if "OMP_WAIT_POLICY" not in os.environ:
        settings = {"GOMP_SPINCOUNT": "300", "KMP_BLOCKTIME": "1"}
    with _environment(settings):
        for path in libraries():
            with contextlib.suppress(OSError, AttributeError):
                return OpenMP(path)
    return None


def libraries() -> Iterator[str]:
    """Paths of OpenMP libraries, best first; a second copy of LLVM's would abort the process."""
    loaded = _loaded()
    yield from (path for path in loaded if "gomp" not in os.path.basename(path))
    names = {"darwin": ("libomp.dylib",), "win32": ("libiomp5md.dll", "libomp.dll")}
    for name in names.get(sys.platform, ("libomp.so", "libomp.so.5", "libiomp5.so")):
        yield os.path.join(sys.prefix, "lib", name)
        yield name
    yield from (path for path in loaded if "gomp" in os.path.basename(path))
    if sys.platform.startswith("linux"):
        yield "libgomp.so.1"


def _loaded() -> list[str]:
    """The OpenMP libraries loaded into this process, if the system reports them."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[-1].rstrip() for line in maps if "omp" in line}
    except OSError:
        return []
    library = re.compile(r"/lib(iomp5|omp|gomp)(-\w+)?\.so[.\d]*$")
    return sorted(path for path in paths if library.search(path))


@contextlib.contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Set unset environment variables inside only, so that child processes do not inherit them."""
    unset = [name for name in settings if name not in os.environ]
    os.environ.update({name: settings[name] for name in unset})
    try:
        yield
    finally:
        for name in unset:
            del os.environ[name]
