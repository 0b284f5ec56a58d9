"""Emits a kernel as a Python module for numba: the statements of `emit.py`, with types that numba infers.

Parallel loops become `prange`, except those that contain atomic stores, checks or prints, which need the
order of a serial loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from tdsl.codegen.ir.loops import (
    PARALLEL,
    Alloc,
    BufferParam,
    Check,
    For,
    Kernel,
    Print,
    ScalarParam,
    Store,
)  # fmt: skip
from tdsl.codegen.python.emit import RESERVED, Emitter
from tdsl.codegen.python.expressions import Expressions
from tdsl.codegen.python.typed import CALLS, SUPPORT, TypedExpressions
from tdsl.core.node import Node, post_order
from tdsl.core.source import here
from tdsl.core.text import Names, Writer, call
from tdsl.errors import TargetError
from tdsl.lang.expr import Broadcast, Call, Cast, Const, Load, Ramp
from tdsl.lang.types import ALL


def emit_numba(kernel: Kernel) -> str:
    """The text of a module whose last function is the kernel, which numba compiles at the first call.

    Raises TargetError for element types that numba cannot compute with. The kernel must not have vectors.
    """
    _require_numba_types(kernel)
    names = Names({*RESERVED, *SUPPORT, "njit", "prange", "objmode", "intrinsic", "mix"})
    writer = Writer("    ")
    function = names.fresh(kernel.name)
    emitter = _NumbaEmitter(kernel, writer, names, TypedExpressions(names, writer.line))
    emitter.kernel(function)
    return f"{_head(emitter)}\n\n\n{writer}\n"


def _require_numba_types(kernel: Kernel) -> None:
    types = {p.dtype for p in kernel.params if isinstance(p, BufferParam | ScalarParam)}
    for n in post_order(kernel.body):
        assert not isinstance(n, Ramp | Broadcast), "numba is given kernels without vectors"
        if isinstance(n, Alloc | Cast | Call | Const | Load):
            types.add(n.dtype)
    for t in ALL:
        if t.is_narrow and t in types:
            raise TargetError(
                f"numba cannot compute with {t}",
                loc=here(),
                label="this call",
                hint='compile for target="cpu", or cast to f32 in the definition',
            )


def _head(emitter: _NumbaEmitter) -> str:
    """Imports, then the support functions and messages that the kernel uses."""
    used = set(emitter.expressions.used)
    for name in emitter.expressions.used:
        used.update(CALLS.get(name, ()))
    imported_names = {"objmode": bool(emitter.messages), "prange": emitter.is_parallel}
    imports = [
        *(["import math", ""] if "math" in used else []),
        "import numpy as np",
        f"from numba import {', '.join(['njit', *(w for w, needed in imported_names.items() if needed)])}",
        *(["from numba.extending import intrinsic"] if "fma" in used else []),
    ]
    functions = [SUPPORT[name].strip() for name in SUPPORT if name in used]
    return "\n".join([*imports, *(f"\n\n{f}" for f in (*functions, *emitter.messages))])


def is_parallel(kernel: Kernel) -> bool:
    """True if some loop of the kernel becomes a prange."""
    return any(map(_runs_in_parallel, post_order(kernel.body)))


def _runs_in_parallel(s: Node) -> bool:
    if not (isinstance(s, For) and s.kind == PARALLEL):
        return False
    ordered = (Check, Print)
    return not any(isinstance(n, ordered) or (isinstance(n, Store) and n.atomic) for n in post_order(s.body))


class _NumbaEmitter(Emitter):
    """Emits loops and prints for numba, other statements as `Emitter`."""

    def __init__(self, kernel: Kernel, writer: Writer, names: Names, expressions: Expressions) -> None:
        Emitter.__init__(self, kernel, writer, names, expressions)
        self.messages: list[str] = []
        self.inside_prange = False
        self.is_parallel = is_parallel(kernel)
        options = [
            'error_model="numpy"',
            *(["parallel=True"] if self.is_parallel else []),
            *(["fastmath=True"] if kernel.fast_math else []),
        ]
        self.decorator = f"@njit({', '.join(options)})"

    def heading(self, s: For, name: str, bounds: str) -> AbstractContextManager[None]:
        if self.inside_prange or not _runs_in_parallel(s):
            return Emitter.heading(self, s, name, bounds)
        return self.prange(name, bounds)

    @contextmanager
    def prange(self, name: str, bounds: str) -> Iterator[None]:
        counter = self.names.fresh(f"{name}_unsigned")
        with self.writer.block(f"for {counter} in prange({bounds}):"):
            self.writer.line(f"{name} = np.int64({counter})")  # numba may count without a sign
            self.inside_prange = True
            yield
            self.inside_prange = False

    def print_line(self, s: Print) -> None:
        """Emit a print as a call of a Python function in object mode, since numba lacks formatting."""
        function = self.names.fresh("message")
        parameters = [f"v{k}" for k in range(len(s.values))]
        self.messages.append(f"def {function}({', '.join(parameters)}):\n    {self.message(s, parameters)}")
        with self.writer.block("with objmode():"):
            values = [v.text for v in self.expressions.values(*s.values)]
            self.writer.line(call(function, *values).text)
