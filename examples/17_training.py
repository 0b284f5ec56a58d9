"""How training is spread over ranks: data parallel, ZeRO, Megatron, GShard, Adam as in CoCoNet.

Each is a schedule of one program. The bytes that a rank receives are printed as planned, as counted and by the
closed form of the literature. Run alone, or under `mpiexec -n 2`, 4 or 8.
"""
import numpy as np

import tdsl as td

P = td.mpi.size() if td.mpi.size() > 1 else 4
ranks = td.Grid(p=P)
rng = np.random.default_rng(0)
b, c, e, f, g, h, i, j, k, m, s, t = td.vars("b c e f g h i j k m s t")
F64 = 8                                                 # bytes of an element
SHARE = (P - 1) / P                                     # of a tensor, what a rank has not got of it


def report(name, schedule, expected, closed, by_data=False, **arrays):
    """Run a schedule, compare its results with NumPy's, and its bytes with the closed form.

    If data decide what moves, the bytes of the plan are expected ones.
    """
    program = td.compile(schedule)
    plan, inputs = program.plan(), [a.name for a in program.signature.inputs]
    if td.mpi.size() > 1:
        results, count = program(*(program.block(n, arrays[n]) for n in inputs), count=True)
        results = results if isinstance(results, tuple) else (results,)
        outputs = [a.name for a in program.signature.outputs]
        results = [program.gather(n, block) for n, block in zip(outputs, results)]
        counted, planned = count.received, plan.received[td.mpi.rank()]
    else:
        results, count = program.simulate(*(arrays[n] for n in inputs), count=True)
        results = results if isinstance(results, tuple) else (results,)
        counted, planned = count.received[0], plan.received[0]
    if td.mpi.rank() == 0:
        for got, wanted in zip(results, expected):
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)
        print(f"{name:34} {planned:8} {counted:8} {closed:10.0f}   peak memory {max(plan.peak_memory)}")
    assert counted == closed and (by_data or planned == counted), name


# -- a step of gradient descent on two layers

B, N, K = 16, 8, 32
X, T = td.Tensor("X", (B, N), td.f64), td.Tensor("T", (B, N), td.f64)
W1, W2 = td.Tensor("W1", (N, K), td.f64), td.Tensor("W2", (K, N), td.f64)


def two_layers():
    """Y = relu(X W1) W2, the adjoints of |Y - T|^2 / 2 by W1 and W2, and the weights after a step."""
    hidden, y, error = td.Func("hidden"), td.Func("y"), td.Func("error")
    hidden[b, k] = td.maximum(td.sum(X[b, i] * W1[i, k], axis=i), 0)
    y[b, j] = td.sum(hidden[b, k] * W2[k, j], axis=k)
    error[b, j] = y[b, j] - T[b, j]
    d1, d2 = td.vjp(y, [W1, W2], seed=error)
    V1, V2 = td.Func("V1"), td.Func("V2")
    V1[i, k] = W1[i, k] - 0.01 * d1[i, k]
    V2[k, j] = W2[k, j] - 0.01 * d2[k, j]
    return (V1, V2), (d1, d2)


x, w1, w2, wanted = (rng.standard_normal(shape) for shape in ((B, N), (N, K), (K, N), (B, N)))
a = np.maximum(x @ w1, 0)
r = a @ w2 - wanted
stepped = w1 - 0.01 * (x.T @ (r @ w2.T * (a > 0))), w2 - 0.01 * (a.T @ r)
layers = {"X": x, "T": wanted, "W1": w1, "W2": w2}
PSI1 = PSI2 = N * K * F64                               # bytes of the weights
PSI = PSI1 + PSI2


def data_parallel(weights, gradients, update):
    """The batch is cut; weights, gradients and the update of a weight are placed as said."""
    (V1, V2), (d1, d2) = two_layers()
    schedule = td.Schedule(V1, V2)
    schedule.place(X, "bi -> b", ranks).place(T, "bj -> b", ranks)
    for V, W, d in ((V1, W1, d1), (V2, W2, d2)):
        schedule.place(W, weights, ranks).place(d, gradients, ranks).place(V, weights, ranks)
        schedule[d].distribute(b, ranks)
        schedule[V].distribute(V.definitions[0].free[0] if update == "r" else update, ranks)
        if weights == "rc -> r" or update == "*":
            schedule.overwrite(V, W)                    # the new weight in the memory of the old one
    rows = [n.name for n in schedule.program.funcs if n.variables[0] == "b"]
    for n in rows:                                      # what belongs to the batch stays with its rank
        schedule.place(n, "rc -> r", ranks)[n].distribute("b", ranks)
    return schedule


report("data parallel: all-reduce", data_parallel("rc -> *", "rc -> *", "*"), stepped, 2 * SHARE * PSI, **layers)
report("ZeRO-1: parts, slices, all-gather", data_parallel("rc -> *", "rc -> partial(sum)", "r"), stepped,
       2 * SHARE * PSI, **layers)
