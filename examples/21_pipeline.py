"""The gradients of a perceptron whose layers are on ranks of their own, by micro-batches in several orders."""
import numpy as np
import tdsl as td

LAYERS, BATCH, WIDTH, STEPS = 4, 32, 8, 8
b, i, j = td.vars("b i j")
x, dy = td.Tensor("x", (BATCH, WIDTH), td.f64), td.Tensor("dy", (BATCH, WIDTH), td.f64)
w = [td.Tensor(f"w{n}", (WIDTH, WIDTH), td.f64) for n in range(LAYERS)]
a, h, d, g = ([td.Func(f"{name}{n}") for n in range(LAYERS)] for name in "ahdg")
for n in range(LAYERS):
    a[n][b, i] = td.maximum((h[n - 1] if n else x)[b, i], 0)      # what the layer receives and keeps
    h[n][b, j] = td.sum(a[n][b, i] * w[n][i, j], axis=i)
for n in reversed(range(LAYERS)):
    after = d[n + 1] if n + 1 < LAYERS else dy
    g[n][i, j] = td.sum(a[n][b, i] * after[b, j], axis=b)
    if n:
        d[n][b, i] = td.sum(td.where(a[n][b, i] > 0, after[b, j] * w[n][i, j], 0), axis=j)


def pipeline(order):
    grid, s = td.Grid(stage=LAYERS), td.Schedule(*g, h[-1])
    s.place(x, "bi -> 0", grid).place(dy, f"bi -> {LAYERS - 1}", grid)
    forward, backward = [], []
    for n in range(LAYERS):
        s.place(w[n], f"ij -> {n}", grid)
        received = {a[n]: h[n - 1] if n else None, h[n]: None, g[n]: d[n + 1] if n + 1 < LAYERS else None}
        if n:
            received[d[n]] = received[g[n]]
        steps = {}
        for f, source in received.items():
            s.place(f, f"ij -> {n}", grid)[f].distribute(n, grid)
            steps[f], _ = s[f].divide(b, STEPS)
            if f is g[n]:
                s[f].reorder(steps[f], i, j)
            if source is not None:
                s[f].communicate(source, at=steps[f], since=source)
        forward.append([steps.pop(a[n]), steps.pop(h[n])])
        backward.append(list(steps.values()))
    return s.interleave(forward + backward[::-1], order=order(LAYERS, STEPS))


rng = np.random.default_rng(0)
arrays = [rng.standard_normal(t.shape) for t in (x, dy, *w)]
inputs, value = [], arrays[0]
for weights in arrays[2:]:
    inputs.append(np.maximum(value, 0))
    value = inputs[-1] @ weights
results, value = [value], arrays[1]
for n in reversed(range(LAYERS)):
    results.insert(0, inputs[n].T @ value)
    value = (value @ arrays[2 + n].T) * (inputs[n] > 0)
for order in (td.recipes.gpipe, td.recipes.one_f_one_b, td.recipes.eager_one_f_one_b):
    p = td.compile(pipeline(order))
    for result, right in zip(p.simulate(*arrays), results):
        np.testing.assert_allclose(result, right, atol=1e-9)
    print(f"{order.__name__:18} peak memory of each rank: {p.plan().peak_memory} bytes")
