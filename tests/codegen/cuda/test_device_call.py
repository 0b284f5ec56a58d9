"""Calls with arrays that are on a GPU, against a driver that only writes down what it is asked for."""

import ctypes
import shutil
import threading

import numpy as np
import pytest

import tdsl as td
from benchmarks import launch_cost
from tdsl.codegen.cuda import device_call
from tdsl.codegen.cuda.driver import Driver
from tdsl.codegen.cuda.executable import CudaExecutable
from tdsl.codegen.runtime.dlpack import Tensor
from tdsl.codegen.runtime.dlpack_exchange import Table
from tests.codegen.cuda import programs
from tests.codegen.cuda.fake_driver import FakeDriver
from tests.codegen.cuda.test_executable import MODULE

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc makes the driver")

X = np.arange(100, dtype=np.float32)
LAUNCH = "f_kernel grid 1 1 1 block 64 1 1 shared 0"


class OnGpu:
    """What another library would have on the GPU: memory that the fake driver reads, too."""

    def __init__(self, array, **changes):
        self.array = array
        about = array.__array_interface__
        self.__cuda_array_interface__ = {
            "version": 3, "shape": array.shape, "typestr": array.dtype.str,
            "strides": about["strides"], "data": about["data"], **changes,
        }  # fmt: skip


_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))
def _lend(lent, out):
    array = lent.array
    lent.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    lent.strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
    t = out.contents
    t.data, t.byte_offset, t.ndim = array.ctypes.data, 0, array.ndim
    t.device_type, t.device_id = 2, lent.device
    t.code, t.bits, t.lanes = 2, array.itemsize * 8, 1
    t.shape = ctypes.cast(lent.shape, ctypes.POINTER(ctypes.c_int64))
    t.strides = ctypes.cast(lent.strides, ctypes.POINTER(ctypes.c_int64))
    return 0


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
def _current(_kind, _device, out):
    out[0] = Lent.stream
    return 0


def _address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


TABLE = Table(1, 3, None, None, None, None, _address(_lend), _address(_current))
NAME, OLD_NAME = b"dlpack_exchange_api", b"dltensor"  # capsules keep their addresses


class Lent:
    """An array of a library that works on a stream of its own, and lends by the C functions of DLPack."""

    __dlpack_c_exchange_api__ = _new_capsule(ctypes.addressof(TABLE), NAME, None)
    stream = 0

    def __init__(self, array, device=0):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return 2, self.device

    def __dlpack__(self, *, stream, max_version=None):
        assert stream == -1, "who asks the table needs nobody to wait"
        self.tensor = Tensor()
        _lend(self, ctypes.pointer(self.tensor))
        return _new_capsule(ctypes.addressof(self.tensor), OLD_NAME, None)


@pytest.fixture
def fake(tmp_path):
    return FakeDriver(tmp_path)


@pytest.fixture
def f(fake, monkeypatch):
    """`2 * a + 1`, compiled for the fake driver."""
    a, f, i = td.Tensor("a", ("N",), td.f32), td.Func("f"), td.vars("i")
    f[i] = a[i] * 2 + 1
    compiled = td.compile(f, target="cuda")
    driver = Driver(fake.path)
    kernel = programs.kernel_of(programs.scaled(1), N=100)
    compiled.build = lambda _: CudaExecutable(MODULE, kernel.params, lambda: kernel, driver.device)
    compiled._device_calls = device_call.DeviceCalls(compiled, driver.device)
    monkeypatch.setattr("tdsl.codegen.cuda.executable.driver", lambda: driver)
    return compiled


def aligned(count=100):
    """Memory at a multiple of 64 bytes."""
    raw = np.zeros(count + 16, np.float32)
    first = -raw.ctypes.data % 64 // 4
    return raw[first : first + count]


def filled():
    x = aligned()
    x[:] = X
    return x


def values(result):
    """What is in the memory of a result."""
    place = result.__cuda_array_interface__["data"][0]
    return np.ctypeslib.as_array((ctypes.c_float * 100).from_address(place))


