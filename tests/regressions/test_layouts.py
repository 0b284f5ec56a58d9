"""Arrays in any layout are taken by what is compiled without a schedule."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.ir.show import show
from tdsl.pipeline import make_kernel

i, j, k, n = td.vars("i j k n")
LAYOUTS = {
    "columns": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "reversed": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "every second column": lambda x: np.repeat(x.swapaxes(-1, -2), 2, axis=-1)[..., ::2].swapaxes(-1, -2),
}
TYPES = [
    (td.bf16, td.f32, ml_dtypes.bfloat16),
    (td.i8, td.i32, np.int8),
    (td.i16, td.i32, np.int16),
    (td.u8, td.i32, np.uint8),
]


def product(t, total, *batch):
    more, at = (("B",), (n,)) if batch else ((), ())
    a, b, c = (
        td.Tensor("a", (*more, "M", "K"), t),
        td.Tensor("b", (*more, "K", "N"), t),
        td.Func("c"),
    )
    terms = td.cast(a[(*at, i, k)], total) * td.cast(b[(*at, k, j)], total)
    c[(*at, i, j)] = td.sum(terms, axis=k, dtype=total)
    return c


@pytest.mark.parametrize("shape", [(64, 32, 48), (3, 9, 38, 17)], ids=["matrix", "batch"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("t, total, numpy", TYPES, ids=lambda x: str(x))
def test_products_by_instructions_take_operands_in_any_layout(rng, t, total, numpy, layout, shape):
    *batch, m, terms, columns = shape
    a = rng.integers(0, 5, (*batch, m, terms)).astype(numpy)
    b = rng.integers(0, 5, (*batch, terms, columns)).astype(numpy)
    f, turn = td.compile(product(t, total, *batch)), LAYOUTS[layout]
    want = a.astype(total.numpy) @ b.astype(total.numpy)
    np.testing.assert_array_equal(f(turn(a), b), want)
    np.testing.assert_array_equal(f(turn(a), turn(b)), want)


def test_an_operand_in_any_layout_is_taken_with_sizes_of_the_call(rng):
    f = td.compile(product(td.bf16, td.f32), dynamic=("M",), K=64, N=48)
    a, b = (rng.integers(0, 5, s).astype(ml_dtypes.bfloat16) for s in ((70, 64), (64, 48)))
    want = a.astype(np.float32) @ b.astype(np.float32)
    for turn in LAYOUTS.values():
        np.testing.assert_array_equal(f(turn(a), b), want)


@pytest.mark.parametrize("layout", [(1, None), (None, None)], ids=["columns", "any"])
def test_tiles_of_an_operand_in_any_layout(layout):
    f = td.compile(product(td.bf16, td.f32), target="cpu:amx", M=64, N=64, K=128)
    dense = f.specialisation({})
    kernel = make_kernel(f.variant(replace(dense, layouts=(layout, *dense.layouts[1:]))))
    assert "tile_bf16" in show(kernel)
