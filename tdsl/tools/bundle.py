"""Writes bundles: GPU kernels compiled here, to run and check on another machine with `tdsl.run_bundle`."""

from __future__ import annotations

import datetime
import importlib
import os
import runpy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tdsl import __version__
from tdsl.codegen.cuda import manifest
from tdsl.codegen.cuda.executable import CudaExecutable
from tdsl.codegen.ir.loops import BufferParam, ScalarParam
from tdsl.codegen.runtime.signature import Specialisation, extent
from tdsl.compile import Compiled
from tdsl.core.source import here
from tdsl.errors import TargetError, TypeMismatch, checked_call
from tdsl.lang.expr import Const
from tdsl.lang.types import ML_DTYPES
from tdsl.target import Target
from tdsl.tilegraph.schedule import Schedule


@dataclass(frozen=True)
class Job:
    """A program for a bundle: its kernels, inputs by name, and expected results.

    Inputs that are not given are random; results that are not given are computed on the CPU.
    `flops` is the number of floating-point operations of the computation, for rates.
    """

    name: str
    compiled: Compiled
    inputs: Mapping[str, Any] = field(default_factory=dict)
    expected: Any = None
    flops: float = 0.0


def write(folder: str, jobs: Iterable[Job]) -> list[manifest.Program]:
    """Write a bundle of programs that are compiled for a GPU to a folder, which is created if it is missing.

    Returns the programs. Raises ShapeError if the sizes of a program are not known, TargetError if its target
    is no GPU or the folder cannot be created.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise TargetError(
            f"cannot make the folder {folder}: {error.strerror}", loc=here(), label="this bundle",
            hint="name a folder that is new, or one that can be written",
        ) from None  # fmt: skip
    programs = [_write_program(folder, job) for job in jobs]
    about = {
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "tdsl": __version__,
    }
    manifest.store(folder, about, programs)
    return programs


def _write_program(folder: str, job: Job) -> manifest.Program:
    variant = _variant(job)
    executable = job.compiled.executable(variant)
    assert isinstance(executable, CudaExecutable)
    arguments = _arguments(job, executable)
    stored: dict[str, Any] = {}
    inputs_by_name: dict[str, Any] = {}
    for a in arguments:
        if a.written:
            continue
        array = np.asarray(job.inputs[a.name]) if not a.seed else None
        if array is not None:
            stored[f"input_{a.name}"] = _storable(array)
        value = manifest.random_array(a.shape, a.dtype, a.seed) if array is None else array
        inputs_by_name[a.name] = value[()] if a.scalar else value
    results = _expected(job, variant, inputs_by_name)
    outputs = [a for a in arguments if a.written]
    for a, result in zip(outputs, results, strict=True):
        flat = np.asarray(result).reshape(-1)
        stored[f"expected_{a.name}"] = _storable(flat[manifest.compared_indices(flat.size)])
    inputs = tuple(a.dtype for a in arguments if not a.written)
    np.savez_compressed(os.path.join(folder, f"{job.name}.npz"), **stored)
    codes = tuple(manifest.Code(m.arch, m.kernels, m.temporaries) for m in executable.modules)
    for code, module in zip(codes, executable.modules, strict=True):
        Path(folder, code.file(job.name)).write_bytes(module.code)
        Path(folder, f"{job.name}.{module.arch}.cu").write_text(module.source, encoding="utf-8")
    tolerances = tuple((a.name, manifest.tolerance(a.dtype, inputs)) for a in outputs)
    return manifest.Program(job.name, codes, arguments, tolerances, job.flops)


def _variant(job: Job) -> Specialisation:
    compiled = job.compiled
    if compiled.target.name != "cuda":
        raise TargetError(
            f"{job.name} is compiled for {compiled.target}: only kernels of a GPU are bundled",
            loc=here(), label="this bundle", hint='td.compile(..., target="cuda")',
        )  # fmt: skip
    return compiled.specialisation({})


def _arguments(job: Job, executable: CudaExecutable) -> tuple[manifest.Argument, ...]:
    arguments = []
    for n, p in enumerate(executable.params):
        stored = p.name in job.inputs
        seed = 0 if stored else n + 1
        if isinstance(p, ScalarParam):
            arguments.append(manifest.Argument(p.name, p.dtype.name, (), scalar=True, seed=seed))
        else:
            assert isinstance(p, BufferParam)
            shape = tuple(int(e.value) if isinstance(e, Const) else extent(e, {}) for e in p.argument.extents)
            seed = 0 if p.written else seed
            arguments.append(manifest.Argument(p.name, p.dtype.name, shape, written=p.written, seed=seed))
    return tuple(arguments)


def _expected(job: Job, variant: Specialisation, inputs_by_name: dict[str, Any]) -> tuple[Any, ...]:
    """The expected results that the job gives, or the results of the same program on the CPU."""
    results = job.expected
    if results is None:
        program = Schedule.of_program(job.compiled.schedule.program)
        sizes = {**job.compiled.sizes, **dict(variant.sizes)}
        on_cpu = Compiled(program, Target("cpu"), frozenset(), sizes)
        results = on_cpu(**inputs_by_name)
    return results if isinstance(results, tuple) else (results,)


def _storable(array: Any) -> Any:
    """A contiguous copy or view that NumPy can store: element types of ml_dtypes as unsigned integers."""
    plain = np.ascontiguousarray(array)
    return plain.view(f"u{plain.itemsize}") if plain.dtype.name in ML_DTYPES else plain


def collect(words: Iterable[str]) -> list[Job]:
    """The jobs that words of a command line name.

    `program.py` names all module-level objects of the program that are compiled for a GPU, or are a `Job`;
    `module:name` names such an object, or a function that returns one or several of them. TypeMismatch if
    a word names none.
    """
    jobs: list[Job] = []
    for word in words:
        word_jobs = list(_jobs_named(word))
        if not word_jobs:
            raise TypeMismatch(
                f"{word} has nothing that is compiled for a GPU", loc=here(), label="this bundle",
                hint='give it f = td.compile(..., target="cuda"), or a function that returns one',
            )  # fmt: skip
        jobs += word_jobs
    used_names: set[str] = set()
    return [_renamed(job, used_names) for job in jobs]


def _jobs_named(word: str) -> Iterator[Job]:
    if word.endswith(".py"):
        if not os.path.isfile(word):
            raise TypeMismatch(
                f"there is no program {word}", loc=here(), label="this bundle",
                hint=f"paths are relative to {os.getcwd()}",
            )  # fmt: skip
        for name, value in runpy.run_path(word).items():
            if isinstance(value, Job) or _is_for_a_gpu(value):
                yield from _jobs(name, value)
        return
    module, _, name = word.partition(":")
    try:
        target = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise TypeMismatch(
            f"{word} is neither a program nor a function: {error}", loc=here(), label="this bundle",
            hint="program.py, or module:function; a module is found as in a program of this folder",
        ) from None  # fmt: skip
    is_function = callable(target) and not isinstance(target, Compiled)
    yield from _jobs(name, checked_call(target)() if is_function else target)


def _jobs(name: str, value: Any) -> Iterator[Job]:
    if isinstance(value, Job):
        yield value
    elif isinstance(value, Compiled):
        yield Job(name, value)
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for n, part in enumerate(value):
            yield from _jobs(f"{name}_{n}", part)
    else:
        raise TypeMismatch(
            f"{name} is {type(value).__name__}, nothing that is compiled for a GPU", loc=here(),
            label="this bundle", hint='td.compile(..., target="cuda"), or several of them',
        )  # fmt: skip


def _is_for_a_gpu(value: object) -> bool:
    return isinstance(value, Compiled) and value.target.name == "cuda"


def _renamed(job: Job, used_names: set[str]) -> Job:
    name = next(
        n for n in (job.name, *(f"{job.name}_{k}" for k in range(len(used_names) + 1))) if n not in used_names
    )
    used_names.add(name)
    return Job(name, job.compiled, job.inputs, job.expected, job.flops)
