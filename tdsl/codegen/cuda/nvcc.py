"""Compiles CUDA source by the nvcc of a CUDA toolkit, if `TDSL_CUDA_COMPILER=nvcc` selects it."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile

from tdsl.codegen.cuda.diagnostics import rejection_error
from tdsl.codegen.runtime.compile_limit import compile_limit, limit_error
from tdsl.core.source import here
from tdsl.errors import TargetError, did_you_mean

COMPILERS = ("nvrtc", "nvcc")


def selected_compiler() -> str:
    """The compiler to use: "nvrtc", or the path of an nvcc.

    `TDSL_CUDA_COMPILER` is "nvrtc" (the default), "nvcc" or a path; TargetError if no such program exists.
    """
    name = os.environ.get("TDSL_CUDA_COMPILER", "") or "nvrtc"
    if name == "nvrtc":
        return name
    path = shutil.which(name)
    if path is None:
        raise TargetError(
            f"TDSL_CUDA_COMPILER is {name!r}, and there is no such program here",
            loc=here(),
            label="this call",
            hint='install a CUDA toolkit and set PATH, or unset it: NVRTC comes with pip install "tdsl[cuda]"'
            if os.path.basename(name) == "nvcc"
            else did_you_mean(name, COMPILERS),
        )
    return path


@functools.cache
def version(path: str) -> str:
    """The version of the nvcc at `path`."""
    output = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    release = re.search(r"release .*", output)
    return release[0] if release else output


def compile_text(path: str, text: str, architecture: str, kind: str, kernel: str) -> tuple[bytes, str]:
    """The cubin or PTX (`kind` "CUBIN" or "PTX") of CUDA source, and the log; errors as for NVRTC."""
    arch = architecture.removeprefix("sm_").removeprefix("compute_")
    code = f"sm_{arch}" if kind == "CUBIN" else f"compute_{arch}"
    with tempfile.TemporaryDirectory() as folder:
        source, result = os.path.join(folder, "kernels.cu"), os.path.join(folder, "kernels.out")
        with open(source, "w") as file:
            file.write(text)
        command = [
            path, f"-gencode=arch=compute_{arch},code={code}", f"-{kind.lower()}", "-std=c++17",
            "-Xptxas=-v", "-o", result, source,
        ]  # fmt: skip
        limit = compile_limit()
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit or None)
        except subprocess.TimeoutExpired:
            raise limit_error("nvcc", f"takes more than {limit:g} s", kernel) from None
        if done.returncode:
            raise rejection_error("nvcc", done.stderr, code, text)
        with open(result, "rb") as file:
            return file.read(), done.stderr
