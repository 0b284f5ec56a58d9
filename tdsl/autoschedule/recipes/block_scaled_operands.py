"""Products of floats of 8 or 4 bits with scales of blocks of terms, as an instruction takes them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from math import gcd

from tdsl.autoschedule.recipes.choices import Unsuited
from tdsl.autoschedule.recipes.operand_tiles import RegisterFactor
from tdsl.autoschedule.recipes.operands import Matrices, Operand
from tdsl.autoschedule.recipes.stage_facts import definition_of
from tdsl.autoschedule.recipes.tensor_forms import Form
from tdsl.core.node import children, frozen
from tdsl.errors import ScheduleError
from tdsl.lang.affine import as_sum, variables
from tdsl.lang.casts import f4e2m1
from tdsl.lang.expr import Binary, Call, Cast, Const, Expr, Read, Unary, Var
from tdsl.lang.regions import reads_in
from tdsl.lang.types import f32, u8
from tdsl.lang.value import Value
from tdsl.machine.instructions.block_scaled import BIAS, BlockScaledMma
from tdsl.machine.instructions.block_scaled import rows as instructions
from tdsl.machine.model import Machine
from tdsl.schedule.factor_out import factors_of_product
from tdsl.schedule.fluent import Stage
from tdsl.schedule.naming import Loop
from tdsl.schedule.state import SHARED

_WITHOUT = "leave block_scale= out"


@frozen
class TensorProduct:
    """The `stage` whose terms `form` multiplies, its operands, and the scales of blocks of `terms`.

    A byte of an operand has `packed` terms. By `sources`, the copy unit (TMA) fetches the tiles of an
    operand, or what threads compute it of in registers.
    """

    stage: Stage
    operands: tuple[Operand, Operand]
    form: Form | BlockScaledMma
    scales: tuple[Read, ...] = ()
    terms: int = 1
    packed: int = 1
    sources: tuple[RegisterFactor | bool, bool] = (False, False)


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


def scaled_operands(stage: Stage, m: Matrices, machine: Machine) -> TensorProduct:
    """The operands and scales of a product that an instruction multiplies; Unsuited for others."""
    factors = factors_of_product(definition_of(stage).values[0])
    (term,), names = m.terms, (m.rows[0], m.columns[0])
    sides = [[e for e, divides in factors if v in variables(e) and not divides] for v in names]
    if len(factors) != 4 or [len(x) for x in sides] != [2, 2]:
        raise Unsuited("its terms are no products of two elements, each with its scale", _WITHOUT)
    pairs = [sorted(x, key=lambda e: block_size(e, term) is not None) for x in sides]
    left, right = (_operand(x[0], v, term) for x, v in zip(pairs, names, strict=True))
    types = left.read.dtype, right.read.dtype
    forms = [x for x in instructions() if (x.left, x.right) == types]
    if not forms:
        raise Unsuited(f"no instruction takes scales of {types[0]} and {types[1]}", _WITHOUT)
    if not machine.supports(forms[0].name):
        raise Unsuited(
            f"block_scale needs sm_120a, and the schedule is for {machine.arch}",
            f'{_WITHOUT}, or td.Schedule(..., target="cuda:sm_120a")',
        )
    scales: list[Read | None] = []
    for form in forms:
        scales = [_scale_read(x[1], v, term, form) for x, v in zip(pairs, names, strict=True)]
        if None not in scales:
            twice = left.read.name == right.read.name
            both = replace(left, twice=twice), replace(right, twice=twice)
            reads = tuple(r for r in scales if r is not None)
            return TensorProduct(stage, both, form, reads, form.block, form.packed)
    along = names[scales.index(None)]
    others = "".join(f", and no absolute values of {x.scale} of {x.block} terms" for x in forms[1:])
    count = forms[0].block
    raise Unsuited(
        f"its scales along {along!r} are no exponents of {count} terms each in bytes (e8m0){others}",
        f"td.exp2(td.cast(s[{along}, {term} // {count}], td.f32) - {BIAS}) with s of td.u8, or {_WITHOUT}",
    )


def _operand(e: Expr, along: str, term: str) -> Operand:
    """The operand of a factor that is an element of an array, or half a byte, along two of its axes."""
    reads = list(dict.fromkeys(reads_in((e,))))
    if len(reads) == 1 and isinstance(e, Cast) and e.dtype == f32:
        (read,) = reads
        axes = [n for n, at in enumerate(read.index) if {along, term} & variables(at)]
        steps = [as_sum(read.index[n]).terms.get(Var(v)) for n in axes for v in (along, term)]
        if len(axes) == 2 and steps.count(None) == 4 - (1 + (e.x == read)) and steps.count(1) >= 1:
            at = next(x for x in read.index if term in variables(x))
            if e.x == read or (read.dtype == u8 and e.x == _half(read, at)):
                return Operand(read, along, (axes[0], axes[1]))
    raise Unsuited(f"its factor of {along!r} is no element of an array of 8- or 4-bit floats", _WITHOUT)


def _half(read: Read, at: Expr) -> Expr | None:
    """The float in half of a byte at an index `at` that is a quotient by 2; None for other indices."""
    match at:
        case Binary("floordiv", x, Const(2)):
            return f4e2m1(Value(read), Value(x, weak=True) % 2).node
        case _:
            return None


def _scale_read(e: Expr, along: str, term: str, form: BlockScaledMma) -> Read | None:
    """The read of scales along a variable as an instruction takes them; None for other factors."""
    match e:
        case Call("exp2", (Binary("sub", Cast(Read() as r, dtype=t), Const(n)),)):
            is_scale = r.dtype == form.scale == u8 and (t, n) == (f32, BIAS)
        case Unary("abs", Cast(Read() as r, dtype=t)):
            is_scale = r.dtype == form.scale != u8 and t == f32
        case _:
            return None
    moving = [x for x in r.index if along in variables(x)]
    in_blocks = moving == [Var(along)] and (block_size(e, term) or 0) % form.block == 0
    return r if is_scale and in_blocks else None


def copy_scales(stage: Stage, x: TensorProduct, at: Loop, width: int) -> None:
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
