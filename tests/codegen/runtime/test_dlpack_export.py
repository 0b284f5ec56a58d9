"""Memory that is exported as DLPack capsules is read without a copy, and released once."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from tdsl.codegen.cuda.device_array import DeviceArray
from tdsl.codegen.runtime import dlpack_export
from tdsl.codegen.runtime.dlpack import from_dlpack
from tdsl.codegen.runtime.dlpack_export import to_dlpack
from tdsl.lang.types import ALL, bf16, f32, from_numpy

CPU = (1, 0)


class Owner:
    """Memory with the life of an object."""

    def __init__(self, array):
        self.array = array


class Exporter:
    """An array as another library would export it."""

    def __init__(self, array, is_versioned=True):
        self.array, self.owner, self.is_versioned = array, Owner(array), is_versioned

    def __dlpack_device__(self):
        return CPU

    def __dlpack__(self, **_):
        a = self.array
        return to_dlpack(a.ctypes.data, CPU, a.shape, from_numpy(a.dtype), self.owner, self.is_versioned)


@pytest.mark.parametrize("is_versioned", [True, False])
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (5, 7)])
def test_numpy_reads_the_memory_and_releases_it(shape, is_versioned):
    exporter = Exporter(np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape), is_versioned)
    owner = weakref.ref(exporter.owner)
    result = np.from_dlpack(exporter)
    np.testing.assert_array_equal(result, exporter.array)
    if result.size:
        assert result.ctypes.data == exporter.array.ctypes.data
    del exporter
    gc.collect()
    assert owner() is not None
    del result
    gc.collect()
    assert owner() is None and not dlpack_export._exported


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_element_type_comes_back(dtype):
    exporter = Exporter(np.zeros((3, 2), dtype.numpy))
    result = from_dlpack(exporter)
    assert (result.dtype, result.shape) == (dtype.numpy, (3, 2))
    assert result.ctypes.data == exporter.array.ctypes.data


def test_a_capsule_that_nobody_consumes_is_released():
    exporter = Exporter(np.ones(4, np.float32))
    capsule = exporter.__dlpack__()
    assert dlpack_export._exported
    del capsule
    assert not dlpack_export._exported


def test_torch_takes_bf16():
    torch = pytest.importorskip("torch", reason="torch is an optional package")
    array = np.arange(6).astype(bf16.numpy).reshape(2, 3)
    tensor = torch.from_dlpack(Exporter(array))
    assert tensor.dtype == torch.bfloat16 and tensor.tolist() == array.tolist()
    tensor[0, 0] = 7
    assert array[0, 0] == 7


class Device:
    """A GPU that records which streams wait for which."""

    ordinal = 2

    def __init__(self):
        self.waits = []

    def wait_for_stream(self, stream, other):
        self.waits.append((stream, other))


def test_a_device_array_is_exported_from_its_gpu():
    device, memory = Device(), np.arange(6, dtype=np.float32)
    array = DeviceArray(device, memory.ctypes.data, (2, 3), f32.numpy, memory, stream=7)
    assert array.__dlpack_device__() == (2, 2)
    for stream in (-1, 7, None, 9):
        assert 'capsule object "dltensor_versioned"' in repr(
            array.__dlpack__(stream=stream, max_version=(1, 0))
        )
    assert device.waits == [(1, 7), (9, 7)]
    assert 'capsule object "dltensor"' in repr(array.__dlpack__())
    with pytest.raises(BufferError, match="on its GPU, without a copy"):
        array.__dlpack__(dl_device=CPU)
    with pytest.raises(BufferError, match="on its GPU, without a copy"):
        array.__dlpack__(copy=True)
