"""Compiles launches to a `Module`: CUDA source, cubin and resource usage of each kernel; cached on disk."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace

from tdsl.codegen.analysis.asynchronous import is_asynchronous
from tdsl.codegen.cuda import nvcc, nvrtc
from tdsl.codegen.cuda.record import KernelRecord, Module, pack, unpack
from tdsl.codegen.cuda.size_formulas import Count, argument_name, as_count
from tdsl.codegen.gpu.launches import Launch, Launches, launches_of
from tdsl.codegen.gpu.limits import STATIC_SHARED, check_limits
from tdsl.codegen.ir.loops import BufferParam, Kernel
from tdsl.codegen.ir.statements import walk
from tdsl.codegen.runtime import cache
from tdsl.codegen.runtime.compile_limit import CompileLimit, compile_limit
from tdsl.core.debug import dump, is_compilation_logged, log, timed
from tdsl.core.source import here
from tdsl.errors import TargetError
from tdsl.lang.expr import Binary, Expr, const
from tdsl.lang.simplify import simplify
from tdsl.machine.devices import describe_gpu
from tdsl.machine.gpu import is_ptx


def load_or_build(
    program: str, make: Callable[[], Kernel], arch: str, *, simplify: bool = False, archs: Sequence[str] = ()
) -> Module:
    """The module of the kernel `make()` for an architecture, loaded from the disk cache or built and stored.

    `program` is the fingerprint of everything that determines the kernel. CompileLimit if the compiler
    reaches the time limit; with `simplify` loops are then compiled without unrolling, and the module says so.
    TargetError before anything is compiled if the compiler lacks one of `archs`, for which it is to be built.
    """
    key = cache.key("cuda program", *_tool_versions(), arch, program)
    payload = None if is_compilation_logged() else cache.load(key)
    log("cache", f"{'found' if payload is not None else 'not found'} {key}")
    stored = None if payload is None else unpack(payload)
    if stored is not None and not stored.limit:
        return stored
    if stored is not None and 0 < compile_limit() <= stored.limit:
        return stored
    for other in archs:
        nvrtc.check_arch(other)
    launches = launches_of(make())
    try:
        module = build(launches, arch)
    except CompileLimit:
        if not simplify or not is_unrolling_optional(launches):
            raise
        module = replace(build(launches, arch, unroll=False), limit=compile_limit())
    cache.store(key, pack(module), {"kind": "cuda", "arch": arch})
    return module


def is_unrolling_optional(launches: Launches) -> bool:
    """True if no kernel has asynchronous instructions, whose operands must be in known registers."""
    return not any(is_asynchronous(s) for x in launches.launches for s in walk(x.body))


def build(launches: Launches, arch: str, *, unroll: bool = True) -> Module:
    """Generate and compile the CUDA source of launches: to a cubin, or to PTX for "compute_90" and the like.

    Without `unroll` no loop is unrolled, which takes the compiler less time.

    Raises ScheduleError for a launch that exceeds the limits of the architecture, TargetError if a tool is
    missing or rejects the code, CompileLimit if the compiler takes too long.
    """
    nvrtc.check_arch(arch)
    machine = describe_gpu(arch)
    check_limits(launches, machine)
    require_tvm()
    from tdsl.codegen.cuda.text import cuda_text, overlaps_kernels

    with timed("tvm"):
        source = cuda_text(launches, machine.arch, unroll=unroll)
    log("cuda", source)
    dump(f"{launches.kernel.name}.cu", source)
    with timed("machine code"):
        compiled = nvrtc.compile_text(source, machine.arch)
        code = nvrtc.ptx(source, arch).encode() + b"\0" if is_ptx(arch) else compiled.cubin
    usage = dict(compiled.usage)
    early = overlaps_kernels(launches, machine.arch)
    kernels = tuple(
        _kernel_record(x, usage[x.name], early=early and n > 0) for n, x in enumerate(launches.launches)
    )
    sizes = tuple((t.name, _bytes(t)) for t in launches.temporaries)
    return Module(source, arch, kernels, sizes, compiled.warnings, code)


def _kernel_record(launch: Launch, usage: nvrtc.Usage, *, early: bool) -> KernelRecord:
    names, grid = tuple(map(argument_name, launch.params)), tuple(map(as_count, launch.grid))
    dynamic = launch.shared if launch.shared > STATIC_SHARED else 0
    return KernelRecord(
        launch.name, names, grid, launch.block, dynamic, launch.shared,
        usage.registers, usage.stack, usage.spills, launch.maps, launch.cluster,
        early and not launch.cooperative, launch.cooperative,
    )  # fmt: skip


def _bytes(t: BufferParam) -> Count:
    whole: Expr = const(t.dtype.bytes)
    for e in t.extents:
        whole = simplify(Binary("mul", whole, e))
    return as_count(whole)


def require_tvm() -> None:
    """Raise TargetError with the install command unless the supported version of TVM is installed."""
    required, installed = "0.27.0.post1", tvm_version()
    if installed != required:
        raise TargetError(
            f"CUDA kernels need apache-tvm {required}, "
            + (f"not {installed}" if installed else "which is not installed"),
            loc=here(),
            label="this call",
            hint='pip install "tdsl[cuda]"',
        )


def tvm_version() -> str:
    """The installed version of TVM, or ""."""
    if importlib.util.find_spec("tvm") is None:
        return ""
    try:
        return importlib.metadata.version("apache-tvm")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _tool_versions() -> tuple[str, ...]:
    """The versions of the tools that determine the code, "" for those that are not installed."""
    compiler = nvcc.selected_compiler()
    if compiler != "nvrtc":
        return (tvm_version(), nvcc.version(compiler))
    try:
        nvrtc_version = importlib.metadata.version("nvidia-cuda-nvrtc")
    except importlib.metadata.PackageNotFoundError:
        nvrtc_version = ""
    return (tvm_version(), nvrtc_version)
