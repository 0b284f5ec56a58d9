"""The reductions that one pass over their terms can compute together, for `online`.

One reduction leads, usually a sum. Its terms are inlined until they read only inputs, other points of the
program, and results of reductions over the same range, which join the pass. Every other reduction of the
inlined funcs, which are never stored whole, or of tensors that the pass reads anyway, joins if its partial
results can be rescaled.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tdsl.core.node import Node, frozen, post_order, transform
from tdsl.lang.affine import constant_difference, variables
from tdsl.lang.expr import (
    TRUE,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Read,
    Var,
    dtype_of,
)  # fmt: skip
from tdsl.lang.program import FuncDef
from tdsl.lang.reduction import Combine
from tdsl.lang.regions import reads_in
from tdsl.lang.simplify import substitute
from tdsl.lang.types import DType
from tdsl.schedule.inlining import is_inlined, value_at
from tdsl.schedule.legality import depends_on
from tdsl.schedule.new_stage import fresh_name
from tdsl.schedule.rescaling import Predicate, ResultFactors, result_factors, shift_of
from tdsl.schedule.state import Illegal, State, fresh_nest

ORDERED = ("max", "min", "argmax")  # reductions whose choice a positive factor does not change


NO_FACTORS = ResultFactors()


@frozen
class Power:
    """A term (a(x) + b(m)) ** k: `part` is b(m), `lower` the members that sum the powers 0 to k - 1."""

    part: Expr
    lower: tuple[str, ...]


@frozen
class Member:
    """A reduction of the pass, its terms inlined and over the variables of the leading func.

    `free` are its free variables in terms of the lead, `factors` those by which its first term depends on
    other results, `power` that dependence if the term is a power of a sum. Other members depend on none.
    """

    func: FuncDef
    free: tuple[str, ...]
    terms: tuple[Expr, ...]
    factors: ResultFactors = NO_FACTORS
    power: Power | None = None

    @property
    def dtype(self) -> DType:
        """The type of its first value."""
        return self.func.dtypes[0]

    @property
    def combine(self) -> Combine:
        """The combiner of the reduction."""
        combine = self.func.definitions[0].combine
        assert combine is not None
        return combine


@dataclass(slots=True)
class Fusion:
    """The reductions that one pass over the terms of `lead` computes.

    `members` are the reductions by name, producers first; `elementwise` the element-wise funcs between them,
    each with its dimension along the range of the reduction.
    """

    state: State
    lead: FuncDef
    variable: str
    members: dict[str, Member] = field(default_factory=dict)
    elementwise: dict[str, str] = field(default_factory=dict)

    @property
    def range(self) -> tuple[Expr, Expr]:
        """The first value of the reduction variable, and the end, which is exclusive."""
        ((_, lo, hi),) = self.lead.definitions[0].ranges
        assert lo is not None and hi is not None
        return lo, hi


def _check_lead(state: State, f: FuncDef, over: str) -> None:
    d, nest = f.definitions[0], state.plan(f.name).nests[0]
    kind = "" if len(f.definitions) > 1 or d.init is None or d.combine is None else d.combine.kind
    if kind not in ("sum", *ORDERED):
        raise Illegal(
            f"{f.name!r} is no sum, and no largest or smallest value, or where the largest is",
            "only sums and such are corrected for the results of others",
        )
    if len(d.ranges) != 1 or d.ranges[0][0] != over or d.where != TRUE:
        raise Illegal(
            f"{f.name!r} does not sum over {over!r} alone, without a condition",
            "reduce over one variable, and give terms that do not count the value 0",
        )
    if nest != fresh_nest(d):
        raise Illegal(f"the loops of {f.name!r} were changed before", "give this directive first")


def find_fusion(state: State, f: FuncDef, over: str) -> Fusion:
    """The pass of a reduction: reductions that its terms read, that read the same funcs or the same inputs.

    Raises Illegal if a required one cannot be rescaled, or if another func reads a func that is never stored
    whole.
    """
    _check_lead(state, f, over)
    fusion, d = Fusion(state, f, over), f.definitions[0]
    terms = tuple(_inline_dependent(fusion, v) for v in d.values)
    if not fusion.members:
        raise Illegal(
            f"the terms of {f.name!r} need no result of another reduction over {fusion.variable!r}",
            "rfactor reduces in parts what needs no correction",
        )
    fusion.members[f.name] = _with_factors(fusion, Member(f, d.free, terms))
    while others := _readers_of_elementwise(fusion):
        _add_sibling(fusion, others[0])
    for g in state.program.funcs:
        fusion = _with_optional_member(fusion, g)
    return fusion


def _readers_of_elementwise(fusion: Fusion) -> list[FuncDef]:
    """The other funcs that read the element-wise funcs of the pass, in the order of the program."""
    names = {c.name for g in fusion.elementwise for c, _ in fusion.state.consumers(g)}
    names -= {*fusion.elementwise, *fusion.members}
    return [f for f in fusion.state.program.funcs if f.name in names]


def _inline_dependent(fusion: Fusion, e: Expr) -> Expr:
    """An expression in which funcs that depend on reductions of the pass are inlined."""

    def visit(n: Node) -> Node:
        if not isinstance(n, Read) or not fusion.state.program.has_func(n.name):
            return n
        g = fusion.state.program.func(n.name)
        d = g.definitions[0]
        if len(g.definitions) > 1 or len(g.dtypes) > 1:
            return n
        if d.init is not None:
            return n if not _has_same_range(fusion, g, n) else _add_member(fusion, g, n)
        before = len(fusion.members)
        inner = _inline_dependent(fusion, value_at(d, n))
        known = any(isinstance(x, Read) and x.name in fusion.members for x in post_order(inner))
        if len(fusion.members) == before and not known:
            return n
        if Var(fusion.variable) in n.index and not is_inlined(fusion.state, g.name):
            _record_elementwise(fusion, g, n)
        return inner

    return transform(e, visit)


def _record_elementwise(fusion: Fusion, g: FuncDef, read: Read) -> None:
    """Record an element-wise func whose values are computed again for each tile."""
    if not all(isinstance(e, Var) for e in read.index) or len(set(read.index)) < len(read.index):
        raise Illegal(
            f"{g.name!r} is not read point by point",
            f"each index of it must be one of {fusion.lead.name!r}",
        )
    if g.name in fusion.state.program.outputs:
        raise Illegal(f"{g.name!r} is an output, and is never whole", "leave it out of the outputs")
    fusion.elementwise[g.name] = g.variables[read.index.index(Var(fusion.variable))]


def _has_same_range(fusion: Fusion, g: FuncDef, read: Read) -> bool:
    """True for a reduction over the same range as the lead that reads a tensor along that range."""
    if g.name in fusion.members:
        return True
    d = g.definitions[0]
    if any(fusion.variable in variables(e) for e in read.index) or len(d.ranges) != 1:
        return False
    ((reduced, lo, hi),) = d.ranges
    first, end = fusion.range
    if lo is None or hi is None or constant_difference(lo, first) != 0 or constant_difference(hi, end) != 0:
        return False
    return any(Var(reduced) in r.index for r in reads_in(d.values))


def _add_member(fusion: Fusion, g: FuncDef, read: Read) -> Read:
    """The read of a reduction over the same range, which is added to the members."""
    d = g.definitions[0]
    assert d.combine is not None
    free = tuple(e.name for e in read.index if isinstance(e, Var))
    if len(free) < len(read.index) or len(set(free)) < len(free):
        raise Illegal(f"{g.name!r} is not read point by point", "read it at plain variables")
    if g.name in fusion.members:
        if fusion.members[g.name].free != free:
            raise Illegal(f"{g.name!r} is read at two places", "read it at the same variables")
        return read
    if not d.combine.associative or d.where != TRUE:
        raise Illegal(
            f"{g.name!r} is reduced in order, or under a condition",
            "it cannot be computed in tiles",
        )
    names = {**dict(zip(g.variables, free, strict=True)), d.ranges[0][0]: fusion.variable}
    at: dict[str, Expr] = {a: Var(b) for a, b in names.items()}
    terms = tuple(_inline_dependent(fusion, substitute(v, at)) for v in d.values)
    fusion.members[g.name] = _with_factors(fusion, Member(g, free, terms))
    return read


def _with_factors(fusion: Fusion, member: Member) -> Member:
    """A member with the factors of its term; raises Illegal if its results cannot be rescaled."""
    needs = {r.name for r in reads_in(member.terms)} & set(fusion.members)
    if not needs:
        return member
    kind = member.combine.kind
    term = member.terms[0]
    factors = result_factors(term, *_leaf_predicates(fusion))
    shifts = factors.shifts if factors else ()
    shifts_read_results = all(_reads_results_only(fusion, b) for _, b in shifts)
    scaling = {r.name for r, _ in factors.scales if isinstance(r, Read)} if factors else set()
    both = scaling & {r.name for _, b in shifts for r in reads_in((b,))}
    if factors is not None and shifts_read_results and not both:
        positive = [e for e, _ in factors.scales]
        if kind == "argmax":  # infinite results make NaN of the largest terms, if these are positive
            positive.append(term)
        if kind == "sum" or (kind in ORDERED and all(_is_positive(fusion, e) for e in positive)):
            return replace(member, factors=factors)
    power = _power(fusion, member) if kind == "sum" else None
    if power is None:
        raise Illegal(
            f"{member.func.name!r} cannot be corrected for another {', '.join(sorted(needs))}",
            "its terms must depend on results by factors such as exp(x - m) and 1 / m, and be summed, or "
            "compared where these are positive",
        )
    return replace(member, power=power)


def _is_positive(fusion: Fusion, e: Expr) -> bool:
    """True for an expression that is positive by its form, of exponentials and positive numbers."""
    match e:
        case Const(value):
            return bool(value > 0)
        case Call("exp" | "exp2"):
            return True
        case Cast(x):
            return dtype_of(x).is_float and _is_positive(fusion, x)
        case Binary("mul" | "div" | "add", x, y):
            return _is_positive(fusion, x) and _is_positive(fusion, y)
        case Read(name) if name in fusion.members:
            member = fusion.members[name]
            return member.combine.kind in ("sum", "max") and _is_positive(fusion, member.terms[0])
        case _:
            return False


def _leaf_predicates(fusion: Fusion) -> tuple[Predicate, Predicate]:
    """Predicates for leaves that are results of the pass, and for leaves that vary over the terms."""
    return (
        lambda n: isinstance(n, Read) and n.name in fusion.members,
        lambda n: n == Var(fusion.variable),
    )


def _reads_results_only(fusion: Fusion, e: Expr) -> bool:
    """True for an expression that reads results of the pass only."""
    return all(not isinstance(n, Read) or n.name in fusion.members for n in post_order(e))


def _power(fusion: Fusion, member: Member) -> Power | None:
    """The power of a term that is a sum or its square; sums of its lower powers are added as members."""
    g, d, term = member.func, member.func.definitions[0], member.terms[0]
    value_of_g = d.values[0]
    square = isinstance(term, Binary) and term.op == "mul" and term.left == term.right
    if square and isinstance(value_of_g, Binary) and isinstance(term, Binary):
        value_of_g, term = value_of_g.left, term.left
    part = shift_of(term, *_leaf_predicates(fusion))
    if part is None or not _reads_results_only(fusion, part):
        return None
    lower: list[str] = []
    one = Const(1.0, member.dtype)
    sums: list[tuple[Expr, Expr]] = [(one, one), (value_of_g, term)]
    for n, (value_at_g, value) in enumerate(sums[: 1 + square]):
        name = fresh_name(fusion.state.program, f"{g.name}_power{n}")
        f = replace(g, name=name, definitions=(replace(d, values=(value_at_g,), mask=TRUE),))
        power = Power(part, tuple(lower)) if n else None
        fusion.members[name] = Member(f, member.free, (value,), power=power)
        lower.append(name)
    return Power(part, tuple(lower))


def _add_sibling(fusion: Fusion, g: FuncDef) -> None:
    """Add a reduction of the same element-wise funcs that the lead does not read."""
    d = g.definitions[0]
    reads = [r for r in reads_in(d.values) if r.name in fusion.elementwise]
    names: dict[str, str] = {}
    for r in reads:
        lead = next(x for x in _elementwise_reads(fusion) if x.name == r.name)
        names.update(
            (a.name, b.name)
            for a, b in zip(r.index, lead.index, strict=True)
            if isinstance(a, Var) and isinstance(b, Var)
        )
    summed = len(g.definitions) == 1 and len(d.ranges) == 1 and d.init is not None
    if not (summed and names.get(d.ranges[0][0]) == fusion.variable and set(d.free) <= set(names)):
        raise Illegal(
            f"{g.name!r} reads {reads[0].name!r}, which is never whole",
            f"it must reduce over the terms of {fusion.lead.name!r}, and have none of its own variables",
        )
    free = tuple(names[v] for v in d.free)
    _add_member(fusion, g, Read(g.name, tuple(map(Var, free)), 0, g.dtypes[0]))


def _with_optional_member(fusion: Fusion, g: FuncDef) -> Fusion:
    """The pass with a reduction of tensors that it reads anyway, if that can be rescaled."""
    d = g.definitions[0]
    if g.name in fusion.members or len(g.definitions) > 1 or d.init is None or len(d.ranges) != 1:
        return fusion
    free = _free_in_lead(fusion, g)
    if free is None:
        return fusion
    extended = replace(fusion, members=dict(fusion.members), elementwise=dict(fusion.elementwise))
    try:
        read = Read(g.name, tuple(map(Var, free)), 0, g.dtypes[0])
        if not _has_same_range(extended, g, read):
            return fusion
        _add_member(extended, g, read)
        while others := _readers_of_elementwise(extended):
            _add_sibling(extended, others[0])
    except Illegal:
        return fusion
    return fusion if _is_circular(extended) else extended


def _free_in_lead(fusion: Fusion, g: FuncDef) -> tuple[str, ...] | None:
    """The variables of the lead for the free ones of a reduction that reads a tensor of the pass, or None."""
    d, variable = g.definitions[0], fusion.variable
    known = {
        r.name: r for m in fusion.members.values() for r in reads_in(m.terms) if Var(variable) in r.index
    }
    for r in reads_in(d.values):
        lead = known.get(r.name)
        if lead is None or not all(isinstance(e, Var) for e in (*r.index, *lead.index)):
            continue
        names = {
            a.name: b.name
            for a, b in zip(r.index, lead.index, strict=True)
            if isinstance(a, Var) and isinstance(b, Var)
        }
        free = tuple(names.get(v, "") for v in d.free)
        firsts = dict(zip(fusion.lead.variables, (lo for lo, _ in fusion.lead.natural), strict=True))
        missing = {v: lo for v, lo in firsts.items() if v not in free}
        if (
            names.get(d.ranges[0][0]) == variable
            and set(free) <= set(firsts)
            and None not in missing.values()
        ):
            return free
    return None


def _is_circular(fusion: Fusion) -> bool:
    """True if the pass reads a tensor that depends on its results."""
    read = {r.name for m in fusion.members.values() for r in reads_in(m.terms)} - set(fusion.members)
    return any(depends_on(fusion.state, name, m) for name in read for m in fusion.members)


def _elementwise_reads(fusion: Fusion) -> list[Read]:
    """Reads of the element-wise funcs of the pass, in the variables of the lead."""
    reads = list(reads_in(fusion.lead.definitions[0].values))
    for r in reads:
        if fusion.state.program.has_func(r.name) and r.name in fusion.elementwise:
            reads += reads_in((value_at(fusion.state.program.func(r.name).definitions[0], r),))
    return [r for r in reads if r.name in fusion.elementwise]
