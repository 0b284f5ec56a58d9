"""What callers pass, as arrays and numbers; facts about memory."""

import array
import ctypes
import math
import weakref
from fractions import Fraction

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from tdsl.codegen.runtime.arrays import (
    as_array,
    as_scalar,
    copy_overlapping,
    layout_of,
    overlaps_itself,
    share_memory,
)
from tdsl.codegen.runtime.signature import ArrayArg, ScalarArg
from tdsl.core.source import Loc
from tdsl.errors import TypeMismatch
from tdsl.lang.types import ALL, bf16, bool_, f16, f32, f64, from_numpy, i8, i32, i64, u8, u64


def converted(value, dtype=f32):
    return as_array(ArrayArg("x", dtype, (), Loc(__file__, 1)), value)


def number(value, dtype):
    return as_scalar(ScalarArg("s", dtype, Loc(__file__, 1)), value)


def address(a):
    return a.__array_interface__["data"][0]


class Exporter:
    """An array of another library: DLPack, and nothing else."""

    def __init__(self, a, device=(1, 0), versioned=True):
        self.a, self.device, self.versioned = a, device, versioned

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if self.versioned:
            return self.a.__dlpack__(**options)
        if options:
            raise TypeError("unexpected keyword")
        return self.a.__dlpack__()


class Interface:
    def __init__(self, a):
        self.keep, self.__array_interface__ = a, a.__array_interface__


VIEWS = {
    "dense": lambda a: a,
    "fortran": lambda a: a.T,
    "backwards": lambda a: a[::-1, ::-1],
    "sparse": lambda a: a[1::2, ::3],
    "broadcast": lambda a: np.broadcast_to(a[0], (5, 6)),
    "empty": lambda a: a[:0],
    "a number": lambda a: a[0, 0, ...],
}
EXPORTS = {
    "array": lambda a: a,
    "subclass": lambda a: a.view(np.matrix) if a.ndim == 2 else a,
    "dlpack": Exporter,
    "older dlpack": lambda a: Exporter(a, versioned=False),
    "buffer": memoryview,
    "interface": Interface,
}


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_every_way_of_passing_an_array_shares_its_memory(export, view):
    a = view(np.arange(30, dtype=np.float32).reshape(5, 6).copy())
    if not a.flags.writeable and export is EXPORTS["older dlpack"]:
        with pytest.raises(TypeMismatch, match="readonly"):  # that protocol has no word for it
            converted(export(a))
        return
    got = converted(export(a))
    assert type(got) is np.ndarray
    assert (got.dtype, got.shape) == (a.dtype, a.shape)
    np.testing.assert_array_equal(got, a)
    if a.size:
        assert address(got) == address(a)
        assert got.flags.writeable == a.flags.writeable


@pytest.mark.parametrize("dtype", [t for t in ALL if t.kind != "e"], ids=str)
def test_dlpack_carries_every_dtype(dtype):
    a = np.array([0, 1, 1, 0], dtype.numpy)
    for versioned in (True, False):
        got = converted(Exporter(a, versioned=versioned), dtype)
        np.testing.assert_array_equal(got, a)


def test_dlpack_tells_read_only_memory():
    a = np.zeros(3, np.float32)
    a.flags.writeable = False
    assert not converted(Exporter(a)).flags.writeable


def test_dlpack_memory_lives_as_long_as_the_array():
    for versioned in (True, False):
        source = np.zeros(5, np.float32)
        owner = weakref.ref(source)
        got = converted(Exporter(source, versioned=versioned))
        del source
        assert owner() is not None
        got[:] = 3
        assert owner().sum() == 15
        del got
        assert owner() is None


def tensor_of(capsule):
    """The address of the DLTensor in a capsule of the older protocol."""
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    return get(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, b"dltensor")


class Relabelled(Exporter):
    """NumPy does not export floats of ml_dtypes: integers of their size with DLPack's codes for them."""

    def __dlpack__(self, **options):
        capsule = self.a.view(f"u{self.a.itemsize}").__dlpack__()
        code = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}[self.a.dtype.name]
        ctypes.c_uint8.from_address(tensor_of(capsule) + 20).value = code
        return capsule


class Shifted(Exporter):
    """A view that starts two elements on, with the distance apart from the address."""

    def __dlpack__(self, **options):
        capsule = self.a[:-2].__dlpack__()
        ctypes.c_uint64.from_address(tensor_of(capsule) + 40).value = 2 * self.a.itemsize
        return capsule


def test_dlpack_arrays_may_start_behind_their_address():
    assert converted(Shifted(np.arange(5, dtype=np.float32))).tolist() == [2, 3, 4]


