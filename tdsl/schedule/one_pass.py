"""The reductions that one pass over their terms can compute together, for `online`.

One reduction leads, usually a sum. Its terms are inlined until they read only inputs, other points of the
program, and results of reductions over the same range, which join the pass. Every other reduction of the
inlined funcs, which are never stored whole, or of tensors that the pass reads anyway, joins if its partial
results can be rescaled.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tdsl.core.node import Node, frozen, post_order, transform
from tdsl.lang.affine import difference, variables
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
from tdsl.schedule.inlining import value_at
from tdsl.schedule.legality import depends
from tdsl.schedule.new_stage import fresh_func
from tdsl.schedule.rescaling import Holds, Separated, separate, shift_of
from tdsl.schedule.state import Illegal, State, fresh_nest

ORDERED = ("max", "min", "argmax")  # reductions whose choice a positive factor does not change


NONE = Separated()


@frozen
class Power:
    """A term (a(x) + b(m)) ** k: `part` is b(m), `lower` the members that sum the powers 0 to k - 1."""

    part: Expr
    lower: tuple[str, ...]


@frozen
class Member:
    """A reduction of the pass, its terms inlined and over the variables of the leading func.

    `own` are its free variables in terms of the lead, `found` the factors by which its first term depends on
    other results, `power` that dependence if the term is a power of a sum. Other members depend on none.
    """

    func: FuncDef
    own: tuple[str, ...]
    terms: tuple[Expr, ...]
    found: Separated = NONE
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
class Pass:
    """The reductions that one pass over the terms of `lead` computes.

    `members` are the reductions by name, producers first; `moved` the element-wise funcs between them, each
    with its dimension along the range of the reduction.
    """

    state: State
    lead: FuncDef
    variable: str
    members: dict[str, Member] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)

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


def find_pass(state: State, f: FuncDef, over: str) -> Pass:
    """The pass of a reduction: reductions that its terms read, that read the same funcs or the same inputs.

    Raises Illegal if a required one cannot be rescaled, or if another func reads a func that is never stored
    whole.
    """
    _check_lead(state, f, over)
    made, d = Pass(state, f, over), f.definitions[0]
    terms = tuple(_written_out(made, v) for v in d.values)
    if not made.members:
        raise Illegal(
            f"the terms of {f.name!r} need no result of another reduction over {made.variable!r}",
            "rfactor reduces in parts what needs no correction",
        )
    made.members[f.name] = _separated(made, Member(f, d.free, terms))
    while others := _readers(made):
        _beside(made, others[0])
    for g in state.program.funcs:
        made = _if_it_suits(made, g)
    return made


def _readers(made: Pass) -> list[FuncDef]:
    """The other funcs that read the element-wise funcs of the pass, in the order of the program."""
    names = {c.name for g in made.moved for c, _ in made.state.consumers(g)}
    names -= {*made.moved, *made.members}
    return [f for f in made.state.program.funcs if f.name in names]


def _written_out(made: Pass, e: Expr) -> Expr:
    """An expression in which funcs that depend on reductions of the pass are inlined."""

    def visit(n: Node) -> Node:
        if not isinstance(n, Read) or not made.state.program.has_func(n.name):
            return n
        g = made.state.program.func(n.name)
        d = g.definitions[0]
        if len(g.definitions) > 1 or len(g.dtypes) > 1:
            return n
        if d.init is not None:
            return n if not _runs_along(made, g, n) else _result(made, g, n)
        before = len(made.members)
        inner = _written_out(made, value_at(d, n))
        known = any(isinstance(x, Read) and x.name in made.members for x in post_order(inner))
        if len(made.members) == before and not known:
            return n
        if Var(made.variable) in n.index:
            _moves(made, g, n)
        return inner

    return transform(e, visit)


def _moves(made: Pass, g: FuncDef, read: Read) -> None:
    """Record an element-wise func whose values are computed again for each tile."""
    if not all(isinstance(e, Var) for e in read.index) or len(set(read.index)) < len(read.index):
        raise Illegal(
            f"{g.name!r} is not read point by point",
            f"each index of it must be one of {made.lead.name!r}",
        )
    if g.name in made.state.program.outputs:
        raise Illegal(f"{g.name!r} is an output, and is never whole", "leave it out of the outputs")
    made.moved[g.name] = g.variables[read.index.index(Var(made.variable))]


def _runs_along(made: Pass, g: FuncDef, read: Read) -> bool:
    """True for a reduction over the same range as the lead that reads a tensor along that range."""
    if g.name in made.members:
        return True
    d = g.definitions[0]
    if any(made.variable in variables(e) for e in read.index) or len(d.ranges) != 1:
        return False
    ((own, lo, hi),) = d.ranges
    first, end = made.range
    if lo is None or hi is None or difference(lo, first) != 0 or difference(hi, end) != 0:
        return False
    return any(Var(own) in r.index for r in reads_in(d.values))


def _result(made: Pass, g: FuncDef, read: Read) -> Read:
    """The read of a reduction over the same range, which is added to the members."""
    d = g.definitions[0]
    assert d.combine is not None
    own = tuple(e.name for e in read.index if isinstance(e, Var))
    if len(own) < len(read.index) or len(set(own)) < len(own):
        raise Illegal(f"{g.name!r} is not read point by point", "read it at plain variables")
    if g.name in made.members:
        if made.members[g.name].own != own:
            raise Illegal(f"{g.name!r} is read at two places", "read it at the same variables")
        return read
    if not d.combine.associative or d.where != TRUE:
        raise Illegal(
            f"{g.name!r} is reduced in order, or under a condition", "it cannot be made in tiles"
        )
    names = {**dict(zip(g.variables, own, strict=True)), d.ranges[0][0]: made.variable}
    at: dict[str, Expr] = {a: Var(b) for a, b in names.items()}
    terms = tuple(_written_out(made, substitute(v, at)) for v in d.values)
    made.members[g.name] = _separated(made, Member(g, own, terms))
    return read


def _separated(made: Pass, member: Member) -> Member:
    """A member with the factors of its term; raises Illegal if its results cannot be rescaled."""
    needs = {r.name for r in reads_in(member.terms)} & set(made.members)
    if not needs:
        return member
    kind = member.combine.kind
    term = member.terms[0]
    found = separate(term, *_leaves(made))
    shifts = found.shifts if found else ()
    plain = all(_is_plain(made, b) for _, b in shifts)
    again = {r.name for r, _ in found.scales if isinstance(r, Read)} if found else set()
    both = again & {r.name for _, b in shifts for r in reads_in((b,))}
    if found is not None and plain and not both:
        positive = [e for e, _ in found.scales]
        if (
            kind == "argmax"
        ):  # infinite results make NaN of the largest terms, if these are positive
            positive.append(term)
        if kind == "sum" or (kind in ORDERED and all(_is_positive(made, e) for e in positive)):
            return replace(member, found=found)
    power = _power(made, member) if kind == "sum" else None
    if power is None:
        raise Illegal(
            f"{member.func.name!r} cannot be corrected for another {', '.join(sorted(needs))}",
            "its terms must depend on results by factors such as exp(x - m) and 1 / m, and be summed, or "
            "compared where these are positive",
        )
    return replace(member, power=power)


def _is_positive(made: Pass, e: Expr) -> bool:
    """True for an expression that is positive by its form, of exponentials and positive numbers."""
    match e:
        case Const(value):
            return bool(value > 0)
        case Call("exp" | "exp2"):
            return True
        case Cast(x):
            return dtype_of(x).is_float and _is_positive(made, x)
        case Binary("mul" | "div" | "add", x, y):
            return _is_positive(made, x) and _is_positive(made, y)
        case Read(name) if name in made.members:
            member = made.members[name]
            return member.combine.kind in ("sum", "max") and _is_positive(made, member.terms[0])
        case _:
            return False


def _leaves(made: Pass) -> tuple[Holds, Holds]:
    """Predicates for leaves that are results of the pass, and for leaves that vary over the terms."""
    return (
        lambda n: isinstance(n, Read) and n.name in made.members,
        lambda n: n == Var(made.variable),
    )


def _is_plain(made: Pass, e: Expr) -> bool:
    """True for an expression that reads results of the pass only."""
    return all(not isinstance(n, Read) or n.name in made.members for n in post_order(e))


def _power(made: Pass, member: Member) -> Power | None:
    """The power of a term that is a sum or its square; sums of its lower powers are added as members."""
    g, d, term = member.func, member.func.definitions[0], member.terms[0]
    own = d.values[0]
    square = isinstance(term, Binary) and term.op == "mul" and term.left == term.right
    if square and isinstance(own, Binary) and isinstance(term, Binary):
        own, term = own.left, term.left
    part = shift_of(term, *_leaves(made))
    if part is None or not _is_plain(made, part):
        return None
    lower: list[str] = []
    one = Const(1.0, member.dtype)
    sums: list[tuple[Expr, Expr]] = [(one, one), (own, term)]
    for n, (own_value, value) in enumerate(sums[: 1 + square]):
        name = fresh_func(made.state.program, f"{g.name}_power{n}")
        f = replace(g, name=name, definitions=(replace(d, values=(own_value,), mask=TRUE),))
        power = Power(part, tuple(lower)) if n else None
        made.members[name] = Member(f, member.own, (value,), power=power)
        lower.append(name)
    return Power(part, tuple(lower))


def _beside(made: Pass, g: FuncDef) -> None:
    """Add a reduction of the same element-wise funcs that the lead does not read."""
    d = g.definitions[0]
    reads = [r for r in reads_in(d.values) if r.name in made.moved]
    names: dict[str, str] = {}
    for r in reads:
        lead = next(x for x in _reads_of_moved(made) if x.name == r.name)
        names.update(
            (a.name, b.name)
            for a, b in zip(r.index, lead.index, strict=True)
            if isinstance(a, Var) and isinstance(b, Var)
        )
    summed = len(g.definitions) == 1 and len(d.ranges) == 1 and d.init is not None
    if not (summed and names.get(d.ranges[0][0]) == made.variable and set(d.free) <= set(names)):
        raise Illegal(
            f"{g.name!r} reads {reads[0].name!r}, which is never whole",
            f"it must reduce over the terms of {made.lead.name!r}, and have none of its own variables",
        )
    own = tuple(names[v] for v in d.free)
    _result(made, g, Read(g.name, tuple(map(Var, own)), 0, g.dtypes[0]))


def _if_it_suits(made: Pass, g: FuncDef) -> Pass:
    """The pass with a reduction of tensors that it reads anyway, if that can be rescaled."""
    d = g.definitions[0]
    if g.name in made.members or len(g.definitions) > 1 or d.init is None or len(d.ranges) != 1:
        return made
    own = _place_in(made, g)
    if own is None:
        return made
    tried = replace(made, members=dict(made.members), moved=dict(made.moved))
    try:
        read = Read(g.name, tuple(map(Var, own)), 0, g.dtypes[0])
        if not _runs_along(tried, g, read):
            return made
        _result(tried, g, read)
        while others := _readers(tried):
            _beside(tried, others[0])
    except Illegal:
        return made
    return made if _is_circular(tried) else tried


def _place_in(made: Pass, g: FuncDef) -> tuple[str, ...] | None:
    """The variables of the lead for the free ones of a reduction that reads a tensor of the pass, or None."""
    d, variable = g.definitions[0], made.variable
    known = {
        r.name: r
        for m in made.members.values()
        for r in reads_in(m.terms)
        if Var(variable) in r.index
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
        own = tuple(names.get(v, "") for v in d.free)
        firsts = dict(zip(made.lead.variables, (lo for lo, _ in made.lead.natural), strict=True))
        left = {v: lo for v, lo in firsts.items() if v not in own}
        if (
            names.get(d.ranges[0][0]) == variable
            and set(own) <= set(firsts)
            and None not in left.values()
        ):
            return own
    return None


def _is_circular(made: Pass) -> bool:
    """True if the pass reads a tensor that depends on its results."""
    read = {r.name for m in made.members.values() for r in reads_in(m.terms)} - set(made.members)
    return any(depends(made.state, name, m) for name in read for m in made.members)


def _reads_of_moved(made: Pass) -> list[Read]:
    """Reads of the element-wise funcs of the pass, in the variables of the lead."""
    found = list(reads_in(made.lead.definitions[0].values))
    for r in found:
        if made.state.program.has_func(r.name) and r.name in made.moved:
            found += reads_in((value_at(made.state.program.func(r.name).definitions[0], r),))
    return [r for r in found if r.name in made.moved]
