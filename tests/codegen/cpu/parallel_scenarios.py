"""Run by test_runtime.py in processes of its own, one for each kind of threads: prints what happened.

    python parallel_scenarios.py SCENARIO...

Prints one JSON object {scenario: result}. Counts are of visits to each index of a loop.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading

import numpy as np

from tdsl.codegen.cpu import jit, runtime
from tdsl.machine.cpu import host

# @flat visits 0..n: adds 1 to each counter. @nest runs a loop over 0..m for each of 0..n.
IR = """
define void @visit(ptr %ctx, i64 %begin, i64 %end) {
entry:
  %counts = load ptr, ptr %ctx
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %body, label %exit
body:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %at = getelementptr i64, ptr %counts, i64 %i
  %old = atomicrmw add ptr %at, i64 1 monotonic
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %body, label %exit
exit:
  ret void
}
define void @row(ptr %ctx, i64 %begin, i64 %end) {
entry:
  %rt.at = getelementptr i64, ptr %ctx, i64 1
  %m.at = getelementptr i64, ptr %ctx, i64 2
  %rt = load ptr, ptr %rt.at
  %m = load i64, ptr %m.at
  %parallel_for = load ptr, ptr %rt
  br label %body
body:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  call void %parallel_for(ptr @visit, ptr %ctx, i64 %m)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %body, label %exit
exit:
  ret void
}
define void @say(ptr %ctx, i64 %begin, i64 %end) {
entry:
  %value = alloca i64
  %rt.at = getelementptr i64, ptr %ctx, i64 1
  %rt = load ptr, ptr %rt.at
  %print.at = getelementptr ptr, ptr %rt, i64 1
  %handle.at = getelementptr ptr, ptr %rt, i64 2
  %print = load ptr, ptr %print.at
  %handle = load ptr, ptr %handle.at
  br label %body
body:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  store i64 %i, ptr %value
  call void %print(ptr %handle, i64 7, ptr %value)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %body, label %exit
exit:
  ret void
}
define void @flat(ptr %ctx, ptr %rt, i64 %n) {
  %parallel_for = load ptr, ptr %rt
  call void %parallel_for(ptr @visit, ptr %ctx, i64 %n)
  ret void
}
define void @nest(ptr %ctx, ptr %rt, i64 %n) {
  %parallel_for = load ptr, ptr %rt
  call void %parallel_for(ptr @row, ptr %ctx, i64 %n)
  ret void
}
define void @print(ptr %ctx, ptr %rt, i64 %n) {
  %parallel_for = load ptr, ptr %rt
  call void %parallel_for(ptr @say, ptr %ctx, i64 %n)
  ret void
}
"""

reported: list[list[int]] = []


def report(site: int, values: int) -> None:
    reported.append([site, ctypes.c_int64.from_address(values).value])


code = jit.load(jit.emit_object(IR, host()), ["flat", "nest", "print"])
structure = runtime.runtime().structure(report)
signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
kernels = {name: signature(code.address(name)) for name in ("flat", "nest", "print")}


def run(kernel: str, n: int, m: int, repeat: int = 1) -> list[int]:
    """The different counts after `repeat` runs: [] or [the same for every index], if all is well."""
    counts = np.zeros(max(n, m), np.int64)
    context = np.array([counts.ctypes.data, ctypes.addressof(structure), m], np.int64)
    for _ in range(repeat):
        kernels[kernel](context.ctypes.data, ctypes.addressof(structure), n)
    return sorted(set(counts[: m if kernel == "nest" else n].tolist()))


def covers() -> object:
    """Ranges of every size by several numbers of threads."""
    seen = {}
    for threads in (1, 2, 33):
        runtime.set_num_threads(threads)
        for n in (-3, 0, 1, 2, 3, 7, 64, 1000, 100_003):
            seen[f"{threads} {n}"] = run("flat", max(n, 0), 0) if n >= 0 else run("flat", n, 0)
    runtime.set_num_threads(2)
    return seen


def nested() -> object:
    return run("nest", 11, 501)


def concurrent() -> object:
    """Several threads of Python in parallel loops at once."""
    results: list[list[int]] = [[]] * 6

    def work(k: int) -> None:
        results[k] = run("nest" if k % 2 else "flat", 20, 20, repeat=50)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def forked() -> object:
    """In a child, and in a child of the child, after the parent has used its threads."""
    run("flat", 1000, 0, repeat=10)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        right = run("flat", 1000, 0, repeat=10) == [10] and run("nest", 3, 100) == [3]
        grandchild = os.fork()
        if grandchild == 0:
            signal.alarm(30)
            os._exit(run("flat", 1000, 0) != [1])
        status = os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1])
        os._exit(status if right else 99)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [status, run("flat", 1000, 0)]


def with_numpy() -> object:
    """In turns with products of matrices, which have threads of their own."""
    a = np.ones((200, 200))
    return [[run("flat", 1000, 0), float((a @ a).sum())] for _ in range(10)]


def printing() -> object:
    """Prints from all threads reach Python while the caller waits in machine code."""
    run("print", 50, 0)
    return sorted(reported)


def at_exit() -> object:
    """A loop that runs while the interpreter ends is complete, too."""
    import atexit

    atexit.register(lambda: run("flat", 1000, 0) == [1] or os._exit(98))
    return None


if __name__ == "__main__":
    runtime.set_num_threads(2)
    done = {name: globals()[name]() for name in sys.argv[1:]}
    print(json.dumps({"backend": runtime.runtime().backend, **done}))
