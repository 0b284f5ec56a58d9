"""The operands of a sum of products as matrices: rows, or columns, by terms.

A sum over several ranges, of operands with several free variables or windows, is a matrix product, too: the
variables that only one operand is indexed by are flattened to its rows or columns, ranges to terms. A
convolution has points as rows, and window positions times channels as terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tdsl.autoschedule.recipes.choices import Unsuited
from tdsl.autoschedule.recipes.computed_operands import computed_factors, factor_types
from tdsl.autoschedule.recipes.conv import known
from tdsl.autoschedule.recipes.epilogue import reader_of
from tdsl.autoschedule.recipes.grid import on_threads
from tdsl.autoschedule.recipes.stage_facts import (
    definition_of,
    even_width,
    load_width,
    shape_of_source,
    sizes_of,
)  # fmt: skip
from tdsl.core.node import frozen, post_order
from tdsl.cost.sectors import SHIFTED, WIDEST
from tdsl.lang.affine import as_sum, has_data, variables
from tdsl.lang.bounds import NO_FACTS
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, TRUE, ZERO, Binary, Cast, Const, Expr, Read, Select, Var, const, dtype_of
from tdsl.lang.operations import issues_of
from tdsl.lang.program import FuncDef, bind_expr
from tdsl.lang.regions import reads_in
from tdsl.lang.show import show_expr
from tdsl.lang.simplify import add, conjuncts, simplify, substitute, subtract
from tdsl.lang.types import f8e4m3, f8e5m2, f64
from tdsl.machine.gpu import has
from tdsl.machine.model import Machine
from tdsl.schedule.bind import bind_state
from tdsl.schedule.bounds_inference import bounds_of
from tdsl.schedule.caches import dtypes_and_limits
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.full_tiles import ends_in_zeros
from tdsl.schedule.gathering import read_variables
from tdsl.schedule.inlining import is_inlined, value_at
from tdsl.schedule.outline import main_read
from tdsl.schedule.state import ROUND_UP

_THREADS = 256  # of a block that packs an operand
_CONVERTS = "89"  # the first GPUs that convert floats of 8 bits
_CONVERSION = 5  # operations of other GPUs for that


@frozen
class Operand:
    """A factor indexed by k and a row or column variable, `along`; `axes` are their two axes.

    If `gathered`, an im2col copy with an axis per variable. `twice`: both operands are one array. `computed`:
    an inlined func, whose tiles are computed.
    """

    read: Read
    along: str
    axes: tuple[int, int]
    gathered: bool = False
    twice: bool = False
    computed: bool = False

    @property
    def copy_along(self) -> str | None:
        """The variable that distinguishes this operand from another one of the same array, else None."""
        return self.along if self.twice else None

    @property
    def transposed(self) -> bool:
        """True if the terms have a larger stride in memory than rows or columns."""
        return self.along in variables(self.read.index[self.axes[1]])


@frozen
class Matrices:
    """The variables of rows, of columns and of terms; all others are batches."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    terms: tuple[str, ...]

    def fitting(self, d: Definition, sizes: Mapping[str, int | None], tile: tuple[int, int, int]) -> Matrices:
        """Keeps one row or column variable where the tile divides it; others become batches.

        Only for one variable of terms, and operands that are not gathered.
        """
        if len(self.terms) > 1:
            return self
        sides = []
        for names, size in zip((self.rows, self.columns), tile, strict=False):
            operand = _plain_one(d, names, self.terms[0])
            fills = operand is not None and (sizes.get(operand.along) or 0) % size == 0
            sides.append((operand.along,) if operand is not None and fills else names)
        return Matrices(sides[0], sides[1], self.terms)


def matrices_of(d: Definition, *, computed: bool = False) -> Matrices:
    """The variables of the matrices of a sum of products, rows first in the result; Unsuited for others.

    Factors are elements of arrays, or if `computed` any expressions.
    """
    parts = computed_factors(d) if computed else _factors(d)
    if d.combine is None or d.combine.kind != "sum":
        raise Unsuited("it does not add its terms up")
    if not all(isinstance(e, Var) for e in d.index):
        raise Unsuited("the indices of its result are not plain variables")
    sides = []
    for part, other in zip(parts, reversed(parts), strict=True):
        source = main_read(part)
        name = show_expr(part) if source is None else repr(source.name)
        sides.append(tuple(v for v in d.free if v in variables(part) - variables(other)))
        if not sides[-1]:
            raise Unsuited(f"no variable of the result indexes {name} alone")
        for v, _, _ in d.ranges:
            if v not in variables(part):
                raise Unsuited(f"{name} is not indexed by {v!r}, which is summed over")
    last = [max(d.index.index(Var(v)) for v in names) for names in sides]
    rows, columns = sides if last[0] < last[1] else sides[::-1]
    return Matrices(rows, columns, tuple(v for v, _, _ in d.ranges))