report("ZeRO-2: reduce-scatter, all-gather", data_parallel("rc -> *", "rc -> r", "r"), stepped,
       2 * SHARE * PSI, **layers)
# W1 is gathered once, since X has no gradient; W2 forward and backward
report("ZeRO-3: weights are slices, too", data_parallel("rc -> r", "rc -> r", "r"), stepped,
       SHARE * (2 * PSI1 + 3 * PSI2), **layers)


def megatron():
    """The first weight is cut by columns, the second by rows: one all-reduce of the result."""
    (V1, V2), (d1, d2) = two_layers()
    schedule = td.Schedule(V1, V2)
    for name in ("X", "T"):
        schedule.place(name, "rc -> *", ranks)
    for n in (W1, d1, V1):
        schedule.place(n, "ik -> k", ranks)
    for n in (W2, d2, V2):
        schedule.place(n, "kj -> k", ranks)
    schedule.place("y", "bj -> *", ranks).place("error", "bj -> *", ranks)
    for n in (n.name for n in schedule.program.funcs):
        if n not in ("y", "error", V1.name, V2.name, d1.name, d2.name):
            schedule.place(n, "bk -> k", ranks)         # hidden units and their adjoints
        schedule[n].distribute("*" if n == "error" else "k", ranks)
    return schedule


report("Megatron: MLP, a training step", megatron(), stepped, 2 * SHARE * B * N * F64, **layers)

# -- attention by heads: queries, keys and values of a head stay on one rank

S, M, H, E = 6, 16, 8, 4
Z = td.Tensor("Z", (S, M), td.f64)
WQ, WK, WV = (td.Tensor(n, (M, H, E), td.f64) for n in ("WQ", "WK", "WV"))
WO = td.Tensor("WO", (H, E, M), td.f64)
q, key, v, score, top, weight, total, head, out = (
    td.Func(n) for n in ("q", "key", "v", "score", "top", "weight", "total", "head", "out")
)
for to, W in ((q, WQ), (key, WK), (v, WV)):
    to[h, s, e] = td.sum(Z[s, m] * W[m, h, e], axis=m)
score[h, s, t] = td.sum(q[h, s, e] * key[h, t, e], axis=e) / 2
top[h, s] = td.max(score[h, s, t], axis=t)
weight[h, s, t] = td.exp(score[h, s, t] - top[h, s])
total[h, s] = td.sum(weight[h, s, t], axis=t)
head[h, s, e] = td.sum(weight[h, s, t] * v[h, t, e], axis=t) / total[h, s]
out[s, m] = td.sum(head[h, s, e] * WO[h, e, m], axis=(h, e))

schedule = td.Schedule(out).place(Z, "sm -> *", ranks).place(WO, "hem -> h", ranks)
for W in (WQ, WK, WV):
    schedule.place(W, "mhe -> h", ranks)
for n in (q, key, v, head):
    schedule.place(n, "hse -> h", ranks)[n].distribute(h, ranks)
schedule.place(out, "sm -> *", ranks)[out].distribute(h, ranks)

z, wq, wk, wv = rng.standard_normal((S, M)), *(rng.standard_normal((M, H, E)) for _ in range(3))
wo = rng.standard_normal((H, E, M))
qs, ks, vs = (np.einsum("sm,mhe->hse", z, w) for w in (wq, wk, wv))
p = np.exp(qs @ ks.transpose(0, 2, 1) / 2)
mixed = (p / p.sum(-1, keepdims=True)) @ vs
report("Megatron: attention by heads", schedule, [np.einsum("hse,hem->sm", mixed, wo)],
       2 * SHARE * S * M * F64, Z=z, WQ=wq, WK=wk, WV=wv, WO=wo)

# -- experts: tokens go to the rank of their expert, and come back

G, EXPERTS, C = 8, 8, 2                                 # groups of tokens, experts, tokens of an expert and group
D = td.Tensor("D", (G, S, EXPERTS, C), td.f64)          # 1 where a token has a place at an expert
tokens, WE = td.Tensor("tokens", (G, S, M), td.f64), td.Tensor("WE", (EXPERTS, M, M), td.f64)
sent, worked, back = td.Func("sent"), td.Func("worked"), td.Func("back")
sent[e, g, c, m] = td.sum(D[g, s, e, c] * tokens[g, s, m], axis=s)
worked[e, g, c, f] = td.sum(sent[e, g, c, m] * WE[e, m, f], axis=m)
back[g, s, f] = td.sum(D[g, s, e, c] * worked[e, g, c, f], axis=(e, c))

schedule = td.Schedule(back).place(D, "gsec -> g", ranks).place(tokens, "gsm -> g", ranks)
schedule.place(WE, "emf -> e", ranks).place(sent, "egcm -> e", ranks).place(worked, "egcf -> e", ranks)
schedule[sent].distribute(g, ranks)
schedule[worked].distribute(e, ranks)
schedule.place(back, "gsf -> g", ranks)[back].distribute(g, ranks)

