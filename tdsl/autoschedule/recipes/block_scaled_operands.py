"""Products of 8-bit floats with scales of blocks of terms, as an instruction of tensor cores takes them."""

from __future__ import annotations

from contextlib import suppress
from math import gcd

from tdsl.autoschedule.recipes.choices import Unsuited
from tdsl.autoschedule.recipes.operands import Matrices, Operand
from tdsl.autoschedule.recipes.stage_facts import definition_of
from tdsl.core.node import children, frozen
from tdsl.errors import ScheduleError
from tdsl.lang.affine import as_sum, variables
from tdsl.lang.expr import Binary, Call, Cast, Const, Expr, Read, Var
from tdsl.lang.types import f32, u8
from tdsl.machine.instructions.block_scaled import BIAS, BlockScaledMma
from tdsl.machine.instructions.block_scaled import rows as instructions
from tdsl.machine.instructions.tensor_cores import Mma
from tdsl.machine.model import Machine
from tdsl.schedule.factor_out import factors_of_product
from tdsl.schedule.fluent import Stage
from tdsl.schedule.naming import Loop
from tdsl.schedule.state import SHARED

_WITHOUT = "leave block_scale= out"


@frozen
class ScaledProduct:
    """The `stage` whose terms `form` multiplies, its operands, and the scales of blocks of `terms`."""

    stage: Stage
    operands: tuple[Operand, Operand]
    form: Mma | BlockScaledMma
    scales: tuple[Read, ...]
    terms: int


def block_size(e: Expr, term: str) -> int | None:
    """How many consecutive terms have the same value of an expression: 0 for all, None for one alone.

    >>> k = Binary("floordiv", Var("k"), Const(32, f32))
    >>> block_size(k, "k"), block_size(k, "i"), block_size(Var("k"), "k")
    (32, 0, None)
    """
    match e:
        case Binary("floordiv", x, Const(n)) if n and term in variables(x):
            whole = as_sum(x)
            others = [c for v, c in whole.terms.items() if v != Var(term)]
            is_block = whole.terms.get(Var(term)) == 1 and not any(c % n for c in (whole.constant, *others))
            return int(n) if is_block else None
        case Var(v):
            return None if v == term else 0
        case _:
            parts = [block_size(x, term) for x in children(e) if isinstance(x, Expr)]
            return None if None in parts else gcd(*(n for n in parts if n is not None))


def scaled_operands(stage: Stage, m: Matrices, machine: Machine) -> ScaledProduct:
    """The operands and scales of a product that an instruction multiplies; Unsuited for others."""
    factors = factors_of_product(definition_of(stage).values[0])
    (term,), names = m.terms, (m.rows[0], m.columns[0])
    sides = [[e for e, divides in factors if v in variables(e) and not divides] for v in names]
    if len(factors) != 4 or [len(x) for x in sides] != [2, 2]:
        raise Unsuited("its terms are no products of two elements, each with its scale", _WITHOUT)
    pairs = [sorted(x, key=lambda e: block_size(e, term) is not None) for x in sides]
    left, right = (_operand(x[0], v, term) for x, v in zip(pairs, names, strict=True))
    types = left.read.dtype, right.read.dtype
    form = next((x for x in instructions() if (x.left, x.right) == types), None)
    if form is None:
        raise Unsuited(f"no instruction takes scales of {types[0]} and {types[1]}", _WITHOUT)
    if not machine.supports(form.name):
        raise Unsuited(
            f"block_scale needs sm_120a, and the schedule is for {machine.arch}",
            f'{_WITHOUT}, or td.Schedule(..., target="cuda:sm_120a")',
        )
    scales = tuple(_exponents(x[1], v, term, form.k) for x, v in zip(pairs, names, strict=True))
    twice = left.read.name == right.read.name
    left, right = (Operand(x.read, x.along, x.axes, twice=twice) for x in (left, right))
    return ScaledProduct(stage, (left, right), form, scales, form.k)


def _operand(e: Expr, along: str, term: str) -> Operand:
    """The operand of a factor that is an element of an array, which moves along two of its axes."""
    if isinstance(e, Cast) and e.dtype == f32 and isinstance(e.x, Read):
        index = e.x.index
        axes = [n for n, at in enumerate(index) if {along, term} & variables(at)]
        steps = [as_sum(index[n]).terms.get(Var(v)) for n in axes for v in (along, term)]
        if len(axes) == 2 and sorted(map(str, steps)) == ["1", "1", "None", "None"]:
            return Operand(e.x, along, (axes[0], axes[1]))
    raise Unsuited(f"its factor of {along!r} is no element of an array of 8-bit floats", _WITHOUT)


def _exponents(e: Expr, along: str, term: str, terms: int) -> Read:
    """The read of the bytes that are the exponents of the scales along a variable."""
    match e:
        case Call("exp2", (Binary("sub", Cast(Read() as r, dtype=t), Const(n)),)) if (t, n) == (f32, BIAS):
            moving = [x for x in r.index if along in variables(x)]
            if r.dtype == u8 and moving == [Var(along)] and (block_size(e, term) or 0) % terms == 0:
                return r
        case _:
            pass
    raise Unsuited(
        f"its scales along {along!r} are no exponents of {terms} terms each in bytes (e8m0)",
        f"td.exp2(td.cast(s[{along}, {term} // {terms}], td.f32) - {BIAS}) with s of td.u8, or {_WITHOUT}",
    )


def copy_scales(stage: Stage, x: ScaledProduct, at: Loop, width: int) -> None:
    """Copy the scales of a step to shared memory, `width` neighbours at a time where these follow the terms.

    Scales at indices that are data stay where they are.
    """
    names = [o.along for o in x.operands]
    for r in x.scales:
        twice = sum(other.name == r.name for other in x.scales) > 1
        along = next((v for v in names if v in variables(r)), None) if twice else None
        with suppress(ScheduleError):
            tile = stage.schedule.cache_read(
                r.name, stage.func, at=at, scope=SHARED, along=along, filled=True
            )
            tile.cooperate(1 if any(v in variables(r.index[-1]) for v in names) else width)
