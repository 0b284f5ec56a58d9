"""Weights are trained on ranks, and saved at each step: if a rank dies, the next run goes on from there.

    tdsl run -n 4 --restarts 3 examples/22_restart.py checkpoints

runs on four ranks, and on one rank less after each failure.
"""
import sys
import tempfile
import numpy as np
import tdsl as td

ROWS, WIDTH, STEPS = 96, 5, 60
i, j, k = td.vars("i j k")
x, y = td.Tensor("x", (ROWS, WIDTH), td.f64), td.Tensor("y", (ROWS,), td.f64)
w = td.Tensor("w", (WIDTH,), td.f64)
error, gradient, new = td.Func("error"), td.Func("gradient"), td.Func("new")
error[i] = td.sum(x[i, j] * w[j], axis=j) - y[i]
gradient[j] = td.sum(error[i] * x[i, j], axis=i)
new[j] = w[j] - 0.5 / ROWS * gradient[j]

grid, s = td.Grid(r=td.mpi.size()), td.Schedule(new)
s.place(x, "ij -> i", grid).place(y, "i -> i", grid)             # data: a part of the rows on each rank
s.place(w, "j -> *", grid).place(gradient, "j -> *", grid).place(new, "j -> *", grid)
for f in s.program.funcs[:2]:                                    # the sum, and the error
    s.place(f.name, "i -> i", grid)[f.name].distribute(i, grid)
s[gradient].distribute(i, grid)                                  # summed over ranks
s[new].distribute("*", grid)
p = td.compile(s)

rng = np.random.default_rng(0)
data, right = rng.standard_normal((ROWS, WIDTH)), rng.standard_normal(WIDTH)
rows, results = p.block("x", data), p.block("y", data @ right)
with tempfile.TemporaryDirectory() as temporary:
    folder = sys.argv[1] if len(sys.argv) > 1 else temporary
    step, blocks = p.load(folder, missing_ok=True) or (0, {"w": np.zeros(WIDTH)})
    for n in range(step, STEPS):
        blocks["w"] = p(rows, results, blocks["w"])
        p.save(folder, blocks, step=n + 1)                       # as the next value of w
np.testing.assert_allclose(blocks["w"], right, atol=1e-6)
if td.mpi.rank() == 0:
    print(f"{STEPS} steps, {step} of them before: largest error {np.abs(blocks['w'] - right).max():.1e}")
