"""Products in bands of rows."""

import numpy as np

import tdsl as td


def test_what_lies_across_is_packed_although_one_tile_has_all_of_it() -> None:
    """64 columns are one register tile, but those of v lay 256 elements apart and were gathered."""
    i, j, d, e = td.vars("i j d e")
    q, k, v = (td.Tensor(n, s, td.f32) for n, s in (("q", (256, 64)), ("k", (256, 64)), ("v", (64, 256))))
    score, top, p, out = (td.Func(n) for n in ("score", "top", "p", "out"))
    score[i, j] = td.sum(q[i, d] * k[j, d], axis=d)
    top[i] = td.max(score[i, j], axis=j)
    p[i, j] = td.exp(score[i, j] - top[i])
    out[i, e] = td.sum(p[i, j] * v[e, j], axis=j) * 0.5
    s = td.Schedule(out)
    assert td.recipes.bands(s[out]) is not None
    assert 's.cache_read("v"' in str(s)
    rng = np.random.default_rng(0)
    a, b, c = (rng.random(x, dtype=np.float32) for x in ((256, 64), (256, 64), (64, 256)))
    z = a @ b.T
    wanted = np.exp(z - z.max(1, keepdims=True)) @ c.T * 0.5
    np.testing.assert_allclose(td.compile(s)(a, b, c), wanted, rtol=1e-4)
