"""Programs on ranks that go on from one another: layouts of other libraries, chains."""

import numpy as np

import tdsl as td

i, j, k, m = td.vars("i j k m")
rng = np.random.default_rng(0)

# A product whose matrices come in, and whose result goes out, as ScaLAPACK has them: blocks of 8 x 8, dealt out.
A, B, C = td.Tensor("A", (60, 50), td.f64), td.Tensor("B", (50, 40), td.f64), td.Func("C")
C[i, j] = td.sum(A[i, k] * B[k, j], axis=k)
grid = td.Grid(rows=2, columns=2)
s = td.Schedule(C)
for name in ("A", "B", "C"):
    s.place(name, "rc -> r/8 c/8", grid)
_, columns = s[C].distribute((i, j), grid)
panel, inside = s[C].divide(k, 5)
s[C].reorder(panel, s[C].local(i), s[C].local(j), inside)
s[C].communicate(("A", "B"), at=panel).communicate(C, at=columns)
a, b = rng.standard_normal((60, 50)), rng.standard_normal((50, 40))
p = td.compile(s)
np.testing.assert_allclose(p.simulate(a, b), a @ b)
assert p.block("A", a, rank=3).shape == (28, 24)  # rows 8-15, 24-31, 40-47, 56-59; columns 8-15, ...

# Two nodes of three ranks each: what is alike in all nodes is placed by a notation for each level.
machine = [td.Grid(node=2), td.Grid(rank=3)]
s = td.Schedule(C)
s.place("A", ("mk -> m", "mk -> m"), machine).place("B", ("kn -> *", "kn -> *"), machine)
s.place("C", ("mn -> m", "mn -> m"), machine)
s[C].distribute(onto=C)
p = td.compile(s)
np.testing.assert_allclose(p.simulate(a, b), a @ b)
assert p.plan().total_received == 0

# A chain: the second product reads the first where it was made; the result is brought to rows.
D, E, F = td.Tensor("D", (40, 30), td.f64), td.Func("E"), td.Func("F")
E[i, j] = td.sum(C[i, m] * D[m, j], axis=m)
F[j, i] = E[i, j]
s = td.Schedule(F)
for name in ("A", "B", "C", "D", "E"):
    s.place(name, "rc -> r c", grid)
s[C].distribute(onto=C)
s[E].distribute(onto=E)
s.place(F, "rc -> r r", grid)
s[F].distribute(onto=F)
d = rng.standard_normal((40, 30))
p = td.compile(s)
np.testing.assert_allclose(p.simulate(a, b, d), (a @ b @ d).T)
print(p.plan().summary())
