"""Random kernels for tests of passes: small, within bounds, and with everything that lowering may give.

Some indices are within bounds only where a condition holds or a loop has iterations.
"""

from dataclasses import dataclass, replace
from random import Random

import numpy as np

from tdsl.codegen.ir.loops import (
    AUTO,
    HEAP,
    Alloc,
    Block,
    BufferParam,
    Check,
    For,
    If,
    Kernel,
    Let,
    Message,
    ScalarParam,
    SizeParam,
    Stmt,
    Store,
)  # fmt: skip
from tdsl.codegen.ir.verify import verify
from tdsl.codegen.python.run import PythonExecutable
from tdsl.lang.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Param,
    Select,
    Size,
    Unary,
    Var,
    const,
)  # fmt: skip
from tdsl.lang.simplify import conjunction
from tdsl.lang.types import f64, i32, i64

ROWS, COLUMNS, LENGTH = 6, 23, 9
MANY = 100  # times that a statement runs, from which loops inside are short, so that tests stay quick
PARAMS = (
    BufferParam("out", i64, (const(ROWS), const(COLUMNS)), (None, None), True),
    BufferParam("line", i64, (const(COLUMNS),), (None,), True),
    BufferParam("a", i64, (const(ROWS), const(COLUMNS)), (None, None), False),
    BufferParam("b", i64, (Size("n"),), (None,), False),
    BufferParam("c", i32, (const(LENGTH),), (None,), False),
    ScalarParam("p", i64),
    SizeParam("n"),
    BufferParam("real", f64, (const(ROWS), const(COLUMNS)), (None, None), True),
    BufferParam("terms", f64, (const(COLUMNS),), (None,), False),
)
EXTENTS = {
    "out": (const(ROWS), const(COLUMNS)),
    "line": (const(COLUMNS),),
    "a": (const(ROWS), const(COLUMNS)),
    "b": (Size("n"),),
    "c": (const(LENGTH),),
    "real": (const(ROWS), const(COLUMNS)),
    "terms": (const(COLUMNS),),
}


def add(a: Expr, b: Expr) -> Expr:
    return Binary("add", a, b)


def times(k: int, a: Expr) -> Expr:
    return Binary("mul", a, const(k))


@dataclass(frozen=True)
class Scope:
    variables: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()  # of lets that hold data
    memory: tuple[tuple[str, tuple[Expr, ...]], ...] = ()
    strips: tuple[tuple[str, str, int], ...] = ()  # inner variable, outer variable, factor
    depth: int = 0
    copies: int = 1  # of a statement, once loops are unrolled
    runs: int = 1  # of a statement, at most


