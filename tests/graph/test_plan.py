"""The text of a plan, and its memory."""

import numpy as np

import tdsl as td


@td.op
def double(x: td.f32["N"]):
    i = td.vars("i")
    out = td.Func("out")
    out[i] = x[i] * 2
    return out


@td.op
def running(x: td.f32["N"]):
    i = td.vars("i")
    out, step = td.Func("out", shape=x.shape), td.range("step", 1, x.shape[0])
    out[i] = x[i]
    out[step] += out[step - 1]
    return out


def chain(x):
    for _ in range(4):
        x = double(running(x))
    return x


def test_a_line_for_each_group_and_the_memory(golden):
    g = td.Graph(chain, target="python")
    golden(str(g.plan(td.f32[100])))
    assert str(g) == str(g.plan(td.f32[100]))


def test_results_share_memory():
    memory = td.Graph(chain, target="python").plan(td.f32[100]).memory
    assert memory.unshared_bytes == 3 * 448
    assert memory.peak == memory.lower_bound == 2 * 448
    assert all(offset % 64 == 0 for offset in memory.offsets.values())


def test_the_memory_of_a_graph_is_that_of_its_last_plan():
    g = td.Graph(chain, target="python")
    g(np.ones(10, np.float32))
    assert g.memory.peak == 2 * 64
    g.plan(td.f32[100])
    assert g.memory.peak == 2 * 448
    assert repr(g) == "<graph chain(x)>"
