"""Element types promote as NumPy's; weak numbers take the type of what they meet."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import tdsl as td
from tdsl.errors import TypeMismatch
from tdsl.lang.types import ALL, DType, as_dtype, bf16, promote

NUMPY = [t for t in ALL if t.kind != "e"]


@pytest.mark.parametrize("a, b", list(itertools.product(NUMPY, NUMPY)), ids=str)
def test_two_types_promote_as_in_numpy(a: DType, b: DType) -> None:
    assert promote(a, b).numpy == np.promote_types(a.numpy, b.numpy)


@pytest.mark.parametrize(
    "a, b, expected",
    [("bf16", "f16", "f32"), ("bf16", "f32", "f32"), ("bf16", "f64", "f64"), ("bf16", "i64", "bf16"),
     ("bf16", "bool_", "bf16"), ("u8", "bf16", "bf16"), ("bf16", "bf16", "bf16"),
     ("f8e4m3", "i64", "f8e4m3"), ("bool_", "f8e5m2", "f8e5m2"), ("f8e4m3", "f8e5m2", "f32"),
     ("f8e4m3", "bf16", "f32"), ("f16", "f8e5m2", "f32"), ("f64", "f8e4m3", "f64")],
)  # fmt: skip
def test_floats_of_ml_dtypes_join_only_integers(a: str, b: str, expected: str) -> None:
    assert promote(as_dtype(a), as_dtype(b)) == as_dtype(expected)


@pytest.mark.parametrize("t", NUMPY, ids=str)
@pytest.mark.parametrize("number", [1, 1.5], ids=str)
def test_a_python_number_is_weak_as_in_numpy(t: DType, number: float) -> None:
    x = td.Tensor("x", (), t)[()]
    if t != td.bool_:
        assert (x * number).dtype.numpy == (np.zeros(1, t.numpy) * number).dtype
    else:
        assert (x * number).dtype.numpy == (np.zeros(1, np.bool_) * number).dtype


@pytest.mark.parametrize("t", NUMPY, ids=str)
def test_true_division_is_of_floats(t: DType) -> None:
    x = td.Tensor("x", (), t)[()]
    expected = np.float64 if not t.is_float else t.numpy
    if t != td.bool_:
        assert (x / x).dtype.numpy == expected


@pytest.mark.parametrize("t", NUMPY, ids=str)
def test_limits_are_those_of_numpy(t: DType) -> None:
    if t.is_integer:
        assert (t.low, t.high) == (np.iinfo(t.numpy).min, np.iinfo(t.numpy).max)
    assert t.bytes == t.numpy.itemsize


@pytest.mark.parametrize("t", [t for t in ALL if t.is_float], ids=str)
def test_floats_know_their_precision_and_range(t: DType) -> None:
    info = ml_dtypes.finfo(t.numpy)
    assert (t.fraction, t.largest) == (info.nmant, float(info.max))
    assert np.array([t.low, t.high]).astype(t.numpy).astype(float).tolist() == [t.low, t.high]


@pytest.mark.parametrize(
    "given, expected",
    [("f32", "f32"), ("float32", "f32"), (np.int8, "i8"), (np.dtype("u2"), "u16"), (bool, "bool_"),
     (float, "f64"), (int, "i64"), ("bf16", "bf16"), (bf16.numpy, "bf16"),
     ("f8e5m2", "f8e5m2"), (td.f8e4m3.numpy, "f8e4m3")],
)  # fmt: skip
def test_a_type_has_many_names(given: object, expected: str) -> None:
    assert as_dtype(given).name == expected


@pytest.mark.parametrize(
    "given",
    ["f31", "complex64", object(), None.__class__, np.dtype("U3"),
     td.Tensor("x", (), td.f32)[()]],
)  # fmt: skip
def test_what_is_no_element_type_is_refused(given: object) -> None:
    with pytest.raises(TypeMismatch):
        as_dtype(given)


def test_a_type_with_extents_annotates_a_tensor() -> None:
    assert repr(td.f32["M", 4]) == "f32['M', 4]"
    assert td.u8[3].shape == (3,)
