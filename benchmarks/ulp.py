"""Errors and speed of the CPU's math functions.

    python -m benchmarks.ulp [functions]         the table of docs/math.md
    python -m benchmarks.ulp --time [functions]  ns per element beside NumPy or SciPy

An error is |result - exact| over the distance between floats at the rounded exact result. "Exact" is float64
for f32, the 64-bit fraction of x87 for f64 (or mpmath, where NumPy has no such function).
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import special

from tdsl.codegen.cpu import jit
from tdsl.codegen.cpu.builder import Builder, Module
from tdsl.codegen.cpu.ir_types import register_type, vector
from tdsl.codegen.cpu.vecmath import ULP, math_call
from tdsl.lang.expr import FUNCTIONS
from tdsl.lang.types import DType, f32, f64
from tdsl.machine import cpu as machine

PREDICATES = ("isnan", "isinf", "isfinite")
NAMES = (
    "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "sin", "cos", "tan",
    "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh",
    "erf", "sigmoid", "hypot", "floor", "ceil", "trunc", "round", "copysign", "fma", *PREDICATES,
)  # fmt: skip
Array = np.ndarray[Any, Any]


def arity(fn: str) -> int:
    return 2 if fn == "pow" else FUNCTIONS[fn]


def targets() -> dict[str, machine.CpuTarget]:
    """The kinds of CPU whose code can run here: the levels of x86 that this one has, or just this one."""
    host = machine.host()
    levels = {name: machine.level(name) for name in ("avx512", "avx2", "sse2")}
    here = host.architecture, host.has
    usable = {name: t for name, t in levels.items() if t.architecture == here[0] and t.has <= here[1]}
    return usable or {"host": host}


def function_text(fn: str, t: DType, lanes: int, target: machine.CpuTarget) -> str:
    """A module with `void f(ptr out, ptr x0, ..., i64 n)`; n is a number of vectors."""
    module = Module(target)
    inputs = [f"%x{k}" for k in range(arity(fn))]
    header = f"define void @f({', '.join(f'ptr {x}' for x in ('%out', *inputs))}, i64 %n)"
    b = Builder(module, header)
    stored_type = element = register_type(t)
    with b.loop("0", "%n") as vector_number:
        i = b.v(f"mul i64 {vector_number}, {lanes}")
        at = lambda base, type_: f"ptr {b.v(f'getelementptr {type_}, ptr {base}, i64 {i}')}"
        whole = register_type(t, lanes)
        args = [b.get(f"load {whole}, {at(x, element)}, align {t.bytes}") for x in inputs]
        result = math_call(b, fn, args, t, lanes)
        if fn in PREDICATES:
            stored_type, whole = "i8", vector("i8", lanes)
            result = b.v(f"zext {vector('i1', lanes)} {result} to {whole}")
        b.do(f"store {whole} {result}, {at('%out', stored_type)}, align 1")
    b.do("ret void")
    module.declare(b.text())
    return module.text()


class Compiled:
    """A function on arrays of equal length, a multiple of `lanes`."""

    def __init__(self, fn: str, t: DType, lanes: int = 16, target: machine.CpuTarget | None = None) -> None:
        target = target or machine.host()
        self.lanes, self.result = lanes, np.dtype(np.bool_) if fn in PREDICATES else t.numpy
        self._code = jit.load(jit.emit_object(function_text(fn, t, lanes, target), target, fn), ["f"])
        pointers = [ctypes.c_void_p] * (arity(fn) + 1)
        entry = ctypes.CFUNCTYPE(None, *pointers, ctypes.c_int64)
        self._entry = entry(self._code.address("f"))

    def bind(self, out: Array, *xs: Array) -> Callable[[], None]:
        """A call that only runs the code."""
        assert out.size % self.lanes == 0
        assert all(x.size == out.size for x in xs)
        assert all(x.flags.c_contiguous for x in (out, *xs))
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (out, *xs)]
        count = ctypes.c_int64(out.size // self.lanes)
        return lambda: self._entry(*pointers, count)  # holds self, so the code stays mapped

    def __call__(self, *xs: Array) -> Array:
        out = np.empty(xs[0].shape, self.result)
        self.bind(out, *xs)()
        return out


_NUMPY = {"pow": "power", "round": "rint"}


def _erf_slowly(x: Array) -> Array:
    from mpmath import mp  # comes with SymPy

    mp.prec = 80
    values = np.array([_extended(mp.erf(float(v)), mp) if v == v else v for v in x], np.longdouble)
    return np.copysign(values, x)


def _extended(v: Any, mp: Any) -> np.longdouble:
    high = float(v)
    return np.longdouble(high) + np.longdouble(float(v - mp.mpf(high)))


def exact(fn: str, *xs: Array) -> Array:
    """The value in a wider type than the arguments, with NumPy's special cases."""
    with np.errstate(all="ignore"):
        wide = [x.astype(np.float64 if x.dtype == np.float32 else np.longdouble) for x in xs]
        x = wide[0]
        match fn:
            case "rsqrt":
                return 1 / np.sqrt(x)
            case "sigmoid":
                return 1 / (1 + np.exp(-x))
            case "erf":
                return special.erf(x) if x.dtype == np.float64 else _erf_slowly(xs[0])
            case _:
                return getattr(np, _NUMPY.get(fn, fn))(*wide)


