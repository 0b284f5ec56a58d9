"""Compiles LLVM IR text to machine code and loads it into this process.

    text -> optimize -> module -> emit_object -> object file (cached on disk) -> load -> addresses

Text that LLVM may take long to compile is compiled in a child process, which is killed after
TDSL_COMPILE_LIMIT seconds: text of more than `_SHORT_TEXT` bytes, for which the child costs less than 2 %
of the time, and shorter text with vectors that fit in no register, on which LLVM 22 may not terminate.
`python -m tests.fuzz.processors` searches for other such cases.

The passes are LLVM's of -O2 for one function without loop vectorization and unrolling. The text contains
explicit vectors already; the passes promote allocas to registers, move invariant addresses and accumulators
out of loops, and simplify control flow.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding import ffi

from tdsl.codegen.cpu.target_machine import target_machine
from tdsl.codegen.runtime import cache
from tdsl.codegen.runtime.compile_limit import has_limit, within_limit
from tdsl.core.source import here
from tdsl.errors import TargetError
from tdsl.machine.cpu import CpuTarget, host, llvm_version

PIPELINE_KEY = "always-inline,function<O2>(no vectorize, no unroll)"  # describes `_passes` in cache keys
_MESSAGE_LINES = 4  # lines of LLVM's message that an error shows
_SHORT_TEXT = 200_000  # bytes; longer text is compiled in a child process
_SHUFFLE = re.compile(r"<(\d+) x i32> <i32")  # the number of lanes of a shuffle's mask
_MOST_LANES = 128  # lanes, a power of two; shuffles of more may not compile in time
_FEW_LANES = 16  # lanes; shuffles of at most this many compile fast even if it is no power of two

# One thread at a time calls LLVM, and a fork waits until none does: a child forked during a call would
# deadlock on locks of a thread that it does not have. A waiting thread holds the turnstile, so that
# threads that compile continuously do not starve the one that forks.
_turnstile, _busy = threading.Lock(), threading.Lock()


@contextlib.contextmanager
def _exclusive_llvm() -> Iterator[None]:
    with _turnstile:
        _busy.acquire()
    try:
        yield
    finally:
        _busy.release()


def _before_fork() -> None:
    _turnstile.acquire()
    _busy.acquire()
    ffi.lib._lock.__enter__()  # excludes other users of llvmlite, and finalizers


def _after_fork() -> None:
    ffi.lib._lock.__exit__(None, None, None)
    _busy.release()
    _turnstile.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class LoadedCode:
    """Machine code that stays mapped into memory during the lifetime of this object.

    The user of an address must keep a reference to this object.
    """

    def __init__(self, addresses: dict[str, int]) -> None:
        self._addresses = addresses

    def address(self, symbol: str) -> int:
        """The address of one of the `symbols` given to `load`."""
        return self._addresses[symbol]


def optimize(text: str, target: CpuTarget, name: str = "kernel") -> llvm.ModuleRef:
    """The LLVM module of IR `text` after the passes; TargetError naming the kernel if LLVM rejects it."""
    with _exclusive_llvm():
        return _optimized(text, target, name)


def _optimized(text: str, target: CpuTarget, name: str) -> llvm.ModuleRef:
    try:
        # A context for each module: the global one never frees types and constants.
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise _failure(name, "refused the code of", error) from error
    builder, inliner, passes = _passes(target)
    inliner.run(module, builder)
    for function in module.functions:
        if not function.is_declaration and b"optnone" not in _attributes(function):
            passes.run(function, builder)
    return module


def _attributes(function: llvm.ValueRef) -> bytes:
    return b" ".join(function.attributes)


@functools.cache  # llvmlite never frees the pass manager of a builder
def _passes(
    target: CpuTarget,
) -> tuple[llvm.PassBuilder, llvm.ModulePassManager, llvm.FunctionPassManager]:
    """The pass builder, the module passes and the function passes that `PIPELINE_KEY` names."""
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = tuning.slp_vectorization = False
    tuning.loop_unrolling = tuning.loop_interleaving = False
    builder = llvm.create_pass_builder(target_machine(target), tuning)
    inliner = llvm.create_new_module_pass_manager()
    inliner.add_always_inliner_pass()
    return builder, inliner, builder.getFunctionPassManager()


def compiler_identity(target: CpuTarget) -> tuple[str, ...]:
    """All that determines an object file besides the text: the pipeline, versions, and the target."""
    versions = (llvm_version(), llvmlite.__version__)
    return (PIPELINE_KEY, *versions, target.triple, target.cpu, target.features)


def emit_object(text: str, target: CpuTarget, name: str = "kernel") -> bytes:
    """The object file of IR `text`, from the disk cache if it has been compiled before."""
    key = cache.key("cpu object", *compiler_identity(target), text)
    stored = cache.load(key)
    if stored is not None:
        return stored
    compiled = generate(text, target, name)
    cache.store(key, compiled, header(name, target))
    return compiled


def header(name: str, target: CpuTarget) -> dict[str, object]:
    """The description that the disk cache stores with an object file, for people who inspect the folder."""
    about = {"kind": "cpu object", "kernel": name, "triple": target.triple, "cpu": target.cpu}
    return {**about, "llvm": llvm_version()}


def generate(text: str, target: CpuTarget, name: str = "kernel") -> bytes:
    """The object file of IR `text`; CompileLimit if LLVM reaches the time limit."""
    return _within_time_limit(lambda: _object(text, target, name), text, target, name)


def _object(text: str, target: CpuTarget, name: str) -> bytes:
    with _exclusive_llvm():
        module = _optimized(text, target, name)
        try:
            compiled: bytes = target_machine(target).emit_object(module)
        except RuntimeError as error:
            raise _failure(name, "cannot generate code for", error) from error
    return compiled


def assembly(text: str, target: CpuTarget, name: str = "kernel") -> str:
    """The assembly of IR `text`, for any target that this LLVM supports; CompileLimit as in `generate`."""

    def compute() -> bytes:
        with _exclusive_llvm():
            module = _optimized(text, target, name)
            return str(target_machine(target).emit_assembly(module)).encode()

    return _within_time_limit(compute, text, target, name).decode()


def _within_time_limit(compute: Callable[[], bytes], text: str, target: CpuTarget, name: str) -> bytes:
    if not has_limit() or _compiles_fast(text):
        return compute()
    with _exclusive_llvm():
        _passes(target)  # created here, so that the child inherits them
    return within_limit(compute, "LLVM", name)


def _compiles_fast(text: str) -> bool:
    """True for short text whose shuffles have few lanes, or a power of two up to `_MOST_LANES`."""
    if len(text) > _SHORT_TEXT:
        return False
    lanes = {int(n) for n in _SHUFFLE.findall(text)}
    return all(n <= (_FEW_LANES if n & (n - 1) else _MOST_LANES) for n in lanes)


def load(
    compiled: bytes,
    symbols: Sequence[str],
    imports: Mapping[str, int] | None = None,
    name: str = "kernel",
) -> LoadedCode:
    """Link an object file into this process; `symbols` can then be looked up.

    Its undefined symbols are resolved from `imports` (addresses by name) and the symbols of the process:
    libm, the C API of Python. TargetError if one is missing.
    """
    library = llvm.JITLibraryBuilder().add_object_img(compiled).add_current_process()
    for symbol, address in (imports or {}).items():
        library.import_symbol(symbol, address)
    for symbol in symbols:
        library.export_symbol(symbol)
    with _exclusive_llvm():
        try:
            # One engine for each kernel: closing it frees all of its memory, while removing a library
            # from a shared engine leaks some.
            # JITLink places all sections in one block. RuntimeDyld places each in any gap of the process, and
            # ends the process where a reference of 32 bits does not reach from one to another.
            engine = llvm.create_lljit_compiler(target_machine(host()), use_jit_link=True)
            tracker = library.link(engine, "kernel")
        except RuntimeError as error:
            raise _failure(name, "cannot load the code of", error) from error
    loaded = LoadedCode({symbol: tracker[symbol] for symbol in symbols})
    # Not at exit: a daemon thread may still run the code.
    weakref.finalize(loaded, _unload, engine, tracker).atexit = False
    return loaded


def _unload(engine: llvm.LLJIT, tracker: llvm.ResourceTracker) -> None:
    # Without `_exclusive_llvm`: the garbage collector may call this function at any point.
    tracker.close()
    engine.close()


def _failure(name: str, problem: str, error: Exception) -> TargetError:
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = "\n    ".join(lines[:_MESSAGE_LINES])
    return TargetError(
        f"LLVM {problem} kernel {name!r}: {text}",
        loc=here(),
        label="this call",
        hint="this is a mistake of the code generator, not of the program: please report it",
    )
