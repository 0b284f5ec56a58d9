"""A step of training that is a graph, planned on a cluster, is called with the arguments of the graph."""

import numpy as np

import tdsl as td


@td.op
def linear(x: td.f32["B", "I"], w: td.f32["I", "O"]):
    b, i, o = td.vars("b i o")
    y = td.Func("y")
    y[b, o] = td.sum(x[b, i] * w[i, o], axis=i)
    return y


def loss(weights, x, target):
    error = linear(linear(x, weights[0]), weights[1]) - target
    return (error * error).sum() / 8


def step(weights, x, target):
    value, gradients = td.value_and_grad(td.Graph(loss), "weights")(weights, x, target)
    return value, [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]


def test_a_step_with_gradients_and_an_update_is_planned_as_one_program():
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((4, 6), np.float32), rng.standard_normal((6, 4), np.float32)]
    x, target = rng.standard_normal((8, 4), np.float32), rng.standard_normal((8, 4), np.float32)
    graph, cluster = td.Graph(step), td.Cluster(ranks=2)
    inputs = [a.name for a in td.compile(graph.distribute(cluster, weights, x, target)).signature.inputs]
    assert len(inputs) == 4  # the seed of the gradient is a number of the program
    outputs = graph.distribute(cluster, weights, x, target).program.outputs
    fix = dict(zip(outputs[1:], inputs[:2], strict=True))  # the new weights are the next step's
    s = graph.distribute(cluster, weights, x, target, fix={inputs[2]: "bi -> b", **fix})
    got, counted = td.compile(s, target="python").simulate(*weights, x, target, count=True)
    value, new = graph(weights, x, target)
    for a, wanted in zip(got, (value, *new), strict=True):
        np.testing.assert_allclose(a, wanted, rtol=1e-4, atol=1e-4)
    assert counted.received == td.compile(s).plan().received
    placed = dict(s.state.placed)
    assert all(placed[v].entries == placed[w].entries for v, w in fix.items())
