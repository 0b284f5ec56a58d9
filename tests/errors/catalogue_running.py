"""Programs that fail while they run, and wrong targets and settings."""

import numpy as np

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i, j, k = td.vars("i j k")
x = td.Tensor("x", (64,), td.f32)
good = np.arange(64, dtype=np.float32)
bad = np.where(good == 37, -1, good).astype(np.float32)


def spoiled(schedule, target="cpu"):
    """Run a program that requires what does not hold at 37, after a call for which it holds."""
    f = schedule.program.outputs[0]
    compiled = td.compile(schedule, target=target)
    assert compiled(good).shape == (64,), f
    return compiled(bad)


@wrong(td.RequireError, "x[37] is -1", hint="holds")
def requirement_in_a_serial_loop():
    f = td.Func("f")
    f[i] = td.require(x[i] >= 0, td.sqrt(x[i]), "x[{}] is {}", i, x[i])  # here
    s = td.Schedule(f)
    s[f].serial(i)
    spoiled(s)


@wrong(td.RequireError, "x[37] is -1", hint="holds")
def requirement_in_a_parallel_loop():
    f = td.Func("f")
    f[i] = td.require(x[i] >= 0, td.sqrt(x[i]), "x[{}] is {}", i, x[i])  # here
    s = td.Schedule(f)
    s[f].parallel(i)
    spoiled(s)


@wrong(td.RequireError, "x[37] is -1", hint="holds")
def requirement_in_vectors():
    f = td.Func("f")
    f[i] = td.require(x[i] >= 0, td.sqrt(x[i]), "x[{}] is {}", i, x[i])  # here
    s = td.Schedule(f)
    s[f].vectorize(i, 8)
    spoiled(s)


@wrong(td.RequireError, "x[37] is -1", hint="holds")
def requirement_in_copies():
    f = td.Func("f")
    f[i] = td.require(x[i] >= 0, td.sqrt(x[i]), "x[{}] is {}", i, x[i])  # here
    s = td.Schedule(f)
    s[f].unroll(i, 4)
    spoiled(s)


@wrong(td.RequireError, "a required condition does not hold", hint="holds")
def requirement_by_default():
    f = td.Func("f")
    f[i] = td.require(x[i] >= 0, td.sqrt(x[i]))  # here
    spoiled(td.Schedule(f))


@wrong(td.RequireError, "x[37] is -1", hint="holds")
def requirement_of_an_inlined_func():
    g, f = td.Func("g"), td.Func("f")
    g[i] = td.require(x[i] >= 0, td.sqrt(x[i]), "x[{}] is {}", i, x[i])  # here
    f[i] = g[i] + 1
    s = td.Schedule(f)
    s[g].inline()
    spoiled(s)


@wrong(td.RequireError, "x[37] is -1", hint="holds")
def requirement_in_python():
    f = td.Func("f")
    f[i] = td.require(x[i] >= 0, td.sqrt(x[i]), "x[{}] is {}", i, x[i])  # here
    spoiled(td.Schedule(f), target="python")


@wrong(td.RequireError, "x[37] is -1", hint="holds")
def requirement_in_numba():
    f = td.Func("f")
    f[i] = td.require(x[i] >= 0, td.sqrt(x[i]), "x[{}] is {}", i, x[i])  # here
    spoiled(td.Schedule(f), target="numba")


@wrong(td.RequireError, "3 rows", hint="holds")
def requirement_on_an_extent():
    y, f = td.Tensor("y", ("N",), td.f32), td.Func("f")
    f[i] = td.require(y.shape[0] % 2 == 0, y[i], "{} rows", y.shape[0])  # here
    td.compile(f, dynamic="N")(np.ones(3, np.float32))


@wrong(td.TargetError, "no target 'gpu'", hint="cpu")
def unknown_target():
    f = td.Func("f")
    f[i] = x[i] * 2
    td.compile(f, target="gpu")  # here


@wrong(td.TargetError, "no target 'gpu'", hint="There are:")
def unknown_target_by_name():
    td.Target("gpu")  # here


@wrong(td.TargetError, "no target 3", hint="There are:")
def target_by_number():
    f = td.Func("f")
    f[i] = x[i] * 2
    td.compile(f, target=3)  # here


@wrong(td.TargetError, "no target 'gpu'", hint="There are:")
def unknown_target_of_a_schedule():
    f = td.Func("f")
    f[i] = x[i] * 2
    td.Schedule(f, target="gpu")  # here


@wrong(td.TargetError, "numba cannot compute with f16", hint="cpu")
def numba_with_half_precision():
    h, f = td.Tensor("h", (8,), td.f16), td.Func("f")
    f[i] = h[i] * 2
    td.compile(f, target="numba")(np.ones(8, np.float16))  # here


@wrong(td.TargetError, "numba cannot compute with bf16", hint="cpu")
def numba_with_bfloat16():
    import ml_dtypes

    h, f = td.Tensor("h", (8,), td.bf16), td.Func("f")
    f[i] = h[i] * 2
    td.compile(f, target="numba")(np.ones(8, ml_dtypes.bfloat16))  # here