def operands_of(stage: Stage, m: Matrices) -> tuple[Operand, Operand]:
    """The operands indexed by the row and by the column variable, read directly or gathered."""
    d = definition_of(stage)
    parts = _factors(d)
    (row,), (column,), (term,) = m.rows, m.columns, m.terms
    operands = {}
    for part in parts:
        along = row if row in variables(part) else column
        plain = _plain(part, along, term) if isinstance(part, Read) else None
        x = plain or _gathered(d, part, along, term)
        operands[along] = replace(x, computed=is_inlined(stage.schedule.state, x.read.name))
    return _pair(operands[row], operands[column])


def with_zeros(stage: Stage, operands: tuple[Operand, Operand], step: int) -> tuple[Operand, Operand]:
    """Operands whose products are 0 beyond the terms, in the last of the steps of so many terms.

    One of arrays that go on is gathered, whose copy has zeros there; Unsuited where that is not enough.
    """
    schedule, d = stage.schedule, definition_of(stage)
    state, boxes = known(schedule)
    f, facts = state.program.func(stage.func), NO_FACTS
    box = boxes.get(f.name)  # None if no element is needed
    if box is not None and all(None not in ends for ends in box):
        for v, (first, n) in bounds_of(f, f.definitions[stage.definition], box).items():
            facts = facts.with_range(v, first, subtract(add(first, n), ONE))
    open_ends = [c for c in conjuncts(d.where) if simplify(bind_expr(c, schedule.sizes), facts) != TRUE]
    for c in open_ends:
        if not (
            isinstance(c, Binary)
            and c.op == "lt"
            and all(_ends(schedule, x, c.left, c.right) for x in operands)
        ):
            raise Unsuited(
                f"it adds up its terms only where {show_expr(c)}",
                "parts of equal size need no such condition if sizes={...} gives the number of terms; "
                "other terms can be 0: td.where(condition, factor, 0)",
            )
    ((term, _, end),) = d.ranges
    count = sizes_of(stage).get(term)
    if count is None or count % step == 0 or end is None:
        return operands
    if any(x.gathered or _ends(schedule, x, Var(term), end) for x in operands):
        return operands
    if open_ends:
        raise Unsuited(
            f"its operands go on beyond its {count} terms, which are no multiple of the {step} of a block",
            f"choose block=(rows, columns, terms) with terms that divide {count}, or sum over a multiple",
        )
    plain = min(operands, key=lambda x: x.computed)
    (part,) = (p for p in _factors(d) if plain.along in variables(p))
    masked = replace(_gathered(d, part, plain.along, term), twice=plain.twice, computed=plain.computed)
    left, right = (masked if x is plain else x for x in operands)
    return left, right


def _ends(schedule: BaseSchedule, x: Operand, at: Expr, end: Expr) -> bool:
    """True if an axis of `x` indexed by `at` has extent `end`."""
    if x.gathered:
        return False
    if ends_in_zeros(schedule.state, x.read, at, end):
        return True
    _, limits = dtypes_and_limits(schedule.state.program, x.read.name)
    return any(
        e == at and last is not None and bind_expr(subtract(add(last, ONE), end), schedule.sizes) == ZERO
        for e, (_, last) in zip(x.read.index, limits, strict=True)
    )


def plain_operands(d: Definition) -> tuple[Operand, Operand]:
    """The operands of a sum over one variable, read directly; Unsuited if one has to be gathered.

    Of several row or column variables of an operand, the last with coefficient 1 in an axis of its own.
    """
    m, operands = matrices_of(d), []
    for names in (m.rows, m.columns):
        one = _plain_one(d, names, m.terms[0])
        if one is None:
            raise Unsuited(
                f"an operand does not move one by one along {m.terms[0]!r} and {names[-1]!r}, "
                "each in an axis of its own"
            )
        operands.append(one)
    return _pair(*operands)


def _pair(left: Operand, right: Operand) -> tuple[Operand, Operand]:
    twice = left.read.name == right.read.name
    return replace(left, twice=twice), replace(right, twice=twice)


