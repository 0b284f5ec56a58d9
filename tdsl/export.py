"""`Exportable`: a compiled program written for C programs, as a library or as a launcher of GPU kernels."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdsl.codegen.ir.loops import Kernel, Print
from tdsl.codegen.ir.statements import walk
from tdsl.codegen.runtime.signature import Signature, Specialisation, dense_specialisation
from tdsl.core.source import here
from tdsl.errors import ShapeError, TargetError, did_you_mean
from tdsl.schedule.state import State
from tdsl.target import Target
from tdsl.variant import Variant

if TYPE_CHECKING:
    from tdsl.c_function import CFunction


@dataclass(frozen=True, slots=True)
class Exported:
    """The files of an exported program.

    `header` declares its function, `library` is the static library, `objects` what is in it; `shared` is the
    shared library, None where this machine has no C compiler to link it.
    """

    header: Path
    library: Path
    objects: tuple[Path, ...]
    shared: Path | None


@dataclass(frozen=True, slots=True)
class ExportedLauncher:
    """The files of exported GPU kernels: `header` declares the functions that the C file `source` defines."""

    header: Path
    source: Path


class Exportable:
    """The part of a compiled program by which C programs call it."""

    target: Target
    state: State
    signature: Signature
    dynamic: frozenset[str]
    variant: Callable[[Specialisation], Variant]
    executable: Callable[[Specialisation], Any]

    def export(
        self, folder: str | os.PathLike[str], *, name: str = "", levels: Iterable[str] | None = None
    ) -> Exported:
        """Writes the program as a library for C programs: a header, object files and a static library.

        `name` is that of the C function and of the files, by default that of the program. The function takes
        the inputs in order, the sizes named in `dynamic`, and the outputs. It selects the newest of `levels`
        that the processor has: by default sse2, avx2 and avx512; there is sse4, too, and on ARM aarch64.
        Neither Python nor LLVM is needed where it runs, nor a C compiler here, but for the shared library.

        >>> import tempfile, tdsl as td
        >>> i, a, f = td.vars("i"), td.Tensor("a", ("N",), td.f32), td.Func("f")
        >>> f[i] = a[i] * 2
        >>> files = td.compile(f, dynamic="N").export(tempfile.mkdtemp(), name="twice")
        >>> [line for line in files.header.read_text().splitlines() if line.startswith("int ")]
        ['int twice(const float *a, int64_t N, float *f);']

        TargetError for another target, a level that cannot be exported and a program that prints; ShapeError
        if a size is neither fixed nor dynamic.
        """
        from tdsl.codegen.cpu.library import write_library
        from tdsl.pipeline import make_kernel

        name = name or self.signature.name
        _check_target(self.target)
        ordered = _checked_levels(levels)
        _check_signature(self.signature, self.dynamic, name)
        specialisation = _dense(self.signature, self.dynamic)
        kernels: dict[str, Kernel] = {}
        for x in ordered:
            target = Target("cpu", level=x)
            variant = Variant(self.state, target, target.machine(), self.signature, specialisation)
            kernels[x] = make_kernel(variant)
            _check_kernel(kernels[x], name)
        return Exported(*write_library(kernels, self.signature, Path(folder), name))

    def export_launcher(self, folder: str | os.PathLike[str], *, name: str = "") -> ExportedLauncher:
        """Writes GPU kernels as a C file with a header, which load and launch them by the CUDA driver.

        `name` is that of the C function and of the files, by default that of the program. The C file has the
        machine code for each architecture of the target. `NAME_load` selects the one for a device; `NAME`
        takes a stream, the inputs in order, the sizes named in `dynamic`, and the outputs, and launches the
        kernels. Needed where it runs: libcuda, and `cuda.h` to compile the file.

        TargetError for another target; ShapeError if a size is neither fixed nor dynamic.
        """
        from tdsl.codegen.cuda.c_launcher import write_launcher

        name = name or self.signature.name
        if self.target.name != "cuda":
            raise TargetError(
                f"programs for {self.target.name} have no launcher",
                loc=here(),
                label="this export",
                hint='compile for target="cuda"; f.export(folder) writes a library for CPUs',
            )
        _check_signature(self.signature, self.dynamic, name)
        executable = self.executable(_dense(self.signature, self.dynamic))
        return ExportedLauncher(
            *write_launcher(executable.modules, executable.params, self.signature, Path(folder), name)
        )

    def c_function(self) -> CFunction:
        """The program as a C function in this process, for ctypes, numba and SciPy.

        It has the arguments and results of an exported function, and needs no C compiler. Its loops run on
        the threads of this process.

        >>> import numpy as np, tdsl as td
        >>> i, a, f = td.vars("i"), td.Tensor("a", ("N",), td.f32), td.Func("f")
        >>> f[i] = a[i] * 2
        >>> twice = td.compile(f, dynamic="N").c_function()
        >>> twice.prototype
        'int f(const float *a, int64_t N, float *f);'
        >>> x, y = np.ones(3, np.float32), np.empty(3, np.float32)
        >>> twice.ctypes(x.ctypes.data, 3, y.ctypes.data), y
        (0, array([2., 2., 2.], dtype=float32))

        Raises the errors of `export`.
        """
        from tdsl.c_function import CFunction
        from tdsl.machine.cpu import cpu_for
        from tdsl.pipeline import make_kernel

        name = self.signature.name
        _check_target(self.target)
        _check_signature(self.signature, self.dynamic, name)
        kernel = make_kernel(self.variant(_dense(self.signature, self.dynamic)))
        _check_kernel(kernel, name)
        return CFunction(kernel, self.signature, name, cpu_for(self.target.level))


def _dense(signature: Signature, dynamic: frozenset[str]) -> Specialisation:
    """The specialisation of a C function: for arrays without gaps that are aligned to their elements."""
    return dense_specialisation(signature, {}, dynamic, aligned=False)


def _checked_levels(levels: Iterable[str] | None) -> list[str]:
    """The levels from the oldest to the newest; TargetError for one that cannot be exported."""
    from tdsl.codegen.cpu.export_text import X86_LEVELS
    from tdsl.machine.cpu import host

    known = [*X86_LEVELS] if host().architecture == "x86_64" else ["aarch64"]
    if levels is None:
        return [x for x in known if x != "sse4"]
    given = [levels] if isinstance(levels, str) else list(levels)
    for x in given:
        if x not in known:
            raise TargetError(
                f"no library can be exported for the level {x!r}",
                loc=here(),
                label="this export",
                hint=did_you_mean(x, known),
            )
    if not given:
        raise TargetError(
            "an export needs one level or more",
            loc=here(),
            label="this export",
            hint=f"levels={tuple(known)}",
        )
    return [x for x in known if x in given]


def _check_target(target: Target) -> None:
    if target.name != "cpu":
        raise TargetError(
            f"programs for {target.name} are not exported",
            loc=here(),
            label="this export",
            hint='compile for target="cpu"; f.export_launcher(folder) writes kernels of GPUs',
        )


def _check_signature(signature: Signature, dynamic: frozenset[str], name: str) -> None:
    from tdsl.codegen.runtime.c_parameters import KEYWORDS

    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name in KEYWORDS:
        raise TargetError(
            f"{name!r} is no name of a function in C",
            loc=here(),
            label="this export",
            hint='give one: f.export(folder, name="kernel")',
        )
    open_sizes = [n for n in signature.sizes if n not in dynamic]
    if open_sizes:
        example = ", ".join(f"{n}=100" for n in open_sizes)
        raise ShapeError(
            f"{signature.name!r} has sizes that are neither fixed nor dynamic: {', '.join(open_sizes)}",
            loc=here(),
            label="this export",
            hint=f'td.compile(f, {example}), or td.compile(f, dynamic="{open_sizes[0]}")',
        )
    for a in signature.agreements:
        if not a.is_certain:
            raise ShapeError(
                f"{signature.name!r} requires extents to agree that a C program could give differently",
                loc=here(),
                label="this export",
                related=a.related,
                hint="give these extents one name in the declarations of the tensors",
            )


def _check_kernel(kernel: Kernel, name: str) -> None:
    if any(isinstance(s, Print) for s in walk(kernel.body)):
        raise TargetError(
            f"{name!r} prints by td.debug_print, which needs Python",
            loc=here(),
            label="this export",
            hint="take it out of the program before it is exported",
        )
