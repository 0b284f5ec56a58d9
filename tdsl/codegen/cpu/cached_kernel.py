"""Caches compiled kernels on disk: a program that has been compiled before runs without being lowered again.

An entry is the object file, preceded by JSON with the data needed to load it:

    length of the JSON | {"name": of the kernel, "quick": true if it has an entry for Python} | object file

The JSON of a fallback also has its number, and the reason and the time limit of LLVM's failed first attempt.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from tdsl.codegen.cpu import jit
from tdsl.codegen.cpu.executable import CpuExecutable, ObjectCode, text_of
from tdsl.codegen.ir.loops import Argument, Kernel
from tdsl.codegen.runtime import cache
from tdsl.codegen.runtime.compile_limit import CompileLimit, compile_limit, warn_of_simpler_code
from tdsl.core.debug import is_compilation_logged, is_enabled, log, timed
from tdsl.machine.cpu import CpuTarget, check_runs_here

_LENGTH = struct.Struct("<I")
_CALLER = (sys.version, np.__version__)  # versions whose objects the entry point for Python reads


class Fallback(NamedTuple):
    """A kernel, built by `make`, and the CPU to compile it for; `description` describes both in a warning."""

    make: Callable[[], Kernel]
    target: CpuTarget
    description: str


def load_or_build(
    program: str,
    params: tuple[Argument, ...],
    make: Callable[[], Kernel],
    target: CpuTarget,
    fallbacks: Callable[[], Sequence[Fallback]] = tuple,
) -> CpuExecutable:
    """The machine code of `make()` for this CPU or an ISA level of it, from the disk cache if it is there.

    `program` is the fingerprint of everything that the kernel depends on, `params` are its parameters. The
    kernel is lowered only if the cache has no entry, or if its loops are accessed. If LLVM reaches the time
    limit, the first fallback of `fallbacks()` that it compiles is used, with a warning, and cached.
    TargetError if this CPU cannot run the code, CompileLimit if LLVM reaches the limit for all.
    """
    check_runs_here(target)
    key = cache.key(
        "cpu program",
        *jit.compiler_identity(target),
        *_CALLER,
        program,
        str(is_enabled("canaries")),
    )
    entry = None if is_compilation_logged() else cache.load(key)
    log("cache", f"{'found' if entry is not None else 'not found'} {key}")
    limit = compile_limit()
    if entry is not None:
        code, number, reason, limited_to = _unpack(entry, params)
        if not number:
            return CpuExecutable.from_object(code, make, target)
        if 0 < limit <= limited_to:
            fallback = fallbacks()[number - 1]
            warn_of_simpler_code(reason, fallback.description)
            return CpuExecutable.from_object(code, fallback.make, fallback.target)
    try:
        kernel, code = _compile(Fallback(make, target, ""), params)
        number, reason = 0, ""
    except CompileLimit as error:
        candidates = fallbacks()
        if not candidates:
            raise
        number, kernel, code = _compile_first_fallback(candidates, params)
        reason, target = error.message, candidates[number - 1].target
        warn_of_simpler_code(reason, candidates[number - 1].description)
    cache.store(key, _pack(code, number, reason, limit), jit.header(kernel.name, target))
    return CpuExecutable.from_object(code, lambda: kernel, target)


def _compile_first_fallback(
    candidates: Sequence[Fallback], params: tuple[Argument, ...]
) -> tuple[int, Kernel, ObjectCode]:
    """The number, from 1, of the first fallback that LLVM compiles in time, with its kernel and code."""
    for number, fallback in enumerate(candidates[:-1], 1):
        with suppress(CompileLimit):
            return number, *_compile(fallback, params)
    return len(candidates), *_compile(candidates[-1], params)


def _compile(fallback: Fallback, params: tuple[Argument, ...]) -> tuple[Kernel, ObjectCode]:
    kernel = fallback.make()
    assert kernel.arguments == params, "a kernel takes what its signature says"
    with timed("emit"):
        text = text_of(kernel, fallback.target)
    with timed("llvm"):
        file = jit.generate(text, fallback.target, kernel.name)
    return kernel, ObjectCode(kernel.name, params, f"@{kernel.name}_call(" in text, file)


def _pack(code: ObjectCode, number: int, reason: str, limit: float) -> bytes:
    description = {"name": code.name, "quick": code.has_python_entry}
    failure = {"taken": number, "reason": reason, "limit": limit} if number else {}
    head = json.dumps({**description, **failure}).encode()
    return _LENGTH.pack(len(head)) + head + code.file


def _unpack(entry: bytes, params: tuple[Argument, ...]) -> tuple[ObjectCode, int, str, float]:
    """The code, the number of its fallback or 0, and why and at what limit the first attempt failed."""
    (length,) = _LENGTH.unpack_from(entry)
    start = _LENGTH.size + length
    description = json.loads(entry[_LENGTH.size : start])
    code = ObjectCode(description["name"], params, description["quick"], entry[start:])
    return (
        code,
        description.get("taken", 0),
        description.get("reason", ""),
        description.get("limit", 0.0),
    )
