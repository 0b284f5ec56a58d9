"""The entry in IR: what it accepts, what it hands to the kernel, what it returns."""

import ctypes
import itertools
import math
import sys
import threading

import hypothesis.strategies as st
import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import assume, given, settings

from tdsl.codegen.cpu.executable import CpuExecutable
from tdsl.codegen.cpu.target_machine import target_machine
from tdsl.codegen.cpu.wrapper import has_known_array_layout, wrapper
from tdsl.codegen.ir.loops import Block, BufferParam, Kernel, ScalarParam, SizeParam
from tdsl.codegen.runtime.call import Entry
from tdsl.codegen.runtime.signature import ArrayArg, ScalarArg, Signature
from tdsl.lang.expr import Binary, Size, const
from tdsl.lang.types import ALL, bool_, f16, f32, f64, i8, i64, u8, u64
from tdsl.machine.cpu import host

R, C = Size("R"), Size("C")
SLOTS = 12

# A kernel that shows its frame and returns what it is told to.
SHOW = f"""
@seen = global [{SLOTS} x i64] zeroinitializer
@runtime = global ptr null
@status = global i64 0
define i64 @k(ptr %frame, ptr %runtime) {{
  call void @llvm.memcpy.p0.p0.i64(ptr @seen, ptr %frame, i64 {8 * SLOTS}, i1 false)
  store ptr %runtime, ptr @runtime
  %status = load i64, ptr @status
  ret i64 %status
}}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


class MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("meth", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class Linked:
    """A kernel's text with its wrapper, as a Python function."""

    def __init__(self, kernel, body=SHOW, runtime=0x1234):
        module = llvm.parse_assembly(body + wrapper(kernel), llvm.create_context())
        module.verify()
        machine = target_machine(host())
        self.engine = llvm.create_lljit_compiler(machine)
        library = llvm.JITLibraryBuilder().add_object_img(machine.emit_object(module))
        library.import_symbol("tdsl_ndarray", id(np.ndarray)).import_symbol("tdsl_runtime", runtime)
        names = ["k_call", *(["seen", "status", "runtime"] if body is SHOW else [])]
        for name in names:
            library.export_symbol(name)
        self.code = library.add_current_process().link(self.engine, "k")
        self.kernel = kernel
        self.method = MethodDef(b"k", self.code["k_call"], 0x80, None)
        pointer = ctypes.c_void_p
        new = ctypes.PYFUNCTYPE(ctypes.py_object, pointer, pointer, pointer)
        self.fast = new(("PyCFunction_NewEx", ctypes.pythonapi))(ctypes.addressof(self.method), None, None)

    def __call__(self, *args):
        return self.fast(*args)

    def seen(self, n):
        return list((ctypes.c_int64 * n).from_address(self.code["seen"]))

    def raw(self, n=1):
        return bytes((ctypes.c_char * (8 * n)).from_address(self.code["seen"]))

    def set_status(self, value):
        ctypes.c_int64.from_address(self.code["status"]).value = value


def buffer(name, dtype, extents, strides, written=False):
    wrapped = tuple(const(e) if isinstance(e, int) else e for e in extents)
    return BufferParam(name, dtype, wrapped, strides, written)


def kernel(*params):
    return Kernel("k", params, Block(()))


def address(a):
    return a.__array_interface__["data"][0]


@pytest.fixture(scope="module")
def dense():
    x, y = buffer("x", f32, (3, 4), (4, 1)), buffer("y", f32, (3, 4), (4, 1), True)
    return Linked(kernel(x, y))


@pytest.fixture(scope="module")
def strided():
    x, y = buffer("x", f32, (R, C), (None, None)), buffer("y", f32, (R, C), (None, 1), True)
    return Linked(kernel(x, y, SizeParam("C"), SizeParam("R")))


