"""A program as a function of JAX: an oracle for gradients that has rules of its own for every operation."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from tdsl.lang.definition import Definition
from tdsl.lang.expr import (
    TRUE,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Param,
    Range,
    Read,
    Select,
    Unary,
    Var,
    const,
)
from tdsl.lang.interp import bind_arguments
from tdsl.lang.interpreted_boxes import number_of, ranges_at, realised_boxes
from tdsl.lang.program import FuncDef, Program


def function_of(program: Program, arrays: Mapping[str, Any]) -> Any:
    """A function from the arrays by name to the outputs of a program, for these shapes."""
    bound, _ = bind_arguments(program, arrays, {})
    return lambda given: _Run(bound, given).outputs()


class _Run:
    def __init__(self, program: Program, given: Mapping[str, Any]) -> None:
        import jax
        import jax.numpy as jnp

        self.jnp, self.jax, self.program = jnp, jax, program
        self.arrays = {n: [x] for n, x in given.items()}
        self.boxes = {n: tuple((0, e - 1) for e in x.shape) for n, x in given.items() if hasattr(x, "shape")}
        self.boxes |= realised_boxes(program)
        for f in program.funcs:
            if f.name in self.boxes:
                self._func(f)

    def outputs(self) -> tuple[Any, ...]:
        results = []
        for name in self.program.outputs:
            natural = self.program.func(name).natural
            ends = zip(natural, self.boxes[name], strict=True)
            cut = tuple(
                slice(number_of(lo) - first, number_of(hi) - first + 1) for (lo, hi), (first, _) in ends
            )
            results += [x[cut] for x in self.arrays[name]]
        return tuple(results)

    def _func(self, f: FuncDef) -> None:
        box = self.boxes[f.name]
        shape = tuple(hi - lo + 1 for lo, hi in box)
        ends = tuple((const(lo), const(hi)) for lo, hi in box)
        for n, d in enumerate(f.definitions):
            spans = {v: (number_of(lo), number_of(hi)) for v, (lo, hi) in ranges_at(d, ends).items()}
            if n == 0:
                self.arrays[f.name] = self._pure(f, d, spans, shape)
            else:
                outer = [v for v, _, _ in d.ranges]
                points = (range(spans[v][0], spans[v][1] + 1) for v in outer)
                for at in itertools.product(*points):
                    self._update(f, d, {v: spans[v] for v in d.free}, dict(zip(outer, at, strict=True)))

    def _grid(self, spans: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
        grid = {}
        for n, (v, (lo, hi)) in enumerate(spans.items()):
            shape = [1] * len(spans)
            shape[n] = hi - lo + 1
            grid[v] = np.arange(lo, hi + 1).reshape(shape)
        return grid

    def _pure(self, f: FuncDef, d: Definition, spans: dict[str, tuple[int, int]], shape: Any) -> list[Any]:
        jnp, order = self.jnp, list(d.free) + [v for v, _, _ in d.ranges]
        env = self._grid({v: spans[v] for v in order})
        whole = tuple(spans[v][1] - spans[v][0] + 1 for v in order)
        where = self.expr(d.where, env)
        results = []
        for n, (value, t) in enumerate(zip(d.values, f.dtypes, strict=True)):
            x = jnp.broadcast_to(jnp.asarray(self.expr(value, env), t.numpy), whole)
            if d.combine is not None:
                assert d.init is not None
                axes = tuple(range(len(d.free), len(order)))
                x = jnp.where(where, x, self.expr(d.init[n], {}))
                reduce = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min, "prod": jnp.prod}
                kind = d.combine.kind if d.combine.kind in reduce else "sum"  # a sum and a count
                x = reduce[kind](x, axis=axes).astype(t.numpy)
            results.append(x.reshape(shape))
        return results

    def _update(
        self, f: FuncDef, d: Definition, spans: Mapping[str, tuple[int, int]], at: Mapping[str, int]
    ) -> None:
        jnp = self.jnp
        env = self._grid(spans) | {v: np.asarray(x) for v, x in at.items()}
        index = self._index(f.name, d.index, env)
        old = [x[index] for x in self.arrays[f.name]]
        new = [jnp.asarray(self.expr(v, env), t.numpy) for v, t in zip(d.values, f.dtypes, strict=True)]
        if d.combine is not None:
            sides = {f"a{n}": x for n, x in enumerate(old)} | {f"b{n}": x for n, x in enumerate(new)}
            new = [self.expr(e, sides) for e in d.combine.exprs]
        where = self.expr(d.where, env)
        self.arrays[f.name] = [
            x.at[index].set(jnp.where(where, v, o))
            for x, v, o in zip(self.arrays[f.name], new, old, strict=True)
        ]

    def _index(self, name: str, index: tuple[Expr, ...], env: Mapping[str, Any]) -> tuple[Any, ...]:
        ends = zip(index, self.boxes[name], strict=True)
        return tuple(self.expr(e, env) - lo for e, (lo, _) in ends)

    def expr(self, e: Expr, env: Mapping[str, Any]) -> Any:
        jnp = self.jnp
        match e:
            case _ if e == TRUE:
                return True
            case Const(value, t):
                return np.asarray(value, t.numpy)
            case Var(name) | Range(name) | Param(name):
                return env[name] if name in env else self.arrays[name][0]
            case Read(name, index, component):
                return self.arrays[name][component][self._index(name, index, env)]
            case Select(cond, yes, no):
                return jnp.where(self.expr(cond, env), self.expr(yes, env), self.expr(no, env))
            case Cast(x, t):
                return jnp.asarray(self.expr(x, env)).astype(t.numpy)
            case Unary(op, x):
                return {"neg": jnp.negative, "abs": jnp.abs, "not": jnp.logical_not}[op](self.expr(x, env))
            case Binary(op, x, y):
                return getattr(jnp, _BINARY.get(op, op))(self.expr(x, env), self.expr(y, env))
            case Call(fn, (i, n)) if fn.startswith("pad_"):
                at, extent = self.expr(i, env), self.expr(n, env)
                if fn == "pad_wrap":
                    return at % extent
                assert fn == "pad_edge", fn
                return np.clip(at, 0, extent - 1)
            case Call("rsqrt", (x,)):
                return self.jax.lax.rsqrt(self.expr(x, env))
            case Call("sigmoid" | "erf" as fn, (x,)):
                return getattr(self.jax.scipy.special, {"sigmoid": "expit"}.get(fn, fn))(self.expr(x, env))
            case Call(fn, args):
                return getattr(jnp, fn)(*(self.expr(x, env) for x in args))
            case _:
                raise AssertionError(f"not known to the oracle: {type(e).__name__}")


_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "min": "minimum", "max": "maximum",
    "floordiv": "floor_divide", "pow": "power", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "eq": "equal", "ne": "not_equal", "and": "logical_and", "or": "logical_or",
}  # fmt: skip
