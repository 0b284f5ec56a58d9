"""Schedules whose bytes are counted: programs of the benchmarks in sizes whose loops can run in Python.

They are for the machine of the context (`figures.use_machine`): by hand, by default, by the search where it
leaves the default, and as the best of its candidates that have tiles inside of tiles.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

import tdsl as td
from benchmarks.cases import (
    bilateral_grid,
    blur3x3,
    chains,
    conv,
    conv_relu,
    gemm,
    harris,
    jacobi,
    rows,
    sgemm,
    unsharp,
)
from benchmarks.chains import table, tdsl_operators
from tdsl.target import Target
from tdsl.tilegraph.search import Candidate, candidates

Start = Callable[[], td.Schedule]  # without any directives
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Counted:
    """A schedule by the names of its program and method; `build` returns None if there is none."""

    group: str
    method: str
    build: Callable[[], td.Compiled | None]

    @property
    def name(self) -> str:
        """Both together."""
        return f"{self.group}, {self.method}"


def search_result(start: Start) -> td.Compiled | None:
    """What the search takes, where that is not the default schedule."""
    best, *_ = _candidates(start)
    return None if best.label == "default" else td.compile(best.schedule)


def nested_tiles(start: Start) -> td.Compiled | None:
    """The best candidate of the search that has tiles inside of tiles, where it takes another."""
    _, *others = _candidates(start)
    best = next((c for c in others if c.label.endswith("tiles")), None)
    return None if best is None else td.compile(best.schedule)


def _candidates(start: Start) -> list[Candidate]:
    empty = start()
    return candidates(empty.program, empty.sizes, Target("cpu"))


def of_func(program: Callable[..., td.Func], *args: object, **sizes: int) -> Start:
    """A program without directives."""
    return lambda: td.Schedule(program(*args), sizes=sizes)


def of_chain(name: str, *shapes: Shape) -> Start:
    """A chain of the benchmarks on arrays of other shapes."""
    (chain,) = (c for c in table.CHAINS if c.name == name)

    def start() -> td.Schedule:
        graph = td.Graph(lambda *arrays: chain.compute(tdsl_operators, *arrays))
        arrays = [np.zeros(shape, np.float32) for shape in shapes]
        return td.Schedule.of_program(graph.autoschedule(*arrays).program)

    return start


def schedules(group: str, start: Start, hand: Callable[[], td.Compiled] | None = None) -> list[Counted]:
    """All schedules of a program."""
    by_hand = [] if hand is None else [Counted(group, "by hand", hand)]
    return [
        *by_hand,
        Counted(group, "default", lambda: td.compile(start())),
        Counted(group, "found", partial(search_result, start)),
        Counted(group, "tiles", partial(nested_tiles, start)),
    ]


def _output(program: Callable[..., dict[str, td.Func]]) -> Callable[..., td.Func]:
    return lambda *sizes: program(*sizes)["out"]


HEIGHT, WIDTH = 64, 96
PRODUCT = {"M": 54, "N": 64, "K": 60}
PIXELS = {"N": 1, "H": 10, "W": 17, "C": 8, "F": 64}
BLOCK = {"N": 1, "C": 8, "H": 12, "W": 14, "F": 24, "G": 16}
DEEP = {"N": 1, "C": 16, "H": 24, "W": 20, "G": 16}

SCHEDULES = (
    *schedules(
        "unsharp mask", of_func(_output(unsharp.program), HEIGHT, WIDTH),
        partial(unsharp.hand, HEIGHT, WIDTH),
    ),
    *schedules(
        "harris", of_func(_output(harris.program), HEIGHT, WIDTH), partial(harris.hand, HEIGHT, WIDTH)
    ),
    *schedules(
        "bilateral grid", of_func(_output(bilateral_grid.program), HEIGHT, WIDTH),
        partial(bilateral_grid.hand, HEIGHT, WIDTH),
    ),
    *schedules("blur", of_func(lambda: blur3x3.program(128, 128)[1]), partial(blur3x3.hand, 128, 128)),
    *schedules("jacobi", of_func(jacobi.program, 4, 96)),
    *schedules(
        "conv relu", partial(conv_relu.conv_relu.schedule, **PIXELS), partial(conv_relu.hand, **PIXELS),
    ),
    *schedules("conv, channels first", partial(conv.block_first.schedule, **BLOCK)),
    *schedules("conv, channels last", partial(conv.block_last.schedule, **BLOCK)),
    *schedules("separable, channels first", partial(conv.separable_first.schedule, **DEEP)),
    *schedules("separable, channels last", partial(conv.separable_last.schedule, **DEEP)),
    *schedules("product", partial(sgemm.sgemm.schedule, **PRODUCT), partial(sgemm.hand, **PRODUCT)),
    *schedules("product, transposed", of_func(gemm.product, td.f32, "tn", **PRODUCT)),
    *schedules("attention", of_func(chains.attention, H=2, S=64, D=16)),
    *schedules("softmax", partial(rows.softmax.schedule, R=64, C=500)),
    *schedules("softmax, long rows", partial(rows.softmax.schedule, R=3, C=12_000)),
    *schedules("gelu and norm", partial(rows.gelu_norm.schedule, R=48, C=320)),
    *schedules("chain 3", of_chain("chain-3", (1, 8, 24, 32), (8,), (8,), (16, 8, 1, 1), (16, 3, 3))),
    *(
        entries
        for side in (24, 33)
        for entries in schedules(
            f"chain 5, {side} rows",
            of_chain("chain-5", (1, 8, side, side), (8,), (8,), (16, 8, 1, 1), (8, 8, 1, 1), (8,)),
        )
    ),
    *schedules("chain 10", of_chain("chain-10", (1, 8, 20, 24), (24, 8, 1, 1), (24, 3, 3), (8, 12, 1, 1))),
    *schedules("chain 12", of_chain("chain-12", (1, 6, 24, 24), (24, 6, 1, 1), (24, 3, 3), (6, 24, 1, 1))),
    *schedules("chain 14", of_chain("chain-14", (48, 32), (32, 72), (72,), (72, 32), (32,), (32,), (32,))),
    *schedules("chain 22", of_chain("chain-22-512", (1, 96, 49), (1, 49, 32), (1, 32, 49))),
    *schedules("chain 35", of_chain("chain-35-h2o", (2, 48, 24), (2, 48, 24), (2, 48, 24))),
    *schedules("chain 41", of_chain("chain-41", *((1, 4, 32, 32),) * 18, *((1, 36, 16, 16),) * 2)),
    *schedules("chain 42", of_chain("chain-42", (40, 32), (32, 56), (32, 56), (56, 32))),
)  # fmt: skip