class Nests:
    """Draws kernels."""

    def __init__(self, random: Random, pads: bool = False) -> None:
        self.random, self.pads, self.count, self.left = random, pads, 0, 12

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def kernel(self) -> Kernel:
        body = Updates(self.random).loops() if self.random.random() < 0.4 else self.block(Scope())
        return Kernel("k", PARAMS, body, (Message("require", ("", ""), ""),))

    def one_of(self, *choices: str) -> str:
        return self.random.choice(choices)

    def block(self, s: Scope) -> Stmt:
        parts = [self.statement(s) for _ in range(self.random.choice((1, 1, 1, 2, 3)))]
        return parts[0] if len(parts) == 1 else Block(tuple(parts))

    def statement(self, s: Scope) -> Stmt:
        self.left -= 1
        deeper = replace(s, depth=s.depth + 1)
        kind = self.one_of("for", "for", "for", "strip", "strip", "if", "let", "alloc", "store")
        if s.depth < 1:
            kind = self.one_of("for", "for", "strip", "alloc")
        if s.depth > 5 or self.left < 0:
            kind = "store"
        match kind:
            case "for":
                return self.loop(deeper)
            case "strip":
                return self.strip(deeper)
            case "if":
                orelse = self.block(deeper) if self.random.random() < 0.3 else None
                return If(self.condition(s), self.block(deeper), orelse)
            case "let":
                return self.let(deeper)
            case "alloc":
                return self.alloc(deeper)
            case _:
                return self.check(s) if self.random.random() < 0.03 else self.store(s)

    def loop(self, s: Scope) -> Stmt:
        name = self.name("i")
        kind = self.one_of("serial", "serial", "parallel", "vectorized", "vectorized", "unrolled")
        lo = const(self.random.choice((0, 0, 0, 1, -2)))
        extent: Expr = const(self.random.randint(0, 5 if s.runs < MANY else 2))
        if kind == "vectorized":
            extent = const(self.random.choice((1, 2, 4, 5, 8) if s.runs < MANY else (1, 2)))
        pick = self.random.random()
        if pick < 0.15:
            extent = Binary("min", add(self.affine(s), const(2)), const(self.random.randint(1, 5)))
        elif pick < 0.25 and kind != "unrolled" and s.runs < MANY:
            extent = Size("n")
        elif pick < 0.3 and kind != "unrolled":
            extent = Binary("mod", self.value(s), const(4))
        kind, s = self.affordable(kind, 5, s)
        runs = s.runs * (extent.value if isinstance(extent, Const) else 5)
        s = replace(s, variables=(*s.variables, name), runs=runs)
        return For(name, lo, extent, kind, self.block(s))

    def affordable(self, kind: str, copies: int, s: Scope) -> tuple[str, Scope]:
        """Few loops are unrolled inside each other, so that tests stay quick."""
        if kind != "unrolled":
            return kind, s
        copies *= s.copies
        return ("serial", s) if copies > 12 else (kind, replace(s, copies=copies))

    def strip(self, s: Scope) -> Stmt:
        """A split loop, of which the inner one is vectorized, perhaps with a tail."""
        outer, inner, factor = self.name("o"), self.name("v"), self.random.choice((2, 4))
        steps = self.random.randint(1, COLUMNS // factor + 1 if s.runs < MANY else 2)
        s = replace(
            s,
            variables=(*s.variables, outer, inner),
            strips=(*s.strips, (inner, outer, factor)),
            depth=s.depth + 1,
            runs=s.runs * steps * factor,
        )
        kind = self.one_of("serial", "serial", "serial", "parallel", "unrolled")
        kind, s = self.affordable(kind, steps, s)
        body = self.block(s)
        if self.random.random() < 0.6:
            x = add(times(factor, Var(outer)), Var(inner))
            tail = Binary("lt", x, const(factor * steps - self.random.randint(0, factor - 1)))
            body = If(tail, body)
        vector = For(inner, const(0), const(factor), "vectorized", body)
        if self.random.random() < 0.2:
            taps = self.name("k")
            vector = For(taps, const(0), const(2), self.one_of("serial", "unrolled"), vector)
        return For(outer, const(0), const(steps), kind, vector)

    def let(self, s: Scope) -> Stmt:
        name = self.name("t")
        if self.random.random() < 0.5:
            return Let(name, self.affine(s), self.block(replace(s, variables=(*s.variables, name))))
        value = Cast(self.value(s), i32)
        return Let(name, value, self.block(replace(s, scalars=(*s.scalars, name))))

    def alloc(self, s: Scope) -> Stmt:
        name = self.name("m")
        extents = tuple(const(self.random.randint(1, 4)) for _ in range(self.random.randint(0, 2)))
        if extents and self.random.random() < 0.3:
            extents = (*extents[:-1], add(Size("n"), const(1)))
        index = tuple(self.name("z") for _ in extents)
        fill: Stmt = Store(name, tuple(map(Var, index)), const(self.random.randint(0, 9)))
        for z, extent in zip(reversed(index), reversed(extents), strict=True):
            fill = For(z, const(0), extent, "serial", fill)
        body = self.block(replace(s, memory=(*s.memory, (name, extents))))
        scope = self.one_of(HEAP, AUTO)
        return Alloc(name, i64, extents, scope, Block((fill, body)))

    def store(self, s: Scope) -> Stmt:
        targets = [("out", EXTENTS["out"]), ("line", EXTENTS["line"]), *s.memory]
        name, extents = self.random.choice(targets)
        atomic = "add" if self.random.random() < 0.1 else ""
        if extents and self.random.random() < 0.4:
            index = tuple(self.affine(s) for _ in extents)
            store = Store(name, index, self.small(s), None, atomic)
            test: Expr | None = None
            for i, n in zip(index, extents, strict=True):
                inside = Binary("and", Binary("ge", i, const(0)), Binary("lt", i, n))
                test = inside if test is None else Binary("and", test, inside)
            assert test is not None
            return If(test, store)
        return Store(name, tuple(self.index(s, n) for n in extents), self.small(s), None, atomic)

    def small(self, s: Scope) -> Expr:
        """A value far from where i64 wraps, which index arithmetic never does."""
        return Binary("mod", self.value(s), const(101))

    def check(self, s: Scope) -> Stmt:
        return Check(Binary("lt", self.affine(s), const(10_000)), 0, (self.affine(s),))

    def affine(self, s: Scope) -> Expr:
        e: Expr = const(self.random.randint(-2, 3))
        for v in self.random.sample(s.variables, min(len(s.variables), self.random.randint(0, 2))):
            e = add(times(self.random.choice((1, 1, 1, 2, 4, -1)), Var(v)), e)
        if s.variables and self.random.random() < 0.6:
            e = add(e, Var(s.variables[-1]))
        for inner, outer, factor in s.strips:
            if self.random.random() < 0.8:
                x = add(times(factor, Var(outer)), Var(inner))
                e = add(x, const(self.random.randint(-2, 2)))
        if self.random.random() < 0.1:
            e = add(e, Size("n"))
        if self.random.random() < 0.15:
            e = Binary(self.one_of("floordiv", "mod"), e, const(self.random.choice((2, 3, 8))))
        return e

    def index(self, s: Scope, n: Expr) -> Expr:
        """An index within 0..n - 1."""
        e = self.affine(s) if self.random.random() < 0.9 else self.value(s)
        modes = ["clip", "clip", "mod"]
        if self.pads:
            modes += ["pad_edge", "pad_reflect", "pad_symmetric", "pad_wrap"]
        mode = self.random.choice(modes)
        if mode == "mod":
            return Binary("mod", e, n)
        if mode == "clip":
            return Binary("max", Binary("min", e, Binary("sub", n, const(1))), const(0))
        return Call(mode, (e, n), i64)

    def condition(self, s: Scope) -> Expr:
        pick = self.random.random()
        if pick < 0.15:
            return Unary("not", self.condition(s))
        if pick < 0.35:
            op = self.one_of("and", "and", "or")
            return Binary(op, self.condition(s), self.condition(s))
        op = self.one_of("lt", "lt", "le", "gt", "ge", "eq", "ne")
        if pick < 0.5:
            return Binary(op, self.value(s), const(self.random.randint(-3, 9)))
        return Binary(op, self.affine(s), const(self.random.randint(-1, 9)))

    def value(self, s: Scope, depth: int = 0) -> Expr:
        pick = self.random.random()
        if depth > 2 or pick < 0.15:
            return self.affine(s)
        if pick < 0.6:
            sources = [(n, EXTENTS[n]) for n in ("a", "b", "out", "line")]
            name, extents = self.random.choice([*sources, *s.memory, *s.memory])
            return Load(name, tuple(self.index(s, n) for n in extents), i64)
        if pick < 0.7:
            return Cast(Load("c", (self.index(s, const(LENGTH)),), i32), i64)
        if pick < 0.75 and s.scalars:
            return Cast(Param(self.random.choice(s.scalars), i32), i64)
        if pick < 0.8:
            return Param("p", i64)
        if pick < 0.88:
            return Select(self.condition(s), self.value(s, depth + 1), self.value(s, depth + 1))
        op = self.one_of("add", "sub", "mul", "min", "max", "floordiv", "mod")
        return Binary(op, self.value(s, depth + 1), self.value(s, depth + 1))


class Updates:
    """Draws loops that update numbers, each under a condition of its own.

    Only conditions, or loops without iterations, keep the indices in bounds. Sums and differences of
    these numbers, and products, are exact in any order, the signs of their zeros too.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.row = self.random.choice((None, const(self.random.randrange(ROWS))))  # of all elements
        self.limits: list[Expr] | None = [] if self.random.random() < 0.3 else None  # of the inner loop

    def one_of(self, *choices: str) -> str:
        return self.random.choice(choices)

    def loops(self) -> Stmt:
        kind = self.one_of("strip", "strip", "strip", "serial", "serial", "parallel", "vectorized")
        factor = self.random.choice((2, 4, 8))
        point: Expr = add(times(factor, Var("o")), Var("x")) if kind == "strip" else Var("x")
        stores = [self.update(point) for _ in range(self.random.choice((1, 1, 2, 3)))]
        body = stores[0] if len(stores) == 1 else Block(tuple(stores))
        extent: Expr = const(self.random.randint(0, 16))
        if self.random.random() < 0.4:
            extent = add(times(self.random.choice((1, -1)), Var("k")), const(self.random.randint(-2, 4)))
        for limit in self.limits or ():
            extent = Binary("min", extent, limit)
        if self.limits is not None and kind in ("strip", "vectorized"):
            body = If(Binary("lt", point, extent), body)
        if kind == "strip":
            steps = Binary("floordiv", add(extent, const(factor - 1)), const(factor))
            vector = For("x", const(0), const(factor), "vectorized", body)
            body = For("o", const(0), steps, self.one_of("serial", "serial", "parallel"), vector)
        else:
            extent = const(factor) if kind == "vectorized" else extent
            body = For("x", const(0), extent, kind, body)
        return For("k", const(0), const(self.random.randint(1, ROWS + 3)), "serial", body)

    def update(self, point: Expr) -> Stmt:
        tests: list[Expr] = []
        at = self.element(point, tests)
        term: Expr = Load("terms", (self.index(COLUMNS, point, tests),), f64)
        if self.random.random() < 0.6:
            other = Load("real", self.element(point, tests), f64)
            small = Binary("max", Binary("min", other, Const(3.0, f64)), Const(-3.0, f64))
            term = Binary("mul", term, small) if self.random.random() < 0.7 else small
        op = self.one_of("add", "add", "sub", "sub", "mul")
        if op == "mul":
            term = Binary("max", Binary("min", term, Const(1.0, f64)), Const(-1.0, f64))
        if self.limits is None or self.random.random() < 0.2:
            tests += [self.condition(point) for _ in range(self.random.choice((0, 1, 1)))]
        self.random.shuffle(tests)
        s: Stmt = Store("real", at, Binary(op, Load("real", at, f64), term))
        while tests:
            count = self.random.randint(1, len(tests))
            s, tests = If(conjunction(tests[:count]), s), tests[count:]
        return s

    def condition(self, point: Expr) -> Expr:
        if self.random.random() < 0.15:
            some = Load("terms", (Binary("mod", point, const(COLUMNS)),), f64)
            return Binary("lt", some, Const(0.0, f64))
        side = add(Var("k"), const(self.random.choice((0, 0, 0, 1, -1, 2))))
        return Binary(self.one_of("lt", "le", "gt", "ge", "eq"), point, side)

    def element(self, point: Expr, tests: list[Expr]) -> tuple[Expr, Expr]:
        row = self.row
        if row is None:
            row = self.within(Var("k"), ROWS, point, tests)
        return row, self.index(COLUMNS, point, tests)

    def index(self, n: int, point: Expr, tests: list[Expr]) -> Expr:
        start: Expr = const(self.random.choice((0, 0, 0, 1, 2, 3)))
        base = self.random.choice((Var("k"), Var("k"), point, None))
        if base is point:
            self.within(start, n, point, tests, moves=True)
            return add(point, start)
        return start if base is None else self.within(add(base, start), n, point, tests)

    def within(self, i: Expr, n: int, point: Expr, tests: list[Expr], moves: bool = False) -> Expr:
        """An index i; it, or i + point if it `moves`, is below n by a test or a limit of the points."""
        if self.limits is not None:
            self.limits.append(Binary("sub", const(n), i))
        else:
            most = add(i, point) if moves or self.random.random() < 0.5 else i
            tests.append(Binary("lt", most, const(n)))
        return i


def results(kernel: Kernel, n: int = 4, seed: int = 0) -> tuple[np.ndarray, ...]:
    """What a kernel stores, run with every access checked; floats by their bits."""
    rng = np.random.default_rng(seed)
    out, a = (rng.integers(-9, 10, (ROWS, COLUMNS)) for _ in range(2))
    line, b = rng.integers(-9, 10, COLUMNS), rng.integers(-9, 10, n)
    c = rng.integers(-9, 10, LENGTH, dtype=np.int32)
    real, terms = (rng.choice((-2.0, -1.0, -0.0, 0.0, 1.0), size) for size in ((ROWS, COLUMNS), COLUMNS))
    PythonExecutable(kernel, checked=True).run([out, line, a, b, c, 5, n, real, terms])
    return out, line, real.view(np.int64)


def assert_same_results(before: Kernel, after: Kernel, n: int = 4) -> None:
    """Both kernels are well formed and compute the same."""
    verify(after)
    for x, y in zip(results(before, n), results(after, n), strict=True):
        np.testing.assert_array_equal(x, y)
