"""The function written for a variant: shapes of results, and when it steps aside."""

import numpy as np
import pytest

from tdsl.codegen.runtime.fast_call import fast_call
from tdsl.codegen.runtime.signature import ArrayArg, ScalarArg, Signature, extent
from tdsl.lang.expr import Binary, Cast, Select, Size, Unary, const
from tdsl.lang.types import bf16, f32, i64

R, C = Size("R"), Size("C")
EXTENTS = (
    Binary("add", Binary("floordiv", R, const(2)), const(1)),
    Binary("max", Binary("sub", R, const(3)), Binary("min", C, const(2))),
    Select(Binary("eq", Binary("mod", R, const(2)), const(1)), Unary("neg", const(-5)), Cast(C, i64)),
    Binary("sub", R, Binary("sub", R, Binary("mul", const(2), C))),
)
SIGNATURE = Signature(
    "g",
    (ScalarArg("s", f32), ArrayArg("x", f32, (R, C))),
    (ArrayArg("y", f32, EXTENTS), ArrayArg("z", bf16, (const(4),)), ArrayArg("t", f32, ())),
)


@pytest.mark.parametrize("fixed", [(), ("R",), ("C",), ("R", "C")], ids=str)
def test_outputs_have_the_extents_of_the_declaration(fixed):
    for r, c in ((3, 4), (4, 4), (9, 1), (0, 6), (5, 0)):
        sizes = {"R": r, "C": c}
        call = fast_call(SIGNATURE, {n: sizes[n] for n in fixed}, lambda *given: True)
        y, z, t = call((1.0, np.zeros((r, c))))
        assert y.shape == tuple(extent(e, sizes) for e in EXTENTS)
        assert z.shape == (4,)
        assert z.dtype == bf16.numpy
        assert type(t) is np.float32


def test_inputs_and_outputs_are_handed_over_in_order():
    seen = []
    x = np.zeros((2, 3))
    y, z, _ = fast_call(SIGNATURE, {}, lambda *given: seen.extend(given) or True)((1.0, x))
    assert seen[:2] == [1.0, x]
    assert seen[2] is y
    assert seen[3] is z
    assert seen[4].shape == ()


@pytest.mark.parametrize("answer", [False, 3, None])
def test_only_true_is_success(answer):
    assert fast_call(SIGNATURE, {}, lambda *given: answer)((1.0, np.zeros((2, 3)))) is None


def test_arguments_that_give_no_shape_are_left_to_the_slow_path():
    call = fast_call(SIGNATURE, {}, lambda *given: True)
    small = Signature("h", (ArrayArg("x", f32, (R,)),), (ArrayArg("y", f32, (Binary("sub", R, const(5)),)),))
    divided = Binary("floordiv", const(6), R)
    odd = Signature("h", (ArrayArg("x", f32, (R,)),), (ArrayArg("y", f32, (divided,)),))
    for args in ((), (1.0,), (1.0, [[1]]), (1.0, np.zeros(3)), (1.0, np.zeros((2, 2)), 3)):
        assert call(args) is None
    assert fast_call(small, {}, lambda *given: True)((np.zeros(3),)) is None
    assert fast_call(odd, {}, lambda *given: True)((np.zeros(0),)) is None


def test_programs_without_inputs():
    signature = Signature("ones", (), (ArrayArg("y", f32, (const(3),)),))
    assert fast_call(signature, {}, lambda out: True)(()).shape == (3,)
