"""Checks which components work on this machine: a `Check` for each, with a hint to enable missing ones."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Status = Literal["PASS", "SKIP", "FAIL"]


@dataclass(frozen=True)
class Check:
    """One line of the report: SKIP means an optional component is missing; `hint` says how to enable it."""

    name: str
    status: Status
    detail: str
    hint: str = ""


def check_all() -> Iterator[Check]:
    """Every check in turn. A check that raises is a FAIL with the text of the error."""
    for name, check in CHECKS.items():
        try:
            status, detail, hint = check()
        except Exception as fault:  # noqa: BLE001  # any failure is a finding
            status, detail, hint = "FAIL", f"{type(fault).__name__}: {fault}", ""
        yield Check(name, status, detail, hint)


Finding = tuple[Status, str, str]


def _python() -> Finding:
    return "PASS", f"{platform.python_version()} on {platform.platform(terse=True)}", ""


def _numpy() -> Finding:
    import numpy as np

    total = int(np.arange(10).sum())
    return ("PASS" if total == 45 else "FAIL"), np.__version__, ""


def _llvm() -> Finding:
    from tdsl.codegen.cpu.target_machine import target_machine
    from tdsl.machine import cpu

    target = target_machine(cpu.host())
    version = importlib.metadata.version("llvmlite")
    return "PASS", f"LLVM {cpu.llvm_version()} in llvmlite {version}, {target.triple}", ""


def _cpu() -> Finding:
    from tdsl.machine import cpu as machine

    host = machine.host()
    shown = ("avx2", "fma", "avx512f", "avx512bf16", "avx512fp16", "amx-bf16", "neon", "sve")
    features = " ".join(name for name in shown if name in host.has)
    detail = f"{host.cpu}, {os.cpu_count()} cores, vectors of {8 * host.vector_bytes} bits: {features}"
    return "PASS", detail, ""


def _machine() -> Finding:
    from tdsl.machine import description
    from tdsl.machine.cpu import host
    from tdsl.machine.probe import probe
    from tdsl.target import Target

    machine = Target("cpu").machine()
    last = machine.caches[-1]
    detail = f"{machine.llc_bytes / 2**20:g} of {(last.bytes or 0) / 2**20:g} MiB stay in {last.name}"
    measured = description.read()
    if measured is not None and measured.cpu == host().cpu:
        return "PASS", f"{detail}, measured {measured.date}", ""
    hint = "measure all of it: tdsl machine measure"
    if not description.path():
        return "SKIP", f"{detail}: built in, as TDSL_MACHINE=builtin asks for", "unset TDSL_MACHINE"
    problem = probe(machine).problem
    if problem:
        return "SKIP", f"{detail}: built in, as no probe told more: {problem}", hint
    return "PASS", f"{detail}, as a probe found", hint


def _kernel() -> Finding:
    import numpy as np

    import tdsl as td

    i, j = td.vars("i j")
    a = td.Tensor("a", (7, 33), td.f32)
    f = td.Func("f")
    f[i, j] = a[i, j] * 2 + 1
    start = time.perf_counter()
    kernel = td.compile(f)
    x = np.arange(7 * 33, dtype=np.float32).reshape(7, 33)
    right = np.array_equal(kernel(x), x * 2 + 1)
    milliseconds = 1e3 * (time.perf_counter() - start)
    return ("PASS" if right else "FAIL"), f"compiled, run and checked in {milliseconds:.0f} ms", ""


THREADS = {"pool": "threads of the system", "threads": "threads of Python"}


def _threads() -> Finding:
    from tdsl.codegen.cpu.runtime import runtime
    from tdsl.machine.threads import default_threads

    used = runtime()
    if used.backend == "serial":
        return "SKIP", "parallel loops run in one thread", "unset TDSL_PARALLEL"
    count, origin = default_threads()
    origin = origin if used.threads == count else "as this process has set"
    return "PASS", f"{used.threads}, {origin}: {THREADS.get(used.backend, used.backend)}", ""


def _cache() -> Finding:
    from tdsl.codegen.runtime import cache

    info = cache.info()
    problem = info.problem or cache.problem_of_writing()
    if problem:
        return "FAIL", f"{info.path}: {problem}", "set TDSL_CACHE_DIR to a folder of your own"
    if not info.path:
        return "SKIP", "turned off", "unset TDSL_CACHE"
    detail = f"{info.path}, {info.entries} entries, {info.bytes / 1e6:.1f} MB"
    if os.path.exists(info.path):
        status = os.stat(info.path)
        detail += f", mode {stat.S_IMODE(status.st_mode):04o}, owner {_owner(status.st_uid)}"
    return "PASS", detail, ""


def _owner(uid: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return str(uid)


def _package(package: str, module: str, what: str) -> Callable[[], Finding]:
    def check() -> Finding:
        if importlib.util.find_spec(module) is None:
            return "SKIP", f"{what}: not installed", f"pip install {package}"
        return "PASS", f"{what}: {package} {importlib.metadata.version(package)}", ""

    return check


def _machine_code() -> Finding:
    from tdsl.codegen.cuda import nvcc, nvrtc
    from tdsl.errors import TargetError

    compiler = nvcc.selected_compiler()
    if compiler != "nvrtc":
        return "PASS", f"CUDA C++ to machine code: {compiler}, {nvcc.version(compiler)}", ""
    try:
        nvrtc.require_nvrtc()
    except TargetError as error:
        return "SKIP", error.message, error.hint
    version = importlib.metadata.version("nvidia-cuda-nvrtc")
    return "PASS", f"CUDA C++ to machine code: NVRTC {version}", ""


def _gpu() -> Finding:
    from tdsl.codegen.cuda.driver import driver
    from tdsl.errors import TargetError

    try:
        device = driver().device()
    except TargetError as error:
        detail = f"{error.message}: kernels can be compiled and emulated, not launched"
        return "SKIP", detail, "on another machine: tdsl bundle, python -m tdsl.run_bundle"
    version = device.driver.version()
    return "PASS", f"{device.name} ({device.arch}), a driver for CUDA {version}", ""


CHECKS: dict[str, Callable[[], Finding]] = {
    "python": _python,
    "numpy": _numpy,
    "llvm": _llvm,
    "cpu": _cpu,
    "machine": _machine,
    "kernel": _kernel,
    "threads": _threads,
    "cache": _cache,
    "numba": _package("numba", "numba", 'kernels with target="numba"'),
    "tvm": _package("apache-tvm", "tvm", "CUDA C++ for GPU kernels"),
    "nvrtc": _machine_code,
    "gpu": _gpu,
    "picture": _package("scikit-image", "skimage", "a photograph for the demo"),
}
