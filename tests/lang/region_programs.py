"""Small random programs whose stages need boxes of each other in many ways, for `test_region_programs.py`."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import tdsl as td

N, M = 9, 7  # of the arrays; as names these are P and Q


class Program:
    """Outputs, and the arrays that they may read, of a program with `names` for extents, or numbers."""

    def __init__(self, seed: int, *, names: bool) -> None:
        self.draw = random.Random(seed)
        n, m = ("P", "Q") if names else (N, M)
        self.x = td.Tensor("x", (n,), td.i32)
        self.u = td.Tensor("u", (m,), td.u8)
        self.a = td.Tensor("a", (n, m), td.i64)
        self.i, self.j = td.vars("i j")
        funcs = [self._index_func()]
        for k in range(self.draw.randint(1, 3)):
            funcs.append(self._func(k, funcs))
        out = td.Func("out", shape=(self.draw.randint(1, 4), self.draw.randint(1, 4)))
        i, j = self.i, self.j
        # every array is read, so that its extents are known
        read = self.x[0] + self.u[0] + self.a[0, 0]
        out[i, j] = self._read(funcs, i, j) + self._read(funcs, j, i) + read
        self.outputs = (out,)

    def _index_func(self) -> Any:
        """Positions that are stored: data with bounds."""
        f, i = td.Func("at"), self.i
        f[i] = self.draw.choice(
            (
                lambda: td.clip(self.x[i], 0, self.draw.randint(0, 4)),
                lambda: self.u[i] % 5,
                lambda: td.cast(self.u[td.clip(i, 0, M - 1)] & 3, td.i32),
                lambda: td.clip(td.cast(self.x[i], td.i64), 0, self.x.shape[0] - 1),
            )
        )()
        if self.draw.random() < 0.3:
            r = td.range("r", 0, self.draw.randint(1, 3))
            f[r] = td.cast(self.draw.randint(0, 4), f.dtype)
        return f

    def _func(self, k: int, funcs: list[Any]) -> Any:
        pick = self.draw.choice
        shape = pick((None, None, None, (N, N), (6, 8)))
        f = td.Func(f"f{k}", shape=shape) if shape else td.Func(f"f{k}")
        i, j = self.i, self.j
        f[i, j] = pick(
            (
                lambda: td.cast(k, td.i64),
                lambda: td.cast(i * 3 + j, td.i64),
                lambda: self.a[i, j],
                lambda: self.a[self._offset(i), self._offset(j)] + self.a[self._offset(i), self._offset(j)],
                lambda: self._read(funcs, i, j),
                lambda: td.pad(self.a, mode="edge")[self._offset(i), self._offset(j)],
            )
        )()
        for n in range(pick((0, 0, 1, 1, 2, 3))):
            self._update(f, f"{k}{n}", funcs)
        return f

    def _update(self, f: Any, name: str, funcs: list[Any]) -> None:
        pick, i, j = self.draw.choice, self.i, self.j
        lo = pick((0, 0, 0, 1, 2))
        hi = lo + pick((0, 1, 2, 3, 4))
        where = pick(
            (
                None,
                None,
                lambda r: r != 2,
                lambda r: self.u[r] > 3,
                lambda r: (self.u[r] > 3) & (r < 3),
                lambda r: r < self.u[td.clip(r, 0, 6)],
            )
        )
        if pick((0, 0, 1)):
            hi = pick((self.x.shape[0], self.a.shape[1], self.x.shape[0] - 4))
        r = td.range(f"r{name}", lo, hi, where=where)
        at, shift = funcs[0], pick((-1, 1, 2))
        pick((
            lambda: f.__setitem__((i, i + shift), f[i, i + shift] + 1),
            lambda: f.__setitem__((j + shift, j), f[j + shift, j] + 2),
            lambda: f.__setitem__((r, j), f[r, j] + f[r - 1, j]),
            lambda: f.__setitem__((i, r), f[i, td.maximum(r - 1, 0)] + f[i, r]),
            lambda: f.__setitem__((i, 5 - r), f[i, r] * 2 + 1),
            lambda: f.__setitem__((r, at[r]), f[r, at[r]] + 1),
            lambda: f.__setitem__((at[r], at[r]), f[at[r], at[r]] + self.x[r]),
            lambda: f.__setitem__((i, at[r]), f[i, at[r]] + self._read(funcs, i, r)),
            lambda: f.__setitem__((td.minimum(r + 1, 4), j), f[r, j] + 1),
            lambda: f.__setitem__((2 * r, r // 2), f[2 * r, r // 2] + 3),
            lambda: f.__setitem__((i, j), td.maximum(f[i, j], 0)),
        ))()  # fmt: skip

    def _read(self, funcs: list[Any], i: Any, j: Any) -> Any:
        g = self.draw.choice(funcs[1:] or [self.a])
        i, j = self._offset(i), self._offset(j)
        at = funcs[0]
        i, j = self.draw.choice((
            lambda: (i, j), lambda: (i, j), lambda: (i, j), lambda: (at[td.clip(i, 0, 3)], j),
            lambda: (i, at[td.clip(j, 0, 2)]), lambda: (td.clip(i, 0, 3), i), lambda: (3 - i, j // 2),
        ))()  # fmt: skip
        return g[i, j]

    def _offset(self, e: Any) -> Any:
        return e + self.draw.choice((0, 0, 0, 1, 2, -1))

    def arrays(self) -> dict[str, Any]:
        """Values of the inputs."""
        rng = np.random.default_rng(self.draw.randint(0, 99))
        return {
            "x": rng.integers(-5, 12, N).astype(np.int32),
            "u": rng.integers(0, 256, M).astype(np.uint8),
            "a": rng.integers(-9, 9, (N, M)),
        }
