"""The search reads rows in tiles where they are too long for a cache, and only there."""

import numpy as np

import tdsl as td
from tests.tilegraph.test_search import attention


def test_long_rows_on_the_cpu_are_read_in_tiles() -> None:
    long = attention.autoschedule(Q=64, S=60_000, D=32, E=32)
    short = attention.autoschedule(Q=64, S=256, D=32, E=32)
    assert ".online(" in str(long)
    assert ".online(" not in str(short)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 32)).astype(np.float32) for n in (64, 60_000, 60_000))
    z = np.exp(q @ k.T / 8 - (q @ k.T / 8).max(1, keepdims=True))
    want = z @ v / z.sum(1, keepdims=True)
    np.testing.assert_allclose(td.compile(long)(q, k, v), want, rtol=1e-3, atol=1e-5)
