"""The function of a graph, run on symbols, and the kernels that its calls need."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.target import Target

if TYPE_CHECKING:  # what compiles is not needed to import tdsl
    from tdsl.compile import Compiled
    from tdsl.graph.kernel import Kernel
    from tdsl.lang.program import Program


class TracedFunction:
    """A function of arrays that calls operators, its name, its target, and its kernels by program.

    Without `fuse` every call of an operator has a kernel of its own.
    """

    def __init__(self, function: Callable[..., Any], target: Target, fuse: bool) -> None:
        name = getattr(function, "__name__", type(function).__name__)
        self.name = name if name.isidentifier() else "graph"
        self.function, self.target, self.fuse = function, target, fuse
        self._kernels: dict[Program, Kernel] = {}

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the function gives for symbols; TypeMismatch for arguments that it does not take."""
        try:
            inspect.signature(self.function).bind(*args, **kwargs)
        except ValueError:
            pass  # a function written in C need not say what it takes
        except TypeError as error:
            raise TypeMismatch(
                f"{self.name}: {error}",
                loc=here(),
                label="this call",
                hint=f"it takes {inspect.signature(self.function)}",
            ) from None
        return self.function(*args, **kwargs)

    def use(self, kernels: Mapping[Program, Kernel]) -> None:
        """Take these kernels for the programs of groups from now on."""
        self._kernels.update(kernels)

    def kernel(self, program: Program, known: Compiled | None) -> Kernel:
        """The kernel of a group, once for equal programs; of `known` where it has the same target."""
        from tdsl.graph.kernel import kernel_of

        if program not in self._kernels:
            same = known if known is not None and known.target == self.target else None
            self._kernels[program] = kernel_of(program, same, self.target)
        return self._kernels[program]
