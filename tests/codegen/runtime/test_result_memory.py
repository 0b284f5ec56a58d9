"""Memory of large results is used again, and never while anything can reach it."""

import ctypes
import gc
import os
import resource
import sys
import threading

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.runtime import result_memory
from tdsl.codegen.runtime.result_memory import new_output
from tdsl.codegen.runtime.signature import LARGE

MIB = 1 << 20
F32 = np.dtype(np.float32)


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_memory, "_pool", [])


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def address(x: np.ndarray) -> int:
    return x.__array_interface__["data"][0]


def shifted(**options):
    i, a, f = td.vars("i"), td.Tensor("a", ("N",), td.f64), td.Func("f")
    f[i] = a[i] + 1
    return td.compile(f, **options)


@pytest.mark.parametrize("options", [{}, {"dynamic": "N"}], ids=str)
def test_a_result_that_nobody_has_any_more_is_the_memory_of_the_next(options):
    f, x = shifted(**options), np.zeros(30 * MIB // 8)
    f(x)
    f(x)
    before = faults()
    for _ in range(5):
        y = None  # the one before is gone
        y = f(x)
    assert faults() - before < 100
    assert y.flags.aligned and address(y) % 64 == 0
    assert (y == 1).all()


def test_a_loop_over_one_name_needs_two_blocks():
    f, x, seen = shifted(), np.zeros(MIB), set()
    for _ in range(10):
        y = f(x)
        seen.add(address(y))
    assert len(seen) == 2


class Exporter:
    """What refers to an array as others do that only know a protocol."""

    def __init__(self, array):
        self.array, self.__array_interface__ = array, array.__array_interface__


def _caught(array):
    try:
        local = array
        raise ValueError(len(local))
    except ValueError as error:
        return error


HOLDERS = {
    "the array": lambda x: x,
    "a view": lambda x: x[3:5],
    "a view of a view": lambda x: x[::2][1:].reshape(1, -1).T,
    "another type": lambda x: x.view(np.uint8)[7:8],
    "its base": lambda x: x.base,
    "a view of its base": lambda x: x.base[5:],
    "the base of its base": lambda x: x.base.base,
    "a view of that": lambda x: x.base.base[5:],
    "a memoryview": memoryview,
    "a slice of a memoryview": lambda x: memoryview(x)[4:],
    "dlpack": lambda x: np.from_dlpack(x),
    "a capsule": lambda x: x.__dlpack__(),
    "an array interface": lambda x: np.asarray(Exporter(x)),
    "ctypes": lambda x: x.ctypes.data_as(ctypes.c_void_p),
    "ctypes from a buffer": lambda x: (ctypes.c_char * 8).from_buffer(x),
    "frombuffer": lambda x: np.frombuffer(x, np.uint8),
    "an iterator": lambda x: x.flat,
    "a closure": lambda x: lambda: x,
    "a cycle": lambda x: [cycle := [x], cycle.append(cycle)][:1],
    "a subclass": lambda x: x.view(np.matrix),
    "an exception": _caught,
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_memory_that_something_can_reach_is_not_used_again(hold):
    x = new_output((MIB,), F32)
    x[...] = 7
    first, holder = address(x), hold(x)
    del x
    others = [new_output((MIB,), F32) for _ in range(3)]
    assert all(abs(address(y) - first) >= 4 * MIB for y in others)
    del others
    assert all(address(new_output((MIB,), F32)) != first for _ in range(3))
    assert (np.ctypeslib.as_array((ctypes.c_float * MIB).from_address(first)) == 7).all()
    del holder
    gc.collect()


def test_memory_in_a_cycle_is_used_again_when_the_cycle_is_collected():
    x = new_output((MIB,), F32)
    cycle = [x]
    cycle.append(cycle)
    first = address(x)
    del x, cycle
    gc.collect()
    assert address(new_output((MIB,), F32)) == first


def test_results_of_threads_share_no_memory():
    f, wrong = shifted(), []

    def work(number: int) -> None:
        x = np.full(LARGE // 8 + 64 * number, float(number))
        kept = []
        for n in range(60):
            kept = [*kept[-(n % 3) :], f(x)] if n % 3 else [f(x)]
            if not all((y == number + 1).all() for y in kept):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_a_block_is_used_for_results_of_about_its_size_only():
    first = address(new_output((4 * MIB,), np.dtype(np.uint8)))
    assert address(new_output((4 * MIB - 4096,), np.dtype(np.uint8))) == first
    assert address(new_output((2, MIB, 2), np.dtype(np.uint8))) == first
    for size in (4 * MIB + 4096, 2 * MIB):
        new_output((size,), np.dtype(np.uint8))
        assert len(result_memory._pool) > 1


def test_as_many_bytes_are_kept_as_the_environment_says(monkeypatch):
    def kept() -> int:
        return sum(b.nbytes for b in result_memory._pool) >> 20

    monkeypatch.setenv("TDSL_RESULT_MEMORY", "10")
    x = [new_output((3 * MIB + n,), np.dtype(np.uint8)) for n in range(5)]
    last = address(x[-1])
    for n in range(5):
        x[n] = None
    assert kept() == 9
    new_output((20 * MIB,), np.dtype(np.uint8))  # which is more than is kept
    assert kept() == 9
    assert address(new_output((3 * MIB + 4,), np.dtype(np.uint8))) == last
    monkeypatch.setenv("TDSL_RESULT_MEMORY", "0")
    new_output((5 * MIB,), np.dtype(np.uint8))
    assert kept() == 0
    monkeypatch.delenv("TDSL_RESULT_MEMORY")
    many = [new_output((MIB,), np.dtype(np.uint8)) for _ in range(50)]
    del many
    assert len(result_memory._pool) == result_memory._MOST_BLOCKS


def test_small_results_are_plain_arrays():
    assert new_output((LARGE - 1,), np.dtype(np.uint8)).base is None
    assert new_output((0, LARGE), F32).base is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_the_child_of_a_fork_has_a_separate_pool():
    f, x = shifted(), np.zeros(LARGE // 8)
    first = f(x)
    f(x)
    child = os.fork()
    if not child:
        right = bool((f(x + 1) == 2).all() and (f(x + 2) == 3).all() and (first == 1).all())
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (first == 1).all()