d, tok, we = np.zeros((G, S, EXPERTS, C)), rng.standard_normal((G, S, M)), rng.standard_normal((EXPERTS, M, M))
for group in range(G):
    for row, place in enumerate(rng.permutation(EXPERTS * C)[:S]):
        d[group, row, place // C, place % C] = 1
expert = np.einsum("egcm,emf->egcf", np.einsum("gsec,gsm->egcm", d, tok), we)
report("GShard: dispatch and combine", schedule, [np.einsum("gsec,egcf->gsf", d, expert)],
       2 * (P - 1) * (EXPERTS // P) * (G // P) * C * M * F64, D=d, tokens=tok, WE=we)

# -- the same by indices: experts fetch the tokens of their slots, groups the results of their tokens

token = td.Tensor("token", (G, EXPERTS, C), td.i64)     # the token in each slot of an expert
slot = td.Tensor("slot", (G, S), td.i64)                # the slot of each token, counted over all experts
sent, worked, back = td.Func("sent"), td.Func("worked"), td.Func("back")
sent[e, g, c, m] = tokens[g, token[g, e, c], m]
worked[e, g, c, f] = td.sum(sent[e, g, c, m] * WE[e, m, f], axis=m)
back[g, s, f] = worked[slot[g, s] // C, g, slot[g, s] % C, f]

schedule = td.Schedule(back).place(token, "gec -> e", ranks).place(slot, "gs -> g", ranks)
schedule.place(tokens, "gsm -> g", ranks).place(WE, "emf -> e", ranks)
for n in (sent, worked):
    schedule.place(n, "egcm -> e", ranks)[n].distribute(e, ranks)
(by_group,) = schedule.place(back, "gsf -> g", ranks)[back].distribute(g, ranks)
schedule[sent].communicate(tokens, at="e_o", routed=True)
schedule[back].communicate(worked, at=by_group, routed=True)

slots = np.stack([np.flatnonzero(d[group].reshape(S, -1)) % (EXPERTS * C) for group in range(G)])
chosen = np.zeros((G, EXPERTS * C), np.int64)           # an empty slot takes token 0
np.put_along_axis(chosen, slots, np.arange(S)[None], axis=1)
rows = np.zeros((2, P, P), int)                         # by reader and owner, each row once
for group in range(G):
    on = group // (G // P)
    for expert_rank, part in enumerate(np.split(chosen[group], P)):
        rows[0, expert_rank, on] += len(set(part))
        rows[1, on, expert_rank] += np.sum(slots[group] * P // (EXPERTS * C) == expert_rank)
rows[:, np.arange(P), np.arange(P)] = 0
me = td.mpi.rank()                                      # numbers of rows, their offsets, the rows
moved = 2 * (P - 1) * 8 + 8 * rows[:, :, me].sum() + M * F64 * rows[:, me].sum()
report("GShard: by indices of data", schedule, [np.einsum("gsec,egcf->gsf", d, expert)], moved, by_data=True,
       token=chosen.reshape(G, EXPERTS, C), slot=slots, tokens=tok, WE=we)

# -- Adam after the gradient of a weight: on all of it everywhere, or on slices that are gathered

A, L = td.Tensor("A", (B, N), td.f64), td.Tensor("L", (B, K), td.f64)
w, mean, square = (td.Tensor(n, (N, K), td.f64) for n in ("w", "mean", "square"))
grad, mean2, square2, new = td.Func("grad"), td.Func("mean2"), td.Func("square2"), td.Func("new")
grad[i, k] = td.sum(A[b, i] * L[b, k], axis=b)
mean2[i, k] = 0.9 * mean[i, k] + 0.1 * grad[i, k]
square2[i, k] = 0.99 * square[i, k] + 0.01 * grad[i, k] ** 2
new[i, k] = w[i, k] - 0.01 * mean2[i, k] / (td.sqrt(square2[i, k]) + 1e-8)

first, second, weights = (rng.random((N, K)) for _ in range(3))
loss = rng.standard_normal((B, K))
gradient = x.T @ loss
first2, second2 = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
adam = first2, second2, weights - 0.01 * first2 / (np.sqrt(second2) + 1e-8)
for name, placed, by in (("CoCoNet: all-reduce, then Adam", "ik -> *", "*"), ("CoCoNet: Adam on slices", "ik -> i", i)):
    schedule = td.Schedule(mean2, square2, new).place(A, "bi -> b", ranks).place(L, "bk -> b", ranks)
    schedule.place(w, "ik -> *", ranks).place(new, "ik -> *", ranks)
    for tensor in (mean, square, grad, mean2, square2):
        schedule.place(tensor, placed, ranks)
    schedule[grad].distribute(b, ranks)
    for n in (mean2, square2, new):
        schedule[n].distribute(by, ranks)
    schedule.overwrite(mean2, mean).overwrite(square2, square)
    report(name, schedule, adam, 2 * SHARE * N * K * F64, A=x, L=loss, w=weights, mean=first, square=second)
