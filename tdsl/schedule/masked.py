"""Masks: terms that do not change a reduction, so that the bounds of its loops may leave them out.

    score[i, j] = where(j <= i, x[i, j], -inf)
    m[i] = max of score[i, j]              only terms with j <= i count
    s[i] = sum of exp(score[i, j] - m[i])  the same: m is not -inf unless all terms of a row are NaN

A comparison is part of the mask if the term equals the identity of the reduction whenever the comparison is
false: by a `where`, by `exp` of -inf, by a product with 0. For floats, 0 * y is 0 only if y is finite, and
-inf - y is -inf only if y is not -inf; `lenient` assumes the first, and the second if each row has a term
that counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tdsl.core.node import post_order
from tdsl.lang.affine import as_expr, as_sum, variables
from tdsl.lang.bounds import NO_FACTS, at_most
from tdsl.lang.definition import Definition, has_effects
from tdsl.lang.expr import (
    COMPARISONS,
    ONE,
    TRUE,
    ZERO,
    Binary,
    Const,
    Expr,
    Unary,
    Var,
    const,
    dtype_of,
)  # fmt: skip
from tdsl.lang.program import FuncDef, Program
from tdsl.lang.regions import reads_in, restrict_ranges
from tdsl.lang.simplify import add, conjunction, simplify, substitute, subtract
from tdsl.lang.types import i64
from tdsl.machine.model import Machine
from tdsl.schedule.implied_values import ConditionalFuncs, ImpliedValues, Ranges, has_condition
from tdsl.schedule.new_stage import replace_func
from tdsl.schedule.reduction_fusion import Fusion
from tdsl.schedule.state import SERIAL, UNROLLED, Illegal, Nest, Rotate, State, WithStage, roots_of

KINDS = ("sum", "prod", "max", "min", "any", "all")  # whose initial value is the identity
_MAX_COMPARISONS = 8  # the largest number of comparisons that are tried


def skip_masked(state: State, func: str, definition: int) -> State:
    """Skip the terms of a reduction that a mask makes equal to its identity, whatever their other factors.

        p[i, j] = exp(where(j <= i, x[i, j], -inf) - m[i])
        y[i] = sum of p[i, j] * v[j]           only terms with j <= i are read

    Factors of a masked 0 are assumed to be finite, its divisors not to be 0.
    """
    f = state.program.func(func)
    d = f.definitions[definition]
    mask = mask_of(ConditionalFuncs.of(state.program), f, d, lenient=True)
    if mask == TRUE:
        raise Illegal(
            f"no comparison of indices is known to mask terms of {func!r}",
            "write td.where(j <= i, term, 0), or -inf in an exponent or a maximum",
        )
    changed = (*f.definitions[:definition], replace(d, mask=mask), *f.definitions[definition + 1 :])
    return _replace_definitions(state, f, changed)


def _replace_definitions(state: State, f: FuncDef, definitions: tuple[Definition, ...]) -> State:
    if definitions == f.definitions:
        return state
    return replace_func(state, replace(f, definitions=definitions))


def masked_funcs(program: Program) -> list[str]:
    """The funcs of a program that have terms which `skip_masked` can skip."""
    conditional = ConditionalFuncs.of(program)
    return [f.name for f in program.funcs if mask_of(conditional, f, f.definitions[0], lenient=True) != TRUE]


def with_masks(state: State) -> State:
    """The state with the mask of each reduction set, as far as it is provable without `skip_masked`."""
    conditional = ConditionalFuncs.of(state.program)
    for f in state.program.funcs:
        definitions = tuple(
            replace(d, mask=mask_of(conditional, f, d)) if d.mask == TRUE else d for d in f.definitions
        )
        state = _replace_definitions(state, f, definitions)
    return state


def remove_masks(state: State) -> State:
    """The state with all masks removed: reductions compute all terms."""
    for f in state.program.funcs:
        state = _replace_definitions(state, f, tuple(replace(d, mask=TRUE) for d in f.definitions))
    return state


def remove_unused_masks(state: State, machine: Machine) -> State:
    """The complete state without the masks of reductions whose loop bounds cannot be narrowed.

    Loops that are shared with another func, replaced by instructions, derived from two variables, or
    concurrent compute all terms.
    """
    for f in state.program.funcs:
        definitions = tuple(
            replace(d, mask=TRUE) if d.mask != TRUE and _reason_for_all_terms(state, machine, f, n) else d
            for n, d in enumerate(f.definitions)
        )
        state = _replace_definitions(state, f, definitions)
    return state


def unused_masks(scheduled: State, lowered: State, machine: Machine) -> Iterator[tuple[str, str]]:
    """The reductions with `skip_masked` that nevertheless compute all terms, each with the reason."""
    for f in scheduled.program.funcs:
        for n, d in enumerate(f.definitions):
            f_lowered = lowered.program.func(f.name) if lowered.program.has_func(f.name) else None
            if d.mask != TRUE and f_lowered is not None and f_lowered.definitions[n].mask == TRUE:
                yield f.name, _reason_for_all_terms(lowered, machine, f_lowered, n)


def _reason_for_all_terms(state: State, machine: Machine, f: FuncDef, definition: int) -> str:
    """The reason why the loops of a reduction cannot skip masked terms; empty if they can."""
    plan, d = state.plan(f.name), f.definitions[definition]
    hosts = {plan.place.level.func for _, plan in state.plans if isinstance(plan.place, WithStage)}
    if machine.block_threads:
        return "threads of a GPU go through its loops together"
    if isinstance(plan.place, WithStage) or f.name in hosts:
        return "its loops are shared with another func"
    if plan.tensorizations:
        return "an instruction replaces its loops"
    if plan.specializations:
        return "it has special cases"
    if not _has_narrowable_loops(d, plan.nests[definition]):
        return "its loops over terms run side by side, or go over several variables"
    return ""


def _has_narrowable_loops(d: Definition, nest: Nest) -> bool:
    names = {name for name, _, _ in d.ranges}
    loops = [x for x in nest.loops if roots_of(nest, x.name) & names]
    plain = all(x.kind in (SERIAL, UNROLLED) and len(roots_of(nest, x.name)) == 1 for x in loops)
    return plain and not any(isinstance(r, Rotate) for r in nest.relations)


def mask_of(conditional: ConditionalFuncs, f: FuncDef, d: Definition, *, lenient: bool = False) -> Expr:
    """The conjunction of comparisons outside of which terms equal the identity; TRUE if there is none.

    >>> from tdsl.lang.build_program import build_program
    >>> from tdsl.lang.show import show_expr
    >>> from tdsl.lang.reduction import sum
    >>> from tdsl.lang.tensor import Func, Tensor
    >>> from tdsl.lang.functions import where
    >>> from tdsl.lang.value import vars
    >>> i, j = vars("i j")
    >>> a, f = Tensor("a", (9, 9), "f32"), Func("f")
    >>> f[i] = sum(where(j > i, 0, a[i, j]), axis=j)
    >>> program = build_program((f,))
    >>> func = program.funcs[-1]
    >>> show_expr(mask_of(ConditionalFuncs.of(program), func, func.definitions[0]))
    'i >= j'
    """
    plain = d.combine is not None and d.init is not None and d.combine.kind in KINDS
    masked = any(map(has_condition, d.values)) or any(r.name in conditional.names for r in d.reads)
    if not plain or not masked or d.init is None or has_effects(d):
        return TRUE
    lenient = lenient or f.fast_math
    masks = list(_masks_of_term(conditional, d.values[0], d.init[0], d.ranges, lenient=lenient))
    mask = conjunction(c for linear, _ in masks for c in linear)
    if all(sure for _, sure in masks) or _keeps_terms(f, d, mask):
        return mask
    return conjunction(c for linear, sure in masks if sure for c in linear)


def _masks_of_term(
    conditional: ConditionalFuncs, term: Expr, start: Expr, ranges: Ranges, *, lenient: bool
) -> Iterator[tuple[list[Expr], bool]]:
    """Comparisons of indices such that a term equals the identity of its reduction where they are false.

    Those with False are valid only if each row has a term where they hold: else all its terms may be NaN.
    """
    whole, names = conditional.inlined(term), {name for name, _, _ in ranges}
    for c in _comparisons(whole, names)[:_MAX_COMPARISONS]:
        for holds in (False, True):
            condition = simplify(Unary("not", c)) if holds else c
            linear = [x for x in _linear(condition) if variables(x) & names]
            if linear and isinstance(start, Const):
                value = ImpliedValues(conditional, c, holds, ranges, lenient).value(whole)
                if value is not None and value[0] == start.value:
                    yield linear, not value[1]


def needs_tile(fusion: Fusion, first: Expr, factor: int) -> Expr:
    """The condition under which a tile of `factor` terms from `first` has an unmasked term; TRUE if unknown.

    Each comparison of a mask is tested at the end of the tile where it can hold. Merging a tile without
    terms changes nothing, also in a row without terms.
    """
    conditional, ranges = (
        ConditionalFuncs.of(fusion.state.program),
        fusion.lead.definitions[0].ranges,
    )
    masks = []
    for member in fusion.members.values():
        known = member.combine.kind in (*KINDS, "argmax")
        start = member.combine.init[0]
        terms = _masks_of_term(conditional, member.terms[0], start, ranges, lenient=True)
        masks.append(dict.fromkeys(c for linear, _ in terms for c in linear) if known else {})
    common = [c for c in masks[0] if all(c in others for others in masks)]
    last = add(first, const(factor - 1))
    return conjunction(x for c in common for x in _in_any_term(c, fusion.variable, first, last))


def _in_any_term(c: Expr, variable: str, first: Expr, last: Expr) -> Iterator[Expr]:
    """A comparison at the end of a tile where it holds if it holds anywhere in the tile."""
    if isinstance(c, Binary) and c.op in ("le", "lt", "ge", "gt"):
        left, right = (c.left, c.right) if c.op in ("le", "lt") else (c.right, c.left)
        if c.op in ("lt", "gt"):
            left = add(left, ONE)
        lacks = as_sum(subtract(left, right))
        step = lacks.terms.get(Var(variable), 0)
        at = {variable: first if step > 0 else last}
        yield Binary("le", substitute(as_expr(lacks), at), ZERO)


def _keeps_terms(f: FuncDef, d: Definition, mask: Expr) -> bool:
    """True if each row that has terms provably has a term for which the mask holds."""
    if len(d.ranges) != 1 or d.where != TRUE:
        return False
    ((name, lo, hi),) = d.ranges
    if lo is None or hi is None:
        return False
    facts = NO_FACTS.with_positive_sizes()
    for v, (low, high) in zip(f.variables, f.limits, strict=True):
        if low is not None and high is not None:
            facts = facts.with_range(v, low, high)
    first, last = restrict_ranges({name: (lo, subtract(hi, ONE))}, mask, facts)[name]
    return first is not None and last is not None and at_most(first, last, facts)


def _comparisons(e: Expr, names: set[str]) -> list[Expr]:
    """The comparisons of indices in an expression that depend on the variables `names`."""
    return [
        n
        for n in post_order(e)
        if isinstance(n, Binary)
        and n.op in COMPARISONS
        and dtype_of(n.left) == i64
        and variables(n) & names
        and not any(True for _ in reads_in((n,)))
    ]


def _linear(c: Expr) -> Iterator[Expr]:
    """Affine comparisons whose conjunction is equivalent to `c`; none if `c` is not affine.

    >>> from tdsl.lang.show import show_expr
    >>> band = Binary("lt", Unary("abs", Binary("sub", Var("i"), Var("j"))), const(4))
    >>> [show_expr(x) for x in _linear(band)]
    ['i - j < 4', '-(i - j) < 4']
    """
    match c:
        case Binary("lt" | "le" as op, Unary("abs", x), y):
            sides = [Binary(op, side, y) for side in (x, Unary("neg", x))]
        case Binary("gt" | "ge" as op, y, Unary("abs", x)):
            sides = [Binary(op, y, side) for side in (x, Unary("neg", x))]
        case Binary("lt" | "le" | "gt" | "ge" | "eq"):
            sides = [c]
        case _:
            sides = []
    for side in sides:
        atoms = as_sum(subtract(side.left, side.right)).terms
        if not all(isinstance(atom, Var) or not variables(atom) for atom in atoms):
            return
    yield from sides
