"""The matrix products of the literature, as schedules of one operator."""

from typing import Any

import tdsl as td


@td.op
def matmul(A: td.f64["M", "K"], B: td.f64["K", "N"]):
    i, j, k = td.vars("i j k")
    C = td.Func("C")
    C[i, j] = td.sum(A[i, k] * B[k, j], axis=k)
    return C


def place(s: Any, grid: td.Grid, a: str, b: str, c: str) -> Any:
    for name, notation in (("A", a), ("B", b), ("C", c)):
        s.place(name, notation, grid)
    return s["C"]


def flat(grid: td.Grid, turn: str, tiles: str = "rc -> r c", **sizes: int) -> Any:
    """Tiles of A, B and C on one grid; `turn` are those of i and j by which the order of k is rotated."""
    s = matmul.schedule(**sizes)
    C = place(s, grid, *(tiles,) * 3)
    io, jo = C.distribute(("i", "j"), grid)
    ko, ki = C.divide("k", grid.x)
    C.reorder(ko, "i", "j", ki)
    if turn:
        ko = C.rotate(ko, by=tuple({"i": io, "j": jo}[x] for x in turn))
    C.communicate("C", at=jo)
    C.communicate(("A", "B"), at=ko)
    return s


def cube(grid: td.Grid, **sizes: int) -> Any:
    """k is distributed, too: C is a sum over ranks. Each matrix lives on a side of the grid."""
    s = matmul.schedule(**sizes)
    C = place(s, grid, "mk -> m 0 k", "kn -> 0 n k", "mn -> m n 0")
    C.communicate(("A", "B", "C"), at=C.distribute(("i", "j", "k"), grid)[-1])
    return s


def two_and_a_half(grid: td.Grid, **sizes: int) -> Any:
    """Layers of a square grid share k; in each the tiles are turned."""
    s = matmul.schedule(**sizes)
    C = place(s, grid, "mk -> m k 0", "kn -> k n 0", "mn -> m n 0")
    io, jo, ko = C.distribute(("i", "j", "k"), grid)
    kio, kii = C.divide(C.local("k"), grid.x // grid.z)
    C.reorder(kio, "i", "j", kii)
    C.communicate("C", at=ko)
    C.communicate(("A", "B"), at=C.rotate(kio, by=(io, jo)))
    return s


# m, n, k, ranks, and the words that a rank receives where the least moves
LEAST_RECEIVED = [
    (1024, 1024, 1024, 4, 524_288),
    (1024, 1024, 1024, 8, 393_216),
    (1024, 1024, 1024, 16, 327_680),
    (1024, 1024, 16384, 4, 786_432),
    (2048, 512, 256, 4, 98_304),
    (1000, 700, 300, 4, 127_500),
    (1000, 1000, 1000, 65, 140_625),
]
