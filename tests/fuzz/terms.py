"""Random values as source text: what may stand on the right of a definition.

Floats stay finite and below a known size. A value whose bits may depend on the order of evaluation is not
`exact`; it is kept from where a small change would become a large one (comparisons, casts to integers,
indices).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tdsl.errors import ShapeError
from tdsl.lang.types import DType, bool_, i64, promote, u64
from tests.fuzz.choices import Choices

Ends = tuple[int, int]  # inclusive
INTEGERS = ("i32", "u8", "i64", "u16", "i8", "i16", "u32", "u64")
FLOATS = ("f32", "f64", "f32", "f32", "f16", "bf16", "f8e4m3", "f8e5m2")
# text, identity of each value, and whether the order matters
COMBINERS = (
    ("lambda a, b: (td.maximum(a[0], b[0]), a[1] + b[1])", -8.0, 0, False),
    ("lambda a, b: (td.minimum(a[0], b[0]), a[1] ^ b[1])", 8.0, 0, False),
    ("lambda a, b: (a[0] * 0.5 + b[0], a[1] * 3 + b[1])", 0.0, 0, True),
    ("lambda a, b: (td.where(b[1] == 0, a[0], b[0]), td.where(b[1] == 0, a[1], b[1]))", 0.0, 0, True),
)  # fmt: skip
# of terms and a result over all of them: what is reduced, and of what; all that one pass can make
CORRECTED = (
    ("max", "sum", "td.exp({x} - {first})"),
    ("max", "sum", "td.exp2({x} - {first}) * {x}"),
    ("min", "sum", "td.exp({first} - {x})"),
    ("max", "sum", "{first} - {x}"),
)
# of a sum in the terms of another one, and a value beside it: what stays linear in the sum
PRODUCTS = (
    "{s} * {y}",
    "{y} * -({s})",
    "td.where({y} > 0, {s}, 0) * {y}",
    "{s}",
    "({s} * 3) * ({y} * 2)",
)


@dataclass(slots=True)
class Readable:
    """An input or a stage: where it may be read (None: anywhere), and what its values are like."""

    name: str
    dtypes: tuple[DType, ...]
    limits: tuple[Ends | None, ...]
    exact: bool = True
    most: float = 8.0


@dataclass(frozen=True, slots=True)
class Term:
    """The text of a value, its type, whether its bits are certain, and for floats a bound of its size."""

    text: str
    dtype: DType
    exact: bool = True
    most: float = 8.0

    @property
    def kind(self) -> str:
        return "f" if self.dtype.is_float else "b" if self.dtype == bool_ else "i"


@dataclass(slots=True)
class Scope:
    """The variables at hand: `spans` are ranges of their own, `bare` those that reads have settled."""

    variables: list[str]
    spans: dict[str, Ends] = field(default_factory=dict)
    bare: dict[str, Ends] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)

    def inner(self, name: str, span: Ends | None) -> Scope:
        """A scope with a variable more, which is read first."""
        spans = {**self.spans, **({name: span} if span else {})}
        return Scope([*self.variables, name], spans, dict(self.bare), [name])


class Terms:
    """Makes values from what can be read."""

    def __init__(self, choices: Choices, names: dict[str, Any]) -> None:
        self.c, self.names = choices, names
        self.readable: list[Readable] = []
        self.scalars: list[Term] = []
        self.fresh_reduction = 0

    def made(self, text: str, exact: bool, most: float) -> Term:
        """A term with the type that the language gives it; large floats are limited."""
        dtype = eval(text, self.names).dtype
        if dtype.is_float and most > {8: 16.0, 16: 60.0}.get(dtype.bits, 4000.0):
            return Term(f"td.clip({text}, -8, 8)", dtype, exact, 8.0)
        return Term(text, dtype, exact, most)

    def term(self, scope: Scope, kind: str, depth: int, exact: bool = False) -> Term:
        """A value of a kind: b (bool), i (integer) or f (float); `exact` asks for certain bits."""
        if depth <= 0 or not self.c.chance(85):
            return self.leaf(scope, kind, exact)
        make = {"b": self.condition, "i": self.integer, "f": self.floating}[kind]
        return make(scope, depth - 1, exact)

    def leaf(self, scope: Scope, kind: str, exact: bool) -> Term:
        fitting = [
            (r, n)
            for r in self.readable
            for n, t in enumerate(r.dtypes)
            if self._kind(t) == kind and (r.exact or not exact) and self._settles(r, scope)
        ]
        if fitting and not self.c.chance(12 if scope.unread else 20):
            # later stages more often
            at = max(self.c.integer(0, len(fitting) - 1), self.c.integer(0, len(fitting) - 1))
            return self.read(scope, *fitting[at])
        return self.plain(scope, kind)

    @staticmethod
    def _kind(t: DType) -> str:
        return "f" if t.is_float else "b" if t == bool_ else "i"

    @staticmethod
    def _settles(r: Readable, scope: Scope) -> bool:
        """A scope whose variable needs a range first reads something that has one."""
        return not scope.unread or any(e is not None for e in r.limits)

    def plain(self, scope: Scope, kind: str) -> Term:
        """A value that reads nothing."""
        number = self.c.integer(0, 7)
        scalars = [s for s in self.scalars if s.kind == kind]
        if scalars and self.c.chance(40):
            return self.c.pick(scalars)
        match kind:
            case "b":
                return Term("(td.cast(1, td.i32) == 1)", bool_)
            case "i":
                if scope.variables and self.c.chance(50):
                    text = f"td.cast({self.c.pick(scope.variables)}, td.{self.c.pick(INTEGERS)})"
                    return self.made(text, True, 8)
                return self.made(f"td.cast({number}, td.{self.c.pick(INTEGERS)})", True, 8)
            case _:
                if self.c.chance(20):
                    keys = ", ".join([*scope.variables, f"seed={number}"])
                    wide = self.c.pick(("", ", dtype=td.f64"))
                    return self.made(f"td.random({keys}{wide})", True, 1)
                return self.made(f"td.cast({number / 4}, td.{self.c.pick(FLOATS)})", True, 2)

    def read(self, scope: Scope, r: Readable, component: int) -> Term:
        index = ", ".join([self.index(scope, e) for e in r.limits]) or "()"
        part = f"[{component}]" if len(r.dtypes) > 1 else ""
        return Term(f"{r.name}[{index}]{part}", r.dtypes[component], r.exact, r.most)

    def index(self, scope: Scope, limits: Ends | None) -> str:
        """An index that stays inside, by itself or by the range that is inferred from it."""
        if limits is not None and limits[0] > limits[1]:
            settled = self.settle(scope, limits)
            if settled is None:
                raise ShapeError("nothing can be read")
            return settled
        lo, hi = limits if limits is not None else (-3, 5)
        if not scope.variables:
            return str(self.c.integer(lo, hi))
        if scope.unread and limits is not None:
            v = self.settle(scope, limits)
            if v is not None:
                return v
        v = self.c.pick(scope.variables)
        how = self.c.weighted(
            {"bare": 50, "shift": 14, "stride": 6, "quotient": 4, "back": 5, "two": 6, "clip": 6,
             "number": 3, "gather": 6, "cycle": 3}
        )  # fmt: skip
        free = v not in scope.spans
        match how:
            case "bare" if free and limits is None:
                return v
            case "bare" if limits is not None and (found := self.settle(scope, limits, v)):
                return found
            case "shift":
                by = self.c.integer(-2, 2)
                if free or limits is None or self._fits(scope, v, by, limits):
                    return f"{v} + {by}" if by >= 0 else f"{v} - {-by}"
            case "stride" if free and hi - lo >= 2:
                return f"{v} * {self.c.integer(2, 3)} + {lo + self.c.integer(0, 1)}"
            case "quotient" if free or limits is None:
                return f"{v} // {self.c.integer(2, 3)}"
            case "back" if free or limits is None:
                return f"{hi} - {v}"
            case "two" if free and scope.spans:
                return f"{v} + {self.c.pick(sorted(scope.spans))}"
            case "gather":
                return self.gather(scope, lo, hi)
            case "cycle" if lo == 0:
                return f"({v} + {self.c.integer(0, 3)}) % {hi + 1}"
            case "number":
                return str(self.c.integer(lo, hi))
        return f"td.clip({v} * {self.c.pick((1, 2, -1))} + {self.c.integer(-2, 2)}, {lo}, {hi})"

    @staticmethod
    def _fits(scope: Scope, v: str, by: int, limits: Ends) -> bool:
        first, last = scope.spans[v]
        return limits[0] <= first + by and last + by <= limits[1]

    def settle(self, scope: Scope, limits: Ends, v: str | None = None) -> str | None:
        """A bare variable whose range is, or may become, that of the axis."""
        for name in [v] if v is not None else [*scope.unread, *scope.variables]:
            if name in scope.spans:
                if self._fits(scope, name, 0, limits):
                    return name
            elif scope.bare.get(name, limits) == limits:
                scope.bare[name] = limits
                scope.unread = [n for n in scope.unread if n != name]
                return name
        return None

    def gather(self, scope: Scope, lo: int, hi: int) -> str:
        """An index that depends on data."""
        tables = [
            (r, n)
            for r in self.readable
            for n, t in enumerate(r.dtypes)
            if t.is_integer and len(r.limits) <= 1 and self._nonempty(r)
        ]
        if not tables:
            return str(lo)
        r, n = self.c.pick(tables)
        part = f"[{n}]" if len(r.dtypes) > 1 else ""
        where = ", ".join([self.safe(scope, e) for e in r.limits]) or "()"
        return f"td.clip({r.name}[{where}]{part}, {max(lo, 0)}, {max(hi, 0)})" if lo >= 0 else str(lo)

    @staticmethod
    def _nonempty(r: Readable) -> bool:
        return all(e is None or e[0] <= e[1] for e in r.limits)

    def safe(self, scope: Scope, limits: Ends | None) -> str:
        v = self.c.pick(scope.variables)
        return v if limits is None else f"td.clip({v}, {limits[0]}, {limits[1]})"

    # conditions

    def condition(self, scope: Scope, depth: int, exact: bool) -> Term:
        how = self.c.weighted({"compare": 6, "variables": 2, "join": 2, "not": 1, "test": 1})
        if how == "compare":
            kind = self.c.pick(("i", "f"))
            a, b = (self.term(scope, kind, depth, exact=True) for _ in range(2))
            op = self.c.pick(("<", "<=", "==", "!=", ">", ">="))
            return self.made(f"({a.text} {op} {b.text})", True, 1)
        if how == "variables" and scope.variables:
            a, b = self.c.pick(scope.variables), self.c.pick([*scope.variables, "2", "1"])
            return self.made(f"({a} {self.c.pick(('<', '>=', '!='))} {b})", True, 1)
        if how == "test":
            x = self.term(scope, "f", depth, exact=True)
            return self.made(f"td.isfinite({x.text})", True, 1)
        x = self.term(scope, "b", depth, exact=True)
        if how == "join":
            y = self.term(scope, "b", depth, exact=True)
            return self.made(f"({x.text} {self.c.pick('&|^')} {y.text})", True, 1)
        return self.made(f"~{x.text}", True, 1)

    # integers

    def integer(self, scope: Scope, depth: int, exact: bool) -> Term:
        how = self.c.weighted(
            {"binary": 8, "number": 3, "bits": 2, "unary": 2, "cast": 2, "where": 2, "divide": 2,
             "saturate": 2, "from float": 2, "from bool": 1, "reduce": 3}
        )  # fmt: skip
        if how == "reduce":
            return self.reduction(scope, "i", depth, exact)
        if how == "from float":
            x = self.term(scope, "f", depth, exact=True)
            how = self.c.pick(("cast", "saturating_cast"))
            return self.made(f"td.{how}({x.text}, td.{self.c.pick(INTEGERS)})", True, 8)
        if how == "from bool":
            x = self.term(scope, "b", depth, exact=True)
            return self.made(f"td.cast({x.text}, td.{self.c.pick(INTEGERS)})", True, 1)
        x = self.term(scope, "i", depth)
        text = x.text
        match how:
            case "number":
                n, op = self.c.integer(1, 7), self.c.pick(("+", "-", "*", "//", "//", "%"))
                if x.dtype.kind == "i" and self.c.chance(30):
                    n = -n
                return self.made(f"({text} {op} {n})", True, 8)
            case "unary":
                return self.made(f"{self.c.pick(('-', '~', 'abs'))}({text})", True, 8)
            case "cast" | "saturate":
                call = "td.cast" if how == "cast" else "td.saturating_cast"
                return self.made(f"{call}({text}, td.{self.c.pick(INTEGERS)})", True, 8)
            case "bits" if self.c.chance(50):
                name = self.c.pick(("popcount", "count_leading_zeros", "count_trailing_zeros"))
                return self.made(f"td.{name}({text})", True, 8)
        a, b = self.alike(x, self.term(scope, "i", depth))
        match how:
            case "bits":
                return self.made(f"({a} {self.c.pick(('&', '|', '^', '<<', '>>'))} {b})", True, 8)
            case "divide":
                return self.made(f"({a} {self.c.pick(('//', '%'))} {b})", True, 8)
            case "where":
                cond = self.term(scope, "b", depth)
                return self.made(f"td.where({cond.text}, {a}, {b})", True, 8)
            case _:
                op = self.c.pick(("({} + {})", "({} - {})", "({} * {})", "td.minimum({}, {})",
                                  "td.maximum({}, {})", "td.absdiff({}, {})"))  # fmt: skip
                return self.made(op.format(a, b), True, 8)

    @staticmethod
    def alike(x: Term, y: Term) -> tuple[str, str]:
        """Two integers whose common type is an integer."""
        if not promote(x.dtype, y.dtype).is_float:
            return x.text, y.text
        a, b = (f"td.cast({t.text}, td.i64)" if t.dtype == u64 else t.text for t in (x, y))
        return a, b

    # floats

    def floating(self, scope: Scope, depth: int, exact: bool) -> Term:
        how = self.c.weighted(
            {"binary": 9, "number": 3, "extreme": 2, "unary": 2, "cast": 2, "where": 3, "from int": 1,
             "round": 1, "smooth": 0 if exact else 6, "divide": 0 if exact else 2,
             "reduce": 0 if exact else 4}
        )  # fmt: skip
        if how == "reduce":
            return self.reduction(scope, "f", depth, exact)
        if how == "from int":
            x = self.term(scope, "i", depth, exact=True)
            return self.made(f"td.cast({x.text} % 8, td.{self.c.pick(FLOATS)})", True, 8)
        certain = exact or how == "round"
        x = self.term(scope, "f", depth, certain)
        match how:
            case "number":
                n, op = self.c.integer(1, 6) / 4, self.c.pick("+-*")
                return self.made(f"({x.text} {op} {n})", x.exact, (x.most + 2) * 1.5)
            case "unary":
                return self.made(f"{self.c.pick(('-', 'abs'))}({x.text})", x.exact, x.most)
            case "cast":
                return self.made(f"td.cast({x.text}, td.{self.c.pick(FLOATS)})", x.exact, x.most)
            case "round":
                name = self.c.pick(("floor", "ceil", "trunc", "round"))
                return self.made(f"td.{name}({x.text})", True, x.most + 1)
            case "smooth":
                return self.smooth(x)
        y = self.term(scope, "f", depth, exact)
        a, b, both = x.text, y.text, x.exact and y.exact
        match how:
            case "divide":
                return self.made(f"({a} / (1.5 + abs({b})))", False, x.most)
            case "where":
                cond = self.term(scope, "b", depth)
                return self.made(f"td.where({cond.text}, {a}, {b})", both, max(x.most, y.most))
            case "extreme":
                name = self.c.pick(("minimum", "maximum"))
                return self.made(f"td.{name}({a}, {b})", both, max(x.most, y.most))
            case _ if self.c.chance(30):
                return self.made(f"({a} * {b})", both, x.most * y.most)
            case _:
                return self.made(f"({a} {self.c.pick('+-')} {b})", both, x.most + y.most)

    def smooth(self, x: Term) -> Term:
        """A function whose slope is small where it is used."""
        text, most = self.c.pick(
            (
                ("td.tanh({})", 1), ("td.sigmoid({})", 1), ("td.sin({})", 1), ("td.cos({})", 1),
                ("td.erf({})", 1), ("td.sqrt(abs({}))", x.most + 1), ("td.exp(td.clip({}, -4, 3))", 21),
                ("td.log(1 + abs({}))", x.most), ("td.log1p(abs({}))", x.most),
                ("td.rsqrt(1 + abs({}))", 1), ("td.exp2(td.clip({}, -4, 4))", 16),
                ("td.arctan({})", 2), ("td.expm1(td.clip({}, -2, 2))", 8),
                ("td.power(1 + abs({}), 0.5)", x.most + 1), ("td.hypot({}, 1.5)", x.most + 2),
                ("td.fma({}, 0.5, 1.25)", x.most + 2), ("td.lerp({}, 1.0, 0.25)", x.most + 1),
                ("td.square(td.sin({}))", 1), ("td.arctan2({}, 2.0)", 2),
            )
        )  # fmt: skip
        return self.made(text.format(x.text), False, most)

    # reductions

    def reduction(self, scope: Scope, kind: str, depth: int, exact: bool) -> Term:
        """A reduction of a named kind over one or two variables of its own."""
        axes, inner = [], scope
        for name in ("m", "n")[: 1 + self.c.chance(25)]:
            if name in scope.variables:
                return self.leaf(scope, kind, exact)
            inner, axis = self.reduction_variable(inner, name)
            axes.append(axis)
        which = self.c.weighted(
            {"sum": 6, "max": 3, "min": 3, "mean": 1, "prod": 1}
            if kind == "f"
            else {
                "sum": 5,
                "max": 2,
                "min": 2,
                "prod": 1,
                "argmax": 2,
                "argmin": 2,
                "any": 1,
                "all": 1,
            }
        )
        wants = {"any": "b", "all": "b", "argmax": "f", "argmin": "f"}.get(which, kind)
        x = self.term(inner, wants, depth, exact or which.startswith("arg"))
        axis = axes[0] if len(axes) == 1 else f"({', '.join(axes)})"
        text = f"td.{which}({x.text}, axis={axis})"
        match which:
            case "sum":
                return self.made(text, False, x.most * 250)
            case "prod" if kind == "f":
                return self.made(text.replace(x.text, f"td.cos({x.text})", 1), False, 1)
            case "any" | "all":
                return self.made(f"td.cast({text}, td.i32)", True, 1)
            case "mean":
                # a mean over nothing is NaN
                return self.made(f"td.where(td.isnan({text}), 0, {text})", False, x.most)
            case "max" | "min" if kind == "f":
                # over nothing it is an infinity
                return self.made(f"td.clip({text}, -16, 16)", x.exact, 16)
            case _:
                return self.made(text, True, 8)

    def reduction_variable(self, scope: Scope, name: str) -> tuple[Scope, str]:
        """The scope inside a reduction, and the text of its axis."""
        if self.c.chance(55):
            return scope.inner(name, None), name
        lo = self.c.integer(0, 2)
        hi = lo + self.c.integer(0, 4)
        where = ""
        if scope.variables and self.c.chance(40):
            v, op = self.c.pick(scope.variables), self.c.pick(("<=", "<", ">", "!="))
            where = f", where=lambda {name}: {name} {op} {v}"
        elif self.c.chance(15):
            where = f", where=lambda {name}: {name} % 2 == 0"
        inner = scope.inner(name, (lo, hi - 1))
        inner.unread = []
        return inner, f'td.range("{name}", {lo}, {hi}{where})'

    def of_type(self, scope: Scope, t: DType, depth: int, exact: bool) -> Term:
        """A value of exactly this type."""
        kind = self._kind(t)
        x = self.term(scope, kind, depth, exact)
        if x.dtype == t:
            return x
        how = "td.saturating_cast" if kind == "i" and self.c.chance(30) else "td.cast"
        made = self.made(f"{how}({x.text}, td.{t.name})", x.exact, x.most)
        assert made.dtype in (t, i64) or made.dtype == t
        return made