def errors(result: Array, expected: Array) -> Array:
    """The error of each element in ulp.

    Infinite where one is an infinity or NaN and the other is not the same, or zeros differ in sign.
    """
    with np.errstate(all="ignore"):
        rounded = expected.astype(result.dtype)
        ulp = np.spacing(np.abs(rounded)).astype(expected.dtype)
        distance = np.abs(result.astype(expected.dtype) - expected) / ulp
    is_equal = (result == rounded) | (np.isnan(result) & np.isnan(rounded))
    is_finite = np.isfinite(result) & np.isfinite(rounded)
    differs_in_sign = (result == 0) & (rounded == 0) & (np.signbit(result) != np.signbit(rounded))
    ulps = np.where(is_finite, distance, np.where(is_equal, 0.0, np.inf))
    return np.where(differs_in_sign, np.inf, ulps).astype(np.float64)


# Where each function is interesting, beside all floats alike: (low, high) of uniform numbers.
RANGES = {
    "exp": (-104, 89), "exp2": (-150, 129), "expm1": (-20, 89), "sigmoid": (-104, 20), "tanh": (-20, 20),
    "sinh": (-90, 90), "cosh": (-90, 90), "erf": (-6.5, 6.5), "log1p": (-1, 3), "arcsin": (-1, 1),
    "arccos": (-1, 1), "arctanh": (-1, 1), "arccosh": (1, 5), "sin": (-1e5, 1e5), "cos": (-1e5, 1e5),
    "tan": (-1e5, 1e5), "pow": (-20, 20),
}  # fmt: skip


def specials(t: DType) -> Array:
    """Zeros, infinities, NaN, the ends of the range, small integers and their neighbours."""
    info = np.finfo(t.numpy)
    edges = [
        0.0,
        0.5,
        1.0,
        1.5,
        2.0,
        3.0,
        4.0,
        10.0,
        info.max,
        info.tiny,
        info.smallest_subnormal,
        np.inf,
    ]
    ends = [
        88.72284,
        88.8,
        89.0,
        89.4,
        103.9,
        104.5,
        128.0,
        149.0,
        150.5,
        709.78,
        710.0,
        710.47,
        745.2,
        1074.5,
    ]
    x = np.array(edges + ends + [np.pi, np.pi / 2, 1e5, 1e9, 1e22], t.numpy)
    with np.errstate(all="ignore"):
        x = np.concatenate([x, np.nextafter(x, t.numpy.type(0)), np.nextafter(x, t.numpy.type(np.inf))])
    x = np.concatenate([x, -x, [t.numpy.type(np.nan)]])
    return x.astype(t.numpy)


def inputs(fn: str, t: DType, count: int, seed: int = 0) -> tuple[Array, ...]:
    """About `count` tuples of arguments: special values, all floats alike, and the range of interest."""
    rng = np.random.default_rng(seed)
    low, high = RANGES.get(fn, (-10, 10))
    if t == f64 and fn in ("exp", "exp2", "expm1", "sigmoid", "sinh", "cosh"):
        low, high = low * 8, high * 8
    quarter = count // 4
    columns = []
    for k in range(arity(fn)):
        bits = rng.integers(0, 2**t.bits, quarter, dtype=f"u{t.bytes}").view(t.numpy)
        moderate = rng.normal(0, 1, quarter) if fn != "log" else rng.uniform(0.5, 2, quarter)
        parts = [bits, rng.uniform(low, high, quarter), moderate, rng.exponential(1.0, quarter)]
        pair = specials(t)
        grid = np.meshgrid(*[pair] * min(arity(fn), 2))[min(k, 1)].ravel() if arity(fn) > 1 else pair
        columns.append(np.concatenate([grid, *(p.astype(t.numpy) for p in parts)]))
    size = len(columns[0]) // 64 * 64
    return tuple(np.ascontiguousarray(c[:size]) for c in columns)


