"""Gathers of elements that lie close together are lookups in registers, and only those."""

from __future__ import annotations

import numpy as np
import pytest

from tdsl.codegen.ir.loops import Kernel, Store
from tdsl.lang.expr import Binary, Broadcast, Cast, Const, Expr, Load, Ramp, const
from tdsl.lang.types import f32, f64, i32, i64
from tdsl.machine.cpu import host, level
from tests.codegen.cpu.plain import run_plain
from tests.codegen.cpu.running import assembly, at, dense, run


def chosen(lanes: int, least: int, most: int) -> Expr:
    """idx[lane], between two numbers."""
    index = Load("idx", (at(0, lanes),), i32)
    above = Binary("max", index, Broadcast(Const(least, i32), lanes))
    return Cast(Binary("min", above, Broadcast(Const(most, i32), lanes)), i64)


def lookup(index: Expr, size: int, lanes: int, t=f32, mask: Expr | None = None) -> Kernel:
    params = (dense("a", t, size), dense("idx", i32, lanes), dense("out", t, lanes, written=True))
    load = Load("a", (index,), t, mask)
    return Kernel("k", params, Store("out", (at(0, lanes),), load))


def agrees(kernel: Kernel, t=f32) -> None:
    size, lanes = (int(p.extents[0].value) for p in (kernel.params[0], kernel.params[1]))
    a = (np.arange(size) + 0.5).astype(t.numpy)
    idx = np.random.default_rng(0).integers(-50, 90, lanes).astype(np.int32)
    got, expected = np.zeros(lanes, t.numpy), np.zeros(lanes, t.numpy)
    run_plain(kernel, a, idx, expected)
    assert run(kernel, a, idx, got) == 0
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("least, most", [(0, 15), (3, 20), (0, 31), (5, 36)])
def test_elements_in_two_registers_are_picked(least, most):
    kernel = lookup(chosen(16, least, most), most + 1, 16)
    text = assembly(kernel, level("avx512"))
    assert "vperm" in text
    assert "vgather" not in text
    agrees(kernel)


@pytest.mark.parametrize("least, most, size", [(0, 32, 40), (0, 31, 31), (-1, 20, 40)])
def test_more_elements_and_those_perhaps_outside_are_gathered(least, most, size):
    text = assembly(lookup(chosen(16, least, most), size, 16), level("avx512"))
    assert "vgather" in text


def test_doubles_and_narrow_vectors_are_picked():
    doubles = lookup(chosen(8, 1, 16), 17, 8, f64)
    assert "vgather" not in assembly(doubles, level("avx512"))
    agrees(doubles, f64)
    eight = lookup(chosen(8, 1, 8), 9, 8)
    assert "vgather" not in assembly(eight, level("avx2"))
    agrees(eight)


def test_lanes_that_a_mask_leaves_out_are_zero():
    kernel = lookup(chosen(16, 0, 20), 21, 16, mask=Binary("lt", at(0, 16), Broadcast(const(5), 16)))
    if "avx512f" in host().has:
        assert "vgather" not in assembly(kernel)
    agrees(kernel)


def test_the_part_that_moves_evenly_with_the_lanes_counts():
    pairs = Binary("floordiv", Ramp(const(0), 1, 16), Broadcast(const(8), 16))
    rows = Binary("mul", pairs, Broadcast(const(12), 16))
    kernel = lookup(Binary("add", rows, chosen(16, 0, 11)), 24, 16)
    assert "vgather" not in assembly(kernel, level("avx512"))
    agrees(kernel)
