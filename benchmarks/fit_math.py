"""Fits the polynomials of tdsl/codegen/cpu/vecmath_tables.py and prints that file.

    python -m benchmarks.fit_math > tdsl/codegen/cpu/vecmath_tables.py

Each polynomial is the minimax one by Remez exchange in 50 digits, for the error relative to the function
that is computed from it, then rounded to the type. Needs mpmath (a dependency of SymPy).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mpmath import mp, mpf

mp.dps = 50
Function = Callable[[mpf], mpf]


@dataclass(frozen=True)
class Fit:
    """`target` is approximated on (lo, hi); `weight` turns an error of it into one of the result."""

    name: str
    meaning: str
    target: Function
    weight: Function
    lo: mpf
    hi: mpf
    degree: dict[str, int]


def remez(fit: Fit, degree: int, points: int = 1200) -> tuple[list[mpf], mpf]:
    """The coefficients, highest power first, and the largest weighted error of the minimax polynomial."""
    mid, half = (fit.lo + fit.hi) / 2, (fit.hi - fit.lo) / 2
    # cosines make the grid dense at the ends, where the error oscillates fastest; the shift keeps it off 0
    grid = [mid - half * mp.cos(mp.pi * (k + mpf("0.37")) / points) for k in range(points)]
    f = [fit.target(x) for x in grid]
    w = [fit.weight(x) for x in grid]
    at = [round(k * (points - 1) / (degree + 1)) for k in range(degree + 2)]
    worst = mpf(0)
    for _ in range(40):
        a = mp.matrix(degree + 2, degree + 2)
        for row, i in enumerate(at):
            for k in range(degree + 1):
                a[row, k] = ((grid[i] - mid) / half) ** (degree - k)
            a[row, degree + 1] = (-1) ** row / w[i]
        solved = list(mp.lu_solve(a, mp.matrix([f[i] for i in at])))
        level, c = abs(solved.pop()), solved
        error = [w[i] * (mp.polyval(c, (x - mid) / half) - f[i]) for i, x in enumerate(grid)]
        worst = max(abs(e) for e in error)
        if worst <= level * mpf("1.01"):
            break
        at = _extremes(error, degree + 2)
    return _expand(c, mid, half), worst


def _extremes(error: Sequence[mpf], count: int) -> list[int]:
    """The `count` places where the error is largest with alternating sign."""
    runs: list[int] = []
    for i, e in enumerate(error):
        if runs and (error[runs[-1]] > 0) == (e > 0):
            if abs(e) > abs(error[runs[-1]]):
                runs[-1] = i
        else:
            runs.append(i)
    while len(runs) > count:
        if len(runs) == count + 1:
            runs.pop(0 if abs(error[runs[0]]) < abs(error[runs[-1]]) else -1)
        else:  # dropping the weakest neighbouring pair keeps the signs alternating
            weakest = min(pairwise(range(len(runs))), key=lambda p: max(abs(error[runs[k]]) for k in p))
            del runs[weakest[0] : weakest[1] + 1]
    return runs


def _expand(c: Sequence[mpf], mid: mpf, half: mpf) -> list[mpf]:
    """The coefficients in x of a polynomial in (x - mid) / half."""
    out = [mpf(0)]
    for k in c:  # Horner with polynomials: out * (x - mid) / half + k
        scaled = [v / half for v in out]
        out = [mpf(0), *scaled]
        out = [a - mid * b for a, b in zip(out, [*scaled, mpf(0)], strict=True)]
        out[0] += k
    return out[len(c) - 1 :: -1]


def rounded(x: mpf, dtype: str) -> float:
    """The nearest float of the type."""
    return float(struct.unpack("<f", struct.pack("<f", float(x)))[0]) if dtype == "f32" else float(x)


def _series(series: Function, function: Function) -> Function:
    """`plain`, but `near` where cancellation would spoil it."""
    return lambda x: series(x) if abs(x) < mpf("1e-12") else function(x)


LN2_2, ROOT = mp.log(2) / 2, mp.sqrt(2)
NEARLY = mpf("1.0005")  # ranges are widened a little: a rounded reduction may step over the end
ONE = mpf(1)


ERFC_K = mpf("2.5")
_to_t: Function = lambda a: (mpf(a) - ERFC_K) / (mpf(a) + ERFC_K)
_from_t: Function = lambda t: ERFC_K * (1 + t) / (1 - t)

FITS = (
    Fit("EXP", "(e^r - 1 - r) / r^2 on |r| <= ln(2)/2",
        _series(lambda r: ONE / 2 + r / 6 + r * r / 24, lambda r: (mp.expm1(r) - r) / r**2),
        lambda r: r * r / mp.exp(r), -LN2_2 * NEARLY, LN2_2 * NEARLY, {"f32": 4, "f64": 9}),
    Fit("EXPM1", "(e^r - 1 - r) / r^2 on |r| <= ln(2)/2, error relative to e^r - 1",
        _series(lambda r: ONE / 2 + r / 6 + r * r / 24, lambda r: (mp.expm1(r) - r) / r**2),
        lambda r: r * r / mp.expm1(r), -LN2_2 * NEARLY, LN2_2 * NEARLY, {"f32": 5, "f64": 10}),
    Fit("EXP2", "(2^r - 1) / r on |r| <= 1/2",
        lambda r: mp.expm1(r * mp.log(2)) / r, lambda r: r / mp.power(2, r),
        -NEARLY / 2, NEARLY / 2, {"f32": 5, "f64": 10}),
    Fit("LOG_F", "(log(1+f) - f + f^2/2) / f^3 on 3/4 <= 1+f <= 3/2",
        _series(lambda f: ONE / 3 - f / 4 + f * f / 5, lambda f: (mp.log1p(f) - f + f * f / 2) / f**3),
        lambda f: f**3 / mp.log1p(f), mpf("-0.25"), mpf("0.5"), {"f32": 7}),
    Fit("LOG_S", "(log((1+s)/(1-s)) / s - 2) / z on z = s^2, 3/4 <= (1+s)/(1-s) <= 3/2",
        lambda z: (2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z, lambda z: z / 2,
        mpf(0), mpf("0.04"), {"f64": 6}),
    Fit("POW_LOG2", "log2(1+f) / f on 3/4 <= 1+f <= 3/2, for f32",
        lambda f: mp.log1p(f) / f / mp.log(2), lambda f: f / mp.log1p(f),
        mpf("-0.25"), mpf("0.5"), {"f64": 13}),
    Fit("SIN", "(sin(r) / r - 1) / z on z = r^2, |r| <= pi/2",
        lambda z: (mp.sin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
        lambda z: z * mp.sqrt(z) / mp.sin(mp.sqrt(z)), mpf(0), (mp.pi / 2) ** 2 * NEARLY,
        {"f32": 3, "f64": 7}),
    Fit("SIN_QUARTER", "(sin(r) / r - 1) / z on z = r^2, |r| <= pi/4",
        lambda z: (mp.sin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
        lambda z: z * mp.sqrt(z) / mp.sin(mp.sqrt(z)), mpf(0), (mp.pi / 4) ** 2 * NEARLY, {"f64": 5}),
    Fit("COS_QUARTER", "(cos(r) - 1 + z/2) / z^2 on z = r^2, |r| <= pi/4",
        lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, lambda z: z**2 / mp.cos(mp.sqrt(z)),
        mpf("1e-6"), (mp.pi / 4) ** 2 * NEARLY, {"f64": 5}),
    Fit("SINH", "(sinh(x) / x - 1) / z on z = x^2, |x| <= 1",
        lambda z: (mp.sinh(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
        lambda z: z * mp.sqrt(z) / mp.sinh(mp.sqrt(z)), mpf(0), NEARLY, {"f32": 3, "f64": 6}),
    Fit("TANH", "(tanh(x) / x - 1) / z on z = x^2, |x| <= 0.625",
        lambda z: (mp.tanh(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
        lambda z: z * mp.sqrt(z) / mp.tanh(mp.sqrt(z)), mpf(0), mpf("0.625") ** 2 * NEARLY,
        {"f32": 4, "f64": 10}),
    Fit("ERF", "erf(x) / x - 1 on z = x^2, |x| <= 0.875",
        lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1, lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)),
        mpf("1e-12"), mpf("0.875") ** 2 * NEARLY, {"f32": 5, "f64": 10}),
    Fit("LOG_ERFC", "log(1 - erf(a)) on 0.875 <= a <= 4",
        lambda a: mp.log(mp.erfc(a)), lambda a: mp.erfc(a) / mp.erf(a), mpf("0.874"), mpf(4), {"f32": 7}),
    Fit("ERFC_SCALED", "e^(a^2) (1 - erf(a)) on t = (a - 2.5) / (a + 2.5), 0.875 <= a <= 6",
        lambda t: mp.erfc(_from_t(t)) * mp.exp(_from_t(t) ** 2),
        lambda t: mp.exp(-_from_t(t) ** 2) / mp.erf(_from_t(t)),
        _to_t("0.874"), _to_t(6), {"f64": 11}),
    Fit("ARCTAN", "(arctan(t) / t - 1) / z on z = t^2, |t| <= tan(pi/8)",
        lambda z: (mp.atan(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
        lambda z: z * mp.sqrt(z) / mp.atan(mp.sqrt(z)), mpf(0), (ROOT - 1) ** 2 * NEARLY,
        {"f32": 4, "f64": 10}),
    Fit("ARCSIN", "(arcsin(s) / s - 1) / z on z = s^2, |s| <= 5/8",
        lambda z: (mp.asin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
        lambda z: z * mp.sqrt(z) / mp.asin(mp.sqrt(z)), mpf(0), mpf("0.625") ** 2 * NEARLY,
        {"f32": 6, "f64": 15}),
    Fit("POW_ATANH", "(atanh(s) / s - 1 - z/3) / z^2 2/log(2) on z = s^2, |(1+s)/(1-s) - 1| <= 1/8",
        lambda z: (mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 1 - z / 3) / z**2 * 2 / mp.log(2),
        lambda z: z**2 / 3, mpf("1e-9"), (ONE / 15) ** 2 * NEARLY, {"f64": 5}),
    Fit("POW_EXP2", "2^r on |r| <= 1/2, for f32", lambda r: mp.power(2, r), lambda r: mp.power(2, -r),
        -NEARLY / 2, NEARLY / 2, {"f64": 6}),
)  # fmt: skip


@dataclass(frozen=True)
class Split:
    """A constant as a sum of floats; all but the last have at most `bits` significant bits."""

    name: str
    meaning: str
    value: mpf
    bits: dict[str, int]
    parts: int

    def floats(self, dtype: str) -> list[float]:
        """The parts, largest first."""
        rest, out = self.value, []
        for _ in range(self.parts - 1):
            unit = mpf(2) ** (int(mp.floor(mp.log(abs(rest), 2))) + 1 - self.bits[dtype])
            out.append(float(mp.floor(rest / unit) * unit))
            rest -= out[-1]
        return [*out, rounded(rest, dtype)]


SPLITS = (
    Split("LN2", "log(2); a multiple by an exponent is exact", mp.log(2), {"f32": 15, "f64": 32}, 2),
    Split(
        "LOG10_2",
        "log10(2); a multiple by an exponent is exact",
        mp.log10(2),
        {"f32": 15, "f64": 32},
        2,
    ),
    Split(
        "LOG10E",
        "log10(e); a multiple by half a fraction is exact",
        1 / mp.log(10),
        {"f32": 12, "f64": 26},
        2,
    ),
    Split("PI", "pi, for a fused multiply-add", mp.pi, {"f32": 24, "f64": 53}, 3),
    Split("PI_SHORT", "pi; a multiple by an integer below 2^20 is exact", mp.pi, {"f64": 33}, 4),
    Split("POW_FIRST", "2 / log(2)", 2 / mp.log(2), {"f64": 53}, 2),
    Split("POW_CUBIC", "2 / (3 log(2))", 2 / mp.log(2) / 3, {"f64": 53}, 2),
    Split("LOG2_5_4", "log2(5/4); a sum with an exponent is exact", mp.log(1.25, 2), {"f64": 40}, 2),
    Split("LOG2_7_8", "log2(7/8), the same", mp.log(0.875, 2), {"f64": 40}, 2),
    Split("LOG2_3_4", "log2(3/4), the same", mp.log(0.75, 2), {"f64": 40}, 2),
)

HEADER = '''"""Coefficients of the polynomials in the math functions, highest power first, by element type.

Written by `python -m benchmarks.fit_math`. Each is the minimax polynomial for the relative error of the
function computed from it; the error stated is that of the exact polynomial.
"""
'''


def main() -> None:
    """Print the module of coefficients."""
    print(HEADER)
    for split in SPLITS:
        print(f"# {split.meaning}")
        rows = [f'    "{t}": ({", ".join(map(repr, split.floats(t)))}),\n' for t in split.bits]
        print(f"{split.name} = {{\n{''.join(rows)}}}\n")
    for fit in FITS:
        if len(sys.argv) > 1 and fit.name not in sys.argv[1:]:
            continue
        print(f"# {fit.meaning}")
        rows = []
        for dtype, degree in fit.degree.items():
            c, error = remez(fit, degree)
            print(f"# {dtype}: degree {degree}, error 2^{float(mp.log(error, 2)):.1f}")
            numbers = "".join(f"        {rounded(x, dtype)!r},\n" for x in c)
            rows.append(f'    "{dtype}": (\n{numbers}    ),\n')
        print(f"{fit.name} = {{\n{''.join(rows)}}}\n", flush=True)


if __name__ == "__main__":
    main()
