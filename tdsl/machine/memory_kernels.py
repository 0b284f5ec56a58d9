"""Kernels in LLVM IR that read, write and copy memory, to measure bandwidths before anything is compiled.

They are so short that LLVM compiles one in some milliseconds. Python threads run them at the same
time: a call through ctypes does not hold the lock of the interpreter.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np

from tdsl.machine.cpu import CpuTarget, host

VECTORS = 8  # per iteration, each with a sum of its own: more than an addition takes cycles
ALIGN = 4096  # bytes; a page
Kernel = Callable[[int, int, int, int], None]


class MemoryKernels:
    """Kernels for this processor, and memory of `size` bytes for each of `threads` threads.

    They are read, write, copy, write_non_temporal and copy_non_temporal.
    """

    def __init__(self, threads: int, size: int) -> None:
        self.threads = threads
        self.step = VECTORS * host().vector_bytes
        self.memory = [np.empty(size + ALIGN, np.uint8) for _ in range(threads)]  # without its pages

    def touch(self, begin: int, end: int) -> None:
        """Have the system provide bytes `begin` to `end` of the memory of each thread."""
        self._on_threads(lambda number: self.memory[number][begin : end + ALIGN].fill(0), self.threads)

    def seconds(self, name: str, size: int, *, repeat: int = 1, threads: int = 0) -> float:
        """The time in which each of the threads runs a kernel on `size` bytes of its own, `repeat` times.

        A copy has its source in one half of the bytes and its destination in the other.
        """
        kernel, n = _compiled(host(), name), size // 2 if name.startswith("copy") else size
        n = max(n - n % self.step, self.step)
        to = n if name.startswith("copy") else 0

        def run(number: int) -> None:
            start = self.memory[number].ctypes.data
            start += -start % ALIGN
            kernel(start, start + to, n, repeat)

        return self._on_threads(run, threads or self.threads)

    def _on_threads(self, run: Callable[[int], None], threads: int) -> float:
        """The time from the first begin to the last end of `run`, which threads call with their numbers."""
        spans, barrier = [(0.0, 0.0)] * threads, threading.Barrier(threads)

        def work(number: int) -> None:
            barrier.wait()
            begin = time.perf_counter()
            run(number)
            spans[number] = begin, time.perf_counter()

        workers = [threading.Thread(target=work, args=(number,)) for number in range(1, threads)]
        for worker in workers:
            worker.start()
        work(0)
        for worker in workers:
            worker.join()
        return max(end for _, end in spans) - min(begin for begin, _ in spans)


@functools.cache
def _compiled(target: CpuTarget, name: str) -> Kernel:
    """A kernel, whose code lives as long as the process."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = _text(name, target.vector_bytes) + "\n!0 = !{i32 1}\n"
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=1
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    of_kernel = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)
    _engines.append(engine)
    return of_kernel(engine.get_function_address(name))


_engines: list[llvm.ExecutionEngine] = []


def _text(name: str, vector_bytes: int) -> str:
    """The IR of a kernel: `repeat` passes over `n` bytes, which are read at `a`, and written at `b`."""
    kind, _, suffix = name.partition("_")
    vector, lines = f"<{vector_bytes // 4} x float>", list[str]()
    for v in range(VECTORS):
        at = f"%at{v} = add i64 %i, {v * vector_bytes}"
        source = f"%p{v} = getelementptr i8, ptr %a, i64 %at{v}"
        target = f"%q{v} = getelementptr i8, ptr %b, i64 %at{v}"
        load = f"%x{v} = load {vector}, ptr %p{v}, align {vector_bytes}"
        add = f"%t{v} = fadd {vector} %s{v}, %x{v}"
        value = f"%x{v}" if kind == "copy" else f"%r{v}"
        store = f"store {vector} {value}, ptr %q{v}, align {vector_bytes}" + ", !nontemporal !0" * bool(
            suffix
        )
        lines += {"read": [at, source, load, add], "copy": [at, source, load, target, store]}.get(
            kind, [at, target, f"%r{v} = bitcast {vector} zeroinitializer to {vector}", store]
        )
    sums = [f"%s{v} = phi {vector} [ zeroinitializer, %outer ], [ %t{v}, %inner ]" for v in range(VECTORS)]
    total = [f"store volatile {vector} %t{v}, ptr %b, align {vector_bytes}" for v in range(VECTORS)]
    reads = kind == "read"
    return "\n  ".join([
        f"define void @{name}(ptr %a, ptr %b, i64 %n, i64 %repeat) {{",
        "br label %outer", "outer:", "%pass = phi i64 [ 0, %0 ], [ %next, %done ]", "br label %inner",
        "inner:", "%i = phi i64 [ 0, %outer ], [ %i1, %inner ]", *(sums if reads else ()), *lines,
        f"%i1 = add i64 %i, {VECTORS * vector_bytes}", "%more = icmp ult i64 %i1, %n",
        "br i1 %more, label %inner, label %done",
        "done:", *(total if reads else ()), "%next = add i64 %pass, 1",
        "%again = icmp ult i64 %next, %repeat",
        "br i1 %again, label %outer, label %exit", "exit:", "ret void",
    ]) + "\n}"  # fmt: skip
