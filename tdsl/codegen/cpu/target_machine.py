"""LLVM's code generator for a CPU."""

from __future__ import annotations

import functools
import threading

import llvmlite.binding as llvm

from tdsl.core.source import here
from tdsl.errors import TargetError
from tdsl.machine.cpu import CpuTarget, host

_initialize = threading.Lock()


@functools.cache
def target_machine(target: CpuTarget) -> llvm.TargetMachine:
    """LLVM's code generator for `target`; TargetError if this LLVM has none."""
    with _initialize:
        if target.architecture == host().architecture:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            llvm.initialize_native_asmparser()
        else:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
    try:
        return llvm.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
        )
    except RuntimeError as error:
        raise TargetError(
            f"LLVM has no code generator for {target.triple}: {error}",
            loc=here(),
            label="this call",
            hint='compile for target="numba" or target="python"',
        ) from None
