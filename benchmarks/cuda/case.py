"""What is compared on a GPU: a program, its schedule, sizes, and who else computes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tdsl as td
from benchmarks.case import Array, Arrays, Case
from tdsl.codegen.cuda.manifest import error_of, random_array, tolerance
from tdsl.codegen.runtime.signature import ArrayArg, extent

Sizes = Mapping[str, int]
Peer = Callable[..., Any]  # (torch, *tensors) -> a tensor


@dataclass(frozen=True)
class GpuCase:
    """A computation on a GPU.

    `schedule` gives directives to an empty schedule; without it the default schedule is measured. `expected`
    is the result by NumPy. `small` are sizes for emulation: tiles do not all fit. `flops` is the arithmetic
    that the computation cannot avoid. `peers` compute on tensors of PyTorch; the one named "torch" goes
    through torch.compile, too. `bound` says that memory is what limits it: a copy is a peer, then.
    """

    name: str
    title: str
    program: td.Operator
    sizes: Sizes
    small: Sizes
    expected: Callable[..., Array]
    group: str = ""
    schedule: Callable[[td.Schedule], object] | None = None
    flops: Callable[[Sizes], float] = lambda _: 0.0
    peers: Mapping[str, Peer] = field(default_factory=dict)
    bound: bool = False
    arch: str = "sm_90a"

    def compiled(self, sizes: Sizes, arch: str = "") -> td.Compiled:
        """The program for some sizes."""
        s = self.program.schedule(**sizes, target=td.Target("cuda", arch=arch or self.arch))
        if self.schedule is not None:
            self.schedule(s)
        program: td.Compiled = td.compile(s)
        return program

    def arrays(self, compiled: td.Compiled) -> Arrays:
        """The input: the same numbers in every run."""
        inputs = [a for a in compiled.signature.inputs if isinstance(a, ArrayArg)]
        shapes = [tuple(extent(e, {}) for e in a.shape) for a in inputs]
        return tuple(
            random_array(shape, a.dtype.name, n + 1)
            for n, (a, shape) in enumerate(zip(inputs, shapes, strict=True))
        )

    def error(self, compiled: td.Compiled, result: Array, expected: Array) -> tuple[float, bool]:
        """How far a result is off, as a part of the largest magnitude, and whether that is right."""
        (output,) = compiled.signature.outputs
        inputs = tuple(a.dtype.name for a in compiled.signature.inputs)
        error = error_of(np.asarray(result).reshape(-1), np.asarray(expected).reshape(-1))
        return error, error <= tolerance(output.dtype.name, inputs)

    def bytes(self, compiled: td.Compiled) -> float:
        """What is read and written at least."""
        arrays = compiled.signature.arrays
        return float(sum(np.prod([extent(e, {}) for e in a.shape]) * a.dtype.bytes for a in arrays))

    def described(self, compiled: td.Compiled) -> Case:
        """The case as the tables and records of all suites have it."""
        flops = float(self.flops(self.sizes))
        return Case(
            name=self.name, title=self.title, inputs=tuple, is_right=lambda *_: True, peers={},
            flops=flops, bytes=self.bytes(compiled), group=self.group,
        )  # fmt: skip


def in_double(arrays: Arrays) -> Arrays:
    """Arrays whose arithmetic in NumPy is precise enough to be expected."""
    return tuple(a.astype(np.float64) if a.dtype.kind not in "biu" else a for a in arrays)


def in_single(arrays: Arrays) -> Arrays:
    """The same for large arrays, of which double precision would take too long."""
    return tuple(a.astype(np.float32) if a.dtype.kind not in "biu" else a for a in arrays)
