"""AVX-512 instructions on exponents: scalef, getexp and getmant, on values that fill whole registers.

They replace about ten integer instructions, and are correct for subnormal numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.ir_types import constants, register_type
from tdsl.lang.types import DType, f32
from tdsl.machine.cpu import CpuTarget

_CURRENT_ROUNDING = 4
_THREE_QUARTERS_TO_THREE_HALVES = 3  # getmant's interval; the sign is kept


def usable(target: CpuTarget, t: DType, lanes: int) -> bool:
    """True if the CPU has AVX-512 and a value of `lanes` lanes fills whole registers."""
    return bool(_register_bits(target, t, lanes))


def _register_bits(target: CpuTarget, t: DType, lanes: int) -> int:
    bits = lanes * t.bits
    if "avx512f" not in target.has:
        return 0
    widths = (512, 256, 128) if "avx512vl" in target.has else (512,)
    return next((w for w in widths if bits % w == 0), 0)


def scalef(b: Builder, t: DType, lanes: int, x: str, n: str) -> str:
    """x * 2^n for a float n with an integer value."""
    return _by_register(b, t, lanes, (x, n), lambda part, xs: part.call("scalef", xs, xs[0]))


def getexp(b: Builder, t: DType, lanes: int, x: str) -> str:
    """floor(log2(|x|)), as a float."""
    return _by_register(b, t, lanes, (x,), lambda part, xs: part.call("getexp", xs, xs[0]))


def getmant(b: Builder, t: DType, lanes: int, x: str) -> str:
    """x times the power of 2 that brings it to 3/4 <= |x| < 3/2."""
    interval = f"i32 {_THREE_QUARTERS_TO_THREE_HALVES}"
    return _by_register(b, t, lanes, (x,), lambda part, xs: part.call("getmant", xs, xs[0], interval))


class _Register:
    """Writes intrinsics on the lanes of one register."""

    def __init__(self, b: Builder, t: DType, bits: int) -> None:
        self.b, self.bits = b, bits
        self.lanes = bits // t.bits
        self.type = register_type(t, self.lanes)
        self.letter = "s" if t == f32 else "d"

    def call(self, name: str, xs: tuple[str, ...], otherwise: str, immediate: str = "") -> str:
        """Call a masked intrinsic with all lanes active; `otherwise` is the value of inactive lanes."""
        symbol = f"llvm.x86.avx512.mask.{name}.p{self.letter}.{self.bits}"
        mask = f"i{max(self.lanes, 8)}"
        given = [f"{self.type} {x}" for x in xs] + [immediate] * bool(immediate)
        given += [f"{self.type} {otherwise}", f"{mask} -1"]
        types = [self.type] * len(xs) + ["i32 immarg"] * bool(immediate) + [self.type, mask]
        if self.bits == 512:
            given.append(f"i32 {_CURRENT_ROUNDING}")
            types.append("i32 immarg")
        self.b.declare(f"declare {self.type} @{symbol}({', '.join(types)})")
        return self.b.v(f"call {self.type} @{symbol}({', '.join(given)})")


def _by_register(
    b: Builder,
    t: DType,
    lanes: int,
    xs: tuple[str, ...],
    emit: Callable[[_Register, tuple[str, ...]], str],
) -> str:
    part = _Register(b, t, _register_bits(b.target, t, lanes))
    whole = register_type(t, lanes)
    if part.lanes == lanes:
        return emit(part, xs)
    results = []
    for start in range(0, lanes, part.lanes):
        pick = f"<{part.lanes} x i32> {constants('i32', range(start, start + part.lanes))}"
        pieces = [b.v(f"shufflevector {whole} {x}, {whole} poison, {pick}") for x in xs]
        results.append(emit(part, tuple(pieces)))
    return _joined(b, t, results, part.lanes, lanes)


def _joined(b: Builder, t: DType, parts: list[str], width: int, lanes: int) -> str:
    """Concatenate parts of `width` lanes each, in pairs; an odd part is paired with poison."""
    while len(parts) > 1:
        pick = f"<{2 * width} x i32> {constants('i32', range(2 * width))}"
        type_ = register_type(t, width)
        pairs = zip(parts[::2], [*parts[1::2], "poison"], strict=False)
        parts = [b.v(f"shufflevector {type_} {p}, {type_} {q}, {pick}") for p, q in pairs]
        width *= 2
    if width == lanes:
        return parts[0]
    type_, pick = register_type(t, width), f"<{lanes} x i32> {constants('i32', range(lanes))}"
    return b.v(f"shufflevector {type_} {parts[0]}, {type_} poison, {pick}")
