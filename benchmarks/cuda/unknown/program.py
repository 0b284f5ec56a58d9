"""What a program of the group is: how it is written for some sizes, and its result by NumPy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tdsl as td
from benchmarks.case import Array, Arrays
from tdsl.codegen.cuda.manifest import error_of, random_array, tolerance
from tdsl.codegen.runtime.signature import ArrayArg, extent

Written = td.Func | td.Schedule


@dataclass(frozen=True)
class Program:
    """A program of the group gpu-unknown.

    `write` writes it for sizes by name, and `expected` is its result by NumPy. Integer inputs that are named
    in `below` are from 0 to less than these numbers. `tensor` is the type whose products tensor cores make.
    """

    name: str
    write: Callable[..., Written]
    sizes: Mapping[str, int]
    small: Mapping[str, int]
    expected: Callable[..., Any]
    below: Mapping[str, int] = field(default_factory=dict)
    tensor: str = ""

    def compiled(self, arch: str, *, small: bool = False) -> td.Compiled:
        """The program by the default schedule."""
        sizes = self.small if small else self.sizes
        program: td.Compiled = td.compile(self.write(**sizes), target=td.Target("cuda", arch=arch))
        return program

    def arrays(self, compiled: td.Compiled, *, values: bool = True) -> Arrays:
        """The input, the same numbers in every run; without `values` zeros but for those in `below`."""
        arrays = []
        for n, a in enumerate(compiled.signature.inputs):
            assert isinstance(a, ArrayArg)
            shape = tuple(extent(e, {}) for e in a.shape)
            if a.name in self.below:
                rng = np.random.default_rng(n)
                arrays.append(rng.integers(0, self.below[a.name], shape, a.dtype.numpy))
            elif values:
                arrays.append(random_array(shape, a.dtype.name, n + 1))
            else:
                arrays.append(np.zeros(shape, a.dtype.numpy))
        return tuple(arrays)

    def error(self, compiled: td.Compiled, result: Any, arrays: Arrays) -> tuple[float, bool]:
        """How far a result is off, as a part of the largest magnitude, and whether that is right."""
        wide = (a if a.dtype.kind in "biu" else a.astype(np.float64) for a in arrays)
        inputs = tuple(a.dtype.name for a in compiled.signature.inputs)
        results, expected = (x if isinstance(x, tuple) else (x,) for x in (result, self.expected(*wide)))
        worst, right = 0.0, True
        for output, got, want in zip(compiled.signature.outputs, results, expected, strict=True):
            error = error_of(np.asarray(got).reshape(-1), np.asarray(want).reshape(-1))
            worst, right = max(worst, error), right and error <= tolerance(output.dtype.name, inputs)
        return worst, right


ALL: dict[str, Program] = {}


def program(
    name: str, *, sizes: Mapping[str, int], small: Mapping[str, int], expected: Callable[..., Any],
    below: Mapping[str, int] | None = None, tensor: str = "",
) -> Callable[[Callable[..., Written]], Callable[..., Written]]:  # fmt: skip
    """A decorator that adds a program to the group."""

    def add(write: Callable[..., Written]) -> Callable[..., Written]:
        ALL[name] = Program(name, write, sizes, small, expected, below or {}, tensor)
        return write

    return add


def einsum(name: str, subscripts: str, full: str, small: str, *, dtype: td.DType = td.f32) -> None:
    """Add a sum of products in which f16 is summed in f32; sizes are written as in "i512 j512"."""

    def sizes(text: str) -> dict[str, int]:
        return {word[0]: int(word[1:]) for word in text.split()}

    def write(**extents: int) -> td.Func:
        terms = subscripts.partition("->")[0].split(",")
        tensors = [
            td.Tensor(x, tuple(extents[v] for v in t), dtype) for x, t in zip("pqrs", terms, strict=False)
        ]
        return td.einsum(subscripts, *tensors, name="out")

    def expected(*arrays: Array) -> Array:
        return np.asarray(np.einsum(subscripts, *arrays, optimize=True))

    tensor = dtype.name if dtype is not td.f32 else ""
    ALL[name] = Program(name, write, sizes(full), sizes(small), expected, tensor=tensor)
