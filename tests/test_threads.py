"""Default schedules give the same bits with any number of threads."""

from collections.abc import Iterator

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cpu.runtime import set_num_threads
from tdsl.machine.threads import num_threads

i, j, k = td.vars("i j k")
x = td.Tensor("x", ("R", "C"), td.f32)
y = td.Tensor("y", ("C", "K"), td.f32)


def total() -> td.Func:
    f = td.Func("total")
    f[()] = td.sum(x[i, j] * x[i, j], axis=(i, j))
    return f


def rows() -> td.Func:
    f = td.Func("rows")
    f[i] = td.sum(x[i, k], axis=k)
    return f


def columns() -> td.Func:
    mean, normal = td.Func("mean"), td.Func("normal")
    mean[j] = td.mean(x[k, j], axis=k)
    normal[i, j] = x[i, j] - mean[j]
    return normal


def products() -> td.Func:
    f = td.Func("products")
    f[i, j] = td.sum(x[i, k] * y[k, j], axis=k)
    return f


@pytest.fixture
def restored() -> Iterator[None]:
    before = num_threads()
    yield
    set_num_threads(before)


@pytest.mark.parametrize("program", [total, rows, columns, products], ids=lambda p: p.__name__)
@pytest.mark.parametrize("shape", [(1, 300_007), (1003, 517), (20_011, 5)], ids=str)
def test_any_number_of_threads_gives_the_same_bits(program, shape, restored):
    f = program()
    compiled = td.compile(f)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(shape, dtype=np.float32)]
    if program is products:
        given.append(rng.standard_normal((shape[1], 7), dtype=np.float32))
    results = []
    for count in (1, 2, 3, 8):
        set_num_threads(count)
        results.append(np.asarray(compiled(*given)).tobytes())
    assert len(set(results)) == 1
