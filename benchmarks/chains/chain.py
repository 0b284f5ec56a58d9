"""A chain of operators, and the case of the benchmarks that compares it."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

import tdsl as td
from benchmarks import torch_peers
from benchmarks.case import Array, Arrays, Call, Case, Compiled, PeerMissing, Prepare, within
from benchmarks.chains import numpy_operators, tdsl_operators

Shape = tuple[int, ...]
UNFUSED = "tdsl-unfused"


@dataclass(frozen=True)
class Chain:
    """Operators on arrays of known shapes: `compute(ops, *arrays)` is the same text for all who compute it.

    `terms` is how many values the longest path of reductions adds up, `flops` the operations on products.
    """

    name: str
    title: str
    compute: Callable[..., Any]
    shapes: tuple[Shape, ...]
    terms: int
    flops: float = 0.0

    def inputs(self) -> Arrays:
        """Arrays of values around 0."""
        rng = np.random.default_rng(0)
        return tuple(rng.random(shape, dtype=np.float32) - np.float32(0.5) for shape in self.shapes)

    def expected(self, *arrays: Array) -> Any:
        """By NumPy."""
        return self.compute(numpy_operators, *arrays)

    def is_right(self, result: Any, arrays: Arrays) -> bool:
        """Whether each result is within the error of its sums."""
        expected = self.expected(*(a.astype(np.float64) for a in arrays))
        error = self.terms * float(np.finfo(np.float32).eps)
        is_tuple = isinstance(expected, tuple)
        pairs = zip(result, expected, strict=True) if is_tuple else [(result, expected)]
        return all(within(error, lambda *_, w=w: w, widen=False)(r, ()) for r, w in pairs)

    def graph(self, *, fuse: bool = True) -> td.Graph:
        """The chain as calls of operators of tdsl."""
        return td.Graph(lambda *arrays: self.compute(tdsl_operators, *arrays), fuse=fuse)


def case(chain: Chain) -> Case:
    """The chain fused by the search, operator by operator, and by the compiler of PyTorch."""
    return Case(
        name=chain.name,
        title=chain.title,
        inputs=chain.inputs,
        is_right=chain.is_right,
        peers={
            "tdsl": _fused(chain),
            UNFUSED: _unfused(chain),
            "torch-compile": _by_torch(chain),
        },
        flops=chain.flops,
        bytes=4.0 * sum(map(prod, chain.shapes)),
        group="chains",
    )


def _fused(chain: Chain) -> Prepare:
    """One program of all operators, by the schedule that the search finds."""

    def prepare(arrays: Arrays) -> Call:
        def build() -> td.Compiled:
            return td.compile(chain.graph().autoschedule(*arrays))

        compiled = build()
        out = compiled(*arrays)
        (specialisation,) = compiled.executables
        return Compiled(lambda: compiled(*arrays, out=out), lambda: build().executable(specialisation))

    return prepare


def _unfused(chain: Chain) -> Prepare:
    """A kernel for each operator, by its default schedule."""

    def prepare(arrays: Arrays) -> Call:
        graph = chain.graph(fuse=False)
        out = graph(*arrays)
        return lambda: graph(*arrays, out=out)

    return prepare


def _by_torch(chain: Chain) -> Prepare:
    def compute(_: Any, *tensors: Any) -> Any:
        from benchmarks.chains import torch_operators

        return chain.compute(torch_operators, *tensors)

    def prepare(arrays: Arrays) -> Call:
        try:
            import torch  # noqa: F401  # is it there?
        except ImportError:
            raise PeerMissing("pip install torch") from None
        return torch_peers.peer(compute, compiled=True)(arrays)

    return prepare
