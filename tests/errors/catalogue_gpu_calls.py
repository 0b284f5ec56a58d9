"""Calls with arrays on a GPU that no kernel takes; a stand-in for the driver takes the others."""

import functools
import shutil
import tempfile
from pathlib import Path

import numpy as np

import tdsl as td
from tdsl.codegen.cuda.device_call import DeviceCalls
from tdsl.codegen.cuda.driver import Driver
from tests.codegen.cuda.fake_driver import FakeDriver
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong if shutil.which("gcc") else lambda *_, **__: lambda program: program

i = td.vars("i")


@functools.cache
def stand_in() -> tuple[FakeDriver, Driver]:
    fake = FakeDriver(Path(tempfile.mkdtemp()))
    return fake, Driver(fake.path)


class Array:
    """Memory of a GPU, as libraries tell of it."""

    def __init__(self, **changes):
        self.__cuda_array_interface__ = {
            "version": 3, "shape": (64,), "typestr": "<f4", "strides": None, "data": (4096, False), **changes,
        }  # fmt: skip


def doubled():
    a, f = td.Tensor("a", ("N",), td.f32), td.Func("f")
    f[i] = a[i] * 2
    compiled = td.compile(f, target="cuda")
    fake, driver = stand_in()
    fake.place_pointers(0)
    compiled._device_calls = DeviceCalls(compiled, driver.device)
    return compiled


@wrong(td.TypeMismatch, "a is on another GPU than Fake with number 0", hint="copy it there")
def array_of_another_gpu():
    f = doubled()
    stand_in()[0].place_pointers(1)
    f(Array())  # here


@wrong(td.TypeMismatch, "a is not contiguous: strides (8,) bytes", hint="x.contiguous()")
def array_with_gaps():
    doubled()(Array(strides=(8,)))  # here


@wrong(td.TypeMismatch, "a begins at no multiple of 16 bytes", hint="pass a copy")
def array_out_of_line():
    doubled()(Array(data=(4100, False)))  # here


@wrong(td.TypeMismatch, "a has dtype float64, expected float32", hint="convert it on the GPU")
def array_of_another_type():
    doubled()(Array(typestr="<f8"))  # here


@wrong(td.TypeMismatch, "f in out= is on the CPU", hint="memory of the GPU")
def results_on_the_cpu():
    doubled()(Array(), out=np.zeros(64, np.float32))  # here


@wrong(td.TypeMismatch, "f in out= shares memory with a", hint="other memory")
def results_over_the_input():
    doubled()(Array(), out=Array())  # here


@wrong(td.TypeMismatch, "'s' is no stream of a GPU", hint="PyTorch or CuPy")
def stream_that_is_none():
    td.cuda.stream("s")  # here
