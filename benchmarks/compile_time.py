"""Time until a program runs: import, first compile, chains of stages, disk cache, a call.

Every sample is taken in a fresh process (this module as a program), with an empty disk cache except where
the cache is what is measured.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
STAGES = (10, 20, 30, 40, 80)
TITLES = {
    "import": "import tdsl, beyond importing numpy",
    "first": "first kernel of a process, of one stage: the compiler is loaded, too",
    "stencil": "two-stage stencil, compiled and called",
    "stencil, cached": "the same from the disk cache, in a new process",
    **{f"chain {n}": f"chain of {n} stages, compiled and called" for n in STAGES},
    "search chain": "schedule for a chain of 6 operators, found without measuring",
    "search block": "schedules for all kernels of a transformer block, found without measuring",
    "call": "one call of a kernel, less one of an empty function",
    "operator": "one call of a kernel inside of a graph of 200, less the call of a graph of 100",
}


def run(console: Console, names: list[str], rounds: int) -> list[dict[str, Any]]:
    """Take `rounds` samples of each measurement, round by round; print and return them."""
    samples: dict[str, list[float]] = {name: [] for name in names or TITLES}
    for _ in range(rounds):
        for name, times_ms in samples.items():
            with tempfile.TemporaryDirectory() as cache:
                if name == "stencil, cached":
                    sample(__name__, "stencil", cache=cache)
                times_ms.append(sample(__name__, name.partition(",")[0], cache=cache))
    table = Table(title="compile time", title_justify="left")
    table.add_column("what")
    for head in ("min ms", "median ms", "max ms"):
        table.add_column(head, justify="right")
    for name, times_ms in samples.items():
        figures = (min(times_ms), statistics.median(times_ms), max(times_ms))
        table.add_row(TITLES[name], *(f"{ms:.3g}" if ms < 1 else f"{ms:.1f}" for ms in figures))
    console.print(table)
    return [{"case": name, "samples_ms": times_ms} for name, times_ms in samples.items()]


def sample(module: str, *arguments: str, cache: str) -> float:
    """The number that a module prints in a process of its own, with the disk cache in `cache`."""
    # The folder of a TemporaryDirectory is closed to others, as the cache wants it.
    out = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=os.environ | {"TDSL_CACHE_DIR": cache, "TDSL_PROBE": "0"},  # the probe runs once on a machine
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(json.loads(out.stdout))


def import_ms() -> float:
    import numpy  # noqa: F401  # its time is not ours

    return timed(lambda: __import__("tdsl"))


def first_ms() -> float:
    import numpy as np

    import tdsl as td

    i = td.vars("i")
    a, f = td.Tensor("a", ("N",), td.f32), td.Func("f")
    f[i] = a[i] * 2
    array = np.ones(100, np.float32)
    return timed(lambda: td.compile(f)(array))


def stencil_ms() -> float:
    import numpy as np

    import tdsl as td
    from tdsl.tools import demo

    first_ms()  # what is measured is compiling, not loading the compiler
    image = np.ones((64, 64), np.float32)
    _, blur = demo.blur_program()
    return timed(lambda: td.compile(blur)(image))


def chain_ms(stages: int) -> float:
    """A chain of three-point stencils, each stage on the one before, in turn along either axis."""
    import numpy as np

    import tdsl as td

    y, x = td.vars("y x")
    image = td.Tensor("image", ("H", "W"), td.f32)
    stage: Any = td.pad(image, mode="edge")
    for n in range(stages):
        f = td.Func(f"stage{n}")
        dy, dx = n % 2, 1 - n % 2
        f[y, x] = (stage[y - dy, x - dx] + stage[y, x] * (n + 1) + stage[y + dy, x + dx]) / (n + 3)
        stage = f
    array = np.ones((64, 64), np.float32)
    first_ms()
    # The image bounds the output: nothing else says how far a chain of total stages reaches.
    output = stage.with_shape("H", "W")
    return timed(lambda: td.compile(output)(array))


def search_chain_ms() -> float:
    """An inverted residual: three convolutions, two relu6 and a sum, as one program."""
    from benchmarks.chains.convolution import CHAINS

    chain = next(c for c in CHAINS if c.name == "chain-12")
    arrays, graph = chain.inputs(), chain.graph()
    graph.plan(*arrays)
    return timed(lambda: graph.autoschedule(*arrays))


def search_block_ms() -> float:
    """The block of `examples/models/transformer.py`: one search for each program among its groups."""
    import runpy

    import tdsl as td
    from tdsl.target import as_target
    from tdsl.tilegraph.search import candidates

    example = runpy.run_path(str(ROOT / "examples" / "models" / "transformer.py"))
    plan = td.Graph(example["block"]).plan(example["x"], example["w"])
    programs = {step.program for step in plan.steps}
    target = as_target("cpu")
    return timed(lambda: [candidates(program, {}, target) for program in programs])


def call_ms() -> float:
    import numpy as np

    import tdsl as td

    i = td.vars("i")
    a = td.Tensor("a", (1,), td.f32)
    twice = td.Func("twice")
    twice[i] = a[i] * 2
    kernel, array, out = td.compile(twice), np.ones(1, np.float32), np.ones(1, np.float32)
    kernel(array, out=out)

    def empty(a: Any, out: Any) -> None:
        pass

    return best_ms(kernel, array, out) - best_ms(empty, array, out)


def operator_ms() -> float:
    import numpy as np

    import tdsl as td

    i = td.vars("i")
    a = td.Tensor("a", (1,), td.f32)
    twice = td.Func("twice")
    twice[i] = a[i] * 2
    kernel, array, out = td.compile(twice), np.ones(1, np.float32), np.ones(1, np.float32)

    def chain(length: int) -> Callable[..., object]:
        def calls(x: Any) -> Any:
            for _ in range(length):
                x = kernel(x)
            return x

        graph = td.Graph(calls, fuse=False)
        for _ in range(3):
            graph(array)
        return lambda array, out: graph(array)

    long, short = (best_ms(chain(length), array, out, 1_000) for length in (200, 100))
    return (long - short) / 100


def best_ms(call: Callable[..., object], array: Any, out: Any, count: int = 20_000) -> float:
    """The time of one call, in the fastest of ten rounds of `count` calls."""

    def loop() -> None:
        for _ in range(count):
            call(array, out=out)

    return min(timed(loop) for _ in range(10)) / count


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    """Take the measurement named on the command line."""
    name = sys.argv[1]
    kind, _, stages = name.partition(" ")
    measurements: dict[str, Callable[[], float]] = {
        "import": import_ms,
        "first": first_ms,
        "stencil": stencil_ms,
        "chain": lambda: chain_ms(int(stages)),
        "search chain": search_chain_ms,
        "search block": search_block_ms,
        "call": call_ms,
        "operator": operator_ms,
    }
    print(json.dumps(measurements[name if name in measurements else kind]()))


if __name__ == "__main__":
    main()
