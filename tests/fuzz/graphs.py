"""Random graphs of the operators of networks: products, softmax, norms, convolutions, and what lies between.

Sizes are small enough to be interpreted, ragged, and in part large enough for the tiles of products. The
extents of tensors may be named: then a search can be asked for a schedule of larger ones, which is run on
these.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tdsl as td
from tdsl.lang.types import DType
from tests.fuzz.choices import Choices
from tests.fuzz.made import Made

SIDES = {33: 3, 64: 3, 17: 2, 70: 2, 128: 1, 96: 1, 5: 1, 1: 1}  # of matrices
BATCHES = (2, 3, 5)
CHANNELS = {8: 3, 16: 3, 3: 2, 33: 1, 64: 1}
PIXELS = {12: 3, 17: 3, 28: 2, 34: 1}
MOST_TERMS = 1 << 21  # of one product
MATRIX = {
    "product": 6, "element": 5, "softmax": 3, "norm": 3, "rows": 2, "over_rows": 2, "residual": 3,
    "bias": 2, "transpose": 2, "mask": 1, "columns": 1, "shifted": 2, "padded": 2,
}  # fmt: skip
PICTURE = {
    "conv": 4, "by_channel": 3, "pointwise": 5, "pool": 2, "element": 4, "channel_norm": 2, "residual": 3,
    "scale": 2, "up": 1, "shifted": 1, "padded": 2, "mean": 1,
}  # fmt: skip


def random_graph(choices: Choices) -> Made:
    """Up to seven operators, whose last one is an output, as some of the others are."""
    return _Graph(choices).build()


class _Graph:
    def __init__(self, choices: Choices) -> None:
        self.c = choices
        self.names: dict[str, Any] = {"td": td}
        self.lines: list[str] = []
        self.inputs: dict[str, tuple[tuple[int, ...], DType]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}  # of what can be read
        self.named = choices.chance(60)
        self.half = choices.pick(("", "", "f16", "bf16"))  # what products are made of

    def build(self) -> Made:
        c = self.c
        self.run('b, i, j, k, c, o, p, q = td.vars("b i j k c o p q")')
        picture = c.chance(40)
        if picture:
            shape = (c.weighted(CHANNELS), c.weighted(PIXELS), c.weighted(PIXELS))
        else:
            shape = (c.weighted(SIDES), c.weighted(SIDES))
            shape = (c.pick(BATCHES), *shape) if c.chance(40) else shape
        kinds = PICTURE if picture else MATRIX
        self.indices = ("c", "i", "j") if picture else ("b", "i", "j")[-len(shape) :]
        last = self.tensor(shape)
        for _ in range(c.integer(1, 7)):
            whole = [n for n, s in self.shapes.items() if len(s) == len(shape)]
            source = last if c.chance(80) else c.pick(whole)
            made = getattr(self, c.weighted(kinds))(source, self.shapes[source])
            if made and len(self.shapes[made]) == len(shape):
                last = made
        funcs = [n for n in self.shapes if n not in self.inputs] or [self.element(last, shape)]
        outputs = [n for n in funcs[:-1] if c.chance(12)] + [funcs[-1]]
        extents = {e for s, _ in self.inputs.values() for e in s}
        sizes = {f"N{e}": e for e in sorted(extents)} if self.named else {}
        return Made(self.lines, self.names, outputs, sizes, self.inputs, {}, even=False)

    def run(self, *lines: str) -> None:
        for line in lines:
            exec(line, self.names)
            self.lines.append(line)

    def tensor(self, shape: tuple[int, ...]) -> str:
        """A new input."""
        name, dtype = f"a{len(self.inputs)}", self.half or "f32"
        texts = ", ".join(f'"N{e}"' if self.named else str(e) for e in shape)
        self.run(f'{name} = td.Tensor("{name}", ({texts},), td.{dtype})')
        self.inputs[name] = shape, getattr(td, dtype)
        self.shapes[name] = shape
        return name

    def func(self, index: str, value: str, shape: tuple[int, ...]) -> str:
        """A new func with this value at an index."""
        name = f"f{len(self.shapes)}"
        self.run(f'{name} = td.Func("{name}")', f"{name}[{index}] = {value}")
        self.shapes[name] = shape
        return name

    def read(self, name: str, index: str, *, factor: bool = False) -> str:
        """An element in f32; as a `factor` of a product rounded as those are."""
        text = f"{name}[{index}]"
        if name not in self.inputs and factor and self.half:
            text = f"td.cast({text}, td.{self.half})"
        return f"td.cast({text}, td.f32)" if text.startswith("td.") or self.half else text

    def at(self, *last: str) -> str:
        """The index whose last parts are these."""
        return ", ".join((*self.indices[: len(self.indices) - len(last)], *last))

    # operators of any rank

    def element(self, x: str, shape: tuple[int, ...]) -> str:
        own = self.read(x, self.at())
        value = self.c.pick(
            (
                f"td.maximum({own}, 0.0)", f"{own} * 0.5 + 1", f"td.tanh({own})", f"td.clip({own}, 0, 6)",
                f"td.exp(td.minimum({own}, 2.0))", f"{own} / (1 + td.exp(-{own}))",
            )
        )  # fmt: skip
        return self.func(self.at(), value, shape)

    def residual(self, x: str, shape: tuple[int, ...]) -> str:
        others = [n for n, s in self.shapes.items() if s == shape and n != x]
        y = self.c.pick(others) if others and self.c.chance(70) else self.tensor(shape)
        value = f"{self.read(x, self.at())} {self.c.pick('+-*')} {self.read(y, self.at())}"
        return self.func(self.at(), value, shape)

    def shifted(self, x: str, shape: tuple[int, ...]) -> str | None:
        if min(shape[-2:]) < 4:
            return None
        value = " + ".join(
            self.read(x, self.at(*at)) for at in (("i", "j"), ("i + 1", "j"), ("i + 2", "j + 1"))
        )
        return self.func(self.at(), value, (*shape[:-2], shape[-2] - 2, shape[-1] - 1))

    # matrices

    def product(self, x: str, shape: tuple[int, ...]) -> str | None:
        batch, terms, c = shape[:-2], shape[-1], self.c
        others = [  # x itself among them
            (n, turned)
            for n, s in self.shapes.items()
            for turned in (True, False)
            if s[:-2] == batch and len(s) == len(shape) and s[-1 if turned else -2] == terms
        ]  # fmt: skip
        if others and c.chance(60):
            y, turned = c.pick(others)
            columns = self.shapes[y][-2 if turned else -1]
        else:
            columns, turned = c.weighted(SIDES), c.chance(30)
            matrix = (columns, terms) if turned else (terms, columns)
            y = self.tensor((*batch, *matrix) if c.chance(30) else matrix)
        if prod(shape) * columns > MOST_TERMS:
            return None
        outer = self.indices[:-2] if len(self.shapes[y]) == len(shape) else ()
        index = ", ".join((*outer, *(("j", "k") if turned else ("k", "j"))))
        terms_ = f"{self.read(x, self.at('k'), factor=True)} * {self.read(y, index, factor=True)}"
        scale = c.pick(("", " / 8"))
        return self.func(self.at(), f"td.sum({terms_}, axis=k){scale}", (*shape[:-1], columns))

    def softmax(self, x: str, shape: tuple[int, ...]) -> str:
        row = self.at()[:-3]
        own, term = self.read(x, self.at()), self.read(x, self.at("k"))
        top = self.func(row, f"td.max({term}, axis=k)", shape[:-1])
        power = self.func(self.at(), f"td.exp({own} - {top}[{row}])", shape)
        total = self.func(row, f"td.sum({power}[{self.at('k')}], axis=k)", shape[:-1])
        return self.func(self.at(), f"{power}[{self.at()}] / {total}[{row}]", shape)

    def norm(self, x: str, shape: tuple[int, ...]) -> str:
        row, n = self.at()[:-3], shape[-1]
        own, term = self.read(x, self.at()), self.read(x, self.at("k"))
        mean = self.func(row, f"td.sum({term}, axis=k) / {n}", shape[:-1])
        apart = f"({term} - {mean}[{row}])"
        spread = self.func(row, f"td.sum({apart} * {apart}, axis=k) / {n}", shape[:-1])
        value = f"({own} - {mean}[{row}]) / td.sqrt({spread}[{row}] + 1)"
        return self.func(self.at(), value, shape)

    def rows(self, x: str, shape: tuple[int, ...]) -> str:
        how = self.c.pick(("sum", "max", "min"))
        return self.func(self.at()[:-3], f"td.{how}({self.read(x, self.at('k'))}, axis=k)", shape[:-1])

    def over_rows(self, x: str, shape: tuple[int, ...]) -> str:
        found = [n for n, s in self.shapes.items() if s == shape[:-1]]
        r = self.c.pick(found) if found else self.rows(x, shape)
        value = f"{self.read(x, self.at())} - {self.read(r, self.at()[:-3])}"
        return self.func(self.at(), value, shape)

    def bias(self, x: str, shape: tuple[int, ...]) -> str:
        value = f"{self.read(x, self.at())} + {self.read(self.tensor(shape[-1:]), 'j')}"
        return self.func(self.at(), value, shape)

    def transpose(self, x: str, shape: tuple[int, ...]) -> str:
        turned = (*shape[:-2], shape[-1], shape[-2])
        return self.func(self.at(), self.read(x, self.at("j", "i")), turned)

    def mask(self, x: str, shape: tuple[int, ...]) -> str:
        return self.func(self.at(), f"td.where(j <= i, {self.read(x, self.at())}, 0.0)", shape)

    def columns(self, x: str, shape: tuple[int, ...]) -> str:
        value = f"td.sum({self.read(x, self.at('k', 'j'))}, axis=k)"
        return self.func(self.at("j").replace("i, ", ""), value, (*shape[:-2], shape[-1]))

    def padded(self, x: str, shape: tuple[int, ...]) -> str:
        modes = ("edge", "reflect", "wrap") if min(shape[-2:]) > 2 else ("edge",)
        mode, reach = self.c.pick((*modes, "constant")), self.c.pick((1, 1, 2))
        self.run(f'{x}p = td.pad({x}, mode="{mode}")')
        at = [("i", f"j - {reach}"), ("i", "j + 1")]
        if self.c.chance(50):
            at += [("i - 1", "j"), (f"i + {reach}", "j")]
        around = " + ".join(f"td.cast({x}p[{self.at(*a)}], td.f32)" for a in at)
        there = self.tensor(shape) if self.c.chance(50) else x
        return self.func(self.at(), f"{around} - {self.read(there, self.at())}", shape)

    # pictures: channels, lines, columns

    def conv(self, x: str, shape: tuple[int, ...]) -> str | None:
        filters, side, step = (
            self.c.weighted(CHANNELS),
            self.c.pick((3, 3, 2)),
            self.c.pick((1, 1, 2)),
        )
        lines, columns = ((n - side) // step + 1 for n in shape[1:])
        if min(shape[1:]) < side or filters * lines * columns * shape[0] * side**2 > MOST_TERMS:
            return None
        w = self.tensor((filters, shape[0], side, side))
        scaled = "" if step == 1 else f" * {step}"
        at = f"k, i{scaled} + p, j{scaled} + q"
        terms = f"{self.read(x, at, factor=True)} * {self.read(w, 'c, k, p, q', factor=True)}"
        return self.func(self.at(), f"td.sum({terms}, axis=(k, p, q))", (filters, lines, columns))

    def by_channel(self, x: str, shape: tuple[int, ...]) -> str | None:
        if min(shape[1:]) < 3:
            return None
        w = self.tensor((shape[0], 3, 3))
        terms = f"{self.read(x, 'c, i + p, j + q')} * {self.read(w, 'c, p, q')}"
        made = (shape[0], shape[1] - 2, shape[2] - 2)
        return self.func(self.at(), f"td.sum({terms}, axis=(p, q))", made)

    def pointwise(self, x: str, shape: tuple[int, ...]) -> str:
        filters = self.c.weighted(CHANNELS)
        w = self.tensor((filters, shape[0]))
        terms = f"{self.read(x, 'k, i, j', factor=True)} * {self.read(w, 'c, k', factor=True)}"
        return self.func(self.at(), f"td.sum({terms}, axis=k)", (filters, *shape[1:]))

    def pool(self, x: str, shape: tuple[int, ...]) -> str | None:
        if min(shape[1:]) < 2:
            return None
        self.run('u, v = td.range("u", 0, 2), td.range("v", 0, 2)')
        value = f"td.max({self.read(x, 'c, i * 2 + u, j * 2 + v')}, axis=(u, v))"
        return self.func(self.at(), value, (shape[0], shape[1] // 2, shape[2] // 2))

    def channel_norm(self, x: str, shape: tuple[int, ...]) -> str:
        mean = self.func("i, j", f"td.sum({self.read(x, 'k, i, j')}, axis=k) / {shape[0]}", shape[1:])
        apart = f"({self.read(x, 'k, i, j')} - {mean}[i, j])"
        spread = self.func("i, j", f"td.sum({apart} * {apart}, axis=k) / {shape[0]}", shape[1:])
        value = f"({self.read(x, self.at())} - {mean}[i, j]) / td.sqrt({spread}[i, j] + 1)"
        return self.func(self.at(), value, shape)

    def scale(self, x: str, shape: tuple[int, ...]) -> str:
        value = f"{self.read(x, self.at())} * {self.read(self.tensor(shape[:1]), 'c')}"
        return self.func(self.at(), value, shape)

    def up(self, x: str, shape: tuple[int, ...]) -> str | None:
        made = (shape[0], shape[1] * 2, shape[2] * 2)
        if prod(made) > 1 << 15:
            return None
        return self.func(self.at(), self.read(x, "c, i // 2, j // 2"), made)

    def mean(self, x: str, shape: tuple[int, ...]) -> str:
        return self.func("c", f"td.sum({self.read(x, 'c, i, j')}, axis=(i, j))", shape[:1])
