"""`CFunction`: a kernel in this process as a C function, for ctypes, numba and SciPy.

The function is that of an exported library (`export_text.py`), and calls the runtime of the process.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tdsl.codegen.cpu import jit
from tdsl.codegen.cpu.emit import emit
from tdsl.codegen.cpu.export_text import call_text
from tdsl.codegen.cpu.runtime import Structure, runtime
from tdsl.codegen.ir.loops import Argument, BufferParam, Kernel, ScalarParam, SizeParam
from tdsl.codegen.runtime.c_parameters import c_parameters, declarations
from tdsl.codegen.runtime.signature import Signature
from tdsl.core.source import here
from tdsl.errors import TypeMismatch
from tdsl.lang.expr import Size, const
from tdsl.lang.types import DType, f64
from tdsl.machine.cpu import CpuTarget

_KERNEL = "host"  # in place of the level in the name of the kernel
_HEAD = """
@runtime = external global [3 x ptr]
@level = internal constant i32 0
"""
_FILTER, _INTEGRAND = "int (double *, intptr_t, double *, void *)", "double (int, double *, void *)"
_SCIPY = {_FILTER: "filter", _INTEGRAND: "integrand"}  # signatures of callbacks, and names of functions
_SCIPY_TEXT = """
define i32 @NAME_filter(ptr %values, i64 %length, ptr %result, ptr %data) {
  %status = call i32 @NAME(ptr %values, i64 %length, ptr %result)
  %right = icmp eq i32 %status, 0
  %one = zext i1 %right to i32
  ret i32 %one
}

define double @NAME_integrand(i32 %count, ptr %values, ptr %data) {
  %result = alloca double, align 8
  store double 0x7FF8000000000000, ptr %result, align 8
  %length = sext i32 %count to i64
  %status = call i32 @NAME(ptr %values, i64 %length, ptr %result)
  %value = load double, ptr %result, align 8
  ret double %value
}
"""
_loaded: list[tuple[jit.LoadedCode, Structure]] = []  # never freed: C code has addresses, and no references


class CFunction:
    """A compiled program as a C function; its code stays in memory until the process ends.

    `prototype` is its declaration in C: inputs, sizes that are open, outputs; it returns 0 or why there is no
    result, as an exported function does. Arrays are row-major without gaps.
    """

    def __init__(self, kernel: Kernel, signature: Signature, name: str, target: CpuTarget) -> None:
        params = c_parameters(kernel.arguments)
        self.name, self._params, self._signature = name, params, signature
        self.prototype = f"int {name}({', '.join(declarations(params)) or 'void'});"
        text = emit(replace(kernel, name=f"{name}_{_KERNEL}"), target) + _HEAD
        text += call_text(name, [_KERNEL], kernel.arguments, params)
        symbols = [name]
        if _reduces_doubles(params):
            text += _SCIPY_TEXT.replace("NAME", name)
            symbols += [f"{name}_{function}" for function in _SCIPY.values()]
        structure = runtime().structure(_no_report)
        imports = {"runtime": ctypes.addressof(structure), **runtime().memory}
        code = jit.load(jit.emit_object(text, target, name), symbols, imports, name)
        _loaded.append((code, structure))
        self._addresses = {s: code.address(s) for s in symbols}

    @property
    def address(self) -> int:
        """The address of the function."""
        return self._addresses[self.name]

    @functools.cached_property
    def ctypes(self) -> Callable[..., int]:
        """The function for ctypes, with its argument types: addresses of arrays, numbers, sizes.

        It may be called in code that numba compiles, without the interpreter.
        """
        return ctypes.CFUNCTYPE(ctypes.c_int, *map(_ctype, self._params))(self.address)

    @functools.cached_property
    def numba(self) -> Callable[..., int]:
        """A function of arrays for code that numba compiles, in `numba.prange` as well.

        It takes contiguous arrays and numbers, inputs then outputs, and returns what the C function does,
        also 1 for extents that do not agree. numba refuses other element types and layouts.
        """
        from tdsl.codegen.python.numba_call import numba_call

        return numba_call(self.ctypes, self._params, self._signature)

    def capsule(self, signature: str) -> Any:
        """A capsule for `scipy.LowLevelCallable`, of a program that takes `f64["N"]` and returns one `f64`.

        `signature` is "int (double *, intptr_t, double *, void *)" for `scipy.ndimage.generic_filter`, or
        "double (int, double *, void *)" for `scipy.integrate`. TypeMismatch for another one, or another
        program.
        """
        function = _SCIPY.get(signature)
        if function is None or not _reduces_doubles(self._params):
            raise TypeMismatch(
                f"{self.name!r} is no callback {signature!r}: it is {self.prototype}",
                loc=here(), label="this call",
                hint=f'take f64["N"] with N dynamic, return one f64; as {_FILTER!r} or {_INTEGRAND!r}',
            )  # fmt: skip
        name = signature.encode()
        _names.append(name)
        return _NEW_CAPSULE(self._addresses[f"{self.name}_{function}"], name, None)

    def __repr__(self) -> str:
        return f"<C function {self.prototype}>"


def _no_report(site: int, address: int) -> None:
    """Kernels that print are not C functions."""


def _reduces_doubles(params: Sequence[Argument]) -> bool:
    match [*params]:
        case [BufferParam(dtype=t, extents=(Size(n),)), SizeParam(m), BufferParam(dtype=u, extents=e)]:
            return t == u == f64 and n == m and e in ((), (const(1),))
        case _:
            return False


def _ctype(p: Argument) -> Any:
    match p:
        case BufferParam():
            return ctypes.c_void_p
        case ScalarParam(_, dtype):
            return _number(dtype)
        case SizeParam():
            return ctypes.c_int64


def _number(dtype: DType) -> Any:
    if dtype.name in ("f32", "f64"):
        return ctypes.c_float if dtype.bits == 32 else ctypes.c_double
    kind = "int" if dtype.kind == "i" else "uint"  # bools and narrow floats by their bits
    return getattr(ctypes, f"c_{kind}{max(dtype.bits, 8)}")


_names: list[bytes] = []  # of capsules, which have their addresses only
_NEW_CAPSULE = ctypes.pythonapi.PyCapsule_New
_NEW_CAPSULE.argtypes, _NEW_CAPSULE.restype = (
    [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    ctypes.py_object,
)
