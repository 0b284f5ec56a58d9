"""Kernels as targets of custom calls: functions that XLA calls, by names that they are registered under."""

from __future__ import annotations

from collections.abc import Mapping

import jax

from tdsl.codegen.cpu.executable import CpuExecutable
from tdsl.codegen.cpu.xla_handler import XlaHandler
from tdsl.codegen.runtime.signature import dense_specialisation
from tdsl.compile import Compiled

_registered: dict[str, XlaHandler] = {}  # never freed: executables of XLA have addresses, and no references


def target_of(compiled: Compiled, sizes: Mapping[str, int]) -> str:
    """The name of the target of a program for arrays of these sizes; it is compiled and registered first.

    It is the same in all processes and another one for other code, as executables that JAX stores have it.
    """
    specialisation = dense_specialisation(compiled.signature, sizes, aligned=False)
    fingerprint = compiled.variant(specialisation).fingerprint()
    name = f"tdsl.{compiled.signature.name}.{fingerprint[:32]}"
    if name not in _registered:
        executable = compiled.executable(specialisation)
        assert isinstance(executable, CpuExecutable)
        handler = XlaHandler(executable)
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler.address), platform="cpu")
        _registered[name] = handler
    return name
