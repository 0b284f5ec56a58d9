"""The steps of a plan as the source of one Python function, which calls the kernels on preallocated memory.

    def run(p0, p1, r0):
        v0 = view0(p0)
        if f0(v0, p1, b0_0) is not True: again(0, (v0, p1), (b0_0,))
        if f1(b0_0, p1, r0) is not True: again(1, (b0_0, p1), (r0,))

`p` are arguments, `c` constants, `k` arrays that a kernel computes once from constants, `n` numbers, `r`
outputs, `b` results in the block of memory, `v` views. `f` is the machine code of a kernel, which returns
True if it ran; `again` calls the kernel with all checks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

import numpy as np

from tdsl.codegen.runtime.arrays import aligned_empty
from tdsl.codegen.runtime.call import fast_entries
from tdsl.codegen.runtime.signature import ScalarArg
from tdsl.core.node import frozen
from tdsl.folded_kernel import FoldedKernel, OnceKey
from tdsl.graph.memory import MemoryPlan
from tdsl.graph.values import (
    Argument,
    Array,
    Constant,
    Operand,
    Result,
    Source,
    Spec,
    View,
    base_of,
)
from tdsl.lang import program as lang

Run = Callable[..., None]


@frozen
class Step:
    """One kernel call of a plan: the kernel, its program with sizes bound, its inputs, and its results."""

    kernel: FoldedKernel
    program: lang.Program
    inputs: tuple[Operand, ...]
    outputs: tuple[Result, ...]


@frozen
class Outputs:
    """Specs of the outputs of a graph, and how they are written.

    `direct` maps a result to the number of the output whose memory a kernel writes it to, in the shape of the
    result; `copied` maps the number of any other output to the array that is copied to it after all kernels.
    """

    specs: tuple[Spec, ...]
    direct: Mapping[Result, int]
    copied: Mapping[int, Source]


class StepsCode:
    """The generated Python code of the steps of a plan; `bind` allocates memory for it."""

    def __init__(
        self,
        steps: Sequence[Step],
        arguments: int,
        constants: Sequence[Array],
        results: Mapping[Result, Spec],
        outputs: Outputs,
        memory: MemoryPlan[Result],
    ) -> None:
        self.steps, self.results, self.memory = steps, results, memory
        self._direct = {result: f"r{n}" for result, n in outputs.direct.items()}
        self._bound: dict[str, Any] = {f"c{n}": array for n, array in enumerate(constants)}
        self._folded: dict[str, Array] | None = None
        self._lock = threading.Lock()  # of threads that bind at once
        self._views: dict[View, str] = {}
        self._lines: list[str] = []
        for result, n in outputs.direct.items():
            if results[result].shape != outputs.specs[n].shape:
                self._direct[result] = _name(result)
                self._lines.append(f"{_name(result)} = r{n}.reshape({results[result].shape})")
        body = [self._call_line(n, step) for n, step in enumerate(steps)]
        body += [f"copyto(r{n}, {self._operand(source)})" for n, source in outputs.copied.items()]
        parameters = [f"p{n}" for n in range(arguments)] + [f"r{n}" for n in range(len(outputs.specs))]
        lines = [f"def run({', '.join(parameters)}):", *self._lines, *body]
        self.text = "\n    ".join([*lines, "return None"])
        self._code: CodeType = compile(self.text, "<steps of a graph>", "exec")

    def bind(self) -> Run:
        """A function that runs the steps, with a newly allocated block for the intermediate results."""
        block = aligned_empty((self.memory.peak,), np.dtype(np.uint8))
        names = {**self._bound, **self._folded_arrays(), "copyto": np.copyto}
        for result, offset in self.memory.offsets.items():
            spec = self.results[result]
            names[_name(result)] = np.ndarray(spec.shape, spec.dtype, block.data, offset)
        for view, name in self._views.items():
            if self._is_fixed(view):
                names[name] = view.apply(names[_name(view.base)])
        names |= {f"f{n}": _no_code for n in range(len(self.steps))}

        def again(number: int, inputs: tuple[Any, ...], outputs: tuple[Array, ...]) -> None:
            kernel = self.steps[number].kernel.per_call
            for fast in fast_entries(kernel):
                if fast(*inputs, *outputs) is True:
                    names[f"f{number}"] = fast  # for the next calls
                    return
            kernel(*inputs, out=outputs[0] if len(outputs) == 1 else outputs)

        names["again"] = again
        exec(self._code, names)
        run: Run = names["run"]
        return run

    def _folded_arrays(self) -> dict[str, Array]:
        """The arrays that kernels compute from constants, by name; computed on first use, equal ones once."""
        with self._lock:
            if self._folded is None:
                cache: dict[OnceKey, tuple[Array, ...]] = {}
                folded: dict[str, Array] = {}
                for n, step in enumerate(self.steps):
                    arrays = step.kernel.folded_arrays([*map(self._value, step.inputs)], cache)
                    folded |= {f"k{n}_{k}": array for k, array in enumerate(arrays)}
                self._folded = folded
            return self._folded

    @property
    def folded_bytes(self) -> int:
        """The bytes of the arrays that kernels compute once from constants."""
        bytes_of: dict[OnceKey, int] = {}
        for step in self.steps:
            bytes_of |= step.kernel.once_bytes([*map(self._value, step.inputs)])
        return sum(bytes_of.values())

    def _value(self, x: Operand) -> Array | None:
        """The array of a constant or of a view of a constant; None for any other input."""
        base = base_of(x) if isinstance(x, Source) else None
        if not isinstance(base, Constant):
            return None
        array: Array = self._bound[_name(base)]
        return x.apply(array) if isinstance(x, View) else array

    def _call_line(self, number: int, step: Step) -> str:
        args, inputs_given = (
            step.kernel.per_call.signature.inputs,
            step.kernel.select_inputs(step.inputs),
        )
        inputs = [
            self._operand(x) + ".item()" * (isinstance(arg, ScalarArg) and isinstance(x, Source))
            for arg, x in zip(args, inputs_given, strict=False)
        ]
        inputs += [f"k{number}_{k}" for k in range(len(args) - len(inputs_given))]
        outputs = [self._operand(r) for r in step.outputs]
        fallback = f"again({number}, ({''.join(f'{x}, ' for x in inputs)}), ({', '.join(outputs)},))"
        return f"if f{number}({', '.join([*inputs, *outputs])}) is not True: {fallback}"

    def _operand(self, x: Operand) -> str:
        match x:
            case View():
                return self._view(x)
            case Result() if x in self._direct:
                return self._direct[x]
            case Argument() | Constant() | Result():
                return _name(x)
            case np.generic():
                name = f"n{len(self._bound)}"
                self._bound[name] = x.item()
                return name

    def _view(self, view: View) -> str:
        if view not in self._views:
            name = self._views[view] = f"v{len(self._views)}"
            if not self._is_fixed(view):
                self._bound[f"view_{name}"] = view.apply
                self._lines.append(f"{name} = view_{name}({self._operand(view.base)})")
        return self._views[view]

    def _is_fixed(self, view: View) -> bool:
        """True for a view of a constant or an intermediate result, whose address is the same in all calls."""
        return not isinstance(view.base, Argument) and view.base not in self._direct


def _name(source: Source) -> str:
    match base_of(source):
        case Argument(position):
            return f"p{position}"
        case Constant(number):
            return f"c{number}"
        case Result(call, output):
            return f"b{call}_{output}"


def _no_code(*_: Any) -> bool:
    return False