def f(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def test_this_numpy_has_its_fields_where_they_are_read():
    assert has_known_array_layout()


def test_dense_arrays_pass_their_addresses(dense):
    x, y = f(3, 4), f(3, 4)
    assert dense(x, y) is True
    assert dense.seen(2) == [address(x), address(y)]
    assert ctypes.c_int64.from_address(dense.code["runtime"]).value == 0x1234


def test_strides_and_sizes_follow_the_order_of_the_parameters(strided):
    x, y = np.zeros((12, 10), np.float32)[::-2, 1:9:2], f(6, 4)
    assert strided(x, y) is True
    assert strided.seen(7) == [address(x), -80, 8, address(y), 16, 4, 6]


class Derived(np.ndarray):
    pass


def misaligned(shape):
    raw = np.zeros(4 * math.prod(shape) + 1, np.uint8)
    return raw[1:].view(np.float32).reshape(shape)


def read_only(shape):
    a = f(*shape)
    a.flags.writeable = False
    return a


REFUSED = {
    "too few": lambda: (f(3, 4),),
    "too many": lambda: (f(3, 4), f(3, 4), f(3, 4)),
    "none at all": tuple,
    "no array": lambda: ([1.0], f(3, 4)),
    "none": lambda: (None, f(3, 4)),
    "a subclass": lambda: (f(3, 4).view(Derived), f(3, 4)),
    "a numpy scalar": lambda: (np.float32(1), f(3, 4)),
    "another dtype": lambda: (f(3, 4, dtype=np.float64), f(3, 4)),
    "another dtype of the same size": lambda: (f(3, 4, dtype=np.int32), f(3, 4)),
    "foreign byte order": lambda: (f(3, 4, dtype=">f4"), f(3, 4)),
    "a record": lambda: (f(3, 4, dtype=[("a", "f4")]), f(3, 4)),
    "rank too low": lambda: (f(12), f(3, 4)),
    "rank 0": lambda: (f(), f(3, 4)),
    "rank too high": lambda: (f(3, 4, 1), f(3, 4)),
    "another extent": lambda: (f(3, 5), f(3, 4)),
    "another extent of the output": lambda: (f(3, 4), f(4, 4)),
    "fortran order": lambda: (f(4, 3).T, f(3, 4)),
    "a slice": lambda: (f(3, 8)[:, ::2], f(3, 4)),
    "broadcast": lambda: (np.broadcast_to(f(4), (3, 4)), f(3, 4)),
    "misaligned": lambda: (misaligned((3, 4)), f(3, 4)),
    "read-only output": lambda: (f(3, 4), read_only((3, 4))),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_what_is_not_exactly_right_is_left_alone(dense, make):
    ctypes.memset(dense.code["seen"], 0, 8)
    assert dense(*make()) is False
    assert dense.seen(1) == [0]


def test_read_only_inputs_are_welcome(dense):
    assert dense(read_only((3, 4)), f(3, 4)) is True


def test_equal_sizes_must_agree(strided):
    assert strided(f(3, 4), f(3, 4)) is True
    assert strided(f(3, 4), f(3, 5)) is False
    assert strided(f(3, 4), f(2, 4)) is False


def test_outputs_must_be_disjoint_from_inputs_and_each_other():
    params = [buffer(n, f32, (R,), (1,), n != "x") for n in ("x", "y", "z")]
    k = Linked(kernel(*params, SizeParam("R")))
    memory = f(100)
    for starts in itertools.product((0, 9, 10, 11, 20, 30), repeat=3):
        x, y, z = (memory[s : s + 10] for s in starts)
        disjoint = all(abs(starts[a] - starts[b]) >= 10 for a, b in itertools.combinations(range(3), 2))
        assert k(x, y, z) is disjoint, starts
    assert k(f(0), f(0), f(0)) is True


def test_inputs_may_share_memory():
    k = Linked(kernel(*(buffer(n, f32, (3,), (1,), n == "z") for n in "xyz")))
    x = f(3)
    assert k(x, x, f(3)) is True


def test_strided_inputs_reach_as_far_as_their_elements(strided):
    memory = f(30)
    out = memory[12:18].reshape(2, 3)
    assert strided(memory[18:].reshape(4, 3)[::2], out) is True
    assert strided(memory[18:][::-1].reshape(2, 6)[:, ::2], out) is True
    assert strided(memory[17:29].reshape(2, 6)[:, ::2], out) is False
    assert strided(memory[:12][::-1].reshape(2, 6)[:, ::2], out) is True
    assert strided(memory[14:26][::-1].reshape(2, 6)[:, ::2], out) is False
    assert strided(memory[:14].reshape(2, 7)[:, :3][:, ::-1], out) is True
    assert strided(np.broadcast_to(memory[9:12], (2, 3)), out) is True
    assert strided(np.broadcast_to(memory[10:13], (2, 3)), out) is False


def test_an_output_with_free_strides_must_be_contiguous():
    k = Linked(kernel(buffer("y", f32, (R, C), (None, None), True), SizeParam("R"), SizeParam("C")))
    assert k(f(3, 4)) is True
    assert k(f(4, 3).T) is True
    assert k(f(3, 8)[:, ::2]) is False
    assert k(np.lib.stride_tricks.as_strided(f(4), (3, 4), (0, 4), writeable=True)) is False


def test_the_axis_of_adjacent_elements_is_checked():
    rows = Linked(kernel(buffer("x", f32, (R, C), (None, 1)), SizeParam("R"), SizeParam("C")))
    columns = Linked(kernel(buffer("x", f32, (R, C), (1, None)), SizeParam("R"), SizeParam("C")))
    for a, by_rows, by_columns in (
        (f(3, 4), True, False),
        (f(3, 4).T, False, True),
        (f(3, 8)[:, ::2], False, False),
        (f(3, 8)[:, :4], True, False),
        (f(3, 8)[:, :1], True, False),
        (f(1, 8)[:, ::2], False, True),
        (f(0, 4), True, True),
        (f(4, 0), True, True),
        (f(3, 4)[::-1], True, False),
        (f(3, 4)[:, ::-1], False, False),
    ):
        assert (rows(a), columns(a)) == (by_rows, by_columns), (a.shape, a.strides)


def test_extents_that_are_expressions():
    half = Binary("floordiv", Binary("sub", R, const(3)), const(2))
    rest = Binary("mod", Binary("sub", R, const(10)), const(4))
    top = Binary("max", Binary("min", Binary("mul", R, const(2)), const(9)), Binary("add", R, const(1)))
    out = buffer("y", f32, (half, rest, top), (None, None, 1), True)
    k = Linked(kernel(buffer("x", f32, (R,), (1,)), out, SizeParam("R")))
    for n in range(3, 14):
        shape = ((n - 3) // 2, (n - 10) % 4, max(min(2 * n, 9), n + 1))
        assert k(f(n), f(*shape)) is True
        for axis in range(3):
            wrong = [e + (a == axis) for a, e in enumerate(shape)]
            assert k(f(n), f(*wrong)) is False


@pytest.mark.parametrize("dtype", [t for t in ALL if t.kind != "e"], ids=str)
def test_every_dtype_is_distinguished(dtype):
    k = Linked(kernel(buffer("x", dtype, (3,), (1,))))
    for other in ALL:
        assert k(np.zeros(3, other.numpy)) is (other == dtype)
    if dtype.bits > 8:
        assert k(np.zeros(3, dtype.numpy.newbyteorder(">"))) is False


def test_no_entry_for_arguments_that_it_cannot_check():
    assert wrapper(kernel(buffer("x", f32, (3,), (1,))))
    for narrow in (t for t in ALL if t.kind == "e"):
        assert not wrapper(kernel(buffer("x", narrow, (3,), (1,))))
    assert not wrapper(kernel(ScalarParam("s", f16)))
    assert not wrapper(kernel(SizeParam("N")))
    odd = Binary("floordiv", const(10), R)
    assert not wrapper(kernel(buffer("x", f32, (R,), (1,)), buffer("y", f32, (odd,), (1,), True)))


SCALARS = {
    f32: (
        [0.0, -0.0, 1.5, 0.1, 3.4e38, 1e-50, math.inf, -math.inf, math.nan, 3, -7],
        [1e39, -1e39],
    ),
    f64: ([0.1, 1e308, math.inf, 7, 2**62], [2**64]),
    i8: ([0, -128, 127], [128, -129, 2**70]),
    u8: ([0, 255], [256, -1]),
    i64: ([2**63 - 1, -(2**63)], [2**63, -(2**63) - 1]),
    u64: ([0, 2**63 - 1], [2**63, -1]),  # the upper half takes the slow path
    bool_: ([True, False], [0, 1]),
}


@pytest.mark.parametrize("dtype", SCALARS, ids=str)
def test_numbers_in_range_and_no_others(dtype):
    k = Linked(kernel(ScalarParam("s", dtype)))
    good, bad = SCALARS[dtype]
    for value in good:
        assert k(value) is True, value
        with np.errstate(under="ignore"):
            expected = dtype.numpy.type(value).tobytes()
        assert k.raw()[: dtype.bytes] == expected, value
    for value in (*bad, "1", None, 1j, np.float32(1), np.int64(1), f(1)):
        assert k(value) is False, value
    kinds = {"f": True, "i": 1.0, "u": 1.0, "b": 1.0}
    assert k(kinds[dtype.kind]) is False


def test_a_failed_check_returns_its_status(dense):
    dense.set_status(3)
    try:
        assert dense(f(3, 4), f(3, 4)) == 3
    finally:
        dense.set_status(0)
    assert dense(f(3, 4), f(3, 4)) is True


def test_references_are_balanced(dense):
    x, y = f(3, 4), f(3, 4)
    before = [sys.getrefcount(o) for o in (True, False, x, y)]
    for _ in range(1000):
        dense(x, y)
        dense(x, x)
    after = [sys.getrefcount(o) for o in (True, False, x, y)]
    assert after == pytest.approx(before, abs=50)


GIL = """
declare i32 @PyGILState_Check()
define i64 @k(ptr %frame, ptr %runtime) {
  %held = call i32 @PyGILState_Check()
  %status = sext i32 %held to i64
  ret i64 %status
}
"""


def test_the_lock_of_python_is_released_while_the_kernel_runs():
    assert Linked(kernel(), GIL)() is True


# y[i, j] = x[i, j] + s for dense rows of 4, as machine code
ADD = """
define i64 @k(ptr %frame, ptr %runtime) {
entry:
  %x = load ptr, ptr %frame
  %sp = getelementptr i64, ptr %frame, i64 1
  %s = load float, ptr %sp
  %yp = getelementptr i64, ptr %frame, i64 2
  %y = load ptr, ptr %yp
  %np = getelementptr i64, ptr %frame, i64 3
  %rows = load i64, ptr %np
  %n = mul i64 %rows, 4
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %body]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %xi = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %xi
  %sum = fadd float %v, %s
  %yi = getelementptr float, ptr %y, i64 %i
  store float %sum, ptr %yi
  %next = add i64 %i, 1
  br label %head
done:
  ret i64 0
}
"""


class Counted(CpuExecutable):
    slow_calls = 0

    def run(self, arguments):
        self.slow_calls += 1
        super().run(arguments)


def test_a_dynamic_program_runs_by_its_quick_entry():
    shape = (R, const(4))
    signature = Signature(
        "add", (ArrayArg("x", f32, shape), ScalarArg("s", f32)), (ArrayArg("y", f32, shape),)
    )
    params = buffer("x", f32, shape, (4, 1)), ScalarParam("s", f32)
    k = kernel(*params, buffer("y", f32, shape, (4, 1), True), SizeParam("R"))
    executable = Counted(k, ADD + wrapper(k))
    entry = Entry(signature, frozenset({"R"}), lambda _: executable)
    for rows in (3, 1, 7, 0, 2):
        x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        np.testing.assert_array_equal(entry(x, 0.5), x + np.float32(0.5))
        np.testing.assert_array_equal(entry(s=np.float64(0.5), x=x), x + np.float32(0.5))
    wrong = []

    def many(rows):
        x = np.full((rows, 4), rows, np.float32)
        wrong.extend(n for n in range(200) if not (entry(x, n) == rows + n).all())

    threads = [threading.Thread(target=many, args=(n,)) for n in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert executable.slow_calls == 1


slices = st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([1, 1, 2, -1, -2]))


@given(cuts=st.tuples(slices, slices), transposed=st.booleans(), data=st.data())
@settings(max_examples=100, deadline=None)
def test_any_view_is_described_as_numpy_does(strided, cuts, transposed, data):
    base = np.zeros((7, 8), np.float32)
    view = base[tuple(slice(a, 7 - b) for a, b, _ in cuts)]
    view = view[tuple(slice(None, None, step) for *_, step in cuts)]
    x = view.T if transposed else view
    assume(x.size)
    y = np.empty(x.shape, np.float32)
    assert strided(x, y) is True
    assert strided.seen(7) == [address(x), *x.strides, address(y), y.strides[0], *x.shape[::-1]]