@pytest.mark.parametrize("t", [t for t in ALL if t.kind == "e"], ids=str)
def test_floats_of_ml_dtypes_come_through_dlpack(t):
    a = np.array([[1.5, -2], [0, t.high]], t.numpy)
    got = converted(Relabelled(a), t)
    assert address(got) == address(a)
    np.testing.assert_array_equal(got, a)
    with pytest.raises(TypeMismatch, match=f"has dtype {t.numpy}, expected float32"):
        converted(Relabelled(a))


def test_standard_containers_with_the_buffer_protocol():
    assert converted(array.array("f", [1, 2])).tolist() == [1, 2]
    assert converted(bytearray(b"ab"), u8).flags.writeable
    assert not converted(b"ab", u8).flags.writeable
    assert converted((ctypes.c_double * 3)(1, 2, 3), f64).tolist() == [1, 2, 3]


def test_numpy_scalars_are_arrays_of_rank_0():
    assert converted(np.float32(3)).shape == ()


class OnGpu:
    __cuda_array_interface__ = {}


class Broken(Exporter):
    def __dlpack__(self, **options):
        raise BufferError("it requires grad")


class NotReady(Exporter):
    def __dlpack__(self, **options):
        raise TypeError("it is sparse")


ONES = np.ones(3, np.float32)
REFUSED = {
    "list": ([1.0], "of type list, not an array", "np.asarray(x, dtype=np.float32)"),
    "tuple": ((1.0,), "of type tuple, not an array", "np.asarray"),
    "string": ("abc", "of type str, not an array", "np.asarray"),
    "number": (1.0, "of type float, not an array", "np.asarray"),
    "none": (None, "of type NoneType, not an array", "np.asarray"),
    "object": (object(), "of type object, not an array", "np.asarray"),
    "float64": (np.ones(3), "has dtype float64, expected float32", ".astype(np.float32)"),
    "same size": (np.ones(3, np.int32), "has dtype int32, expected float32", ".astype"),
    "objects": (np.array([None]), "has dtype object, expected float32", ".astype"),
    "record": (np.zeros(3, [("a", "f4")]), "expected float32", ".astype"),
    "byte order": (np.ones(3, ">f4"), "foreign byte order: dtype >f4", ".astype(np.float32)"),
    "masked": (np.ma.array(ONES, mask=[0, 1, 0]), "masked array", "filled"),
    "cuda": (Exporter(ONES, (2, 1)), "on device cuda:1, not the CPU", "host"),
    "unknown device": (Exporter(ONES, (99, 0)), "on device device type 99:0", "host"),
    "cuda interface": (OnGpu(), "on device cuda, not the CPU", "host"),
    "broken": (Broken(ONES), "cannot be read as an array: it requires grad", "np.asarray"),
    "sparse": (NotReady(ONES), "cannot be read as an array: it is sparse", "np.asarray"),
    "complex": (Exporter(ONES.astype(np.complex64)), "DLPack element type 5", "np.asarray"),
}


@pytest.mark.parametrize("value, words, hint", REFUSED.values(), ids=REFUSED)
def test_anything_else_is_refused_with_a_way_out(value, words, hint):
    with pytest.raises(TypeMismatch) as caught:
        converted(value)
    assert words in str(caught.value)
    assert hint in caught.value.hint
    assert caught.value.related == ((Loc(__file__, 1), "x is declared here"),)


def test_the_hint_for_bfloat16_names_its_package():
    with pytest.raises(TypeMismatch, match=r"expected bfloat16") as caught:
        converted(ONES, bf16)
    assert "astype(ml_dtypes.bfloat16)" in caught.value.hint


GOOD = [
    (1.5, f32, 1.5), (0.1, f32, np.float32(0.1)), (np.float64(0.1), f32, np.float32(0.1)),
    (2, f32, 2.0), (True, f64, 1.0), (math.inf, f16, math.inf), (65504, f16, 65504.0),
    (np.float32(2), bf16, 2.0), (ml_dtypes.bfloat16(1.5), f32, 1.5), (2**1000, f64, 2.0**1000),
    (127, i8, 127), (-128, i8, -128), (True, i32, 1), (np.uint8(7), i64, 7), (2**64 - 1, u64, 2**64 - 1),
    (np.array(5), i32, 5), (np.array(5.0), f32, 5.0), (True, bool_, True), (np.bool_(False), bool_, False),
]  # fmt: skip


@pytest.mark.parametrize("value, dtype, expected", GOOD, ids=str)
def test_numbers_that_convert_safely(value, dtype, expected):
    got = number(value, dtype)
    assert got == expected
    assert got.dtype == dtype.numpy


