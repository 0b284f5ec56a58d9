"""Bundles of kernels: folders that a machine with a GPU runs and checks without a compiler.

    manifest.json      a `Program` for each computation; when and by what the bundle was written
    NAME.sm_90a.cubin  machine code for each architecture; NAME.compute_90.ptx is PTX for later ones
    NAME.sm_90a.cu     the CUDA source of each, to be read
    NAME.npz           expected results: all elements of small arrays, a sample of large ones; stored inputs

Other inputs are generated from a seed, by arithmetic that gives the same values on every machine.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tdsl.codegen.cuda.record import KernelRecord, Module, kernel_of
from tdsl.codegen.cuda.size_formulas import Count
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import TdslError
from tdsl.lang.types import BY_NAME
from tdsl.machine.gpu import is_ptx

FORMAT = 2
MAX_COMPARED = 1 << 16  # elements of a result that are compared
MANIFEST = "manifest.json"
Array = np.ndarray[Any, Any]


@frozen
class Argument:
    """An argument of a program: an input generated from `seed`, a stored input (`seed` 0), or a result."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    scalar: bool = False
    written: bool = False
    seed: int = 0


@frozen
class Code:
    """The kernels of a program for an architecture."""

    arch: str
    kernels: tuple[KernelRecord, ...]
    temporaries: tuple[tuple[str, Count], ...]

    def file(self, program: str) -> str:
        """The name of the file with the code of a program.

        >>> Code("sm_80", (), ()).file("scan"), Code("compute_90", (), ()).file("scan")
        ('scan.sm_80.cubin', 'scan.compute_90.ptx')
        """
        return f"{program}.{self.arch}.{'ptx' if is_ptx(self.arch) else 'cubin'}"


@frozen
class Program:
    """Kernels, their arguments in the order of the launcher, and the tolerated error of each result.

    `codes` are the kernels for each architecture. `flops` is the number of operations that the computation
    needs at least, 0 if unknown.
    """

    name: str
    codes: tuple[Code, ...]
    arguments: tuple[Argument, ...]
    tolerances: tuple[tuple[str, float], ...]
    flops: float = 0.0

    @property
    def bytes(self) -> int:
        """The bytes of all arrays, which the computation reads or writes at least once."""
        return sum(prod(a.shape) * BY_NAME[a.dtype].bytes for a in self.arguments if not a.scalar)

    def modules(self, folder: str) -> tuple[Module, ...]:
        """The modules of the kernels, with code read from the bundle in `folder`."""
        return tuple(
            Module("", x.arch, x.kernels, x.temporaries, (), Path(folder, x.file(self.name)).read_bytes())
            for x in self.codes
        )


def store(folder: str, about: dict[str, Any], programs: list[Program]) -> None:
    """Write the manifest; `about` tells when and by what the bundle was written."""
    fields = [asdict(p) for p in programs]
    with open(os.path.join(folder, MANIFEST), "w") as file:
        json.dump({"format": FORMAT, **about, "programs": fields}, file, indent=1)


def load(folder: str) -> tuple[dict[str, Any], list[Program]]:
    """The manifest that `store` wrote; TdslError if it is missing, unreadable or of another format."""
    path = os.path.join(folder, MANIFEST)
    try:
        with open(path) as file:
            manifest: dict[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        raise TdslError(
            f"{path} cannot be read: {error}", loc=here(), label="this folder",
            hint="make one with: tdsl bundle FOLDER program.py",
        ) from None  # fmt: skip
    if manifest.get("format") != FORMAT:
        raise TdslError(
            f"{path} has format {manifest.get('format')}, and this version reads {FORMAT}",
            loc=here(), label="this folder", hint="make it again with this version: tdsl bundle",
        )  # fmt: skip
    return manifest, [_program(p) for p in manifest.pop("programs")]


def _program(p: dict[str, Any]) -> Program:
    arguments = tuple(Argument(**{**a, "shape": tuple(a["shape"])}) for a in p["arguments"])
    tolerances = tuple((n, x) for n, x in p["tolerances"])
    codes = tuple(
        Code(
            x["arch"], tuple(map(kernel_of, x["kernels"])), tuple((n, count) for n, count in x["temporaries"])
        )
        for x in p["codes"]
    )
    return Program(**{**p, "codes": codes, "tolerances": tolerances, "arguments": arguments})


def random_array(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """A pseudorandom array, equal on all machines: floats from -1 to 1, integers from -3 to 3, bools.

    >>> random_array((3,), "f32", 1)
    array([-0.21574974, -0.26424897, -0.9345484 ], dtype=float32)
    >>> random_array((8,), "i32", 1)
    array([-2,  2, -3,  2,  1, -1,  0, -2], dtype=int32)
    """
    t = BY_NAME[dtype]
    with np.errstate(over="ignore"):
        x = np.arange(prod(shape), dtype=np.uint32) + np.uint32(seed * 0x9E3779B9 & 0xFFFFFFFF)
        for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):  # a mixer of 32 bits
            x ^= x >> np.uint32(shift)
            x *= np.uint32(factor)
        x ^= x >> np.uint32(15)
    values: Array = x % np.uint32(2 if t.kind == "b" else 7)
    if t.is_float:
        values = (x >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    elif t.kind == "i":
        values = values.astype(np.int32) - 3
    return values.astype(t.numpy).reshape(shape)


def compared_indices(count: int) -> Array:
    """The flat indices of the elements of a result that are compared, at most `MAX_COMPARED`."""
    if count <= MAX_COMPARED:
        return np.arange(count)
    return np.arange(MAX_COMPARED, dtype=np.int64) * 2654435761 % count


def tolerance(dtype: str, inputs: tuple[str, ...]) -> float:
    """The tolerated error of a result, relative to its largest magnitude.

    It allows for sums in another order than in the expected results, in the precision of the inputs or
    better; integers have to be exact.
    """
    if not BY_NAME[dtype].is_float:
        return 0.0
    least = min((BY_NAME[x].bits for x in (dtype, *inputs) if BY_NAME[x].is_float), default=32)
    return 8 * 2.0 ** -(BY_NAME[dtype].fraction + 1) + (1e-10 if least == 64 else 1e-4)


def error_of(got: Array, expected: Array) -> float:
    """The largest difference, relative to the largest magnitude expected; inf if NaNs or infinities differ.

    >>> error_of(np.array([1.0, 2.5]), np.array([1.0, 2.0]))
    0.25
    """
    a, b = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    odd = ~np.isfinite(b)
    if a.shape != b.shape or not np.array_equal(a[odd], b[odd], equal_nan=True):
        return float("inf")
    if not np.isfinite(a[~odd]).all():
        return float("inf")
    largest = float(np.abs(b[~odd]).max(initial=0.0))
    return float(np.abs(a[~odd] - b[~odd]).max(initial=0.0)) / (largest or 1.0)
