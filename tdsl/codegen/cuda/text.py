"""Generates the CUDA source of launches with TVM."""

from __future__ import annotations

import re
from typing import Any

import tvm
from tvm.tirx import transform

from tdsl.codegen.cuda.device_functions import functions_text
from tdsl.codegen.cuda.statements import UNROLL_FACTOR, device_function
from tdsl.codegen.gpu.launches import Launch, Launches
from tdsl.machine.devices import describe_gpu
from tdsl.machine.gpu import FEATURES, has
from tdsl.machine.instructions.instruction import INSTRUCTIONS

DEVICE_CODE = "// device functions and kernels"  # follows TVM's head, which depends on the compiler
_KERNEL = 'extern "C" __global__'
_HAS_BF16 = "#if !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ >= 800)"  # TVM's guard, stricter than the header
_UNROLL_ONE = re.compile(r"#pragma unroll 1\n(\s*for )")
_LOOP = re.compile(r"(?:#pragma unroll(?: \d+)?\n)?([ \t]*for \()")
_STANDARD = re.compile(r"  #include <cuda/std/cstdint>\n.*?\n(?=\n  // NVRTC uses asm)", re.DOTALL)
_INTEGERS = "".join(
    f"  using {'u' * unsigned}int{bits}_t = {'un' * unsigned}signed {name};\n"
    for unsigned in (False, True)
    for bits, name in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
)


def cuda_text(launches: Launches, arch: str, *, unroll: bool = True) -> str:
    """The CUDA source of a module with one kernel for each launch; deterministic.

    Without `unroll` the compiler unrolls no loop.
    """
    # without bf16 in the GPU, TVM computes on bits, in vectors that it cannot print; CUDA's header does it
    target = tvm.target.Target({"kind": "cuda", "arch": arch if has(arch, FEATURES["bf16"]) else "sm_80"})
    used: set[str] = set()
    gpu = describe_gpu(arch).gpu
    assert gpu is not None, "an architecture of GPUs"
    functions = {x.name: device_function(x, target, used, gpu.registers) for x in launches.launches}
    module = _passes()(tvm.IRModule(functions))
    text: str = tvm.get_global_func("target.build.cuda")(module, target).inspect_source()
    for launch in launches.launches:
        # without the number of resident blocks, ptxas may spill registers to make more blocks fit
        bounds = rf"__launch_bounds__\((\d+)\) {launch.name}\("
        replacement = rf"{_cluster(launch)}__launch_bounds__(\1, {launch.resident}) {launch.name}("
        text = re.sub(bounds, replacement, text)
    if unroll:
        text = _UNROLL_ONE.sub(rf"#pragma unroll {UNROLL_FACTOR}\n\1", text)
    else:
        text = _LOOP.sub(r"#pragma unroll 1\n\1", text)
    head, mark, kernels = text.replace(_HAS_BF16, "#if 1").partition(_KERNEL)
    instructions = "".join(INSTRUCTIONS[name].cuda for name in sorted(used) if name in INSTRUCTIONS)
    text = f"{DEVICE_CODE}\n{functions_text(used)}{instructions}\n{mark}{kernels}"
    return _without_standard_library(head, text) + text


def _without_standard_library(head: str, text: str) -> str:
    """TVM's head with definitions of integer types in place of the standard headers that it includes.

    NVRTC takes far longer for these headers than for a kernel. They are kept if the source uses `std::`.
    """
    lean = _STANDARD.sub(_INTEGERS, head)
    return head if "std::" in lean + text else lean


def _cluster(launch: Launch) -> str:
    return f"__cluster_dims__({launch.cluster}, 1, 1) " if launch.cluster > 1 else ""


def _passes() -> Any:
    return tvm.ir.transform.Sequential(
        [
            transform.FlattenBuffer(), transform.BF16ComputeLegalize(), transform.VectorizeLoop(True),
            transform.UnrollLoop(), transform.StmtSimplify(), transform.FP8ComputeLegalize(),
            transform.FP8StorageLegalize(), transform.BF16StorageLegalize(), transform.LowerIntrin(),
        ]
    )  # fmt: skip
