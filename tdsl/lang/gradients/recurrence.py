"""`recurrence`: the adjoint of an update that reads what it stored before, as an update in reverse order.

f[r] = f[r - 1] * x[r] for r in range(1, n)       d_f[r] += d_f[r + 1] * x[r + 1] for r = n - 1, ..., 0
"""

from __future__ import annotations

from collections.abc import Mapping

from tdsl.errors import DefinitionError
from tdsl.lang.affine import as_sum
from tdsl.lang.definition import Definition
from tdsl.lang.expr import TRUE, Expr, Read, Reduce, Var, dtype_of
from tdsl.lang.gradients.contribution import Boxes, Contribution, as_range
from tdsl.lang.gradients.expression import adjoints_of_reads, common_condition, total, widened
from tdsl.lang.gradients.gather import gather
from tdsl.lang.gradients.partials import Term
from tdsl.lang.gradients.versions import A_FUNC_FOR_EACH_STEP, reads_a_row_before
from tdsl.lang.program import FuncDef
from tdsl.lang.reduction import builtin_combiner
from tdsl.lang.regions import Interval
from tdsl.lang.simplify import add, simplify, substitute, subtract
from tdsl.lang.types import DType
from tdsl.lang.value import Value, convert


def recurrence(
    f: FuncDef, d: Definition, adjoint: str, t: DType, ranges: dict[str, Interval], boxes: Boxes
) -> Definition | None:
    """The update of the func `adjoint` by the reads of its own func in `d`; None if there are none.

    `ranges` are those of the variables of `d`, and `t` the element type of the adjoint.
    """
    elements = dict(zip(f.variables, boxes[f.name], strict=True))
    seed = widened(Read(adjoint, d.index, 0, t))

    def reads_itself(e: Expr) -> bool:
        return isinstance(e, Read) and e.name == f.name

    reads = adjoints_of_reads(d.values[0], (Term(seed),), reads_itself, {})
    value: Value | None = None
    for read, terms in reads.items():
        assert isinstance(read, Read)
        cond, terms = common_condition(terms)
        c = Contribution(read, ranges, d.where, cond, total(terms, t.summed).node)
        parts = gather(c, elements, boxes)
        for part in [None] if parts is None else parts:
            if part is None or isinstance(part, Reduce):
                if reads_a_row_before(f.name, d):
                    return reversed_addition(f, d, adjoint, t, ranges)
                raise DefinitionError(
                    f"this update reads several cells of {f.name!r} that one step stores",
                    loc=read.loc or d.loc,
                    label="no derivative of this read is known",
                    hint=A_FUNC_FOR_EACH_STEP,
                )
            value = Value(part) if value is None else value + Value(part)
    if value is None:
        return None
    axes, order = _reversed_axes(d, elements)
    index = tuple(axes.get(v, Var(v)) for v in f.variables)
    summand = simplify(substitute(convert(value, t, None), axes))
    spans = tuple((r.name, r.lo, r.hi) for r in (as_range(n, elements[n]) for n in order))
    free = tuple(v for v in f.variables if v not in order)
    combine = builtin_combiner("sum", (dtype_of(summand),))
    return Definition(index, free, spans, TRUE, (summand,), combine, None, d.loc)


def reversed_addition(
    f: FuncDef, d: Definition, adjoint: str, t: DType, ranges: dict[str, Interval]
) -> Definition:
    """The update of the func `adjoint` by the read of its own func in `d`, which `reads_a_row_before`.

    h[t, k] += h[t - 1, d] * U[d, k]       d_h[t - 1, d] += d_h[t, k] * U[d, k] for t from the last one on
    """
    seed = Term(widened(Read(adjoint, d.index, 0, t)))

    def reads_itself(e: Expr) -> bool:
        return isinstance(e, Read) and e.name == f.name

    ((read, terms),) = adjoints_of_reads(d.values[0], (seed,), reads_itself, {}).items()
    assert isinstance(read, Read)
    step = d.ranges[0][0]
    lo, hi = ranges[step]
    assert lo is not None
    assert hi is not None
    back: dict[str, Expr] = {step: subtract(add(lo, hi), Var(step))}
    index, where, summand = (
        tuple(substitute(e, back) for e in read.index),
        substitute(d.where, back),
        simplify(substitute(total(terms, t).node, back)),
    )
    order = [step, *(n for n, _, _ in d.ranges[1:]), *d.free]
    spans = tuple((r.name, r.lo, r.hi) for r in (as_range(n, ranges[n]) for n in order))
    combine = builtin_combiner("sum", (dtype_of(summand),))
    return Definition(index, (), spans, where, (summand,), combine, None, d.loc)


def _reversed_axes(d: Definition, elements: Mapping[str, Interval]) -> tuple[dict[str, Expr], list[str]]:
    """The axes along which cells are visited, outermost first, and the index of a cell along each of them.

    Cells are visited in the reverse of the order in which `d` stores them.
    """
    names = [*elements]
    axes: dict[str, Expr] = {}
    order: list[str] = []
    for variable, _, _ in d.ranges:
        axis = next(n for n, e in enumerate(d.index) if Var(variable) in as_sum(e).terms)
        name = names[axis]
        if name in order:
            continue
        order.append(name)
        lo, hi = elements[name]
        assert lo is not None
        assert hi is not None
        if as_sum(d.index[axis]).terms[Var(variable)] > 0:
            axes[name] = subtract(add(lo, hi), Var(name))
    return axes, order
