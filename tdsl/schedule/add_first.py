"""add_first: the terms of a sum of values that read some sources are added first, by a new func.

    y[i] = x[i] + a[i] - 2 * b[i]      y_terms[i] = a[i] - 2 * b[i]
                                       y[i]       = x[i] + y_terms[i]

If the sources are sums that ranks have parts of, each rank can add its parts (`distribute` by "partial"), and
one reduction takes the place of one for each source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tdsl.core.node import Node, children, transform
from tdsl.errors import did_you_mean
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition, has_effects
from tdsl.lang.expr import TRUE, Binary, Expr, Read, Unary, Var, dtype_of
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import reads_in
from tdsl.schedule.new_stage import insert_func, new_name, replace_func
from tdsl.schedule.state import Illegal, State, fresh_plan

Term = tuple[Expr, bool]  # an expression, and whether it is subtracted


def add_first(
    state: State, func: str, definition: int, *, sources: Sequence[str], name: str | None = None
) -> State:
    """Add the terms that read `sources` by a new func; integers wrap, floats are rounded in another order."""
    f = state.program.func(func)
    d = f.definitions[0]
    read = {r.name for r in d.reads}
    for source in sources:
        if source not in read:
            raise Illegal(f"{func!r} reads no {source!r}", did_you_mean(source, read))
    if definition or len(f.definitions) > 1 or len(f.dtypes) > 1 or has_effects(d) or d.combine or d.ranges:
        raise Illegal(f"{func!r} is no element-wise func", "name one that adds what it reads")
    if state.plan(func).nests != fresh_plan(f).nests:
        raise Illegal(f"the loops of {func!r} were changed already", "give this directive first")
    split = terms_that_read(d.values[0], {*sources})
    if split is None:
        raise Illegal(
            f"{func!r} does not add terms with {', '.join(sources)} to others",
            "name two or more sources whose terms are added, beside others, in one sum",
        )
    whole, chosen, others = split
    box = dict(zip(d.free, f.limits, strict=True))
    dims = tuple(v for v in d.free if any(v in variables(e) for e, _ in chosen))
    limits = tuple(box[v] for v in dims)
    dtype, index = dtype_of(whole), tuple(map(Var, dims))
    added = new_name(state.program, name, f"{func}_terms")
    definition_ = Definition(index, dims, (), TRUE, (_sum_of(chosen),), None, None, d.loc)
    terms = FuncDef(added, (dtype,), (definition_,), limits, limits, False, f.fast_math, f.loc)
    new = _sum_of([*others, (Read(added, index, 0, dtype, loc=d.loc), False)])

    def replaced(n: Node) -> Node:
        return new if n is whole else n

    values = (transform(d.values[0], replaced),)
    state = replace_func(state, replace(f, definitions=(replace(d, values=values),)))
    return insert_func(state, func, terms, fresh_plan(terms))


def sums_in_value(e: Expr) -> Iterator[Expr]:
    """The outermost sums and differences in an expression, then those inside of their terms."""
    pending = [e]
    while pending:
        n = pending.pop(0)
        if isinstance(n, Binary) and n.op in ("add", "sub"):
            yield n
            pending += [t for t, _ in terms_of(n)]
        elif not isinstance(n, Read):
            pending += children(n)  # type: ignore[arg-type]


def terms_that_read(e: Expr, sources: set[str]) -> tuple[Expr, list[Term], list[Term]] | None:
    """A sum in an expression, its terms that read the sources, and its others; None if there is no such sum.

    All reads of the sources are in these terms, of which there are two or more, and there are others.
    """
    for whole in sums_in_value(e):
        terms = terms_of(whole)
        chosen = [t for t in terms if {r.name for r in reads_in((t[0],))} & sources]
        inside = [r for t, _ in chosen for r in reads_in((t,)) if r.name in sources]
        every = [r for r in reads_in((e,)) if r.name in sources]
        if 1 < len(chosen) < len(terms) and {*inside} == {*every} and sources <= {r.name for r in inside}:
            return whole, chosen, [t for t in terms if t not in chosen]
    return None


def terms_of(e: Expr) -> list[Term]:
    """The terms of nested sums, differences and negations, in order."""
    match e:
        case Binary("add", a, b):
            return terms_of(a) + terms_of(b)
        case Binary("sub", a, b):
            return terms_of(a) + [(t, not negative) for t, negative in terms_of(b)]
        case Unary("neg", Binary("add" | "sub") as x):
            return [(t, not negative) for t, negative in terms_of(x)]
        case _:
            return [(e, False)]


def _sum_of(terms: Sequence[Term]) -> Expr:
    """The sum of terms, those that are subtracted last."""
    ordered = sorted(terms, key=lambda t: t[1])
    e, negative = ordered[0]
    total: Expr = Unary("neg", e) if negative else e
    for t, subtracted in ordered[1:]:
        total = Binary("sub" if subtracted else "add", total, t)
    return total
