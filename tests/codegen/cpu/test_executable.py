"""Executables pass their arguments by the frame, report failed checks, and stay mapped while in use."""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest

from tdsl.codegen.cpu.executable import CpuExecutable
from tdsl.codegen.cpu.wrapper import wrapper
from tdsl.codegen.ir.loops import (
    Block,
    BufferParam,
    Check,
    Kernel,
    Message,
    Print,
    ScalarParam,
    SizeParam,
)
from tdsl.core.source import Loc
from tdsl.errors import IndexBoundError, RequireError, TargetError
from tdsl.lang.expr import Const, Param, Size, Var
from tdsl.lang.types import bf16, bool_, f16, f32, f64, i8, i64, u8, u64
from tdsl.machine.cpu import host, level

RETURN_0 = "  ret i64 0\n}\n"


def i64_const(value):
    return Const(value, i64)


def define(name, body):
    return f"define i64 @{name}(ptr %frame, ptr %runtime) {{\n{body}"


def frame_copier(slots):
    """Text that copies all slots of the frame but the first to the array of the first."""
    lines = ["  %out = load ptr, ptr %frame"]
    for slot in range(1, slots):
        lines += [
            f"  %a{slot} = getelementptr i64, ptr %frame, i64 {slot}",
            f"  %v{slot} = load i64, ptr %a{slot}",
            f"  %b{slot} = getelementptr i64, ptr %out, i64 {slot}",
            f"  store i64 %v{slot}, ptr %b{slot}",
        ]
    return define("k", "\n".join(lines) + "\n" + RETURN_0)


DENSE = BufferParam("out", i64, (i64_const(64),), (1,), True)


def adder(amount=1):
    """A kernel that adds a constant to the first element."""
    body = f"""
      %p = load ptr, ptr %frame
      %x = load i64, ptr %p
      %y = add i64 %x, {amount}
      store i64 %y, ptr %p
    """
    kernel = Kernel("k", (DENSE,), Block(()))
    return CpuExecutable(kernel, define("k", body + RETURN_0) + wrapper(kernel))


SCALARS = [
    (True, bool_, 1),
    (False, bool_, 0),
    (-3, i8, 0xFD),
    (200, u8, 200),
    (-5, i64, 2**64 - 5),
    (2**64 - 1, u64, 2**64 - 1),
    (1.5, f16, 0x3E00),
    (ml_dtypes.bfloat16(1.5), bf16, 0x3FC0),
    (np.float32(0.1), f32, 0x3DCCCCCD),
    (-0.0, f64, 1 << 63),
]


@pytest.mark.parametrize("value, dtype, bits", SCALARS, ids=[f"{d}:{v}" for v, d, _ in SCALARS])
def test_scalar_fills_the_low_bytes_of_its_slot(value, dtype, bits):
    kernel = Kernel("k", (DENSE, ScalarParam("s", dtype)), Block(()))
    out = np.zeros(64, np.uint64)
    CpuExecutable(kernel, frame_copier(2)).run([out, value])
    mask = (1 << dtype.bits) - 1
    assert int(out[1]) & mask == bits


def test_unknown_strides_follow_their_pointer_in_bytes():
    rows, columns = Size("R"), Size("C")
    a = BufferParam("a", f32, (rows, columns), (None, None), False)
    b = BufferParam("b", f32, (rows, columns), (None, 1), False)
    params = (DENSE, a, SizeParam("R"), b, SizeParam("C"))
    out = np.zeros(64, np.int64)
    x = np.zeros((10, 12), np.float32)[::-2, ::3]
    y = np.zeros((5, 9), np.float32)[:, :4]
    CpuExecutable(Kernel("k", params, Block(())), frame_copier(8)).run([out, x, 5, y, 4])
    address = x.__array_interface__["data"][0]
    expected = [address, -96, 12, 5, y.__array_interface__["data"][0], 36, 4]
    assert out[1:8].tolist() == expected


def check_kernel(kind, where=""):
    """Fails at site 1 of a kernel with an f32, an i64, a bool and a u64 value, as the scalar says."""
    values = (Param("f", f32), Var("i"), Param("b", bool_), Param("u", u64))
    body = Block((Check(Const(True, bool_), 0, ()), Check(Const(True, bool_), 1, values)))
    messages = (
        Message(kind, ("never",), ""),
        Message(kind, ("f = ", ", i = ", ", b = ", ", u = ", "!"), where),
    )
    kernel = Kernel("k", (ScalarParam("s", i64),), body, messages)
    text = define(
        "k",
        """
      %s = load i64, ptr %frame
      %v0 = getelementptr i64, ptr %frame, i64 1
      %v1 = getelementptr i64, ptr %frame, i64 2
      %v2 = getelementptr i64, ptr %frame, i64 3
      %v3 = getelementptr i64, ptr %frame, i64 4
      store double 0x3FB99999A0000000, ptr %v0
      store i64 -7, ptr %v1
      store i64 1, ptr %v2
      store i64 -1, ptr %v3
      ret i64 %s
    }
    """,
    )
    return CpuExecutable(kernel, text + wrapper(kernel))


TEXT = "f = 0.1, i = -7, b = True, u = 18446744073709551615!"


@pytest.mark.parametrize("kind, error", [("require", RequireError), ("bounds", IndexBoundError)])
def test_failed_check_raises_its_message_with_values(kind, error):
    executable = check_kernel(kind, "mm.py:12")
    executable.run([0])
    with pytest.raises(error) as failure:
        executable.run([2])
    assert failure.value.message == TEXT
    assert failure.value.loc == Loc("mm.py", 12)
    executable.run([0])


