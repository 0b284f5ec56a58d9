"""Random programs: one to six stages of every kind that the index language has.

    made = random_program(Seeded(7))
    made.outputs                    funcs, for td.Schedule(*made.outputs) or td.compile(made.outputs)
    made.program()                  the canonical program
    made.arguments(3)               arrays and numbers by name, from a seed
    print(made.source(3))           the program and its data as Python that runs

A program is text that is executed line by line; what the language says of a line (types, ranges) steers the
next. A stage that turns out to have no range is dropped.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

import tdsl as td
from tdsl.errors import IndexBoundError, ShapeError
from tdsl.lang.build_program import build_program
from tdsl.lang.expr import ONE, ZERO, const
from tdsl.lang.interpreted_boxes import Bounds, accessed_boxes_of, number_of, realised_boxes
from tdsl.lang.program import Program, bind_sizes
from tdsl.lang.simplify import subtract
from tdsl.lang.types import DType
from tests.fuzz.choices import Choices
from tests.fuzz.made import Made
from tests.fuzz.terms import COMBINERS, CORRECTED, PRODUCTS, Ends, Readable, Scope, Term, Terms

EXTENTS = {5: 4, 8: 3, 3: 3, 7: 3, 13: 2, 16: 2, 2: 1, 1: 2, 11: 1, 4: 1, 0: 1}
TYPES = {"f32": 8, "i32": 4, "u8": 4, "f64": 3, "i64": 1, "i16": 1, "u16": 1, "bool_": 1, "i8": 1,
         "u32": 1, "u64": 1, "f16": 1, "bf16": 1, "f8e4m3": 1, "f8e5m2": 1}  # fmt: skip
VARIABLES = ("i", "j", "k", "l")
MOST_POINTS = 1200


def check_inside(program: Program, boxes: dict[str, Bounds]) -> None:
    """Raise IndexBoundError where the box of an access is not inside what may be read or written."""
    limits = {t.name: tuple((ZERO, subtract(e, ONE)) for e in t.shape) for t in program.inputs}
    limits |= {f.name: f.limits for f in program.funcs}
    for f in program.funcs:
        box = tuple((const(lo), const(hi)) for lo, hi in boxes.get(f.name, ()))
        if f.name not in boxes:
            continue
        touched = [t for d in f.definitions for t in accessed_boxes_of(f, d, box).items()]
        for name, ends in touched:
            for (lo, hi), (first, last) in zip(ends, limits[name], strict=True):
                low = first is None or number_of(lo) >= number_of(first)
                high = last is None or number_of(hi) <= number_of(last)
                if not (low and high):
                    raise IndexBoundError(f"{name} is read or written out of range")


def random_program(choices: Choices, stages: int | None = None) -> Made:
    """A program of up to six stages, at least one of which is an output."""
    return _Builder(choices).build(choices.integer(1, 6) if stages is None else stages)


def _simplest() -> Made:
    """What stands in for a program that came to nothing."""
    made = _Builder(Choices())
    made.run('i = td.vars("i")', 'f0 = td.Func("f0", shape=3)', "f0[i] = td.cast(i, td.i32)")
    return Made(made.lines, made.names, ["f0"], {}, {}, {})


class _Builder:
    def __init__(self, choices: Choices) -> None:
        self.c = choices
        self.names: dict[str, Any] = {"td": td}
        self.lines: list[str] = []
        self.terms = Terms(choices, self.names)
        self.sizes: dict[str, int] = {}
        self.inputs: dict[str, tuple[tuple[int, ...], DType]] = {}
        self.scalars: dict[str, DType] = {}
        self.stages: list[str] = []
        self.programs: dict[tuple[tuple[str, ...], ...], Program] = {}  # by outputs and lines

    def build(self, count: int) -> Made:
        self.run('i, j, k, l, m, n = td.vars("i j k l m n")')
        for at in range(self.c.integer(1, 3)):
            self.input(f"a{at}")
        if self.c.chance(20):
            self.scalar("s0")
        tries = 0
        while len(self.stages) < count and tries < 8 * count:
            tries += 1
            self.stage(f"f{len(self.stages)}")
        if not self.stages:
            return _simplest()
        outputs = [n for n in self.stages[:-1] if self.c.chance(15)]
        outputs.append(self.stages[-1])
        possible = [n for n in outputs if self.as_output(n)]
        if not possible:
            possible = [n for n in reversed(self.stages) if self.as_output(n)][:1]
        made = Made(self.lines, self.names, possible, self.sizes, self.inputs, self.scalars)
        return made if possible and self.together(made) else _simplest()

    def together(self, made: Made) -> bool:
        """True when the outputs make one program (their named extents may be in conflict)."""
        try:
            program = self.bound(*made.outputs)
            boxes = realised_boxes(program)
            check_inside(program, boxes)
        except (ShapeError, IndexBoundError):
            return False
        points = [int(np.prod([hi - lo + 1 for lo, hi in box])) for box in boxes.values()]
        return sum(points) <= 4 * MOST_POINTS

    def as_output(self, name: str) -> bool:
        natural = self.domain(name)[1]
        extents = [None if e is None else e[1] - e[0] + 1 for e in natural]
        if any(e is None or e < 0 for e in extents):
            return False
        return int(np.prod([e or 0 for e in extents])) <= MOST_POINTS

    def run(self, *lines: str) -> None:
        for line in lines:
            exec(line, self.names)
            self.lines.append(line)

    def input(self, name: str) -> None:
        rank = self.c.weighted({1: 5, 2: 6, 3: 2, 0: 1})
        known = [e for shape, _ in self.inputs.values() for e in shape]
        shape = []
        for _ in range(rank):
            # equal extents can be read by one variable
            same = known and self.c.chance(60)
            shape.append(self.c.pick(known) if same else self.c.weighted(EXTENTS))
        if int(np.prod(shape)) > 700:
            shape = [min(e, 5) for e in shape]
        t = self.c.weighted(TYPES)
        texts = [self.extent(e) for e in shape]
        self.run(f'{name} = td.Tensor("{name}", ({", ".join(texts)}{"," * (rank == 1)}), td.{t})')
        dtype = getattr(td, t)
        self.inputs[name] = (tuple(shape), dtype)
        limits = tuple((0, e - 1) for e in shape)
        self.terms.readable.append(Readable(name, (dtype,), limits))
        if self.c.chance(30) and all(shape):
            self.pad(name, (dtype,), True, 8.0)

    def extent(self, e: int) -> str:
        if not self.c.chance(40):
            return str(e)
        self.sizes[f"N{e}"] = e
        return f'"N{e}"'

    def pad(self, name: str, dtypes: tuple[DType, ...], exact: bool, most: float) -> None:
        mode = self.c.pick(("constant", "edge", "reflect", "symmetric", "wrap"))
        value = f", value={self.c.integer(0, 3)}" if mode == "constant" and dtypes[0] != td.bool_ else ""
        padded = f"{name}p"
        self.run(f'{padded} = td.pad({name}, mode="{mode}"{value})')
        rank = self.names[name].ndim
        self.terms.readable.append(Readable(padded, dtypes[:1], (None,) * rank, exact, most))

    def scalar(self, name: str) -> None:
        t = self.c.weighted(TYPES)
        self.run(f'{name} = td.Scalar("{name}", td.{t})')
        self.scalars[name] = getattr(td, t)
        self.terms.scalars.append(Term(name, getattr(td, t)))

    # stages

    def stage(self, name: str) -> None:
        """Add a stage, or nothing where it has no consistent range."""
        before = len(self.lines)
        try:
            value = self.definition(name)
            _, natural = self.domain(name)
            if any(e is None for e in natural) and not self.c.chance(30):
                self.declare(name, natural)
            for _ in range(self.c.weighted({0: 6, 1: 3, 2: 1})):
                self.update(name, value)
            limits, natural = self.domain(name)
            if not self.sensible(name, natural):
                raise ShapeError("too large, or a negative extent")
        except (ShapeError, IndexBoundError):
            del self.lines[before:]
            self.names.pop(name, None)
            return
        self.stages.append(name)
        dtypes = self.names[name].dtypes
        exact, most = value.exact, max(value.most, 8.0)
        self.terms.readable.append(Readable(name, dtypes, limits, exact, most))
        if self.c.chance(20) and len(dtypes) == 1 and self.as_output(name):
            self.pad(name, dtypes, exact, most)

    def sensible(self, name: str, natural: tuple[Ends | None, ...]) -> bool:
        if any(e is not None and e[1] - e[0] + 1 < 0 for e in natural):
            return False
        if None in natural:
            return True
        program = self.bound(self.names[name])
        boxes = realised_boxes(program)
        check_inside(program, boxes)
        counts = [int(np.prod([max(hi - lo + 1, 0) for lo, hi in b])) for b in boxes.values()]
        return max(counts, default=0) <= MOST_POINTS

    def bound(self, *outputs: Any) -> Program:
        """The program with numbers for sizes; ShapeError where its arrays cannot have these sizes."""
        key = tuple(f.name for f in outputs), tuple(self.lines)
        if key not in self.programs:
            program = bind_sizes(build_program(outputs), self.sizes)
            for t in program.inputs:
                if tuple(getattr(e, "value", None) for e in t.shape) != self.inputs[t.name][0]:
                    raise ShapeError("named extents are in conflict")
            self.programs[key] = program
        return self.programs[key]

    def domain(self, name: str) -> tuple[tuple[Ends | None, ...], tuple[Ends | None, ...]]:
        """Where a stage may be read, and what is computed of it as an output, as numbers."""
        program = self.bound(self.names[name])
        f = program.func(program.outputs[0])

        def ends(interval: Any) -> Ends | None:
            lo, hi = interval
            if lo is None or hi is None:
                return None
            return int(lo.value), int(hi.value)

        return tuple(map(ends, f.limits)), tuple(map(ends, f.natural))

    def declare(self, name: str, natural: tuple[Ends | None, ...]) -> None:
        if all(e is None or e[0] == 0 for e in natural):
            extents = [self.c.integer(1, 6) if e is None else e[1] + 1 for e in natural]
            self.run(f"{name}.with_shape({', '.join(map(str, extents))})")

    def definition(self, name: str) -> Term:
        """The func and its pure definition."""
        rank = self.c.weighted({1: 5, 2: 6, 3: 2, 0: 1})
        scope = Scope(list(VARIABLES[:rank]))
        left = ", ".join(scope.variables) or "()"
        self.run(f'{name} = td.Func("{name}")')
        kind = self.c.weighted({"f": 6, "i": 5, "b": 1})
        depth = self.c.integer(1, 3)
        how = self.c.weighted(
            {
                "value": 9,
                "reduction": 5,
                "tuple": 1,
                "custom": 2,
                "constant": 1,
                "rows": 2,
                "product": 2,
            }
        )
        match how:
            case "rows":
                return self.rows(name, left, scope)
            case "product":
                return self.product(name, left, scope)
            case "reduction" if kind != "b":
                value = self.terms.reduction(scope, kind, depth, False)
            case "tuple":
                value = self.terms.term(scope, kind, depth)
                other = self.terms.term(scope, self.c.pick(("i", "f")), 1)
                self.run(f"{name}[{left}] = ({value.text}, {other.text})")
                return Term(name, value.dtype, value.exact and other.exact, max(value.most, other.most))
            case "custom":
                return self.custom(name, left, scope, depth)
            case "constant":
                value = self.terms.plain(scope, kind)
            case _:
                value = self.terms.term(scope, kind, depth)
        self.run(f"{name}[{left}] = {value.text}")
        return value

    def custom(self, name: str, left: str, scope: Scope, depth: int) -> Term:
        """A reduction of several values by a combiner of its own."""
        inner, axis = self.terms.reduction_variable(scope, "m")
        x = self.terms.of_type(inner, td.f32, depth, False)
        y = self.terms.of_type(inner, td.i32, 1, True)
        combine, first, second, ordered = self.c.pick(COMBINERS)
        ordered = ordered or self.c.chance(20)
        init = f"(td.cast({first}, td.f32), td.cast({second}, td.i32))"
        more = ", associative=False" if ordered else ""
        self.run(f"{name}[{left}] = td.reduce({combine}, {init}, ({x.text}, {y.text}), axis={axis}{more})")
        return Term(name, td.f32, x.exact, max(2 * x.most, 8.0))

    def rows(self, name: str, left: str, scope: Scope) -> Term:
        """A reduction whose terms need another one over them, such as exp(x - maximum)."""
        inner, axis = self.terms.reduction_variable(scope, "m")
        x, tries, also = "", 0, self.c.chance(40)
        while not re.search(r"\bm\b", x) and tries < 4:
            x, tries = (
                self.terms.of_type(inner, td.f32, self.c.integer(0, 1), also).text,
                tries + 1,
            )
        over, again, term = self.c.pick(CORRECTED)
        first = f"{name}s"
        text = f"td.{again}({term.format(x=x, first=f'{first}[{left}]')}, axis={axis})"
        if also:  # where something is that the same pass can find
            which = self.c.pick(("argmax", "argmin", "max"))
            text += f" + td.clip(td.{which}({x}, axis={axis}), -16, 16)"
        self.run(
            f'{first} = td.Func("{first}")',
            f"{first}[{left}] = td.{over}({x}, axis={axis})",
            f"{name}[{left}] = td.cast({text}, td.f32)",
        )
        return Term(name, td.f32, False, 1e4)

    def product(self, name: str, left: str, scope: Scope) -> Term:
        """A sum of products with another sum as a factor."""
        middle, axis = self.terms.reduction_variable(scope, "m")
        inner, terms = self.terms.reduction_variable(middle, "n")
        t = self.c.pick((td.f32, td.i32, td.f64, td.u8))
        x, y = (self.terms.of_type(s, t, self.c.integer(0, 1), False).text for s in (inner, middle))
        summed = f"td.sum({x}, axis={terms}, dtype=td.{t.name})"
        text = self.c.pick(PRODUCTS).format(s=summed, y=y)
        self.run(f"{name}[{left}] = td.sum({text}, axis={axis}, dtype=td.{t.name})")
        return Term(name, t, False, 1e5)

    # updates

    def update(self, name: str, value: Term) -> None:
        f = self.names[name]
        natural = self.domain(name)[1]
        ends = tuple(e if e is not None else (0, 3) for e in natural)
        if any(lo > hi for lo, hi in ends) or (len(f.dtypes) > 1 and not ends):
            return
        kinds = {"free": 3, "corner": 2, "scatter": 3, "scan": 3}
        how = self.c.weighted(kinds) if ends else "corner"
        if len(f.dtypes) > 1:
            self.tuple_scan(name, ends)
        elif how == "scan":
            self.scan(name, ends)
        elif how == "scatter":
            self.scatter(name, ends)
        else:
            self.free(name, ends, corner=how == "corner")

    def assign(self, name: str, index: str, scope: Scope, own: str) -> None:
        """`own` op= value, with an operator that the type has."""
        t = self.names[name].dtype
        x = self.terms.of_type(scope, t, self.c.integer(0, 2), False)
        text = f"{name}[{index}]"
        small = f"td.cast(0.5, td.{t.name}) * {x.text}" if t.is_narrow else x.text
        how = self.c.weighted({"+=": 4, "max": 2, "-=": 1, "own": 2, "*=": 1})
        if t == td.bool_:
            self.run(f"{text} = {own} & {x.text}")
        elif how == "own" and t.is_float:
            self.run(f"{text} = {own} * 0.5 + {small}")
        elif how == "own":
            self.run(f"{text} = td.cast({own} ^ {x.text}, td.{t.name})")
        elif how == "max":
            self.run(f"{text} = td.{self.c.pick(('maximum', 'minimum'))}({text}, {x.text})")
        elif how == "*=":
            self.run(f"{text} *= {f'td.cos({x.text})' if t.is_float else x.text}")
        else:
            self.run(f"{text} {how} {small}")

    def free(self, name: str, ends: tuple[Ends, ...], corner: bool) -> None:
        """An update at every point, or at every point of a line or corner."""
        index, variables = [], []
        for v, (lo, hi) in zip(VARIABLES, ends, strict=False):
            if corner and self.c.chance(60):
                index.append(str(self.c.integer(lo, hi)))
            else:
                index.append(v)
                variables.append(v)
        text = ", ".join(index) or "()"
        self.assign(name, text, Scope(variables), f"{name}[{text}]")

    def scatter(self, name: str, ends: tuple[Ends, ...]) -> None:
        """An update at places that data or arithmetic choose, over a range or an inferred variable."""
        span = (0, self.c.integer(0, 6)) if self.c.chance(50) else None
        if span is not None:
            self.run(f'r = td.range("r", {span[0]}, {span[1] + 1})')
        v = "m" if span is None else "r"
        scope = Scope([v], {v: span} if span else {}, {}, [] if span else [v])
        t = self.names[name].dtype
        x = self.terms.of_type(scope, t, 1, False)
        index = []
        for u, (lo, hi) in zip(VARIABLES, ends, strict=False):
            if index and self.c.chance(30):
                index.append(u)
            elif lo >= 0 and self.c.chance(60):
                index.append(self.terms.gather(scope, lo, hi))
            else:
                index.append(f"td.clip({v} * {self.c.integer(1, 3)} % 5 + {lo}, {lo}, {hi})")
        text = f"{name}[{', '.join(index)}]"
        if t == td.bool_:
            self.run(f"{text} = {text} | {x.text}")
        else:
            weight = f"td.cast({x.text} * 0.25, td.{t.name})" if t.is_float else x.text
            self.run(f"{text} += {weight}")

    def scan(self, name: str, ends: tuple[Ends, ...]) -> None:
        """An update in order along one axis that reads what it wrote before."""
        along = self.c.integer(0, len(ends) - 1)
        lo, hi = ends[along]
        if hi - lo < 1:
            return
        where = ""
        others = [v for at, v in enumerate(VARIABLES[: len(ends)]) if at != along]
        if others and self.c.chance(25):
            where = f", where=lambda r: r > {others[0]}"
        self.run(f'r = td.range("r", {lo + 1}, {hi + 1}{where})')
        back = self.c.chance(25)
        here = f"{lo + hi} - r" if back else "r"
        before = f"{lo + hi} - r + 1" if back else "r - 1"
        index = [here if at == along else v for at, v in enumerate(VARIABLES[: len(ends)])]
        earlier = [before if at == along else v for at, v in enumerate(VARIABLES[: len(ends)])]
        scope = Scope([*others, "r"], {"r": (lo + 1, hi)})
        self.assign(name, ", ".join(index), scope, f"{name}[{', '.join(earlier)}]")

    def tuple_scan(self, name: str, ends: tuple[Ends, ...]) -> None:
        """Both values of a tuple, in order along the first axis."""
        lo, hi = ends[0]
        if hi - lo < 1:
            return
        self.run(f'r = td.range("r", {lo + 1}, {hi + 1})')
        rest = "".join(f", {v}" for v in VARIABLES[1 : len(ends)])
        own, before = f"{name}[r{rest}]", f"{name}[r - 1{rest}]"
        values = []
        for n, t in enumerate(self.names[name].dtypes):
            if t == td.bool_:
                values.append(f"{before}[{n}] ^ {own}[{n}]")
            elif t.is_float:
                values.append(f"{before}[{n}] * 0.5 + {own}[{n}]")
            else:
                values.append(f"td.maximum({before}[{n}], {own}[{n}])")
        self.run(f"{own} = ({', '.join(values)})")
