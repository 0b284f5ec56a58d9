"""Tiles on the axes of blocks: blockIdx.x alone takes more than 65535 of them."""

import pytest

import tdsl as td
from tdsl.codegen.gpu.launches import launches_of
from tdsl.codegen.gpu.limits import check_limits
from tdsl.machine.devices import describe_gpu
from tests.codegen.cuda.programs import kernel_of

b, c, o, i, j, k, p, q = td.vars("b c o i j k p q")


def products(batch: int, rows: int, *, group: int = 1) -> td.Schedule:
    x, w = td.Tensor("x", (batch, rows, 64), td.f16), td.Tensor("w", (64, 64), td.f16)
    f = td.Func("f")
    f[b, i, j] = td.sum(td.cast(x[b, i, k], td.f32) * td.cast(w[k, j], td.f32), axis=k)
    s = td.Schedule(f)
    td.recipes.tensor_core_matmul(s[f], block=(64, 64, 16), warp=(32, 32), group=group, parts=1)
    return s


def convolutions(batch: int, rows: int) -> td.Schedule:
    x, w = (
        td.Tensor("x", (batch, 64, rows + 2, 34), td.f32),
        td.Tensor("w", (64, 64, 3, 3), td.f32),
    )
    f = td.Func("f")
    f[b, o, i, j] = td.sum(x[b, c, i + p, j + q] * w[o, c, p, q], axis=(c, p, q))
    s = td.Schedule(f)
    td.recipes.block_conv(s[f])
    return s


@pytest.mark.in_part(2)
@pytest.mark.parametrize("batch, rows", [(70_000, 64), (2, 8_000_000)])
@pytest.mark.parametrize("define", [products, convolutions])
def test_more_tiles_than_the_second_grid_axis_takes_are_on_the_first(define, batch, rows):
    launches = launches_of(kernel_of(define(batch, rows)))
    check_limits(launches, describe_gpu(""))
    (launch,) = launches.launches
    few = launches_of(kernel_of(define(2, 64))).launches[0]
    assert launch.grid[0] > 65_535 and max(few.grid[1:]) > 1


def test_batches_of_tiles_in_groups_of_rows_are_on_the_first_axis_where_they_are_many():
    (launch,) = launches_of(kernel_of(products(70_000, 1024, group=8))).launches
    assert launch.grid == (70_000 * 16, 1, 1)
    (launch,) = launches_of(kernel_of(products(1000, 1024, group=8))).launches
    assert launch.grid == (16, 1000, 1)
