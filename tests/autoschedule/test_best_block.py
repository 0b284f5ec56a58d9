"""Places of largest and smallest values that are looked for in the best block: NumPy's, to the last tie."""

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.best_block import block_arg_reductions
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import BaseSchedule

i, j, k = td.vars("i j k")
WIDE = Machine(vector_bytes=64, threads=2, registers=32)
SHAPES = [
    (512,),
    (700,),
    (509,),
    (2048, 3),
    (3, 700),
    (40, 30, 20),
    (2, 3, 517),
    (64, 64),
    (1, 2048),
    (7,),
]


def place(kind, shape, dtype, axes):
    x, y = td.Tensor("x", shape, dtype), td.Func("y")
    index = (i, j, k)[: len(shape)]
    y[index[: len(shape) - axes]] = getattr(td, kind)(x[index], axis=index[len(shape) - axes :])
    return y


def values(rng, shape, dtype):
    """Random values, few values, equal ones, one at the end; infinities and NaN among floats."""
    few = rng.integers(0, 3, shape).astype(dtype)
    last = np.zeros(shape, dtype)
    last.flat[-1] = 1
    yield from ((rng.standard_normal(shape) * 100).astype(dtype), few, np.zeros(shape, dtype), last)
    if np.issubdtype(dtype, np.integer):
        yield from (np.full(shape, end, dtype) for end in (np.iinfo(dtype).min, np.iinfo(dtype).max))
        return
    yield from (np.full(shape, end, dtype) for end in (-np.inf, np.inf, np.nan))
    holes = few.copy()
    holes.flat[rng.integers(0, holes.size, 3)] = np.nan
    zeros = np.full(shape, -0.0, dtype)
    zeros.flat[zeros.size // 2] = 0.0
    yield from (holes, zeros, np.where(last == 1, np.nan, -np.inf).astype(dtype))


@pytest.mark.in_part(12)
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.int32], ids=lambda t: t.__name__)
def test_places_are_those_of_numpy(rng, kind, shape, dtype):
    for axes in {1, len(shape)}:
        f = td.compile(place(kind, shape, td.f32 if dtype == np.float32 else td.i32, axes))
        for x in values(rng, shape, dtype):
            rows = x.reshape(*shape[: len(shape) - axes], -1)
            np.testing.assert_array_equal(f(x), getattr(np, kind)(rows, axis=-1))


def funcs(func):
    state = td.Schedule(func).state
    schedule = BaseSchedule.of_state(state)
    block_arg_reductions(schedule, WIDE)
    return [f.name for f in schedule.state.program.funcs]


@pytest.mark.parametrize(
    "shape, axes, blocks",
    [((64, 64), 2, True), ((9, 512), 1, True), ((600, 9, 9), 3, True), ((509,), 1, False),
     ((9, 256), 1, False), ((256, 1), 2, False)],
    ids=str,
)  # fmt: skip
def test_blocks_are_for_many_terms_that_they_divide(shape, axes, blocks):
    names = funcs(place("argmax", shape, td.f32, axes))
    assert ("y_argmax_best" in names) == ("y_argmax_block" in names) == blocks


def test_columns_and_what_is_computed_stay_as_they_are():
    x, y, s = td.Tensor("x", (1024, 64), td.f32), td.Func("y"), td.Func("s")
    y[j] = td.argmax(x[i, j], axis=i)
    assert "y_argmax_best" not in funcs(y)
    s[i, j] = td.sqrt(x[i, j])
    z = td.Func("z")
    z[()] = td.argmax(s[i, j], axis=(i, j))
    assert "z_argmax_best" not in funcs(z)  # the func is no array
    assert "z_argmax_best" in td.compile(z).explain()  # it is inlined


def test_a_schedule_by_hand_keeps_its_loops():
    y = place("argmax", (64, 64), td.f32, 2)
    s = td.Schedule(y)
    s["y_argmax"].unroll(j)
    assert "best" not in td.compile(s).explain()
