"""Random programs of floats whose gradients are compared with a tape, and with finite differences.

python -m tests.fuzz.gradients --seed 1 --programs 2000
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tdsl as td
from tdsl.errors import IndexBoundError, ShapeError
from tdsl.lang.build_program import build_program
from tdsl.lang.interp import interpret
from tests.fuzz.choices import Choices, Seeded
from tests.fuzz.tape import Tape

UNARY = ("td.sin({})", "td.tanh({})", "td.exp({} * 0.3)", "({} * {})", "td.erf({})", "td.sigmoid({})",
         "td.sqrt({} * {} + 1.0)", "abs({})", "td.log({} * {} + 0.5)", "(-{})", "({} / 3.0)",
         "td.rsqrt({} * {} + 2.0)", "td.arctan({})", "({} ** 3)")  # fmt: skip
BINARY = ("({} + {})", "({} - {})", "({} * {})", "td.maximum({}, {})", "td.minimum({}, {})",
          "({0} / ({1} * {1} + 1.0))", "td.where({0} > 0.1, {1}, {0} * 2.0)", "td.hypot({}, {} + 3.0)",
          "td.where({0} > 0.0, td.log(td.where({0} > 0.0, {0}, 1.0)), {1})")  # fmt: skip
MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


@dataclass
class Generated:
    """A program as text that ran, with its last func, and its inputs."""

    lines: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=lambda: {"td": td})
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    indices: dict[str, tuple[int, int]] = field(default_factory=dict)  # extent of the tensor, largest value
    sizes: dict[str, int] = field(default_factory=dict)
    output: str = ""

    def run(self, line: str) -> None:
        exec(line, self.names)
        self.lines.append(line)

    def arguments(self, seed: int) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        arrays: dict[str, Any] = {n: rng.uniform(-1.5, 1.5, s) for n, s in self.inputs.items()}
        return arrays | {n: rng.integers(0, most + 1, e) for n, (e, most) in self.indices.items()}


class Builder:
    """Builds a program line by line; a stage without a consistent range is dropped.

    With `digits` indices may have digits of two variables, such as `i // 2 * 3 + j // 2`.
    """

    def __init__(self, choices: Choices, digits: bool = False) -> None:
        self.c, self.g, self.digits = choices, Generated(), digits
        self.shapes: dict[str, tuple[int, ...]] = {}  # of what may be read at 0 <= index < extent
        self.count = 0

    def build(self) -> Generated:
        g = self.g
        g.run('i, j, k, l, m, n = td.vars("i j k l m n")')
        for at in range(self.c.integer(1, 3)):
            rank = self.c.weighted({1: 4, 2: 5, 3: 1})
            shape = tuple(self.c.weighted({4: 3, 5: 3, 7: 2, 3: 2, 1: 1, 2: 1, 8: 1}) for _ in range(rank))
            if self.shapes and self.c.chance(50):
                shape = self.c.pick(list(self.shapes.values()))
            g.inputs[f"a{at}"] = self.shapes[f"a{at}"] = shape
            extents = ", ".join(self.extent(e) for e in shape)
            g.run(f'a{at} = td.Tensor("a{at}", ({extents},), td.f64)')
        stages, tries = self.c.integer(1, 5), 0
        while len(self.shapes) - len(g.inputs) < stages and tries < 20:
            tries += 1
            self.stage(f"f{len(self.shapes) - len(g.inputs)}")
        funcs = [n for n in self.shapes if n not in g.inputs]
        g.output = funcs[-1] if funcs else ""
        return g

    def extent(self, e: int) -> str:
        if not self.c.chance(15):
            return str(e)
        self.g.sizes[f"N{e}"] = e
        return f'"N{e}"'

    def stage(self, name: str) -> None:
        g, before = self.g, len(self.g.lines)
        try:
            shape = self.definition(name)
            for _ in range(self.c.weighted({0: 7, 1: 2, 2: 1})):
                self.update(name, shape)
            program = build_program((g.names[name],))
            zeros = {n: np.zeros(s) for n, s in g.inputs.items()}
            zeros |= {n: np.zeros(e, np.int64) for n, (e, _) in g.indices.items()}
            *_, out = interpret(program, {t.name: zeros[t.name] for t in program.inputs})
            domain = g.names[name].domain
            if out.shape != shape or any(lo for lo, _ in domain) or not 0 < out.size <= 200:
                raise ShapeError("another shape")
        except (ShapeError, IndexBoundError):
            del g.lines[before:]
            g.names.pop(name, None)
            return
        self.shapes[name] = shape

    def definition(self, name: str) -> tuple[int, ...]:
        rank = self.c.weighted({1: 4, 2: 4, 0: 1, 3: 1})
        shape = tuple(self.c.integer(1, 6) for _ in range(rank))
        like = [s for s in self.shapes.values() if len(s) == rank]
        if like and self.c.chance(70):
            shape = self.c.pick(like)
        scope = dict(zip("ijk", shape, strict=False))
        left = ", ".join(scope) or "()"
        self.g.run(f'{name} = td.Func("{name}", shape={shape})')
        how = self.c.weighted({"value": 5, "sum": 4, "extremum": 2, "prod": 1, "where": 1, "rows": 1})
        match how:
            case "value":
                text = self.value(scope, self.c.integer(1, 3))
            case "rows":
                over = self.reduction(scope)
                x = self.value({**scope, "m": over}, 1)
                self.g.run(f'{name}m = td.Func("{name}m", shape={shape})')
                self.g.run(f'm = td.range("m", 0, {over})')
                self.g.run(f"{name}m[{left}] = td.max({x}, axis=m)")
                text = f"td.sum(td.exp({x} - {name}m[{left}]), axis=m)"
            case _:
                over = self.reduction(scope)
                where = f", where=lambda m: m <= {self.c.pick([*scope] or ['1'])}" if how == "where" else ""
                self.g.run(f'm = td.range("m", 0, {over}{where})')
                inner = self.value({**scope, "m": over}, self.c.integer(1, 2))
                axis = "m"
                if how == "sum" and self.c.chance(30):
                    self.g.run(f'n = td.range("n", 0, {(more := self.c.integer(1, 3))})')
                    inner, axis = self.value({**scope, "m": over, "n": more}, 2), "(m, n)"
                fn = {"where": "sum", "extremum": self.c.pick(("max", "min"))}.get(how, how)
                text = f"td.{fn}({inner}, axis={axis})"
                if self.c.chance(30):
                    text = self.c.pick(BINARY).format(text, self.value(scope, 1))
        self.g.run(f"{name}[{left}] = {text}")
        return shape

    def reduction(self, scope: dict[str, int]) -> int:
        del scope
        return self.c.pick([e for s in self.shapes.values() for e in s] + [1, 2, 3])

    def value(self, scope: dict[str, int], depth: int) -> str:
        if depth <= 0 or not self.c.chance(85):
            return self.read(scope) if self.c.chance(92) else f"{self.c.integer(-4, 9) / 4}"
        if self.c.chance(50):
            form = self.c.pick(UNARY)
            x = self.value(scope, depth - 1)
            return form.format(x, x)
        form = self.c.pick(BINARY)
        return form.format(self.value(scope, depth - 1), self.value(scope, depth - 1))

    def read(self, scope: dict[str, int]) -> str:
        name = self.c.pick([*self.shapes])
        index, padded = [], False
        for extent in self.shapes[name]:
            text, total = self.index(scope, extent)
            padded = padded or not total
            index.append(text)
        if padded:
            mode = self.c.pick(MODES)
            return f'td.pad({name}, mode="{mode}")[{", ".join(index) or "()"}]'
        return f"{name}[{', '.join(index) or '()'}]"

    def index(self, scope: dict[str, int], extent: int) -> tuple[str, bool]:
        """An index of an axis, and whether it lies inside for all values of the variables."""
        fitting = [v for v, e in scope.items() if e == extent]
        if fitting and self.c.chance(65):
            v = self.c.pick(fitting)
            return self.c.weighted({v: 6, f"{extent - 1} - {v}": 1, f"({v} + 1) % {extent}": 1}), True
        if not scope:
            return str(self.c.integer(0, extent - 1)), True
        v = self.c.pick([*scope])
        e = scope[v]
        other = self.c.pick([*scope])
        last = e - 1
        choices = {
            f"{v}": (last, 3), f"{v} // 2": (last // 2, 2), f"2 * {v}": (2 * last, 2),
            f"{v} + 1": (e, 1), f"{v} // 3 + {v} % 2": (last // 3 + 1, 1),
        }  # fmt: skip
        if other != v:
            choices[f"{v} + {other}"] = (last + scope[other] - 1, 3)
            choices[f"{scope[other]} * {v} + {other}"] = (scope[other] * e - 1, 2)
            choices[f"2 * {v} + {other}"] = (2 * last + scope[other] - 1, 2)
            choices[f"abs({v} - {other})"] = (max(last, scope[other] - 1), 1)
            if self.digits:
                n = (scope[other] - 1) // 2
                choices[f"{v} // 2 * {n + 1} + {other} // 2"] = (last // 2 * (n + 1) + n, 4)
                choices[f"{v} % 2 * 2 + {other} % 2"] = (2 * min(last, 1) + min(scope[other] - 1, 1), 4)
                choices[f"{v} % 3 * {n + 1} + {other} // 2"] = (min(last, 2) * (n + 1) + n, 2)
        inside = {text: 2 * weight for text, (most, weight) in choices.items() if most < extent}
        how = self.c.weighted({"inside": 4 if inside else 0, "pad": 3, "data": 2, "mod": 1, "constant": 1})
        match how:
            case "inside":
                return self.c.weighted(inside), True
            case "pad":
                base = self.c.weighted({t: w for t, (_, w) in choices.items() if "abs" not in t})
                return f"{base} + {self.c.integer(-2, 1)}", False
            case "data":
                at = f"x{len(self.g.indices)}"
                self.g.indices[at] = (e, extent - 1)
                self.g.run(f'{at} = td.Tensor("{at}", ({e},), td.i64)')
                return f"td.clip({at}[{v}], 0, {extent - 1})", True
            case "mod":
                return f"({v} * 2 + 1) % {extent}", True
            case _:
                return str(self.c.integer(0, extent - 1)), True

    def update(self, name: str, shape: tuple[int, ...]) -> None:
        g = self.g
        match self.c.weighted({"scatter": 3, "corner": 2, "scan": 3 if shape else 0}):
            case "scatter":
                e = self.c.integer(1, 5)
                g.run(f'r = td.range("r", 0, {e})')
                index = [self.index({"r": e}, n) for n in shape]
                inside = [
                    t if ok else f"td.clip({t}, 0, {n - 1})" for (t, ok), n in zip(index, shape, strict=True)
                ]
                g.run(f"{name}[{', '.join(inside) or '()'}] += {self.value({'r': e}, 1)}")
            case "corner":
                scope, index = {}, []
                for v, n in zip("ijk", shape, strict=False):
                    fixed = self.c.chance(50)
                    index.append(str(self.c.integer(0, n - 1)) if fixed else v)
                    scope |= {} if fixed else {v: n}
                g.run(f"{name}[{', '.join(index) or '()'}] += {self.value(scope, 1)}")
            case _:
                self.scan(name, shape)

    def scan(self, name: str, shape: tuple[int, ...]) -> None:
        along = self.c.integer(0, len(shape) - 1)
        if shape[along] < 2:
            return
        self.g.run(f'r = td.range("r", 1, {shape[along]})')
        names = list("ijk"[: len(shape)])
        back = self.c.chance(30)
        here, before = (f"{shape[along] - 1} - r", f"{shape[along]} - r") if back else ("r", "r - 1")
        at, earlier = ([x if n == along else v for n, v in enumerate(names)] for x in (here, before))
        own, last = f"{name}[{', '.join(at)}]", f"{name}[{', '.join(earlier)}]"
        scope = {v: e for n, (v, e) in enumerate(zip(names, shape, strict=False)) if n != along} | {
            "r": shape[along]
        }
        x = self.value(scope, 1)
        form = self.c.pick(
            ("{own} += {last}", "{own} = {last} * 0.5 + {x}", "{own} += {last} * {x}",
             "{own} = td.tanh({last} + {x}) + {own} * {own}", "{own} = {own} + {last} * {x}")
        )  # fmt: skip
        self.g.run(form.format(own=own, last=last, x=x))


def check(g: Generated, seed: int, compiled: bool = False) -> str:
    """What is wrong with the gradients of a program; an empty text if nothing is."""
    f = g.names[g.output]
    wrt = [g.names[n] for n in g.inputs if n in {t.name for t in build_program((f,)).inputs}]
    if not wrt:
        return ""
    program = build_program((f,))
    arguments = g.arguments(seed)
    given = {t.name: arguments[t.name] for t in program.inputs}
    rng = np.random.default_rng(seed + 1)
    shape = tuple(s if isinstance(s, int) else 0 for s in interpret(program, given)[0].shape)
    dy = rng.uniform(-1, 1, shape)
    results = td.vjp(f, wrt, td.Tensor("dy", shape, td.f64))
    tape = Tape(program, given)
    tape.run_backward(program.outputs[0], dy)
    adjoint = build_program(tuple(results))
    named = {t.name: (given | {"dy": dy})[t.name] for t in adjoint.inputs}
    if compiled:
        known = {n: e for n, e in g.sizes.items() if n in adjoint.sizes}
        run = td.compile(td.Schedule(*results, sizes=known))
        outs: Any = run(**named)
        outs = outs if isinstance(outs, tuple) else (outs,)
    else:
        outs = interpret(adjoint, named, {n: e for n, e in g.sizes.items() if n in adjoint.sizes})
    for x, out in zip(wrt, outs, strict=True):
        expected = tape.adjoint(x.name)
        scale = 1 + np.max(np.abs(expected), initial=0)
        if out.shape != expected.shape or not np.all(np.abs(out - expected) <= 1e-9 * scale):
            return f"adjoint of {x.name}:\n{out}\nexpected\n{expected}"
    return differences(program, given, wrt, outs, dy, rng)


def differences(
    program: Any, given: dict[str, Any], wrt: list[Any], outs: Any, dy: np.ndarray, rng: Any
) -> str:
    """Central differences along a random direction, tried with two steps: near a corner they differ."""
    step = {x.name: rng.uniform(-1, 1, given[x.name].shape) for x in wrt}
    slopes = []
    for h in (1e-6, 2e-7):
        up, down = (
            interpret(program, given | {n: given[n] + s * h * d for n, d in step.items()})[0] for s in (1, -1)
        )
        slopes.append(float(np.sum((up - down) / (2 * h) * dy)))
    slope = sum(float(np.sum(o * step[x.name])) for x, o in zip(wrt, outs, strict=True))
    size = 1 + sum(float(np.sum(np.abs(o * step[x.name]))) for x, o in zip(wrt, outs, strict=True))
    if abs(slopes[0] - slopes[1]) > 1e-5 * size or abs(slope - slopes[1]) <= 1e-5 * size:
        return ""
    return f"slope {slope}, by differences {slopes}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--compiled", type=int, default=0, help="compile every n-th program")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--digits", action="store_true", help="indices of digits of two variables")
    given = parser.parse_args()
    start, wrong, refused, right = time.monotonic(), 0, 0, 0
    for seed in range(given.seed, given.seed + given.programs):
        if time.monotonic() - start > given.seconds:
            break
        g = Builder(Seeded(seed), given.digits).build()
        if not g.output:
            continue
        if given.show:
            print("\n".join(g.lines))
        try:
            build_program((g.names[g.output],))
            problem = check(g, seed, bool(given.compiled) and seed % given.compiled == 0)
        except td.DefinitionError as error:
            refused += 1
            print(seed, "refused:", error.message)
            continue
        except OverflowError:  # of the tape: values beyond f64
            continue
        except Exception as error:  # noqa: BLE001  # any failure is a fault
            problem = f"{type(error).__name__}: {error}"
        right += not problem
        if problem:
            wrong += 1
            print(f"--- seed {seed}", *g.lines, problem, sep="\n")
    print(f"{right} right, {wrong} wrong, {refused} refused in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
