"""Kernels as callables: their emitted Python run by CPython, or compiled by numba."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tdsl.codegen.ir.loops import Argument, BufferParam, Kernel, ScalarParam, SizeParam
from tdsl.codegen.python.emit import emit
from tdsl.codegen.python.emit_numba import emit_numba, is_parallel
from tdsl.codegen.python.instructions import instructions_of, python_code
from tdsl.codegen.runtime.failure import check_error
from tdsl.core.debug import dump, log
from tdsl.core.source import here
from tdsl.errors import TargetError
from tdsl.lang.expr import Const

_PARALLEL_LOCK = threading.Lock()


class PythonExecutable:
    """A kernel run as plain Python: slow, exact, for any kernel.

    `source` is the text of the module. With `checked`, for tests, an index outside its buffer raises
    AssertionError and memory that was never written holds NaN, 99 or True.

    >>> import numpy as np
    >>> from tdsl.codegen.ir.loops import BufferParam, Store
    >>> from tdsl.lang.expr import Const, const
    >>> from tdsl.lang.types import f32
    >>> a = BufferParam("a", f32, (const(2),), (1,), True)
    >>> executable = PythonExecutable(Kernel("k", (a,), Store("a", (const(1),), Const(5.0, f32))))
    >>> array = np.zeros(2, np.float32)
    >>> executable.run([array])
    >>> array
    array([0., 5.], dtype=float32)
    """

    fast: Callable[..., Any] | None = None  # no entry that takes a call's arguments unconverted

    def __init__(self, kernel: Kernel, *, checked: bool = False) -> None:
        self.kernel, self.params = kernel, kernel.arguments
        self.source = emit(kernel, checked=checked)
        self._function, self._check_exceptions = _load(self.source, kernel)

    def run(self, arguments: Sequence[Any]) -> None:
        """Run the kernel on arrays, scalars and sizes in the order of `kernel.params`.

        Raises RequireError or IndexBoundError if a check of the kernel fails.
        """
        try:
            self._function(*map(with_dimensions_of, self.kernel.params, arguments))
        except self._check_exceptions as failure:
            site, values = failure.args
            raise check_error(self.kernel.messages[site], values) from None


class NumbaExecutable:
    """A kernel compiled by numba, at its first call for each layout of its arrays.

    The kernel must not be vectorized yet. Raises TargetError if numba is missing, cannot compute with an
    element type, or rejects the text. Kernels with parallel loops run one at a time: some threading layers of
    numba do not support concurrent callers. Nor do all support a fork after the first parallel loop.
    """

    fast: Callable[..., Any] | None = None

    def __init__(self, kernel: Kernel) -> None:
        require_numba()
        self.kernel, self.params = kernel, kernel.arguments
        self.source = emit_numba(kernel)
        self._function, self._check_exceptions = _load(self.source, kernel, compiled=True)
        self._lock = _PARALLEL_LOCK if is_parallel(kernel) else contextlib.nullcontext()

    def run(self, arguments: Sequence[Any]) -> None:
        """As `PythonExecutable.run`."""
        from numba.core.errors import NumbaError

        try:
            with self._lock:
                self._function(*map(_numpy_scalar, self.kernel.params, arguments))
        except self._check_exceptions as failure:
            site, values = failure.args
            raise check_error(self.kernel.messages[site], values) from None
        except NumbaError as e:
            e.add_note(self.source)
            raise TargetError(
                f"numba rejected kernel {self.kernel.name!r}",
                loc=here(),
                label="this call",
                hint='compile for target="cpu"',
            ) from e


def require_numba() -> None:
    """Raise TargetError with the install command unless numba is installed."""
    if importlib.util.find_spec("numba") is None:
        raise TargetError(
            "numba is not installed",
            loc=here(),
            label="this call",
            hint='pip install "tdsl[numba]"',
        )


def _numpy_scalar(p: Argument, value: Any) -> Any:
    """A scalar as the parameter's dtype, since numba compiles anew for each argument type."""
    if isinstance(p, ScalarParam):
        return p.dtype.numpy.type(value)
    return int(value) if isinstance(p, SizeParam) else with_dimensions_of(p, value)


def with_dimensions_of(p: Argument, value: Any) -> Any:
    """The argument for a parameter; an array has the dimensions that the kernel gives it."""
    if isinstance(p, BufferParam) and p.shape:
        return value.reshape([int(e.value) for e in p.extents if isinstance(e, Const)])
    return value


Loaded = tuple[Callable[..., None], tuple[type[Exception], ...]]


def _load(source: str, kernel: Kernel, compiled: bool = False) -> Loaded:
    """Execute the text; the kernel, its last function, and the exception class of failed checks."""
    log("python", source)
    dump(f"{kernel.name}.py", source)
    module: dict[str, Any] = {}
    for name, instruction in instructions_of(kernel).items():
        function = python_code(instruction)
        module[name] = _compiled(function) if compiled else function
    exec(compile(source, f"<tdsl {kernel.name}>", "exec"), module)
    check_exceptions = (module["CheckFailed"],) if "CheckFailed" in module else ()
    return list(module.values())[-1], check_exceptions


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    import numba

    compiled: Callable[..., None] = numba.njit(function)
    return compiled
