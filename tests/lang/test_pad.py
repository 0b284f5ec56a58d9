"""Padding against numpy.pad in five modes, over more than one period, for every small extent."""

from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import DefinitionError, ShapeError
from tdsl.lang import arithmetic
from tests.lang.meaning import counted, run

MODES = ("constant", "edge", "reflect", "symmetric", "wrap")
i, j, k = td.vars("i j k")


def padded(a: np.ndarray, width: Any, mode: str) -> np.ndarray:
    more = {"constant_values": 3} if mode == "constant" else {}
    return np.pad(a, width, mode=mode, **more)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("extent", [1, 2, 3, 5])
def test_a_read_of_padding_is_that_of_numpy(mode: str, extent: int) -> None:
    a = counted(extent, dtype=np.int32)
    t, f = td.Tensor("a", (extent,), td.i32), td.Func("f", shape=(extent + 20,))
    f[i] = td.pad(t, mode=mode, value=3)[i - 10]
    np.testing.assert_array_equal(run(f, a=a), padded(a, 10, mode))


@pytest.mark.parametrize("mode", MODES)
def test_every_axis_is_padded(mode: str) -> None:
    a = counted(4, 3)
    t, f = td.Tensor("a", ("H", "W"), td.f32), td.Func("f")
    p = td.pad(t, mode=mode, value=3)
    f[i, j] = p[i - 1, j + 2] + p[i, j]
    want = padded(a, 2, mode)[1:5, 4:7] + a
    np.testing.assert_array_equal(run(f, a=a), want)


@pytest.mark.parametrize("mode", MODES)
def test_a_func_is_padded_over_its_range(mode: str) -> None:
    """The func starts at 1: its padding starts there, too."""
    a = counted(7)
    t, g, f = td.Tensor("a", (7,), td.f32), td.Func("g"), td.Func("f", shape=(9,))
    g[i] = t[i - 1] * 2
    assert g.domain == ((1, 7),)
    f[i] = td.pad(g, mode=mode, value=3)[i]
    np.testing.assert_array_equal(run(f, a=a), padded(a * 2, (1, 1), mode))


@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_padding_of_nothing_is_the_constant(mode: str) -> None:
    """Only a constant can continue an axis without elements; the others are never read there."""
    t, f = td.Tensor("a", ("N",), td.f32), td.Func("f")
    p = td.pad(t, mode=mode, value=3)
    f[i] = p[i] + p[i + 1]
    assert run(f, a=np.zeros(0, np.float32)).shape == (0,)


def test_padding_of_an_empty_axis_is_constant() -> None:
    t, f = td.Tensor("a", ("N",), td.f32), td.Func("f", shape=(4,))
    f[i] = td.pad(t, value=3)[i - 1]
    np.testing.assert_array_equal(run(f, a=np.zeros(0, np.float32)), [3.0] * 4)


def test_padding_with_an_explicit_shape() -> None:
    t, f = td.Tensor("a", (8,), td.f32), td.Func("f", shape=(8,))
    f[i] = td.pad(t, mode="edge", shape=(5,))[i]
    a = counted(8)
    np.testing.assert_array_equal(run(f, a=a), padded(a[:5], (0, 3), "edge"))


def test_padding_is_no_stage() -> None:
    t, f = td.Tensor("a", (8,), td.f32), td.Func("f")
    p = td.pad(t, mode="reflect")
    f[i] = p[i - 1] + p[i] + p[i + 1]
    assert [g.name for g in td.Schedule(f).program.funcs] == ["f"]


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("extent", range(1, 8))
def test_the_index_of_padding_is_that_of_numpy(mode: str, extent: int) -> None:
    beyond = np.arange(-20, 20 + extent)
    got = arithmetic.call(f"pad_{mode}", (beyond, np.asarray(extent)), td.i64)
    np.testing.assert_array_equal(got, np.pad(np.arange(extent), 20, mode=mode))


REFUSED = {
    "an unknown mode": (DefinitionError, lambda t: td.pad(t, mode="mirror")),
    "a number": (DefinitionError, lambda t: td.pad(3)),
    "a value that is no number": (DefinitionError, lambda t: td.pad(t, value=t[0])),
    "an index of another rank": (ShapeError, lambda t: td.pad(t)[0, 0]),
    "a shape of another rank": (ShapeError, lambda t: td.pad(t, shape=(3, 3))),
    "a func without a range": (ShapeError, lambda t: td.pad(without_range())),
}


def without_range() -> Any:
    f = td.Func("f")
    f[i] = td.cast(i, td.f32)
    return f


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_padding_is_refused(case: str) -> None:
    error, make = REFUSED[case]
    with pytest.raises(error) as caught:
        make(td.Tensor("a", (5,), td.f32))
    assert caught.value.loc is not None
