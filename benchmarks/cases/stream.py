"""What waits for memory: a copy, a triad and a blur of arrays beyond the caches, against STREAM."""

import numpy as np

import tdsl as td
from benchmarks import stream_peers
from benchmarks.case import Array, Arrays, Case, kernel, within
from benchmarks.stream_peers import BLOCK

COUNT = 1024 * BLOCK  # elements: 64 MB
SIDE = 4096
EPS = float(np.finfo(np.float32).eps)


def copy() -> td.Func:
    i, a, out = td.vars("i"), td.Tensor("a", (COUNT,), td.f32), td.Func("out")
    out[i] = a[i]
    return out


def triad() -> td.Func:
    i, out = td.vars("i"), td.Func("out")
    a, b = (td.Tensor(name, (COUNT,), td.f32) for name in "ab")
    out[i] = a[i] + 3 * b[i]
    return out


def blur(*, lines_first: bool) -> td.Func:
    """Sums of three neighbours in lines and in columns, in one order or the other."""
    y, x = td.vars("y x")
    a = td.Tensor("a", (SIDE, SIDE), td.f32)
    edge, sums = td.pad(a, mode="edge"), td.Func("sums")
    out = td.Func("out", shape=(SIDE, SIDE))
    if lines_first:
        sums[y, x] = edge[y, x - 1] + edge[y, x] + edge[y, x + 1]
        out[y, x] = (sums[y - 1, x] + sums[y, x] + sums[y + 1, x]) * (1 / 9)
    else:
        sums[y, x] = edge[y - 1, x] + edge[y, x] + edge[y + 1, x]
        out[y, x] = (sums[y, x - 1] + sums[y, x] + sums[y, x + 1]) * (1 / 9)
    return out


def blurred(a: Array) -> Array:
    edge = np.pad(a, 1, mode="edge")
    rows = edge[:-2] + edge[1:-1] + edge[2:]
    return (rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]) / 9


def arrays(count: int, *shape: int) -> Arrays:
    rng = np.random.default_rng(8)
    return tuple(rng.standard_normal(shape, dtype=np.float32) for _ in range(count))


def blur_case(name: str, *, lines_first: bool, group: str) -> Case:
    return Case(
        name=name,
        title=f"3x3 blur, {SIDE} x {SIDE}, {'lines' if lines_first else 'columns'} first, against a copy",
        inputs=lambda: arrays(1, SIDE, SIDE),
        is_right=within(9 * EPS, blurred),
        peers={
            "tdsl": kernel(lambda: td.compile(blur(lines_first=lines_first))),
            "stream": stream_peers.same_traffic(blurred),
        },
        bytes=2 * 4 * SIDE * SIDE,
        group=group,
    )


CASES = (
    Case(
        name="stream-copy",
        title="copy, 64 MB",
        inputs=lambda: arrays(1, COUNT),
        is_right=within(0, lambda a: a),
        peers={"tdsl": kernel(lambda: td.compile(copy())), "stream": stream_peers.copy},
        bytes=2 * 4 * COUNT,
        group="stream",
    ),
    Case(
        name="stream-triad",
        title="a + 3 b, 64 MB each",
        inputs=lambda: arrays(2, COUNT),
        is_right=within(2 * EPS, lambda a, b: a + 3 * b),
        peers={"tdsl": kernel(lambda: td.compile(triad())), "stream": stream_peers.triad},
        bytes=3 * 4 * COUNT,
        group="stream",
    ),
    blur_case("stream-blur", lines_first=True, group="stream"),
    blur_case("stream-blur-columns", lines_first=False, group=""),
)
