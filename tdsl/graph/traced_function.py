"""`TracedFunction`: the user's function of a graph, and a cache of the kernels compiled for its calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tdsl.core.source import here
from tdsl.errors import TdslError, TypeMismatch
from tdsl.target import Target

if TYPE_CHECKING:  # importing tdsl does not import the compiler
    from tdsl.compile import Compiled
    from tdsl.folded_kernel import FoldedKernel
    from tdsl.graph.symbol import Recorder
    from tdsl.lang.program import Program


class TracedFunction:
    """A function of arrays that calls operators, with its target and a cache of its kernels by program.

    With `fuse=False` every operator call is compiled to a separate kernel; `capture` is for GPUs.
    """

    def __init__(
        self, function: Callable[..., Any], target: Target, fuse: bool, capture: bool = True
    ) -> None:
        name = getattr(function, "__name__", type(function).__name__)
        self.name = name if name.isidentifier() else "graph"
        self.function: Any = function  # has attributes of its own, such as `numbers` of a model
        self.target, self.fuse, self.capture = target, fuse, capture
        self._kernels: dict[Program, FoldedKernel] = {}

    def run(self, trace: Recorder, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of the function for symbols of a trace; TypeMismatch for wrong arguments."""
        from tdsl.graph.created_arrays import with_namespace

        try:
            inspect.signature(self.function).bind(*args, **kwargs)
        except ValueError:
            pass  # a function written in C may have no signature
        except TypeError as error:
            raise TypeMismatch(
                f"{self.name}: {error}",
                loc=here(),
                label="this call",
                hint=f"it takes {inspect.signature(self.function)}",
            ) from None
        try:
            return with_namespace(self.function, trace)(*args, **kwargs)
        except ValueError as error:  # of NumPy, which asks symbols for numbers
            raise error.__cause__ if isinstance(error.__cause__, TdslError) else error from None

    def use(self, kernels: Mapping[Program, FoldedKernel]) -> None:
        """Store kernels in the cache; later plans use them for these programs."""
        self._kernels.update(kernels)

    def kernel(self, program: Program, compiled: Compiled | None) -> FoldedKernel:
        """The kernel of a program, compiled once for equal programs; `compiled` if its target is the same."""
        from tdsl.graph.kernels import compile_kernel

        if program not in self._kernels:
            reusable = compiled if compiled is not None and compiled.target == self.target else None
            self._kernels[program] = compile_kernel(program, reusable, self.target)
        return self._kernels[program]
