"""Compiles CUDA source to a cubin or PTX by NVRTC, which needs no toolkit, driver or GPU, or by nvcc."""

from __future__ import annotations

import importlib.util
import os
import re
from typing import Any

from tdsl.codegen.cuda import nvcc
from tdsl.codegen.cuda.diagnostics import rejection_error
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import TargetError

_OPTIONS = ("--std=c++17", "--ptxas-options=-v")
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_USED = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_SHARED = re.compile(r"(\d+) bytes smem")
_SERIAL = re.compile(r"\b(?:C7507|C7510|C7515)\b")  # ptxas: wgmma is serialised


@frozen
class Usage:
    """Usage of a kernel by ptxas: registers, stack and spill bytes of a thread, shared bytes of a block."""

    registers: int
    stack: int
    spills: int
    shared: int


@frozen
class Compiled:
    """A cubin, the resource usage of each kernel by name, and warnings of serialised tensor instructions."""

    cubin: bytes
    usage: tuple[tuple[str, Usage], ...]
    warnings: tuple[str, ...]


def compile_text(text: str, arch: str) -> Compiled:
    """The machine code of CUDA source for an architecture.

    Raises TargetError if the compiler is missing or rejects the source, with a note that shows where.
    """
    cubin, log = _compile(text, f"--gpu-architecture={arch}", "CUBIN")
    usage, warnings = read_log(log)
    return Compiled(cubin, usage, warnings)


def ptx(text: str, arch: str) -> str:
    """The PTX of CUDA source for an architecture; errors as `compile_text`."""
    code, _ = _compile(text, f"--gpu-architecture={arch.replace('sm_', 'compute_')}", "PTX")
    return code.rstrip(b"\0").decode()


def _compile(text: str, architecture: str, kind: str) -> tuple[bytes, str]:
    """The cubin or PTX of CUDA source, and the compiler's log."""
    compiler = nvcc.selected_compiler()
    if compiler != "nvrtc":
        return nvcc.compile_text(compiler, text, architecture.partition("=")[2], kind)
    require_nvrtc()
    from cuda.bindings import nvrtc

    options = [architecture, *_OPTIONS, *(f"-I{x}" for x in _include_folders())]
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"kernels.cu", 0, [], [])
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [x.encode() for x in options])
        log = _query_bytes(nvrtc.nvrtcGetProgramLogSize(program), nvrtc.nvrtcGetProgramLog, program)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            arch = architecture.partition("=")[2]
            raise rejection_error("NVRTC", log.decode(errors="replace"), arch, text)
        size = getattr(nvrtc, f"nvrtcGet{kind}Size")(program)
        code = _query_bytes(size, getattr(nvrtc, f"nvrtcGet{kind}"), program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return code, log.decode(errors="replace")


def require_nvrtc() -> None:
    """Raise TargetError with the install command unless NVRTC and its headers are installed."""
    missing = [m for m in ("cuda.bindings", "nvidia.cu13") if not _is_installed(m)]
    if missing:
        raise TargetError(
            f"NVRTC is not installed: there is no {' and no '.join(missing)}",
            loc=here(),
            label="this call",
            hint='pip install "tdsl[cuda]"',
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _include_folders() -> tuple[str, ...]:
    spec = importlib.util.find_spec("nvidia.cu13")
    assert spec is not None and spec.submodule_search_locations is not None
    roots = [os.path.join(x, "include") for x in spec.submodule_search_locations]
    return tuple(p for x in roots for p in (x, os.path.join(x, "cccl")) if os.path.isdir(p))


def _query_bytes(size: Any, get: Any, program: Any) -> bytes:
    """The bytes that `get` writes for a program; `size` is the result of the matching size query."""
    _, count = size
    data = b" " * int(count)
    get(program, data)
    return data


def read_log(log: str) -> tuple[tuple[tuple[str, Usage], ...], tuple[str, ...]]:
    """The resource usage of each kernel in a log of `ptxas -v`, and the warnings of serialised wgmma.

    >>> log = '''ptxas info    : Compiling entry function 'k' for 'sm_90a'
    ... ptxas info    : Function properties for k
    ... ptxas         .     0 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
    ... ptxas info    : Used 15 registers, used 1 barriers, 1024 bytes smem'''
    >>> read_log(log)
    ((('k', Usage(registers=15, stack=0, spills=20, shared=1024)),), ())
    """
    usages: dict[str, Usage] = {}
    name, stack, spills = "", 0, 0
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            name, stack, spills = entry[1], 0, 0
        elif frame := _SPILLS.search(line):
            stack, spills = int(frame[1]), int(frame[2]) + int(frame[3])
        elif (used := _USED.search(line)) and name:
            shared = _SHARED.search(line)
            usages[name] = Usage(int(used[1]), stack, spills, int(shared[1]) if shared else 0)
    return tuple(sorted(usages.items())), tuple(filter(_SERIAL.search, log.splitlines()))
