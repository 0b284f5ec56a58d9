"""LLVM IR text to machine code in this process.

    text -> optimize -> module -> emit_object -> object file (kept on disk) -> load -> addresses

What may take LLVM long is compiled in a child process, and given up after TDSL_COMPILE_LIMIT seconds. That is
text of more than `_SHORT` bytes, for which a child costs less than 2 % of the time, and shorter text with
vectors that no register holds, for which LLVM 22 may search without end. The sweep of
`python -m tests.fuzz.processors` looks for others.

The passes are those of -O2 for one function without loop vectorization and unrolling: the text holds
explicit vectors already, what it needs is registers for allocas, invariant addresses and accumulators
out of loops, and clean control flow.
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

from tdsl.codegen.cpu.forked import GivenUp, limited
from tdsl.codegen.cpu.machine import CpuTarget, host, llvm_version, target_machine
from tdsl.codegen.runtime import cache
from tdsl.core.source import here
from tdsl.errors import TargetError

PIPELINE = "always-inline,function<O2>(no vectorize, no unroll)"
_LINES_OF_A_MESSAGE = 4
_LIMIT = 30.0  # seconds
_SHORT = 200_000  # bytes of text
_SHUFFLE = re.compile(r"<(\d+) x i32> <i32")  # the lanes that a shuffle takes
_MOST_LANES = 128
_FEW_LANES = 16  # any number of them is soon compiled

# LLVM works for one thread at a time, and a fork waits until it is idle: a child made in the middle of
# a call would wait for ever for locks of a thread that it does not have. Whoever waits holds the
# turnstile, so that threads that compile without end do not starve the one that forks.
_turnstile, _busy = threading.Lock(), threading.Lock()


@contextlib.contextmanager
def _llvm_alone() -> Iterator[None]:
    with _turnstile:
        _busy.acquire()
    try:
        yield
    finally:
        _busy.release()


def _before_fork() -> None:
    _turnstile.acquire()
    _busy.acquire()
    ffi.lib._lock.__enter__()  # users of llvmlite beside us, and finalizers


def _after_fork() -> None:
    ffi.lib._lock.__exit__(None, None, None)
    _busy.release()
    _turnstile.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )


class CompileLimit(TargetError):
    """LLVM reached the time limit before it had the machine code of a kernel."""


class Loaded:
    """Machine code in memory: stays mapped while this object lives.

    Whoever holds an address must hold this object too.
    """

    def __init__(self, addresses: dict[str, int]) -> None:
        self._addresses = addresses

    def address(self, symbol: str) -> int:
        """The address of a symbol that was asked for when the object was loaded."""
        return self._addresses[symbol]


def optimize(text: str, target: CpuTarget, name: str = "kernel") -> llvm.ModuleRef:
    """The module of IR `text` after the passes; TargetError naming the kernel if LLVM refuses it."""
    with _llvm_alone():
        return _optimized(text, target, name)


def _optimized(text: str, target: CpuTarget, name: str) -> llvm.ModuleRef:
    try:
        # A context of its own: in the global one types and constants would stay for ever.
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
    """The passes of `PIPELINE`: those of a module, then those of a function."""
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = tuning.slp_vectorization = False
    tuning.loop_unrolling = tuning.loop_interleaving = False
    builder = llvm.create_pass_builder(target_machine(target), tuning)
    inliner = llvm.create_new_module_pass_manager()
    inliner.add_always_inliner_pass()
    return builder, inliner, builder.getFunctionPassManager()


def made_by(target: CpuTarget) -> tuple[str, ...]:
    """What decides, beside the text, which object file comes out."""
    versions = (llvm_version(), llvmlite.__version__)
    return (PIPELINE, *versions, target.triple, target.cpu, target.features)


def emit_object(text: str, target: CpuTarget, name: str = "kernel") -> bytes:
    """The object file of IR `text`, from the disk cache when it has been compiled before."""
    key = cache.key("cpu object", *made_by(target), text)
    stored = cache.load(key)
    if stored is not None:
        return stored
    compiled = generate(text, target, name)
    cache.store(key, compiled, header(name, target))
    return compiled


def header(name: str, target: CpuTarget) -> dict[str, object]:
    """What is told to a reader of the folder of the cache."""
    about = {"kind": "cpu object", "kernel": name, "triple": target.triple, "cpu": target.cpu}
    return {**about, "llvm": llvm_version()}


def generate(text: str, target: CpuTarget, name: str = "kernel") -> bytes:
    """The object file of IR `text`; CompileLimit if LLVM reaches the time limit."""
    return _within_limit(lambda: _object(text, target, name), text, target, name)


def _object(text: str, target: CpuTarget, name: str) -> bytes:
    with _llvm_alone():
        module = _optimized(text, target, name)
        try:
            compiled: bytes = target_machine(target).emit_object(module)
        except RuntimeError as error:
            raise _failure(name, "cannot generate code for", error) from error
    return compiled


def assembly(text: str, target: CpuTarget, name: str = "kernel") -> str:
    """The assembly of IR `text`, for any target that this LLVM knows; CompileLimit as `generate`."""

    def compute() -> bytes:
        with _llvm_alone():
            module = _optimized(text, target, name)
            return str(target_machine(target).emit_assembly(module)).encode()

    return _within_limit(compute, text, target, name).decode()


def compile_limit() -> float:
    """How many seconds of processor time LLVM may take for a kernel; 0 for any number.

    TargetError where TDSL_COMPILE_LIMIT is no number of seconds.
    """
    given = os.environ.get("TDSL_COMPILE_LIMIT", "")
    try:
        seconds = float(given or _LIMIT)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < float("inf"):
        raise TargetError(
            f"TDSL_COMPILE_LIMIT is {given!r}, which is no number of seconds",
            loc=here(),
            label="this call",
            hint="TDSL_COMPILE_LIMIT=60, or 0 for no limit",
        )
    return seconds


def _within_limit(compute: Callable[[], bytes], text: str, target: CpuTarget, name: str) -> bytes:
    seconds = compile_limit()
    if not seconds or not hasattr(os, "fork") or _is_soon_compiled(text):
        return compute()
    with _llvm_alone():
        _passes(target)  # which the child then has
    try:
        result = limited(compute, seconds)
    except GivenUp as reason:
        raise CompileLimit(
            f"LLVM {reason} for kernel {name!r}",
            loc=here(),
            label="this call",
            hint="vectorize or unroll less, or let it take longer: TDSL_COMPILE_LIMIT=SECONDS, "
            "0 for no limit",
        ) from None
    return compute() if result is None else result  # raises what the child raised


def _is_soon_compiled(text: str) -> bool:
    """True for short text with no shuffles but those of LLVM's well-trodden ways."""
    if len(text) > _SHORT:
        return False
    lanes = {int(n) for n in _SHUFFLE.findall(text)}
    return all(n <= (_FEW_LANES if n & (n - 1) else _MOST_LANES) for n in lanes)


