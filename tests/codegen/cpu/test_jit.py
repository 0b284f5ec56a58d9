"""IR text becomes machine code once, refusals name the kernel, and memory is given back."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from tdsl.codegen.cpu import jit
from tdsl.codegen.runtime import cache
from tdsl.errors import TargetError
from tdsl.machine.cpu import host, level

ANSWER = "define i64 @k() {\n  ret i64 42\n}\n"

# Address arithmetic written out at every access, and a sum kept in memory: what passes have to clean up.
SUM = """
define void @k(ptr noalias %a, ptr noalias %s, i64 %n, i64 %row, i64 %step) {
entry:
  %var = alloca i64
  store i64 0, ptr %var
  br label %head
head:
  %i = load i64, ptr %var
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %exit
body:
  %start = mul i64 %row, %step
  %index = add i64 %start, %i
  %at = getelementptr float, ptr %a, i64 %index
  %x = load float, ptr %at, align 4
  %old = load float, ptr %s, align 4
  %new = fadd float %old, %x
  store float %new, ptr %s, align 4
  %next = add nsw i64 %i, 1
  store i64 %next, ptr %var
  br label %head
exit:
  ret void
}
"""

TILE = """
define void @k(ptr %a) {
  %t = alloca [2 x <4 x float>]
  %x = load <4 x float>, ptr %a, align 4
  store <4 x float> %x, ptr %t
  %t1 = getelementptr <4 x float>, ptr %t, i64 1
  store <4 x float> %x, ptr %t1
  %y = load <4 x float>, ptr %t
  %z = load <4 x float>, ptr %t1
  %s = fadd <4 x float> %y, %z
  store <4 x float> %s, ptr %a, align 4
  ret void
}
"""

HELPER = """
define internal i64 @twice(i64 %x) alwaysinline {
  %y = shl i64 %x, 1
  ret i64 %y
}
define i64 @k(i64 %x) {
  %y = call i64 @twice(i64 %x)
  ret i64 %y
}
"""

TABLE = f"""
@t = private unnamed_addr constant [4096 x i64] [{", ".join(f"i64 {n}" for n in range(4096))}]
define i64 @k(i64 %i) {{
  %p = getelementptr [4096 x i64], ptr @t, i64 0, i64 %i
  %v = load i64, ptr %p
  ret i64 %v
}}
"""

# A process with 8 GiB of addresses taken, where no more than seven pages in a row are free above them and
# single pages within: code of one page lies there, and constants of eight pages lie below.
CROWDED = """
import ctypes, mmap, sys
from tdsl.codegen.cpu import jit
from tdsl.machine.cpu import host

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

def taken(size):
    return libc.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, -1, 0)  # MAP_NORESERVE

compiled = jit.emit_object(sys.argv[1], host())
start = taken(8 << 30)
while taken(8 * mmap.PAGESIZE) > start:
    pass
for page in range(1, 400, 2):
    libc.munmap(start + (8 << 30) - page * mmap.PAGESIZE, mmap.PAGESIZE)
