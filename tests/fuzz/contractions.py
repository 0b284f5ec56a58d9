"""Sums of products with few loops and odd extents, transposes, and what follows them element by element.

Integers, or floats whose sums are exact, so that every result is certain to the bit.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tdsl as td
from tests.fuzz.choices import Choices
from tests.fuzz.made import Made

EXTENTS = {1: 2, 2: 2, 3: 3, 5: 3, 7: 3, 8: 4, 13: 3, 16: 4, 17: 3, 31: 2, 33: 3, 64: 2, 67: 1, 130: 1}
TYPES = {"f32": 8, "f64": 4, "i32": 4, "i64": 2, "u8": 1, "i16": 1, "i8": 1, "u32": 1, "u64": 1, "f16": 1}
VARIABLES = ("i", "j", "k", "l", "m")
MOST_POINTS, MOST_ELEMENTS = 60_000, 6_000


def random_contraction(choices: Choices) -> Made:
    """One to three stages, each a sum of products, a transpose, or a function of the one before."""
    return _Contraction(choices).build()


class _Contraction:
    def __init__(self, choices: Choices) -> None:
        self.c = choices
        self.names: dict[str, Any] = {"td": td}
        self.lines: list[str] = []
        self.inputs: dict[str, tuple[tuple[int, ...], Any]] = {}
        self.extents = {v: choices.weighted(EXTENTS) for v in VARIABLES}
        self.dtype = choices.weighted(TYPES)

    def run(self, *lines: str) -> None:
        for line in lines:
            exec(line, self.names)
            self.lines.append(line)

    def build(self) -> Made:
        self.run('i, j, k, l, m = td.vars("i j k l m")')
        last, outputs = "", list[str]()
        for n in range(self.c.weighted({1: 5, 2: 3, 3: 2})):
            last = self.stage(f"f{n}", last)
            if self.c.chance(15):
                outputs.append(last)
        outputs = list(dict.fromkeys([*outputs, last]))
        return Made(self.lines, self.names, outputs, {}, self.inputs, {}, kind="contraction")

    def variables(self, most: int) -> list[str]:
        """Some variables, in any order, with few points together."""
        left, chosen = list(VARIABLES), list[str]()
        for _ in range(self.c.integer(1, most)):
            v = self.c.pick(left)
            if prod(self.extents[x] for x in chosen) * self.extents[v] <= MOST_POINTS:
                left.remove(v)
                chosen.append(v)
        return chosen

    def stage(self, name: str, last: str) -> str:
        if last and self.c.chance(30):
            return self.pointwise(name, last)
        chosen = self.variables(5)
        free = [v for v in chosen if self.c.chance(55)]
        while prod(self.extents[v] for v in free) > MOST_ELEMENTS:
            free.pop()
        if len(free) == len(chosen) and self.c.chance(60):
            free.pop()
        summed = [v for v in chosen if v not in free]
        operands = list[str]()
        for _ in range(self.c.integer(1, 3)):
            operands.append(self.operand(chosen, last))
        missing = [v for v in chosen if not any(v in _index(x) for x in operands)]
        if missing:
            operands.append(self.read(missing))
        value = operands[0]
        for x in operands[1:]:
            value = f"{value} {self.c.weighted({'*': 8, '+': 1})} {x}"
        if self.c.chance(15):
            value = f"{self.c.pick(('abs', 'td.square'))}({value})"
        if summed:
            how = self.c.weighted({"sum": 9, "max": 1, "min": 1})
            axis = summed[0] if len(summed) == 1 else f"({', '.join(summed)})"
            value = f"td.{how}({value}, axis={axis})"
        self.run(f'{name} = td.Func("{name}")')
        self.run(f"{name}[{', '.join(free) or '()'}] = {value}")
        return name

    def operand(self, chosen: list[str], last: str) -> str:
        """A read of an array by some variables; the same array as before at times, in another order."""
        if last and self.c.chance(60):
            shape = self.shape(last)
            if all(n in [self.extents[v] for v in chosen] for n in shape):
                at = [self.c.pick([v for v in chosen if self.extents[v] == n]) for n in shape]
                return f"{last}[{', '.join(at) or '()'}]"
        for array, (shape, _) in self.inputs.items():
            fitting = [[v for v in chosen if self.extents[v] == n] for n in shape]
            if all(fitting) and self.c.chance(40):
                return f"{array}[{', '.join(map(self.c.pick, fitting))}]"
        few = [v for v in chosen if self.c.chance(60)] or chosen[:1]
        while prod(self.extents[v] for v in few) > MOST_ELEMENTS:
            few.pop()
        if self.c.chance(40):
            few.reverse()
        return self.read(few)

    def read(self, variables: list[str]) -> str:
        """A read of a new input; shifted in one of its axes at times, or of another stride."""
        shape, index = [self.extents[v] for v in variables], list(variables)
        if index and self.c.chance(12):
            at = self.c.integer(0, len(index) - 1)
            by = self.c.integer(1, 2)
            if self.c.chance(50):
                shape[at], index[at] = shape[at] + by, f"{index[at]} + {by}"
            else:
                shape[at], index[at] = 2 * shape[at], f"{index[at]} * 2"
        name = f"a{len(self.inputs)}"
        text = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        self.run(f'{name} = td.Tensor("{name}", ({text}), td.{self.dtype})')
        self.inputs[name] = (tuple(shape), getattr(td, self.dtype))
        return f"{name}[{', '.join(index) or '()'}]"

    def pointwise(self, name: str, last: str) -> str:
        """A function of the elements of a stage, in its order of dimensions or another."""
        rank = len(self.shape(last))
        at = list(VARIABLES[:rank])
        left = [*at]
        if self.c.chance(40):
            left.reverse()
        read = f"{last}[{', '.join(at) or '()'}]"
        text = self.c.pick((f"td.maximum({read}, 0)", f"{read} + {read}", f"{read} * 3 + 1"))
        self.run(f'{name} = td.Func("{name}")')
        self.run(f"{name}[{', '.join(left) or '()'}] = {text}")
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        made = Made(self.lines, self.names, [name], {}, self.inputs, {})
        (box,) = (box for n, box in realised(made).items() if n == name)
        return tuple(hi - lo + 1 for lo, hi in box)


def realised(made: Made) -> Any:
    """The boxes of all funcs of a program."""
    from tdsl.lang.interpreted_boxes import realised_boxes

    return realised_boxes(made.program())


def _index(read: str) -> str:
    return read.partition("[")[2]