def test_gpu_arrays_are_used_without_a_copy(f):
    x, out = filled(), aligned()
    result = f(OnGpu(x))
    assert (result.shape, result.dtype) == ((100,), np.float32)
    np.testing.assert_array_equal(values(result), X * 2 + 1)
    np.testing.assert_array_equal(result.numpy(), X * 2 + 1)
    target = OnGpu(out)
    assert f(a=OnGpu(x), out=target) is target
    np.testing.assert_array_equal(out, X * 2 + 1)


@pytest.mark.parametrize("kind", [OnGpu, Lent])
def test_the_fast_path_gives_the_result_of_the_slow_path(f, fake, kind):
    x, out = filled(), aligned()
    for _ in range(3):
        out[:] = 0
        given = kind(out)
        assert f(kind(x), out=given) is given
        np.testing.assert_array_equal(out, X * 2 + 1)
        np.testing.assert_array_equal(f(kind(x)).numpy(), X * 2 + 1)
    assert fake.log().count(LAUNCH) == 6


def test_results_are_arguments_of_the_next_call(f, fake):
    first = f(OnGpu(filled()))
    again = f(f(first))
    assert again.nbytes == 400
    assert repr(again) == "<DeviceArray of float32, shape (100,)>"
    np.testing.assert_array_equal(again.numpy(), ((X * 2 + 1) * 2 + 1) * 2 + 1)


def test_memory_of_results_is_freed(f, fake):
    x = Lent(filled())
    f(x)
    before = fake.live
    for _ in range(3):
        f(x)
    assert fake.live == before


def test_cpu_and_gpu_arrays_in_one_call(f):
    out = aligned()
    f(X, out=OnGpu(out))
    np.testing.assert_array_equal(out, X * 2 + 1)


