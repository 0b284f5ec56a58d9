"""How compile time grows with the size of a program: curves over n for several families of programs.

Each point is taken in a fresh process (this module as a program) with an empty disk cache: building the
program, compiling it and one call, after the compiler was loaded by another program.
"""

import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.compile_time import first_ms, sample, timed

COUNTS = (10, 20, 40, 80)


def run(console: Console, names: list[str], rounds: int) -> list[dict[str, Any]]:
    """Take `rounds` samples of each point; print the curves with their exponents and return them."""
    table = Table(title="compile time by n, ms (median)", title_justify="left")
    for head in ("family", *map(str, COUNTS), "exponent"):
        table.add_column(head, justify="left" if head == "family" else "right")
    results = []
    for name in names or FAMILIES:
        samples = {n: [point(name, n) for _ in range(rounds)] for n in COUNTS}
        medians = [statistics.median(samples[n]) for n in COUNTS]
        exponent = fitted_exponent(COUNTS, medians)
        table.add_row(name, *(f"{ms:.0f}" for ms in medians), f"{exponent:.2f}")
        results.append({"case": name, "samples_ms": samples, "exponent": exponent})
    console.print(table)
    return results


def fitted_exponent(counts: Sequence[int], times: Sequence[float]) -> float:
    """The slope of the line of least squares through the logarithms of counts and times.

    >>> round(fitted_exponent((10, 20, 40), (3.0, 12.0, 48.0)), 3)
    2.0
    """
    x, y = [list(map(math.log, values)) for values in (counts, times)]
    return statistics.linear_regression(x, y).slope


def point(name: str, n: int) -> float:
    """Milliseconds of one point."""
    with tempfile.TemporaryDirectory() as cache:
        return sample(__name__, name, str(n), cache=cache)


def _stages(n: int, body: Callable[[Any, Any], Any]) -> Any:
    import tdsl as td

    i = td.vars("i")
    stage: Any = td.Tensor("a", (1000,), td.f32)
    for k in range(n):
        f = td.Func(f"f{k}", shape=1000)
        f[i] = body(stage, i)
        stage = f
    return stage


def chain(n: int) -> Any:
    """Each stage reads the one before twice."""
    import tdsl as td

    return _stages(n, lambda p, i: p[i] * 0.99 + td.minimum(p[i], 1))


def mirrored(n: int) -> Any:
    """Stages of one operation on two elements of the one before."""
    return _stages(n, lambda p, i: p[i] + p[999 - i])


def padded(n: int) -> Any:
    """Two paddings of the stage before."""
    import tdsl as td

    return _stages(n, lambda p, i: td.pad(p, mode="reflect")[i - 1] + td.pad(p, mode="wrap")[i + 1])


def diamonds(n: int) -> Any:
    """Two funcs read the stage before, and the next one both."""
    import tdsl as td

    i = td.vars("i")
    stage: Any = td.Tensor("a", (1000,), td.f32)
    for k in range(n):
        left, right, f = td.Func(f"left{k}"), td.Func(f"right{k}"), td.Func(f"f{k}")
        left[i] = stage[i] * 2 + 1
        right[i] = td.exp(-stage[i] * stage[i])
        f[i] = left[i] * right[i] + 1
        stage = f
    return stage


def shared(n: int) -> Any:
    """One expression whose value is in both arms of a choice, n times."""
    import tdsl as td

    i, a, f = td.vars("i"), td.Tensor("a", (1000,), td.f32), td.Func("f")
    e: Any = a[i]
    for k in range(n):
        e = td.where(a[i] > k, e * 0.5, e + 1)
    f[i] = e
    return f


def fan_out(n: int) -> Any:
    """n funcs read one, and one reads all of them."""
    import tdsl as td

    i, a, source, f = td.vars("i"), td.Tensor("a", (1000,), td.f32), td.Func("source"), td.Func("f")
    source[i] = td.exp(a[i]) * 2
    total: Any = 0.0
    for k in range(n):
        g = td.Func(f"g{k}")
        g[i] = source[i] * (k + 1) + k
        total = total + g[i]
    f[i] = total
    return f


def outputs(n: int) -> Any:
    """n outputs of one array."""
    import tdsl as td

    i, a = td.vars("i"), td.Tensor("a", (1000,), td.f32)
    funcs = [td.Func(f"f{k}") for k in range(n)]
    for k, f in enumerate(funcs):
        f[i] = a[i] * (k + 1) + k
    return tuple(funcs)


def reductions(n: int) -> Any:
    """n outputs that are sums of rows of one array."""
    import tdsl as td

    i, j = td.vars("i j")
    a = td.Tensor("a", (32, 32), td.f32)
    funcs = [td.Func(f"f{k}") for k in range(n)]
    for k, f in enumerate(funcs):
        f[i] = td.sum(a[i, j] * (k + 1), axis=j)
    return tuple(funcs)


def updates(n: int) -> Any:
    """n updates of one func."""
    import tdsl as td

    i, a, f = td.vars("i"), td.Tensor("a", (1000,), td.f32), td.Func("f", shape=1000)
    f[i] = a[i]
    for k in range(n):
        f[i] += a[i] * k
    return f


def products(n: int) -> Any:
    """A chain of products of matrices."""
    import tdsl as td

    i, j, k = td.vars("i j k")
    a = td.Tensor("a", (32, 32), td.f32)
    stage: Any = a
    for m in range(n):
        f = td.Func(f"f{m}")
        f[i, j] = td.sum(stage[i, k] * a[k, j], axis=k)
        stage = f
    return stage


FAMILIES: dict[str, Callable[[int], Any]] = {
    "chain": chain, "mirrored": mirrored, "padded": padded, "diamonds": diamonds, "shared": shared,
    "fan-out": fan_out, "outputs": outputs, "reductions": reductions, "updates": updates,
    "products": products,
}  # fmt: skip


def main() -> None:
    """Print the milliseconds of the family and n on the command line."""
    import numpy as np

    import tdsl as td

    family, n = FAMILIES[sys.argv[1]], int(sys.argv[2])
    first_ms()  # what is measured is compiling, not loading the compiler
    shape = (32, 32) if family in (reductions, products) else (1000,)
    array = np.ones(shape, np.float32)
    print(json.dumps(timed(lambda: td.compile(family(n))(array))))


if __name__ == "__main__":
    main()
