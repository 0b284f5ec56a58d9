"""Generates the CUDA source of launches with TVM."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import tvm
from tvm.tirx import transform

from tdsl.codegen.cuda.device_functions import functions_text
from tdsl.codegen.cuda.prelude import prelude
from tdsl.codegen.cuda.readable import Notes, readable
from tdsl.codegen.cuda.statements import UNROLL_FACTOR, device_function
from tdsl.codegen.gpu.launches import Launch, Launches
from tdsl.codegen.gpu.limits import STATIC_SHARED, with_resident_grid
from tdsl.codegen.ir.statements import stored_in
from tdsl.machine.devices import describe_gpu
from tdsl.machine.gpu import FEATURES, has
from tdsl.machine.instructions.instruction import INSTRUCTIONS

DEVICE_CODE = "// device functions and kernels"  # follows the includes
_UNROLL_ONE = re.compile(r"#pragma unroll 1\n(\s*for )")
_LOOP = re.compile(r"(?:#pragma unroll(?: \d+)?\n)?([ \t]*for \()")


def cuda_text(launches: Launches, arch: str, *, unroll: bool = True) -> str:
    """The CUDA source of a module with one kernel for each launch; deterministic.

    Without `unroll` the compiler unrolls no loop.
    """
    # without bf16 in the GPU, TVM computes on bits, in vectors that it cannot print; CUDA's header does it
    target = tvm.target.Target({"kind": "cuda", "arch": arch if has(arch, FEATURES["bf16"]) else "sm_80"})
    used: set[str] = set()
    machine = describe_gpu(arch)
    gpu = machine.gpu
    assert gpu is not None, "an architecture of GPUs"
    resident = tuple(with_resident_grid(x, machine) for x in launches.launches)
    launches = replace(launches, launches=resident)
    overlaps, last = overlaps_kernels(launches, arch), len(launches.launches) - 1
    notes, written = {}, frozenset[str]()
    for launch in launches.launches:
        notes[launch.name] = Notes(head=_head(launch), written_before=written)
        written |= stored_in(launch.body) if overlaps else frozenset()
    functions = {
        x.name: device_function(
            x, target, used, gpu.registers, notes[x.name], _neighbours(n, last) if overlaps else ()
        )
        for n, x in enumerate(launches.launches)
    }
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
    kernels = readable(text, notes)
    instructions = "".join(INSTRUCTIONS[name].cuda for name in sorted(used) if name in INSTRUCTIONS)
    code = f"{functions_text(used)}{instructions}\n{kernels}"
    return f"{prelude(code)}{DEVICE_CODE}\n{code}"


def overlaps_kernels(launches: Launches, arch: str) -> bool:
    """True if each kernel starts before the kernel before it ends (programmatic dependent launch).

    A block then waits for the end of that kernel, which itself has waited for the one before.
    """
    return len(launches.launches) > 1 and has(arch, FEATURES["pdl"])


def _neighbours(n: int, last: int) -> tuple[str, ...]:
    """What kernel `n` calls first: the wait for the kernel before it, the start of the next one."""
    return (*(("tdsl_grid_wait",) if n else ()), *(("tdsl_grid_launch_dependents",) if n < last else ()))


def _head(launch: Launch) -> list[str]:
    """The lines above a kernel: its name and how it is launched."""
    grid, block = (f"({', '.join(map(str, x))})" for x in (launch.grid, launch.block))
    said = [f"grid {grid}", f"block {block}"]
    if launch.cluster > 1:
        said.append(f"clusters of {launch.cluster} blocks")
    if launch.shared:
        kind = "dynamic" if launch.shared > STATIC_SHARED else "static"
        said.append(f"{launch.shared} bytes of {kind} shared memory")
    return [f"{launch.name}: {', '.join(said)}"]


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