def load(
    compiled: bytes,
    symbols: Sequence[str],
    imports: Mapping[str, int] | None = None,
    name: str = "kernel",
) -> Loaded:
    """Map an object file of this machine; `symbols` can then be looked up.

    What the object refers to is found in `imports` (addresses by name) and among the symbols of the
    process: libm, the C API of Python. TargetError when something is missing.
    """
    library = llvm.JITLibraryBuilder().add_object_img(compiled).add_current_process()
    for symbol, address in (imports or {}).items():
        library.import_symbol(symbol, address)
    for symbol in symbols:
        library.export_symbol(symbol)
    # RuntimeDyld may place sections too far apart for the branches of AArch64.
    far = host().architecture in ("aarch64", "arm64")
    with _llvm_alone():
        try:
            # One engine for each kernel: closing it gives all its memory back, while libraries of a
            # shared one leave some behind.
            engine = llvm.create_lljit_compiler(target_machine(host()), use_jit_link=far)
            tracker = library.link(engine, "kernel")
        except RuntimeError as error:
            raise _failure(name, "cannot load the code of", error) from error
    loaded = Loaded({symbol: tracker[symbol] for symbol in symbols})
    # Not at exit: a daemon thread may still run the code.
    weakref.finalize(loaded, _unload, engine, tracker).atexit = False
    return loaded


def _unload(engine: llvm.LLJIT, tracker: llvm.ResourceTracker) -> None:
    # Without `_llvm_alone`: a collection of garbage may come here in the middle of anything.
    tracker.close()
    engine.close()


def _failure(name: str, what: str, error: Exception) -> TargetError:
    lines = [line for line in str(error).splitlines() if line.strip()]
    shown = "\n    ".join(lines[:_LINES_OF_A_MESSAGE])
    return TargetError(
        f"LLVM {what} kernel {name!r}: {shown}",
        loc=here(),
        label="this call",
        hint="this is a mistake of the code generator, not of the program: please report it",
    )