code = jit.load(compiled, ["k"])
print(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("k"))(4095))
"""


def call(loaded: jit.Loaded, symbol: str = "k") -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64)(loaded.address(symbol))()


def loop_of(text: str) -> str:
    """The text between the label and the branch of the only loop."""
    function = text[text.index("define") :]
    labels = re.findall(r"^([\w.]+):", function, re.MULTILINE)
    for label in labels:
        start = function.index(f"\n{label}:")
        if (back := function.find(f"label %{label}", start)) > 0:
            return function[start:back]
    raise AssertionError("no loop")


def test_text_becomes_a_function():
    assert call(jit.load(jit.emit_object(ANSWER, host()), ["k"])) == 42


def test_sum_in_memory_leaves_its_loop():
    loop = loop_of(str(jit.optimize(SUM, host())))
    assert "load float" in loop
    assert not re.search(r"\bstore\b|\bmul\b|alloca", loop)


def test_array_with_fixed_indices_is_kept_in_registers():
    assert "alloca" not in str(jit.optimize(TILE, host()))


def test_functions_marked_for_inlining_disappear():
    text = str(jit.optimize(HELPER, host()))
    assert "@twice" not in text


def test_scalar_loop_stays_scalar():
    assert " x float>" not in str(jit.optimize(SUM, host()))


def test_assembly_of_another_architecture():
    assert "ret" in jit.assembly(ANSWER, level("aarch64"))
    assert "%ymm" not in jit.assembly(TILE, level("sse2"))


def test_object_is_compiled_once_for_a_text_and_target(tmp_path, monkeypatch):
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path / "cache"))
    compiled = jit.emit_object(ANSWER, host(), "answer")
    monkeypatch.setattr(jit, "optimize", lambda *_: pytest.fail("compiled again"))
    assert jit.emit_object(ANSWER, host(), "answer") == compiled
    assert cache.info().entries == 1


def test_other_text_and_other_target_are_other_objects(tmp_path, monkeypatch):
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path / "cache"))
    objects = {
        jit.emit_object(ANSWER, host()),
        jit.emit_object(ANSWER.replace("42", "43"), host()),
        jit.emit_object(ANSWER, level("aarch64")),
    }
    assert len(objects) == cache.info().entries == 3


@pytest.mark.filterwarnings("ignore::tdsl.errors.CacheWarning")
def test_damaged_object_is_compiled_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path / "cache"))
    compiled = jit.emit_object(ANSWER, host())
    (entry,) = (tmp_path / "cache").iterdir()
    data = bytearray(entry.read_bytes())
    data[-100] ^= 1
    entry.write_bytes(data)
    assert jit.emit_object(ANSWER, host()) == compiled


@pytest.mark.parametrize(
    "text, reason",
    [
        ("define i64 @k() {\n  ret i32 7\n}\n", "doesn't match function result type"),
        ("define i64 @k() {\nentry:\n  br label %entry\n}\n", "Entry block"),
        ("nonsense", "expected top-level entity"),
    ],
)
def test_refused_text_names_the_kernel_and_the_reason(text, reason):
    with pytest.raises(TargetError, match=f"(?s)kernel 'blur': .*{reason}"):
        jit.emit_object(text, host(), "blur")
    assert call(jit.load(jit.emit_object(ANSWER, host()), ["k"])) == 42


def test_missing_symbol_is_an_error_that_names_the_kernel():
    text = "declare i64 @not_there()\ndefine i64 @k() {\n  %x = call i64 @not_there()\n  ret i64 %x\n}"
    with pytest.raises(TargetError, match="cannot load the code of kernel 'blur'"):
        jit.load(jit.emit_object(text, host()), ["k"], name="blur")
    with pytest.raises(TargetError, match="other"):
        jit.load(jit.emit_object(ANSWER, host()), ["other"])


def test_symbols_of_the_process_and_imports_are_resolved():
    text = """
    @word = external global i64
    declare double @cos(double)
    define i64 @k() {
      %c = call double @cos(double 0.0)
      %one = fptosi double %c to i64
      %w = load i64, ptr @word
      %s = add i64 %w, %one
      ret i64 %s
    }
    """
    word = ctypes.c_int64(41)
    given = {"word": ctypes.addressof(word)}
    assert call(jit.load(jit.emit_object(text, host()), ["k"], given)) == 42


def test_kernels_may_have_the_same_names():
    first, second = (jit.load(jit.emit_object(ANSWER.replace("42", n), host()), ["k"]) for n in ("1", "2"))
    assert (call(first), call(second)) == (1, 2)
    del first
    assert call(second) == 2


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="no list of mapped memory")
def test_code_is_unmapped_with_its_last_user():
    def mapped(address: int) -> bool:
        with open("/proc/self/maps") as maps:
            spans = [line.split()[0].split("-") for line in maps]
        return any(int(low, 16) <= address < int(high, 16) for low, high in spans)

    loaded = jit.load(jit.emit_object(ANSWER, host()), ["k"])
    address = loaded.address("k")
    assert mapped(address)
    del loaded
    gc.collect()
    assert not mapped(address)


@pytest.mark.skipif(sys.platform != "linux" or sys.maxsize < 1 << 32, reason="maps pages as Linux")
def test_code_reaches_its_constants_wherever_the_process_has_free_pages():
    done = subprocess.run([sys.executable, "-c", CROWDED, TABLE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "4095\n"), done.stderr


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no count of memory")
def test_compiling_and_dropping_kernels_keeps_no_memory(monkeypatch):
    monkeypatch.setenv("TDSL_CACHE", "0")

    def pages() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1])

    def churn(rounds: int) -> None:
        for n in range(rounds):
            text = ANSWER.replace("42", str(n))
            assert call(jit.load(jit.emit_object(text, host()), ["k"])) == n

    churn(60)
    before = pages()
    churn(200)
    # Any engine, context or pass manager left behind costs 4 pages a round or more.
    assert pages() - before < 400


def test_threads_may_compile_at_once():
    results: dict[int, int] = {}

    def work(n: int) -> None:
        text = ANSWER.replace("42", str(1000 + n))
        results[n] = call(jit.load(jit.emit_object(text, host()), ["k"]))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: 1000 + n for n in range(8)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_child_of_a_fork_in_the_middle_of_compiling_can_compile(monkeypatch):
    monkeypatch.setenv("TDSL_CACHE", "0")
    stop = threading.Event()

    def keep_compiling() -> None:
        while not stop.is_set():
            jit.emit_object(SUM, host())

    other = threading.Thread(target=keep_compiling)
    other.start()
    try:
        for n in range(5):
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                text = ANSWER.replace("42", str(n))
                os._exit(call(jit.load(jit.emit_object(text, host()), ["k"])))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == n
    finally:
        stop.set()
        other.join()
