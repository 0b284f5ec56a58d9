"""Machine code from the disk cache: a program that has been compiled before runs without making its loops.

An entry holds the object file behind what is needed to load it, as JSON:

    length of the JSON | {"name": of the kernel, "quick": whether it has an entry for Python} | object file
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable

import numpy as np

from tdsl.codegen import cache
from tdsl.codegen.cpu import jit
from tdsl.codegen.cpu.executable import CpuExecutable, ObjectCode, text_of
from tdsl.codegen.cpu.machine import CpuTarget, check_runs_here
from tdsl.codegen.loops import Argument, Kernel
from tdsl.debug import asked_for, looks_inside, tell, timed

_LENGTH = struct.Struct("<I")
_CALLER = (sys.version, np.__version__)  # whose objects the entry for Python reads


def load_or_build(
    program: str, params: tuple[Argument, ...], make: Callable[[], Kernel], target: CpuTarget
) -> CpuExecutable:
    """The machine code of `make()` for this machine or a level of it, from the disk cache where it is there.

    `program` is the fingerprint of all that the kernel is made of, `params` are what it takes. The kernel
    is made only where the cache does not have its code, or when someone asks for it. TargetError where
    this machine cannot run the code.
    """
    check_runs_here(target)
    key = cache.key(
        "cpu program", *jit.made_by(target), *_CALLER, program, str(asked_for("canaries"))
    )
    payload = None if looks_inside() else cache.load(key)
    tell("cache", f"{'found' if payload is not None else 'not found'} {key}")
    if payload is not None:
        return CpuExecutable.of_object(_unpack(payload, params), make, target)
    kernel = make()
    assert kernel.params == params, "a kernel takes what its signature says"
    with timed("emit"):
        text = text_of(kernel, target)
    with timed("llvm"):
        file = jit.generate(text, target, kernel.name)
    code = ObjectCode(kernel.name, params, f"@{kernel.name}_call(" in text, file)
    cache.store(key, _pack(code), jit.header(kernel.name, target))
    return CpuExecutable.of_object(code, lambda: kernel, target)


def _pack(code: ObjectCode) -> bytes:
    about = json.dumps({"name": code.name, "quick": code.quick}).encode()
    return _LENGTH.pack(len(about)) + about + code.file


def _unpack(payload: bytes, params: tuple[Argument, ...]) -> ObjectCode:
    (length,) = _LENGTH.unpack_from(payload)
    start = _LENGTH.size + length
    about = json.loads(payload[_LENGTH.size : start])
    return ObjectCode(about["name"], params, about["quick"], payload[start:])
