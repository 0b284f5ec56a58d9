"""Compiles CUDA source to a cubin or PTX by NVRTC, which needs no toolkit, driver or GPU, or by nvcc."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
from typing import Any

from tdsl.codegen.cuda import nvcc
from tdsl.codegen.cuda.diagnostics import rejection_error
from tdsl.codegen.runtime.compile_limit import within_limit
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import TargetError
from tdsl.machine.devices import gpus
from tdsl.machine.gpu import capability

_OPTIONS = ("--std=c++17", "--ptxas-options=-v")
_KERNEL = re.compile(r"__launch_bounds__\([^)]*\) (\w+)\(")
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
    cubin, log = _compile(text, arch, "CUBIN")
    usage, warnings = read_log(log)
    return Compiled(cubin, usage, warnings)


def ptx(text: str, arch: str) -> str:
    """The PTX of CUDA source for an architecture; errors as `compile_text`."""
    code, _ = _compile(text, arch.replace("sm_", "compute_"), "PTX")
    return code.rstrip(b"\0").decode()


def check_arch(arch: str) -> None:
    """TargetError if the NVRTC that is installed does not assemble an architecture; nvcc is not asked."""
    if nvcc.selected_compiler() != "nvrtc":
        return
    require_nvrtc()
    version, known = supported_archs()
    if capability(arch) not in known:
        earlier = [x for x in gpus() if capability(x) in known and capability(x) < capability(arch)]
        other = f', or td.compile(..., target="cuda:{earlier[-1]}")' if earlier else ""
        raise TargetError(
            f"NVRTC {version} does not compile for {arch}; it does for {', '.join(f'sm_{x}' for x in known)}",
            loc=here(),
            label="compiled here",
            hint=f"pip install --upgrade nvidia-cuda-nvrtc{other}",
        )


@functools.cache
def supported_archs() -> tuple[str, tuple[int, ...]]:
    """The version of NVRTC, and the compute capabilities that it compiles for."""
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    _, known = nvrtc.nvrtcGetSupportedArchs()
    return f"{major}.{minor}", tuple(known)


def _compile(text: str, arch: str, kind: str) -> tuple[bytes, str]:
    """The cubin or PTX of CUDA source, and the compiler's log; CompileLimit beyond the time limit."""
    kernel = name[1] if (name := _KERNEL.search(text)) else ""
    compiler = nvcc.selected_compiler()
    if compiler != "nvrtc":
        return nvcc.compile_text(compiler, text, arch, kind, kernel)
    require_nvrtc()
    importlib.import_module("cuda.bindings.nvrtc")  # which a child process inherits
    payload = within_limit(lambda: b"\0".join(_compile_here(text, arch, kind)), "NVRTC", kernel)
    log, _, code = payload.partition(b"\0")
    return code, log.decode(errors="replace")


def _compile_here(text: str, arch: str, kind: str) -> tuple[bytes, bytes]:
    """The compiler's log, and the cubin or PTX."""
    from cuda.bindings import nvrtc

    options = [f"--gpu-architecture={arch}", *_OPTIONS, *(f"-I{x}" for x in _include_folders())]
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"kernels.cu", 0, [], [])
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [x.encode() for x in options])
        log = _query_bytes(nvrtc.nvrtcGetProgramLogSize(program), nvrtc.nvrtcGetProgramLog, program)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise rejection_error("NVRTC", log.decode(errors="replace"), arch, text)
        size = getattr(nvrtc, f"nvrtcGet{kind}Size")(program)
        code = _query_bytes(size, getattr(nvrtc, f"nvrtcGet{kind}"), program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return log.rstrip(b"\0"), code


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
