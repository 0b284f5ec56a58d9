"""Programs about what decides what is computed, where and when: conditions, bounds, sizes, sharing, length.

    bounds      predicates and bounds of ranges that read data and funcs, some ranges empty
    scatter     updates at clipped data, of tables whose extents are named
    diagonals   updates along diagonals that overlap, over all points or in order
    sharing     expressions and stages that are read twice by each of 20 and more that follow
    long        two hundred stages
    sizes       tensors whose extents must be equal to expressions of those of others

Integers, so that every result is certain to the bit.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tdsl as td
from tests.fuzz.choices import Choices
from tests.fuzz.made import Made

KINDS = {"bounds": 30, "scatter": 14, "diagonals": 14, "sharing": 10, "sizes": 14, "long": 1}
EXTENTS = (1, 2, 3, 5, 7, 8, 9, 16, 17)
WHOLE = ("i32", "i32", "i64", "u8", "i16")


def random_structure(choices: Choices, kind: str | None = None) -> Made:
    """A program of one of the kinds."""
    kind = choices.weighted(KINDS) if kind is None else kind
    for last in (False, False, False, True):
        made = _Structure(choices)
        try:
            getattr(made, f"do_{kind}")()
            program = Made(made.lines, made.names, made.outputs, made.sizes, made.inputs, {}, kind=kind)
            program.program()
        except td.TdslError:
            if last:
                raise
        else:
            break
    return program


class _Structure:
    def __init__(self, choices: Choices) -> None:
        self.c = choices
        self.names: dict[str, Any] = {"td": td}
        self.lines: list[str] = []
        self.outputs: list[str] = []
        self.sizes: dict[str, int] = {}
        self.inputs: dict[str, tuple[tuple[int, ...], Any]] = {}
        self.stages = 0
        self.run('i, j, k, l, m, n = td.vars("i j k l m n")')

    def run(self, *lines: str) -> None:
        for line in lines:
            exec(line, self.names)
            self.lines.append(line)

    def input(self, extents: tuple[int, ...], dtype: str, named: bool | None = None) -> str:
        """A tensor; extents are named, or not, or some are."""
        name, texts = f"a{len(self.inputs)}", []
        for e in extents:
            if named or (named is None and self.c.chance(40)):
                self.sizes[f"N{e}"] = e
                texts.append(f'"N{e}"')
            else:
                texts.append(str(e))
        self.run(f'{name} = td.Tensor("{name}", ({", ".join(texts)},), td.{dtype})')
        self.inputs[name] = (extents, getattr(td, dtype))
        return name

    def func(self, left: str, value: str, shape: str = "") -> str:
        """A new func with a pure definition."""
        name = f"f{self.stages}"
        self.stages += 1
        self.run(f'{name} = td.Func("{name}"{f", shape=({shape},)" if shape else ""})')
        self.run(f"{name}[{left}] = {value}")
        return name

    def inside(self, v: str, e: int, span: tuple[int, int] | None = None) -> str:
        """An index of an axis of extent e by a variable, which stays inside by itself or is clipped."""
        by = self.c.integer(-2, 2) if self.c.chance(40) else 0
        text = f"{v} + {by}" if by > 0 else f"{v} - {-by}" if by else v
        if span is not None and span[0] + by >= 0 and span[1] + by < e:
            return text
        if self.c.chance(10):
            return f"({text}) % {e}"
        return f"td.clip({text}, 0, {e - 1})"

    def shared(self, e: int) -> list[str]:
        """Tensors and funcs of extent e, of data that is small in part."""
        t = self.c.pick(WHOLE)
        first = self.input((e,), t)
        found = [first]
        for _ in range(self.c.integer(1, 3)):
            x = f"{self.c.pick(found)}[{self.inside('i', e, (0, e - 1))}]"
            y = f"{self.c.pick(found)}[{self.inside('i', e, (0, e - 1))}]"
            text = self.c.pick((f"{x} * 2", f"{x} + {y}", f"({x} % 5) * {y}", f"td.where({x} > 0, {y}, {e})"))
            found.append(self.func("i", f"td.cast({text}, td.i32)", str(e)))
            if self.c.chance(25):
                self.update(found[-1], e, found[:-1])
        return found

    def update(self, name: str, e: int, sources: list[str]) -> None:
        """An update in order of a func of one dimension, under a condition that may read."""
        lo, hi = self.bounds(sources, "", e)
        self.run(f'r = td.range("r", {lo}, {hi}{self.where("r", "", sources, e)})')
        at = self.inside("r", e, (0, e - 1)) if self.c.chance(70) else "0"
        own = f"{name}[td.clip(r - 1, 0, {e - 1})]"
        read = f"{self.c.pick(sources)}[td.clip(r, 0, {e - 1})]"
        self.run(f"{name}[{at}] {self.c.pick(('=', '+='))} td.cast({own} + {read}, td.i32)")

    def bounds(self, sources: list[str], around: str, e: int) -> tuple[str, str]:
        """Begin and end of a range inside 0 <= v < e; numbers, variables around, data, funcs, or empty."""

        def end(number: int) -> str:
            how = self.c.weighted({"number": 5, "data": 5, "around": 3})
            if how == "data":
                at = f"td.clip({around}, 0, {e - 1})" if around else str(self.c.integer(0, e - 1))
                read = f"{self.c.pick(sources)}[{at}]"
                scaled = self.c.pick((read, f"{read} * 2", f"{read} // 2 + 1"))
                return f"td.clip(td.cast({scaled}, td.i64), 0, {e})"
            if how == "around" and around:
                return f"td.clip({around} + {self.c.integer(0, 2)}, 0, {e})"
            return str(number)

        if self.c.chance(8):
            empty = self.c.integer(0, e)
            return str(empty), str(max(empty - self.c.integer(0, 2), 0))
        return end(self.c.integer(0, min(e, 2))), end(self.c.integer(max(e - 3, 0), e))

    def where(self, v: str, around: str, sources: list[str], e: int) -> str:
        """A condition on a range, or nothing."""
        if not self.c.chance(65):
            return ""
        read = f"{self.c.pick(sources)}[td.clip({v} + {self.c.integer(-1, 1)}, 0, {e - 1})]"
        other = f"{self.c.pick(sources)}[td.clip({around or v}, 0, {e - 1})]"
        texts = [f"{read} > 0", f"{read} % 3 != 1", f"{read} <= {other}"]
        if around:
            texts += [f"{v} <= {around}", f"({v} != {around}) & ({read} > 0)"]
        return f", where=lambda {v}: {self.c.pick(texts)}"

    def output(self, *names: str) -> None:
        self.outputs = list(names)

    # kinds

    def do_bounds(self) -> None:
        e = self.c.pick(EXTENTS)
        sources = self.shared(e)
        rank = self.c.integer(1, 2)
        left = ", ".join(("i", "j")[:rank])
        shape = ", ".join([str(e), str(self.c.pick(EXTENTS))][:rank])
        if self.c.chance(75):
            lo, hi = self.bounds(sources, "i", e)
            axis = f'td.range("m", {lo}, {hi}{self.where("m", "i", sources, e)})'
            term = f"{self.c.pick(sources)}[td.clip(m, 0, {e - 1})] * (m + {left.replace(',', ' +')})"
            which = self.c.pick(("sum", "sum", "max", "min"))
            value = f"td.{which}(td.cast({term}, td.i32), axis={axis})"
        else:
            value = f"td.cast(i * 3 + {self.c.pick(sources)}[td.clip(i, 0, {e - 1})], td.i32)"
        last = self.func(left, value, shape)
        for _ in range(self.c.integer(0, 2)):
            inner = rank == 2 and self.c.chance(40)
            around = "j" if rank == 2 and not inner else ""
            lo, hi = self.bounds(sources, around, e)
            self.run(f'r = td.range("r", {lo}, {hi}{self.where("r", around, sources, e)})')
            rest = ", j" if rank == 2 else ""
            if inner:
                q = int(shape.split(", ")[1])
                a, b = self.bounds(sources, "r", q) if q <= e else ("0", str(q))
                self.run(f'q = td.range("q", {a}, {b})')
                rest = ", q"
            before = f"{last}[td.clip(r - 1, 0, {e - 1}){rest}]"
            term = f"{before} + {self.c.pick(sources)}[td.clip(r, 0, {e - 1})]"
            self.run(f"{last}[r{rest}] {self.c.pick(('=', '+='))} td.cast({term}, td.i32)")
        if self.c.chance(40):
            last = self.func(left, f"{last}[{left}] * 2 + 1", shape)
        self.output(last)

    def do_scatter(self) -> None:
        e = self.c.pick((3, 5, 8, 17))
        data = self.input((e,), self.c.pick(("i32", "u8", "i64", "i16", "f32")), named=None)
        n = f"{data}.shape[0]"
        many = self.c.chance(50)
        index = f"td.clip(td.cast({data}[{{v}}], td.i64) + {self.c.integer(0, 2)}, 0, {n} - 1)"
        if self.c.chance(40):  # a func of indices
            at = self.func("i", index.format(v="i"))
            index = f"{at}[{{v}}]"
        table = self.func(
            "i, j" if many else "i",
            f"td.cast({self.c.pick(('0', 'i', 'i + 1'))}, td.i32)",
            f"{n}, {n}" if many else n,
        )
        for _ in range(self.c.integer(1, 2)):
            end = self.c.pick((n, n, f"{n} - 1", str(e)))
            self.run(f'r = td.range("r", 0, {end})')
            rest = f", {self.c.pick(('r', '0', 'j'))}" if many else ""
            place = f"{table}[{index.format(v='r')}{rest}]"
            value = self.c.pick(("1", f"td.cast({data}[r] != 0, td.i32)", "td.cast(r, td.i32)"))
            self.run(f"{place} += {value}")
            if self.c.chance(30):
                all_ = "i, j" if many else "i"
                self.run(f"{table}[{all_}] = td.maximum({table}[{all_}], 0)")
        how = self.c.pick(("all", "point", "gather", "quotient"))
        zero = ", 0" if many else ""
        if how == "point":
            last = self.func("()", f"{table}[0{zero}]")
        elif how == "gather":
            last = self.func("i", f"{table}[{index.format(v='i')}{zero}]", n)
        elif how == "quotient":
            last = self.func("i", f"{table}[i{zero}] // ({table}[{n} - 1 - i{zero}] + 1)", n)
        else:
            last = self.func("i, j" if many else "i", f"{table}[i{', j' * many}] * 3")
        self.output(last)

    def do_diagonals(self) -> None:
        e = self.c.pick((3, 5, 8))
        declared = f"{e + 2}, {e + 2}" if self.c.chance(60) else ""
        table = self.func("i, j", f"td.cast({self.c.pick(('0', 'i - j', 'i * j'))}, td.i32)", declared)
        for _ in range(self.c.integer(1, 3)):
            a, b = self.c.integer(0, 2), self.c.integer(0, 2)
            v = "i"
            if self.c.chance(60):
                v, lo = "r", self.c.integer(0, 1)
                self.run(f'r = td.range("r", {lo}, {lo + self.c.integer(0, e)})')
            if v == "i":  # its range follows from where it stands bare
                a = 0
            place = [f"{v} + {n}" if n else v for n in (a, b)]
            if self.c.chance(25):
                place[1] = f"{e} - {v}"
            if self.c.chance(40):
                place.reverse()
            how = self.c.pick(("add", "add", "own", "set"))
            read = f"{table}[{v} + {b}, {v} + {a}]"
            value = {"add": "+= 1", "own": f"= {read} + 2", "set": f"= td.cast({v}, td.i32)"}[how]
            with contextlib.suppress(td.DefinitionError):  # no order in which this may run
                self.run(f"{table}[{', '.join(place)}] {value}")
        length = self.c.integer(1, e)
        read = self.c.pick((f"{table}[i, i]", f"{table}[i, i + 1]", f"{table}[i, 0] + {table}[1, i]"))
        self.output(self.func("i", read, str(length)))

    def do_sharing(self) -> None:
        e = self.c.pick(EXTENTS)
        data = self.input((e,), "i32")
        levels = self.c.integer(20, 26)
        if self.c.chance(50):  # within one expression
            self.run(f"e0 = {data}[i]")
            for n in range(levels):
                x, q = f"e{n}", self.c.integer(0, 9)
                text = self.c.pick((
                    f"td.where({x} > {q}, {x} * 3, {x} + 1)", f"td.where({data}[i] > {q}, {x} * 3, {x} + 1)",
                    f"{x} * {x} + {q}", f"td.minimum({x}, {q}) + {x}", f"{x} - ({x} >> 1)",
                ))  # fmt: skip
                self.run(f"e{n + 1} = td.cast({text}, td.i32)")
            self.output(self.func("i", f"e{levels}"))
            return
        last = data
        for n in range(levels):
            by = self.c.integer(0, 2) if self.c.chance(30) else 0
            if n % 7 == 6 and self.c.chance(30):
                self.run(f'p{n} = td.pad({last}, mode="{self.c.pick(("edge", "reflect", "wrap"))}")')
                text = f"p{n}[i - 1] + p{n}[i + {by}]"
            else:
                other = f"{last}[td.clip(i + {by}, 0, {e - 1})]" if by else f"{last}[i]"
                text = self.c.pick((
                    f"{last}[i] * 3 + td.minimum({other}, 1)", f"{last}[i] ^ ({other} >> 1)",
                    f"td.where({other} > 0, {last}[i], {last}[i] + {data}[i])",
                ))  # fmt: skip
            last = self.func("i", f"td.cast({text}, td.i32)", str(e) if "clip" in text or "p" in text else "")
        self.output(last)

    def do_long(self) -> None:
        e = self.c.pick((5, 8))
        stages = [self.input((e,), "i32")]
        for _ in range(200):
            x = stages[-1]
            y = stages[-1 - self.c.integer(0, min(len(stages) - 1, 3))] if self.c.chance(40) else x
            shift = self.c.integer(-1, 1) if self.c.chance(30) else 0
            at = f"td.clip(i + {shift}, 0, {e - 1})" if shift else "i"
            op = self.c.pick(("+", "-", "^", "* 3 +"))
            stages.append(self.func("i", f"{x}[i] {op} {y}[{at}]", str(e)))
        self.output(*([stages[self.c.integer(100, 198)]] if self.c.chance(30) else []), stages[-1])

    def do_sizes(self) -> None:
        """A chain of stencils without padding, each stage beside a tensor of just its extent."""
        rank = self.c.integer(1, 2)
        extents = [self.c.integer(7, 17) for _ in range(rank)]
        left = ", ".join(("i", "j")[:rank])

        def tensor() -> str:
            name = f"a{len(self.inputs)}"
            texts = []
            for axis, e in enumerate(extents):
                if self.c.chance(75):
                    size = f"{'PQRSTUVW'[len(self.inputs)]}{axis}"
                    self.sizes[size] = e
                    texts.append(f'"{size}"')
                else:
                    texts.append(str(e))
            self.run(f'{name} = td.Tensor("{name}", ({", ".join(texts)},), td.i32)')
            self.inputs[name] = (tuple(extents), td.i32)
            return name

        last = tensor()
        for _ in range(self.c.integer(1, 3)):
            if self.c.chance(70):
                axis, by = self.c.integer(0, rank - 1), self.c.integer(1, 2)
                at = [f"{v} + {by}" if n == axis else v for n, v in enumerate(("i", "j")[:rank])]
                last = self.func(left, f"{last}[{left}] - {last}[{', '.join(at)}]")
                extents[axis] -= by
            if self.c.chance(70):
                last = self.func(left, f"{tensor()}[{left}] * {last}[{left}]")
        self.output(last if last.startswith("f") else self.func(left, f"{last}[{left}] + 1"))
