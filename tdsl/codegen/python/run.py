"""Kernels as callables: their Python text run as it is, or compiled by numba."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tdsl.codegen.loops import Kernel, Message
from tdsl.codegen.python.emit import emit
from tdsl.codegen.show import message_text
from tdsl.errors import IndexBoundError, RequireError, TdslError


class PythonExecutable:
    """A kernel as plain Python: slow, exact, for any kernel.

    `source` is the text of the module. With `checked`, an index outside its buffer is an AssertionError and
    memory that was never written holds NaN or 99: what the tests of passes want.

    >>> import numpy as np
    >>> from tdsl.codegen.loops import BufferParam, Store
    >>> from tdsl.lang.expr import Const, const
    >>> from tdsl.lang.types import f32
    >>> a = BufferParam("a", f32, (const(2),), (1,), True)
    >>> run = PythonExecutable(Kernel("k", (a,), Store("a", (const(1),), Const(5.0, f32))))
    >>> array = np.zeros(2, np.float32)
    >>> run.run([array])
    >>> array
    array([0., 5.], dtype=float32)
    """

    fast: Callable[..., Any] | None = None  # no entry that takes a call's arguments as they are

    def __init__(self, kernel: Kernel, *, checked: bool = False) -> None:
        self.kernel = kernel
        self.source = emit(kernel, checked=checked)
        self._module = _load(self.source, kernel)

    def run(self, arguments: Sequence[Any]) -> None:
        """Run on arrays, scalars and sizes in the order of `kernel.params`.

        Raises RequireError or IndexBoundError where a check of the kernel fails.
        """
        failed = self._module.get("CheckFailed", ())
        try:
            self._module["__kernel__"](*arguments)
        except failed as failure:
            site, values = failure.args
            raise check_error(self.kernel.messages[site], values) from None


def check_error(message: Message, values: Sequence[Any]) -> TdslError:
    """The error of a failed check; `values` are scalars of Python or NumPy."""
    plain = tuple(v.item() if hasattr(v, "item") else v for v in values)
    where = f"\n  at {message.where}" if message.where else ""
    kind = IndexBoundError if message.kind == "bounds" else RequireError
    return kind(f"{message_text(message, plain)}{where}")


def _load(source: str, kernel: Kernel) -> dict[str, Any]:
    """Run the text of a module; the kernel is its last function."""
    module: dict[str, Any] = {f"{getattr(i, 'name', i)}": i.python for i in kernel.instructions}  # type: ignore[attr-defined]
    exec(compile(source, f"<tdsl {kernel.name}>", "exec"), module)
    functions = [name for name, x in module.items() if callable(x)]
    module["__kernel__"] = module[functions[-1]]
    return module