def test_fast_entry_of_a_failed_check_asks_for_the_slow_one():
    executable = check_kernel("require")
    assert executable.fast(0) is True
    assert executable.fast(2) is not True
    with pytest.raises(RequireError, match="i = -7"):
        executable.run([2])


def test_kernel_without_memory_is_a_memory_error():
    executable = check_kernel("require")
    with pytest.raises(MemoryError, match="no memory for what it computes, in k"):
        executable.run([-1])
    executable.run([0])


def test_print_goes_to_standard_output(capsys):
    body = Print(Const(True, bool_), 0, (Var("i"), Param("x", f64)))
    message = Message("print", ("row ", " has ", ""), "")
    kernel = Kernel("k", (ScalarParam("i", i64), ScalarParam("x", f64)), body, (message,))
    text = define(
        "k",
        """
      %at = getelementptr ptr, ptr %runtime, i64 1
      %print = load ptr, ptr %at
      %handle.at = getelementptr ptr, ptr %runtime, i64 2
      %handle = load ptr, ptr %handle.at
      call void %print(ptr %handle, i64 0, ptr %frame)
      ret i64 0
    }
    """,
    )
    executable = CpuExecutable(kernel, text + wrapper(kernel))
    executable.run([3, 0.25])
    executable.fast(4, -1.0)
    assert capsys.readouterr().out == "row 3 has 0.25\nrow 4 has -1\n"


def test_fast_entry_is_a_function_with_the_name_of_the_kernel():
    executable = adder()
    a = np.zeros(64, np.int64)
    assert executable.fast.__name__ == "k"
    assert executable.fast(a) is True
    assert executable.fast(a.astype(np.int32)) is False
    assert a[0] == 1


def test_text_without_the_entry_has_no_fast_function():
    kernel = Kernel("k", (), Block(()))
    assert CpuExecutable(kernel, define("k", RETURN_0)).fast is None


def test_fast_function_outlives_its_executable():
    executable = adder(3)
    fast, code = executable.fast, weakref.ref(executable._code)
    del executable
    gc.collect()
    others = [adder(n) for n in range(5)]  # may take memory that was given back
    a = np.zeros(64, np.int64)
    assert fast(a) is True
    assert a[0] == 3
    assert code() is not None
    del fast, others
    gc.collect()
    assert code() is None


def test_references_are_counted_right():
    executable = adder()
    a = np.zeros(64, np.int64)
    before = [sys.getrefcount(x) for x in (a, True, False, None)]
    for _ in range(1000):
        executable.fast(a)
        executable.fast(1)
        executable.run([a])
    after = [sys.getrefcount(x) for x in (a, True, False, None)]
    assert all(abs(x - y) < 50 for x, y in zip(before, after, strict=True))


def test_threads_may_call_one_kernel_at_once():
    body = """
      %p = load ptr, ptr %frame
      %old = atomicrmw add ptr %p, i64 1 monotonic
    """
    kernel = Kernel("k", (DENSE,), Block(()))
    executable = CpuExecutable(kernel, define("k", body + RETURN_0) + wrapper(kernel))
    a = np.zeros(64, np.int64)

    def work():
        for _ in range(200):
            executable.run([a])
            executable.fast(a)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert a[0] == 1600


def test_run_lets_other_threads_of_python_go_on():
    """The kernel waits until another thread has written to its array."""
    kernel = Kernel("k", (DENSE,), Block(()))
    body = """
      %p = load ptr, ptr %frame
      br label %wait
    wait:
      %x = load atomic i64, ptr %p monotonic, align 8
      %ready = icmp ne i64 %x, 0
      br i1 %ready, label %done, label %wait
    done:
    """
    executable = CpuExecutable(kernel, define("k", "entry:" + body + RETURN_0) + wrapper(kernel))
    for call in (lambda a: executable.run([a]), executable.fast):
        a = np.zeros(64, np.int64)
        thread = threading.Thread(target=call, args=(a,))
        thread.start()
        a[0] = 1
        thread.join(30)
        assert not thread.is_alive()


def test_llvm_and_assembly_can_be_read():
    executable = adder()
    assert "define i64 @k(" in executable.llvm
    assert "k_call:" in executable.asm()


@pytest.mark.skipif(host().architecture != "x86_64", reason="levels of another architecture")
def test_code_for_a_lower_level_runs_here():
    body = """
      %p = load ptr, ptr %frame
      %x = load <8 x i64>, ptr %p, align 8
      %y = add <8 x i64> %x, %x
      store <8 x i64> %y, ptr %p, align 8
    """
    kernel = Kernel("k", (DENSE,), Block(()))
    executable = CpuExecutable(kernel, define("k", body + RETURN_0), level("sse2"))
    a = np.arange(64)
    executable.run([a])
    assert a[:9].tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 8]
    assert "%xmm" in executable.asm()
    assert "%ymm" not in executable.asm()


def test_refused_text_names_the_kernel():
    with pytest.raises(TargetError, match="kernel 'blur'"):
        CpuExecutable(Kernel("blur", (), Block(())), define("blur", "  ret i32 0\n}\n"))


def test_executables_give_their_memory_back():
    counts = []
    for amount in itertools.chain([0], range(30)):
        code = weakref.ref(adder(amount)._code)
        counts.append(code() is None)
    assert all(counts)


def test_frame_has_room_for_the_values_of_a_check():
    executable = adder()
    assert ctypes.sizeof(executable._frame) == 8 * (1 + 8)