BAD = [
    (1.0, i32, "needs an integer (int32), got 1.0 of type float"),
    (np.float32(1), i32, "needs an integer"),
    (1, bool_, "needs a bool"), (0.0, bool_, "needs a bool"),
    ("1", f32, "needs a number (float32), got '1' of type str"),
    (None, f32, "got NoneType"), (1j, f64, "needs a number"), (Fraction(1, 2), f32, "got Fraction"),
    (np.ones(1), f32, "got ndarray"), ([1.0], f32, "got list"),
    (128, i8, "s = 128 does not fit int8"), (-1, u8, "does not fit uint8"), (2**64, u64, "does not fit"),
    (1e39, f32, "does not fit float32"), (65520, f16, "does not fit float16"),
    (1e39, bf16, "does not fit bfloat16"), (2**1024, f64, "does not fit float64"),
]  # fmt: skip


@pytest.mark.parametrize("value, dtype, words", BAD, ids=str)
def test_numbers_that_would_change_are_refused(value, dtype, words):
    with pytest.raises(TypeMismatch) as caught:
        number(value, dtype)
    assert words in str(caught.value)
    assert caught.value.hint


def test_the_largest_float_named_in_the_hint_is_the_largest():
    for dtype in (f16, f32, f64, bf16):
        with pytest.raises(TypeMismatch) as caught:
            number(2**2000, dtype)
        assert caught.value.hint == f"the largest is {float(ml_dtypes.finfo(dtype.numpy).max)}"


def test_layouts_of_arrays_without_fixed_extents():
    a = np.zeros((4, 6), np.float32)
    for view, expected in (
        (a, (None, 1)),
        (a[:0], (None, 1)),
        (np.empty((0, 4), np.float32), (None, 1)),
        (a[:, :1], (None, 1)),
        (a.T, (1, None)),
        (a[::-1], (None, 1)),
        (a[:, ::-1], (None, None)),
        (a[:, ::2], (None, None)),
        (a[0], (1,)),
        (a[0, 0, ...], ()),
        (np.broadcast_to(a[0], (3, 6)), (None, 1)),
        (np.broadcast_to(a[:, :1], (4, 6)), (None, None)),
    ):
        assert layout_of(view, False) == expected
    assert layout_of(a[:2], True) == (6, 1)
    assert layout_of(a[:0], True) == (6, 1)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-6, 6)), max_size=3))
@settings(max_examples=200, deadline=None)
def test_overlap_within_an_array_is_never_missed(axes):
    memory = np.zeros(200, np.int16)[100:]
    shape, strides = [e for e, _ in axes], [2 * s for _, s in axes]
    view = np.lib.stride_tricks.as_strided(memory, shape, strides)
    places = sum((s * i for (_, s), i in zip(axes, np.indices(shape), strict=True)), np.zeros(shape, int))
    if len(np.unique(places)) < view.size:
        assert overlaps_itself(view)


@given(
    st.permutations(range(3)),
    st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 5), st.sampled_from([1, 2, -1, -3]))] * 3),
)
@settings(max_examples=200, deadline=None)
def test_views_by_slices_and_transposition_do_not_overlap(axes, cuts):
    view = np.zeros((3, 4, 5), np.float32)
    view = view[tuple(slice(lo, hi) for lo, hi, _ in cuts)]
    view = view[tuple(slice(None, None, step) for *_, step in cuts)].transpose(axes)
    assert not overlaps_itself(view)


def test_interleaved_arrays_share_no_memory():
    a = np.zeros(20, np.float32)
    assert not share_memory(a[::2], a[1::2])
    assert share_memory(a[::2], a[::3])
    assert not share_memory(a[:10], a[10:])


def test_memory_that_is_too_hard_to_compare_counts_as_shared():
    memory = np.zeros(192_163_377, np.int8)  # never touched
    view = np.lib.stride_tricks.as_strided
    a = view(memory, (1049, 1049, 1049), (36674, 61119, 85569))
    b = view(memory[64_023_025:], (1049, 1049, 1), (12223, 12224, 1))
    with pytest.raises(np.exceptions.TooHardError):
        np.shares_memory(a, b, max_work=1000)
    assert share_memory(a, b)


def test_only_inputs_that_share_memory_or_are_misaligned_are_copied():
    a = np.arange(10, dtype=np.float32)
    odd = np.zeros(13, np.uint8)[1:].view(np.float32)
    x, y, z, s = copy_overlapping((a[:4], a[4:], odd, np.float32(2)), [a[2:5]])
    assert address(x) != address(a)
    assert address(y) != address(a[4:])
    assert address(z) != address(odd)
    assert s == 2
    same, _ = copy_overlapping((a[:4], a), [a[4:]])
    assert address(same) == address(a)
    np.testing.assert_array_equal(x, a[:4])


def test_dtypes_of_numpy_are_recognised_by_value():
    assert converted(np.ones(2, np.longlong), i64).dtype == np.int64
    assert from_numpy(np.dtype("=f4")) == f32