def every_float(step: int) -> Iterator[Array]:
    """All f32 bit patterns that are multiples of `step`, but for a few of the last, in blocks."""
    block = step << 22
    for start in range(0, 1 << 32, block):
        stop = min(start + block, 1 << 32)
        bits = np.arange(start, stop, step, dtype=np.uint64).astype(np.uint32)
        yield bits[: bits.size // 64 * 64].view(np.float32)


def blocks(fn: str, t: DType, count: int, every: int) -> Iterator[tuple[Array, ...]]:
    """What `inputs` gives and, for an f32 function of one argument, each `every`-th float."""
    # mpmath takes 30 us for an erf
    yield inputs(fn, t, min(count, 1 << 15) if fn == "erf" and t == f64 else count)
    if every and t == f32 and arity(fn) == 1:
        yield from ((x,) for x in every_float(every))


def largest(fn: str, t: DType, runs: list[Compiled], count: int, every: int = 0) -> list[float]:
    """The largest error of each compiled form of a function."""
    largest_errors = np.zeros(len(runs))
    for xs in blocks(fn, t, count, every):
        expected = exact(fn, *xs)
        largest_errors = np.maximum(largest_errors, [errors(run(*xs), expected).max() for run in runs])
    return [float(w) for w in largest_errors]


def table(names: list[str], count: int, every: int) -> None:
    """A row for each function: for each type the largest error on each kind of CPU, and the bound."""
    kinds = targets()
    heads = [f"{t}: {' | '.join([*kinds, 'bound'])}" for t in (f32, f64)]
    print(f"| function | {' | '.join(heads)} |\n|---|{'---|' * 2 * (len(kinds) + 1)}")
    for fn in names:
        cells = []
        for t in (f32, f64):
            runs = [Compiled(fn, t, 16, kind) for kind in kinds.values()]
            cells += [f"{e:.3f}" for e in largest(fn, t, runs, count, every)]
            cells.append(f"**{ULP[fn, t.name]}**")
        print(f"| {fn} | {' | '.join(cells)} |", flush=True)


def speed(names: list[str], t: DType, lanes: int) -> None:
    """ns per element on 16384 values in cache; the median of rounds that alternate with NumPy or SciPy."""
    rng = np.random.default_rng(0)
    peers: dict[str, Any] = {
        "erf": special.erf,
        "sigmoid": special.expit,
        "pow": np.power,
        "round": np.rint,
    }
    for fn in names:
        xs = [np.abs(rng.normal(0, 2, 16384)).astype(t.numpy) + t.numpy.type(0.01) for _ in range(arity(fn))]
        if fn in ("arcsin", "arccos", "arctanh"):
            xs = [x / t.numpy.type(20) for x in xs]
        out = np.empty(16384, t.numpy)
        peer = peers.get(fn) or getattr(np, fn, None)
        cases: dict[str, Callable[[], object]] = {"tdsl": Compiled(fn, t, lanes).bind(out, *xs)}
        if peer:
            cases["peer"] = functools.partial(peer, *xs, out)
        times: dict[str, list[float]] = {name: [] for name in cases}
        with np.errstate(all="ignore"):
            for _ in range(30):
                for name, call in cases.items():
                    start = time.perf_counter()
                    for _ in range(20):
                        call()
                    times[name].append((time.perf_counter() - start) / 20 / 16384 * 1e9)
        mine = np.median(times["tdsl"])
        other = f"{np.median(times['peer']):8.3f} {peer}" if peer else ""
        print(f"{fn:10s} {t} x {lanes:2d} {mine:8.3f} {other}", flush=True)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("functions", nargs="*")
    parser.add_argument("--count", type=int, default=1 << 20, help="random inputs")
    parser.add_argument("--every", type=int, default=0, help="f32: take every so many-th float")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--lanes", type=int, default=16)
    options = parser.parse_args()
    names = options.functions or [n for n in NAMES if n not in PREDICATES and n != "fma"]
    if options.time:
        for t in (f32, f64):
            speed(names, t, options.lanes)
    else:
        table(names, options.count, options.every)


if __name__ == "__main__":
    main()