def test_cpu_arrays_are_copied_to_the_gpu_and_back(f):
    np.testing.assert_array_equal(f(X), X * 2 + 1)


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda x: OnGpu(x, typestr="<f8"), "a has dtype float64, expected float32"),
        (lambda x: OnGpu(x[:50].repeat(4)[::4], shape=(50,)), "a is not contiguous: strides"),
        (lambda x: OnGpu(x, data=(x.ctypes.data + 4, False)), "begins at no multiple of 16 bytes"),
        (lambda x: OnGpu(x, shape=(10, 10), strides=None), r"a has shape \(10, 10\), expected"),
        (lambda x: Lent(x, device=1), "a is on another GPU than Fake with number 0"),
        (lambda x: Lent(x.astype(np.float64)), "a has dtype float64, expected float32"),
        (lambda x: Lent(x.repeat(2)[::2]), r"a is not contiguous: strides \(8,\) bytes"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("warm", [False, True])
def test_arrays_that_no_kernel_takes_are_refused(f, make, says, warm):
    if warm:  # the quick way leaves them to the slow one
        f(Lent(filled()))
        f(OnGpu(filled()))
    with pytest.raises(td.TdslError, match=says):
        f(make(aligned()))


def test_an_address_of_another_gpu_is_refused(f, fake):
    fake.place_pointers(1)
    with pytest.raises(td.TypeMismatch, match="a is on another GPU") as caught:
        f(OnGpu(filled()))
    assert "torch.cuda.set_device" in caught.value.hint


@pytest.mark.parametrize("kind", [OnGpu, Lent])
def test_outputs_must_not_share_memory(f, kind):
    x = aligned()
    f(kind(filled()), out=kind(aligned()))
    with pytest.raises(td.TypeMismatch, match="f in out= shares memory with a"):
        f(kind(x), out=kind(x))
    with pytest.raises(td.TypeMismatch, match="f in out= is on the CPU"):
        f(kind(x), out=np.zeros(100, np.float32))


# Streams.


def test_calls_run_on_the_selected_stream(f, fake):
    x = OnGpu(filled())
    with td.cuda.stream(7):
        result = f(x)
    assert f"{LAUNCH} stream 7" in fake.log()
    assert result.__cuda_array_interface__["stream"] == 7
    fake.clear()
    f(x)
    assert fake.log() == f"{LAUNCH}\n"


def test_cpu_arrays_are_copied_on_the_selected_stream(f, fake):
    with td.cuda.stream(7):
        f(X)
    assert fake.log() == f"{LAUNCH} stream 7\n"


def test_the_stream_of_a_library_is_used(f, fake, monkeypatch):
    x = Lent(filled())
    f(x)
    monkeypatch.setattr(Lent, "stream", 9)
    for _ in range(2):
        fake.clear()
        f(x)
        assert fake.log() == f"{LAUNCH} stream 9\n"


def test_the_selected_stream_waits_for_streams_of_arrays(f, fake, monkeypatch):
    monkeypatch.setattr(Lent, "stream", 9)
    x = Lent(filled())
    f(x)
    fake.clear()
    with td.cuda.stream(7):
        f(x)
    assert fake.log() == f"record on 9\nstream 7 waits\n{LAUNCH} stream 7\n"
    fake.clear()
    f(OnGpu(filled(), stream=12), out=OnGpu(aligned(), stream=13))
    assert fake.log() == f"record on 13\nstream 12 waits\n{LAUNCH} stream 12\n"


def test_results_of_one_stream_are_waited_for_on_another(f, fake):
    with td.cuda.stream(7):
        y = f(OnGpu(filled()))
    fake.clear()
    f(y)
    assert fake.log() == f"{LAUNCH} stream 7\n"
    fake.clear()
    with td.cuda.stream(8):
        f(y)
    assert fake.log() == f"record on 7\nstream 8 waits\n{LAUNCH} stream 8\n"


def test_calls_on_another_stream_share_the_fast_path(f, monkeypatch):
    fast_launches = []
    real = device_call.fast_launch
    monkeypatch.setattr(device_call, "fast_launch", lambda *a: fast_launches.append(1) or real(*a))
    x = Lent(filled())
    for _ in range(3):
        with td.cuda.stream(7):  # the library works on another one, so these calls take the slow path
            f(x)
    f(x)
    assert len(fast_launches) == 1


class Torch:
    cuda_stream = 12


class Core:
    def __cuda_stream__(self):
        return 0, 13


@pytest.mark.parametrize("given, handle", [(0, 1), (5, 5), (Torch(), 12), (Core(), 13)])
def test_streams_of_libraries(given, handle):
    with td.cuda.stream(given) as s:
        assert s.handle == handle


def test_contexts_of_streams_are_nested(f, fake):
    x, outer = OnGpu(filled()), td.cuda.stream(7)
    with outer, td.cuda.stream(8), outer:
        f(x)
    assert fake.log() == f"{LAUNCH} stream 7\n"


# Failures.


def test_a_refused_launch_names_the_kernel_and_the_next_one_works(f, fake):
    x = Lent(filled())
    for _ in range(2):  # by the slow path, then by the fast path
        fake.refuse(701)
        with pytest.raises(td.TargetError, match="launch of kernel 'f_kernel' failed") as caught:
            f(x)
        assert "can be used further" in caught.value.hint
        fake.refuse(0)
        np.testing.assert_array_equal(f(x).numpy(), X * 2 + 1)


def test_after_a_fault_in_a_kernel_the_error_says_that_the_gpu_is_lost(f, fake):
    y = f(Lent(filled()))
    fake.fail(700)
    with pytest.raises(td.TargetError, match="an illegal memory access") as caught:
        y.numpy()
    assert "cannot use the GPU any more" in caught.value.hint


def test_a_thread_without_a_context_gets_one(f, fake):
    x = Lent(filled())
    f(x)
    fake.leave()
    np.testing.assert_array_equal(f(x).numpy(), X * 2 + 1)


def test_threads_use_separate_argument_blocks(f, fake):
    fake.quiet()
    wrong = []

    def work(n):
        x = aligned()
        x[:] = n
        for _ in range(300):
            y = f(Lent(x)).numpy()
            if not (y == 2 * n + 1).all():
                wrong.append(y)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_the_fast_path_costs_little(record_property):
    cost = launch_cost.costs()["f(x, y, out=z)"]
    record_property("microseconds_of_a_call", cost)
    assert cost < 10 * launch_cost.GOAL_US  # a busy machine must not fail the test
