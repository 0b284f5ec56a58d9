"""Operators, compiled programs and graphs of a module, as a process that unpickles them imports it."""

import tdsl as td


@td.op
def soft(x: td.f32["M", "N"]):
    i, j, k = td.vars("i j k")
    e, y = td.Func("e"), td.Func("y")
    e[i, j] = td.exp(x[i, j] - td.max(x[i, k], axis=k))
    y[i, j] = e[i, j] / td.sum(e[i, k], axis=k)
    return y


@td.Graph
def twice(x):
    return soft(x) * 2 + soft(x * 2)


def outer(x):
    return twice(x) + 1


def local_operator():
    @td.op
    def scale(x: td.f32["M", "N"]):
        i, j = td.vars("i j")
        y = td.Func("y")
        y[i, j] = td.exp(x[i, j]) * 3
        return y

    return scale


def scheduled():
    s = soft.schedule()
    s["y"].split("i", 4)
    return td.compile(s, N=33)
