"""Operators whose funcs a search can keep near."""

import tdsl as td


@td.op
def softmax(x: td.f32["M", "N"]):
    i, j = td.vars("i j")
    top, e, total, out = (td.Func(n) for n in ("top", "e", "total", "out"))
    top[i] = td.max(x[i, j], axis=j)
    e[i, j] = td.exp(x[i, j] - top[i])
    total[i] = td.sum(e[i, j], axis=j)
    out[i, j] = e[i, j] / total[i]
    return out


@td.op
def attention(q: td.f32["Q", "D"], k: td.f32["S", "D"], v: td.f32["S", "D"]):
    i, j, d = td.vars("i j d")
    score, top, p, total, out = (td.Func(n) for n in ("score", "top", "p", "total", "out"))
    score[i, j] = td.sum(q[i, d] * k[j, d], axis=d)
    top[i] = td.max(score[i, j], axis=j)
    p[i, j] = td.exp(score[i, j] - top[i])
    total[i] = td.sum(p[i, j], axis=j)
    out[i, d] = td.sum(p[i, j] * v[j, d], axis=j) / total[i]
    return out