def flatten_sides(stage: Stage, m: Matrices) -> tuple[Matrices, Stage | None]:
    """Flatten all rows to one variable, all columns to another, all terms to a third.

    The epilogue, the only reader of the sums, is flattened alike and returned, too.
    """
    reader = reader_of(stage) if max(len(m.rows), len(m.columns)) > 1 else None
    d = definition_of(stage)
    theirs: dict[str, str] = {}
    if reader is not None:
        at = next(r for r in reads_in(definition_of(reader).values) if r.name == stage.func)
        theirs = {v: e.name for v, e in zip(d.free, at.index, strict=True) if isinstance(e, Var)}
    sides = []
    for names in (m.rows, m.columns):
        sides.append(names if len(names) == 1 else (stage.flatten(*names).name,))
        if reader is not None and len(names) > 1:
            reader.flatten(*(theirs[v] for v in names))
    terms = m.terms
    if len(terms) > 1:
        terms = (stage.flatten(*sorted(terms, key=_range_order(d).__getitem__)).name,)
    return Matrices(sides[0], sides[1], terms), reader


def vector_width(stage: Stage, x: Operand, *, shifted: bool = True) -> int:
    """The elements of an operand's rows that a thread copies at once, of at most 16 bytes.

    Rows of an array that begin anywhere have vectors of 16 bytes, too, unless `shifted` is False.
    """
    given, size = stage.schedule.state, x.read.dtype.bytes
    if given.program.has_func(x.read.name) and given.plan(x.read.name).filled:  # by `pack`
        return WIDEST // size
    if not x.gathered and not x.computed:
        width = load_width(stage, x.read.name, x.copy_along)
        return WIDEST // size if shifted and is_shifted(stage, x, width) else width
    state = bind_state(stage.schedule.state, stage.schedule.sizes)
    d = state.program.func(stage.func).definitions[0]
    (part,) = (p for p in _factors(d) if x.along in variables(p))
    v = read_variables(d, part)[-1]
    if x.computed:
        part = source_of(stage, replace(x, read=_source(part)))
        # of shorter elements, threads store to banks of their neighbours unless rows are short
        size = max(size, _source(part).dtype.bytes) if x.transposed else _source(part).dtype.bytes
    width = even_width(WIDEST // size, sizes_of(stage).get(v))
    while width > 1 and not _are_neighbours(part, v, width):
        width //= 2
    return width


def is_shifted(stage: Stage, x: Operand, width: int) -> bool:
    """True if threads load rows, aligned to `width` elements, by vectors taken from two aligned ones."""
    is_row = x.axes[1] == len(x.read.index) - 1 and not x.gathered and not x.computed
    size, shape = x.read.dtype.bytes, shape_of_source(stage, x.read.name)
    return is_row and None not in shape and size < WIDEST // 2 and width * size < SHIFTED


def source_of(stage: Stage, x: Operand) -> Read:
    """What the elements of an operand are computed of, or itself."""
    if not x.computed:
        return x.read
    state = bind_state(stage.schedule.state, stage.schedule.sizes)
    return main_read(value_at(state.program.func(x.read.name).definitions[0], x.read)) or x.read


def operations_of(stage: Stage, x: Operand, machine: Machine) -> int:
    """The operations that compute an element of an operand; those of indices are left out.

    GPUs before sm_89 convert floats of 8 bits by shifts and comparisons.
    """
    if not x.computed:
        return 0
    d = stage.schedule.state.program.func(x.read.name).definitions[0]
    slow = machine.gpu is None or not has(machine.gpu.arch, _CONVERTS)
    casts = sum(isinstance(n, Cast) and dtype_of(n.x) in (f8e4m3, f8e5m2) for n in post_order(*d.values))
    return issues_of(d) + slow * (_CONVERSION - 1) * casts


def _are_neighbours(part: Expr, v: str, width: int) -> bool:
    """True if `width` aligned consecutive values of `v` read aligned consecutive elements."""
    lane, first = Var("lane of a copy"), Var("first of a copy")
    facts = NO_FACTS.with_range(lane.name, ZERO, const(width - 1))
    at: Expr = Binary("add", Binary("mul", first, const(width)), lane)
    read = _source(part)
    *outer, last = (simplify(substitute(e, {v: at}), facts) for e in read.index)
    tests = [part.cond] if isinstance(part, Select) else []
    outer += [simplify(substitute(e, {v: at}), facts) for e in tests]
    rest = as_sum(subtract(last, lane, facts))
    if any(lane.name in variables(e) for e in (*outer, *rest.terms)):
        return False
    return not any(n % width for n in (rest.constant, *rest.terms.values()))


def _factors(d: Definition) -> tuple[Expr, Expr]:
    """The two factors of each term, without conversions: reads, or selects of a read or a constant."""
    left, right = map(_factor, computed_factors(d))
    names = {_source(part).name for part in (left, right)}
    for r in reads_in((left, right)):
        chosen = next((x.name for x in reads_in(r.index) if x.name in names), None)
        if chosen is not None:
            raise Unsuited(f"elements of its factor {chosen!r} choose which elements of {r.name!r} it reads")
    return left, right


def _factor(e: Expr) -> Expr:
    """The read of a factor without conversions, or its select of the read or a constant (padding)."""
    while isinstance(e, Cast):
        e = e.x
    match e:
        case Read() | Select(_, Read(), Const()):
            return e
        case _:
            raise Unsuited(
                f"a factor of its terms is {e}, not an element of an array",
                "make a td.Func of the computed factor, and multiply with this func",
            )


def _source(part: Expr) -> Read:
    read = part.yes if isinstance(part, Select) else part
    assert isinstance(read, Read)
    return read


def _plain(read: Read, along: str, term: str) -> Operand | None:
    """An operand whose two variables each have coefficient 1 in an axis of their own; None for others.

    Also where data choose elements in another axis: beyond the edges of a tile there are none to read.
    """
    axes = []
    if any(map(has_data, read.index)):
        return None
    for v in (along, term):
        holders = [n for n, e in enumerate(read.index) if v in variables(e)]
        if len(holders) != 1 or as_sum(read.index[holders[0]]).terms.get(Var(v)) != 1:
            return None
        axes += holders
    return None if axes[0] == axes[1] else Operand(read, along, (min(axes), max(axes)))


def _plain_one(d: Definition, names: tuple[str, ...], term: str) -> Operand | None:
    """The operand indexed by `names`, along the last of these with coefficient 1; None if there is none."""
    (part,) = (p for p in _factors(d) if variables(p).issuperset(names))
    candidates = [_plain(part, v, term) for v in names] if isinstance(part, Read) else []
    return next((x for x in reversed(candidates) if x is not None), None)


def plain_operand(stage: Stage, names: tuple[str, ...], terms: tuple[str, ...]) -> Operand | None:
    """The operand indexed by `names` if tiles of it are boxes of its array; None if it has to be gathered."""
    d = definition_of(stage)
    x = _plain_one(d, names, terms[0]) if len(terms) == 1 else None
    if x is None:
        return None
    twice = all(r.name == x.read.name for r in reads_in(d.values))
    return replace(x, twice=twice, computed=is_inlined(stage.schedule.state, x.read.name))


def pack(stage: Stage, x: Operand, along: int, terms: int) -> None:
    """Copy or compute an operand first, by a kernel of its own, in rows that begin at multiples of 16 bytes.

    Beyond its edges the copy has zeros, up to multiples of `along` rows or columns and of `terms`.
    """
    size, width = x.read.dtype.bytes, vector_width(stage, x)
    copy = stage.schedule.cache_read(x.read.name, stage.func, filled=True)
    loops, tiles = copy.loops, (terms, along) if x.transposed else (along, terms)
    for axis, tile in zip(x.axes, tiles, strict=True):
        copy.split(loops[axis], max(tile, WIDEST // size), tail=ROUND_UP)
    outer = [loop.name for loop in copy.loops]
    on_threads(copy, outer, _THREADS, width if width * size == WIDEST else 1, blocks=True)


def _gathered(d: Definition, part: Expr, along: str, term: str) -> Operand:
    names, read = read_variables(d, part), _source(part)
    axes = sorted(names.index(v) for v in (along, term))
    copy = Read(read.name, tuple(map(Var, names)), 0, read.dtype)
    return Operand(copy, along, (axes[0], axes[1]), gathered=True)


def _range_order(d: Definition) -> dict[str, tuple[int, int]]:
    """Sort keys of ranges: their axis in the operand with more bare range indices."""
    ranges = [v for v, _, _ in d.ranges]
    alone = max(
        ([*_source(p).index] for p in _factors(d)),
        key=lambda index: sum(Var(v) in index for v in ranges),
    )
    return {v: (alone.index(Var(v)) if Var(v) in alone else -1, n) for n, v in enumerate(ranges)}


def is_for_tensor_cores(f: FuncDef) -> bool:
    """True for a product of two matrices of types whose products tensor cores add up as floats of f32 or i32.

    8-bit floats are none: their products are added with fewer bits.
    """
    d = f.definitions[0]
    if len(f.definitions) > 1 or len(d.ranges) != 1:
        return False
    try:
        m = matrices_of(d)
    except Unsuited:
        return False
    types = {r.dtype for r in d.reads}
    return (
        len(m.rows) == len(m.columns) == 1
        and types.isdisjoint((f64, f8e4m3, f8e5m2))
        and types == set(factor_types(d) or ())
    )
