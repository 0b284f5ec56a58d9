"""The scan of Mamba-2 in chunks: within a chunk as attention with decay, between chunks through a state."""

import math

import numpy as np

import tdsl as td

STEPS, CHUNK, HEADS, P, S = 96, 16, 4, 16, 8  # P channels of a head, S numbers of state for each


@td.op
def decay(dt: td.f32["C", "L", "H"], a: td.f32["H"]):
    """How far the state has decayed at the end of each step of a chunk, as a logarithm."""
    c, t, h = td.vars("c t h")
    total, step = td.Func("total", shape=dt.shape), td.range("step", 1, dt.shape[1])
    total[c, t, h] = dt[c, t, h] * a[h]
    total[c, step, h] += total[c, step - 1, h]
    return total


@td.op
def chunk_states(
    x: td.f32["C", "L", "H", "P"],
    dt: td.f32["C", "L", "H"],
    b: td.f32["C", "L", "S"],
    total: td.f32["C", "L", "H"],
):
    """What each chunk adds to the state."""
    c, t, h, p, s = td.vars("c t h p s")
    left, out = td.Func("left"), td.Func("out")
    left[c, t, h] = td.exp(total[c, total.shape[1] - 1, h] - total[c, t, h]) * dt[c, t, h]
    out[c, h, p, s] = td.sum(left[c, t, h] * b[c, t, s] * x[c, t, h, p], axis=t)
    return out


@td.op
def pass_states(states: td.f32["C", "H", "P", "S"], total: td.f32["C", "L", "H"]):
    """The state before each chunk."""
    c, h, p, s = td.vars("c h p s")
    before, chunk = td.Func("before", shape=states.shape), td.range("chunk", 1, states.shape[0])
    before[c, h, p, s] = td.cast(0, td.f32)
    kept = before[chunk - 1, h, p, s] * td.exp(total[chunk - 1, total.shape[1] - 1, h])
    before[chunk, h, p, s] = kept + states[chunk - 1, h, p, s]
    return before


@td.op
def chunk_scan(
    x: td.f32["C", "L", "H", "P"],
    dt: td.f32["C", "L", "H"],
    b: td.f32["C", "L", "S"],
    c_: td.f32["C", "L", "S"],
    total: td.f32["C", "L", "H"],
    before: td.f32["C", "H", "P", "S"],
):
    c, t, u, h, p, s = td.vars("c t u h p s")
    alike, weight, near, far = (td.Func(n) for n in ("alike", "weight", "near", "far"))
    alike[c, t, u] = td.sum(c_[c, t, s] * b[c, u, s], axis=s)
    since = td.where(u <= t, total[c, t, h] - total[c, u, h], -math.inf)
    weight[c, h, t, u] = alike[c, t, u] * td.exp(since) * dt[c, u, h]
    near[c, t, h, p] = td.sum(weight[c, h, t, u] * x[c, u, h, p], axis=u)
    far[c, t, h, p] = td.sum(c_[c, t, s] * before[c, h, p, s], axis=s)
    out = td.Func("out")
    out[c, t, h, p] = near[c, t, h, p] + far[c, t, h, p] * td.exp(total[c, t, h])
    return out


def block(x, dt, b, c, a):
    x, dt, b, c = (v.reshape(-1, CHUNK, *v.shape[1:]) for v in (x, dt, b, c))
    total = decay(dt, a)
    before = pass_states(chunk_states(x, dt, b, total), total)
    out = chunk_scan(x, dt, b, c, total, before)
    return out.reshape(-1, *out.shape[2:])


def expected(x, dt, b, c, a):
    """The recurrence, step by step."""
    state, out = np.zeros((HEADS, P, S)), []
    for t in range(len(x)):
        state = state * np.exp(dt[t] * a)[:, None, None]
        state += dt[t][:, None, None] * x[t][:, :, None] * b[t]
        out.append(state @ c[t])
    return np.stack(out)


rng = np.random.default_rng(0)
x, b, c = (
    rng.standard_normal(s, dtype=np.float32) for s in ((STEPS, HEADS, P), (STEPS, S), (STEPS, S))
)
dt = rng.uniform(0.01, 0.2, (STEPS, HEADS)).astype(np.float32)
a = -rng.uniform(0.5, 2, HEADS).astype(np.float32)
for run in (block, td.Graph(block)):  # operator by operator, and as a whole
    np.testing.assert_allclose(run(x, dt, b, c, a), expected(x, dt, b, c, a), rtol=1e-3, atol=1e-4)
