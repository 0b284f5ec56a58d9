"""`TracedFunction`: the user's function of a graph, and a cache of the kernels compiled for its calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.target import Target

if TYPE_CHECKING:  # importing tdsl does not import the compiler
    from tdsl.compile import Compiled
    from tdsl.folded_kernel import FoldedKernel
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
        self.function, self.target, self.fuse, self.capture = function, target, fuse, capture
        self._kernels: dict[Program, FoldedKernel] = {}

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of the function for symbols; TypeMismatch for arguments outside its signature."""
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
        return self.function(*args, **kwargs)

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
