"""Which types hold the values of others, checked with all their values."""

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.exact import holds, is_exact
from tdsl.lang.expr import Binary, Cast, Const, Expr, Read, Select, Unary, Var
from tdsl.lang.types import bool_

SHORT = (td.i8, td.u8, td.i16, td.u16, td.f16, td.bf16, td.f8e4m3, td.f8e5m2)
FLOATS = (td.f16, td.bf16, td.f8e4m3, td.f8e5m2, td.f32)


@pytest.mark.parametrize("values", SHORT, ids=str)
@pytest.mark.parametrize("t", [*FLOATS, td.i8, td.u8, td.i32], ids=str)
def test_a_type_holds_another_if_no_value_changes(t: td.DType, values: td.DType) -> None:
    bits = np.arange(1 << values.bits, dtype=f"u{values.bytes}").view(values.numpy)
    with np.errstate(all="ignore"):
        numbers = bits[np.isfinite(bits.astype(np.float64))]
        there = numbers.astype(np.float64).astype(t.numpy).astype(np.float64)
        same = bool((there == numbers.astype(np.float64)).all())
    if holds(t, values):
        assert same
    elif t.is_float or values.is_integer:
        assert not same


def element(t: td.DType) -> Read:
    return Read("a", (Var("i"),), 0, t)


@pytest.mark.parametrize(
    "e, t, exact",
    [
        (Cast(element(td.f16), td.f32), td.f16, True),
        (Binary("max", Cast(element(td.f16), td.f32), Const(0.5, td.f32)), td.f16, True),
        (Binary("max", Cast(element(td.f16), td.f32), Const(0.1, td.f32)), td.f16, False),
        (Unary("neg", Cast(element(td.i8), td.f32)), td.bf16, True),
        (Unary("neg", element(td.i8)), td.i8, True),
        (Binary("mul", Cast(element(td.f16), td.f32), Const(2.0, td.f32)), td.f16, False),
        (Binary("mul", element(td.f16), element(td.f16)), td.f16, True),
        (Select(Const(True, bool_), element(td.f16), Const(0.0, td.f16)), td.f32, True),
        (Cast(Cast(element(td.f32), td.f16), td.f32), td.f16, True),
        (Cast(Cast(element(td.f16), td.bf16), td.f32), td.f16, False),
        (Cast(Binary("sub", Cast(element(td.u8), td.i32), Const(128, td.i32)), td.f32), td.f16, True),
        (Cast(Binary("sub", Cast(element(td.u8), td.i32), Const(128, td.i32)), td.f32), td.i8, True),
        (Cast(Binary("sub", Cast(element(td.u8), td.i32), Const(200, td.i32)), td.f32), td.i8, False),
        (Cast(element(td.i32), td.f32), td.f16, False),
    ],
    ids=str,
)
def test_exactness_follows_from_the_expression(e: Expr, t: td.DType, exact: bool) -> None:
    assert is_exact(e, t) == exact
