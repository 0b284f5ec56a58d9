"""`write_library`: kernels as a library for C programs: header, objects, static and shared library.

kernels    one for each level of the processor     emit.py
runtime    threads and memory                      parallel_text.py, memory_text.py
entry      the C function, selects a level         export_text.py
library    an archive of these objects             archive.py
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tdsl.codegen.cpu import jit, memory_text, parallel_text
from tdsl.codegen.cpu.archive import archive
from tdsl.codegen.cpu.emit import emit
from tdsl.codegen.cpu.export_text import entry_text
from tdsl.codegen.ir.loops import Argument, Kernel
from tdsl.codegen.runtime.c_parameters import c_names, c_parameters, declarations, meaning
from tdsl.codegen.runtime.signature import Signature
from tdsl.core.source import here
from tdsl.errors import TargetError
from tdsl.machine.cpu import CpuTarget, host, level

SYSTEM = "linux"  # whose conventions entry and runtime follow


def write_library(
    kernels: Mapping[str, Kernel], signature: Signature, folder: Path, name: str
) -> tuple[Path, Path, tuple[Path, ...], Path | None]:
    """Writes a library of kernels by level, oldest first; returns header, archive, objects, shared library.

    The shared library is None where this machine has no C compiler to link it.
    """
    params = next(iter(kernels.values())).arguments
    levels, c_params = [*kernels], c_parameters(params)
    oldest = level(levels[0])
    files: dict[str, tuple[bytes, Sequence[str]]] = {}
    entry = _object(entry_text(name, levels, params, c_params), oldest, name, name)
    files["entry.o"] = entry, (name, f"{name}_set_threads")
    for x, kernel in kernels.items():
        text = emit(replace(kernel, name=f"{name}_{x}"), level(x))
        files[f"{x}.o"] = _object(text, level(x), name, name), (f"{name}_{x}",)
    runtime = _runtime_text(oldest)
    files["runtime.o"] = _object(runtime, oldest, name, "runtime"), _runtime_symbols(runtime, name)
    folder.mkdir(parents=True, exist_ok=True)
    for file, (code, _) in files.items():
        (folder / f"{name}_{file}").write_bytes(code)
    objects = tuple(folder / f"{name}_{file}" for file in files)
    library, header = folder / f"lib{name}.a", folder / f"{name}.h"
    library.write_bytes(archive(files))
    header.write_text(header_text(signature, name, levels, c_params))
    return header, library, objects, _shared(folder, name, objects, oldest)


def _object(text: str, target: CpuTarget, name: str, kernel: str) -> bytes:
    """The object file of IR text, in which the names of the runtime begin with that of the library."""
    return jit.emit_object(re.sub(r"@tdsl_", f"@{name}_tdsl_", text), target, kernel)


def _runtime_text(target: CpuTarget) -> str:
    pool = parallel_text.pool(target.architecture, SYSTEM)
    return parallel_text.SELF_SCHEDULING + memory_text.allocator_text(SYSTEM) + pool


def _runtime_symbols(text: str, name: str) -> list[str]:
    defined = re.findall(r"^(?:define (?!internal|private)[^@]*|)@(tdsl_\w+)(?=\(| = global)", text, re.M)
    return [f"{name}_{symbol}" for symbol in dict.fromkeys(defined)]


def _shared(folder: Path, name: str, objects: Sequence[Path], target: CpuTarget) -> Path | None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or target.architecture != host().architecture:
        return None
    path = folder / f"lib{name}.so"
    command = [compiler, "-shared", "-o", str(path), *map(str, objects), "-lm", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise TargetError(
            f"{compiler} cannot link {path.name}: {done.stderr.strip()[:500]}",
            loc=here(),
            label="this export",
            hint="set CC to another compiler, or to nothing that exists: the static library needs none",
        )
    return path


def header_text(signature: Signature, name: str, levels: Sequence[str], c_params: Sequence[Argument]) -> str:
    """The header of a library, for C99 and C++."""
    upper = name.upper()
    arrays = {a.name: a for a in signature.arrays}
    names = c_names(p.name for p in c_params)
    rows = [f" *   {name:12} {meaning(p, arrays)}" for name, p in zip(names, c_params, strict=True)]
    shown = ", ".join(declarations(c_params))
    return f"""#ifndef {upper}_H
#define {upper}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

enum {{
  {upper}_OK = 0,
  {upper}_WRONG_ARGUMENT = 1, /* a negative extent, or no array where there are elements */
  {upper}_FAILED_CHECK = 2,   /* a td.require or an index out of bounds */
  {upper}_NO_MEMORY = 3,
  {upper}_NO_LEVEL = 4        /* the processor has none of the levels {", ".join(levels)} */
}};

/* {name}: returns {upper}_OK, or why there is no result.
 *
{chr(10).join(rows)}
 *
 * Arrays are row-major without gaps, and aligned to their elements. Outputs overlap no other array.
 * Several threads may call it at once.
 */
int {name}({shown or "void"});

/* How many threads parallel loops use; at first as many as the machine has processors. */
void {name}_set_threads(int count);

#ifdef __cplusplus
}}
#endif

#endif
"""
