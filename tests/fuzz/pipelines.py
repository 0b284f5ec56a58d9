"""Chains of stencils, samplers and sums over windows: programs whose schedules have windows that slide.

Integers, so that every result is certain to the bit. Stages are total; the last one has a shape.
"""

from __future__ import annotations

from typing import Any

import tdsl as td
from tests.fuzz.choices import Choices
from tests.fuzz.made import Made
from tests.fuzz.programs import EXTENTS

MODES = ("edge", "reflect", "symmetric", "wrap", "constant")


def random_pipeline(choices: Choices) -> Made:
    """Two to six stages of one or two dimensions, each read by one or two later ones."""
    return _Pipeline(choices).build()


class _Pipeline:
    def __init__(self, choices: Choices) -> None:
        self.c = choices
        self.names: dict[str, Any] = {"td": td}
        self.lines: list[str] = []
        self.variables = ("i", "j")[: choices.integer(1, 2)]

    def run(self, line: str) -> None:
        exec(line, self.names)
        self.lines.append(line)

    def build(self) -> Made:
        c, rank = self.c, len(self.variables)
        self.run('i, j, k, l, m, n = td.vars("i j k l m n")')
        shape = tuple(c.weighted(EXTENTS) or 1 for _ in range(rank))
        sizes = {f"N{e}": e for e in shape if c.chance(40)}
        texts = ", ".join(f'"N{e}"' if f"N{e}" in sizes else str(e) for e in shape)
        self.run(f'a0 = td.Tensor("a0", ({texts},), td.i32)')
        self.run(f'a0p = td.pad(a0, mode="{c.pick(MODES)}")')
        stages = ["a0p"]
        for at in range(c.integer(2, 6)):
            self.stage(f"f{at}", stages)
            stages.append(f"f{at}")
        extents = ", ".join(str(c.pick((1, 2, 5, 7, 8, 13, 16, 17))) for _ in range(rank))
        self.run(f"{stages[-1]}.with_shape({extents})")
        return Made(
            self.lines,
            self.names,
            [stages[-1]],
            sizes,
            {"a0": (shape, td.i32)},
            {},
            kind="pipeline",
        )

    def stage(self, name: str, stages: list[str]) -> None:
        self.run(f'{name} = td.Func("{name}")')
        source = stages[-1] if self.c.chance(80) else self.c.pick(stages)
        value = self.value(source)
        if self.c.chance(25):
            value = f"{value} - {self.value(self.c.pick(stages))}"
        left = ", ".join(self.variables)
        self.run(f"{name}[{left}] = {value}")
        if self.c.chance(15):
            self.run('r, t = td.range("r", 0, 3), td.range("t", -1, 1)')
            point = tuple(self.c.pick((v, v, "0", "2")) for v in ("r", "t")[: len(self.variables)])
            self.run(f"{name}[{', '.join(point)}] += {self.value(source, point)}")

    def value(self, source: str, point: tuple[str, ...] = ()) -> str:
        how = self.c.weighted(
            {
                "stencil": 6,
                "window": 4,
                "point": 3,
                "down": 2,
                "up": 2,
                "back": 1,
                "quotient": 2,
                "cycle": 1,
            }
        )
        point = point or self.variables
        at = self.c.integer(0, len(point) - 1)
        v = point[at]

        def read(index: str) -> str:
            return f"{source}[{', '.join((*point[:at], index, *point[at + 1 :]))}]"

        match how:
            case "stencil":
                by = self.c.integer(1, 3)
                return f"({read(f'{v} - {by}')} + 3 * {read(f'{v} + 1')})"
            case "window":
                lo = self.c.integer(-3, 0)
                hi = lo + self.c.integer(1, 5)
                where = ""
                if self.c.chance(30):
                    op = self.c.pick(("<", ">=", "!="))
                    where = f", where=lambda m: m {op} {self.c.pick(point)} - {self.c.integer(0, 4)}"
                axis = f'td.range("m", {lo}, {hi}{where})'
                inner = read(f"{v} + m")
                return f"td.sum({inner} * (m + 2), axis={axis}, dtype=td.i32)"
            case "down":
                return f"({read(f'2 * {v}')} + {read(f'2 * {v} + 1')})"
            case "up":
                return f"({read(f'{v} // 2')} ^ {read(f'({v} + 1) // 2')})"
            case "quotient":
                op, by = self.c.pick(("//", "%")), self.c.pick((3, 5, 7, -3, -6))
                return f"({read(f'{v} // 3')} {op} {by})"
            case "cycle":
                return read(f"({v} + 1) % {self.c.integer(2, 6)}")
            case "back":
                return read(f"5 - {v}")
            case _:
                return f"({read(v)} * 5 + {v})"
