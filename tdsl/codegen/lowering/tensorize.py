"""Tensorization: replaces a loop and its body by an instruction after checking that both compute the same.

The loops of the nest, from the chosen one inwards, are matched in order with the variables of the
definition that specifies the instruction. The two definitions must then agree: the same combiner, the same
value expression (factors and summands in any order), and each read of the nest moves along the matched loops
exactly as the operand of the instruction moves along its axes. The tail of a peeled split, whose loops are
shorter than those of the instruction, stays a loop nest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from tdsl.codegen.ir.loops import Alloc, BufferParam, Invoke, Kernel, Operand, Stmt
from tdsl.codegen.lowering.context import Lowering
from tdsl.core.node import Node, children
from tdsl.errors import ScheduleError
from tdsl.lang.affine import variables
from tdsl.lang.bounds import Facts
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, TRUE, ZERO, Binary, Cast, Const, Expr, Read, Select, Var
from tdsl.lang.program import Program
from tdsl.lang.regions import reads_in
from tdsl.lang.show import show_expr
from tdsl.lang.simplify import add, conjuncts, simplify, substitute, subtract
from tdsl.machine.instructions.instruction import INSTRUCTIONS, Instruction
from tdsl.machine.instructions.layout import Layout
from tdsl.machine.instructions.tensor_cores import is_built_in
from tdsl.schedule.bounds_inference import OpenNest
from tdsl.schedule.full_tiles import is_total
from tdsl.schedule.state import State, Tensorization


class _Mismatch(Exception):  # `emit_invoke` turns it into a ScheduleError
    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint or "split and reorder so that the inner loops are those of the instruction"


def extents_match(active: OpenNest, plan: Tensorization, facts: Facts) -> bool:
    """True if the loops from `plan.loop` inwards have the extents of the instruction."""
    chosen = INSTRUCTIONS[plan.instruction]
    inner = [x for x in active.nest.names() if x not in active.opened]
    actual = [simplify(active.extents[x], facts) for x in inner]
    return actual == [e for _, e in _spec_loops(chosen, chosen.meaning.funcs[0].definitions[-1])]


def emit_invoke(
    low: Lowering, active: OpenNest, plan: Tensorization, facts: Facts, *, guarded: bool
) -> Invoke:
    """The call of the instruction that replaces the loops from `plan.loop` inwards.

    ScheduleError if they compute anything else, or if `guarded`: guards that depend on them remain.
    """
    chosen = INSTRUCTIONS[plan.instruction]
    try:
        operands = _match_definition(low, active, chosen, active.opened, facts)
        if guarded:
            raise _Mismatch("not all iterations of the loops inside run; split with tail='peel'")
    except _Mismatch as reason:
        raise ScheduleError(
            f"tensorize({plan.loop!r}) of {active.func.name!r}: {reason}",
            loc=plan.loc,
            label="this directive",
            related=()
            if is_built_in(chosen.name)
            else ((chosen.loc, f"instruction {chosen.name!r} is declared here"),),
            hint=reason.hint,
        ) from None
    low.tables.instructions[chosen.name] = None
    return Invoke(chosen.name, operands, loc=plan.loc)


def fragment_tile(active: OpenNest, plan: Tensorization) -> tuple[Layout, tuple[str, ...]] | None:
    """The layout of an instruction's output and the loop along each axis; None if that is no fragment."""
    chosen = INSTRUCTIONS[plan.instruction]
    spec = chosen.meaning.funcs[0].definitions[-1]
    layout = dict(chosen.fragments).get(chosen.operands()[0])
    if layout is None:
        return None
    inner = active.nest.names()[active.nest.position(plan.loop) :]
    names = [name for name, _ in _spec_loops(chosen, spec)]
    matched = dict(zip(names, inner, strict=False))
    return layout, tuple(matched[e.name] for e in spec.index if isinstance(e, Var))


def may_overcompute(state: State, d: Definition, ranges: Sequence[tuple[str, Expr | None]]) -> bool:
    """True if a definition may run past the end of `ranges`: reads are safe there, and terms 0.

    Terms that its predicate excludes must be 0, too, since all their factors are 0 there.
    """
    program, reads = state.program, list(reads_in(d.values))
    all_whole = all(
        is_total(state, r.name)
        or (program.has_func(r.name) and set(program.func(r.name).limits) == {(None, None)})
        for r in reads
    )
    ends = [c for c in conjuncts(d.where) if c != TRUE]
    zero_terms = _is_product(d.values[0]) and all(
        isinstance(c, Binary)
        and c.op == "lt"
        and len(at := [(r, n) for r in reads for n, e in enumerate(r.index) if e == c.left]) == len(reads)
        and all(_is_zero_from(program, r.name, n, c.right) for r, n in at)
        for c in ends
    )
    return (
        all_whole
        and (zero_terms or not ends)
        and all(
            _is_product(d.values[0])
            and any(
                e == Var(name) and _is_zero_from(program, r.name, axis, hi)
                for r in reads
                for axis, e in enumerate(r.index)
            )
            for name, hi in ranges
        )
    )


def _is_product(e: Expr) -> bool:
    match e:
        case Binary("mul", x, y):
            return _is_product(x) and _is_product(y)
        case Cast(x):
            return _is_product(x)
        case _:
            return isinstance(e, Read)


def _is_zero_from(program: Program, name: str, axis: int, end: Expr | None) -> bool:
    """True if a func is 0 from `end` on along `axis`: a zero-padded copy, or a copy of one."""
    d = program.func(name).definitions[0]
    at, value = d.index[axis], d.values[0]
    if isinstance(value, Select) and isinstance(value.no, Const) and value.no.value == 0:
        tests = (c for c in conjuncts(value.cond) if isinstance(c, Binary) and (c.op, c.left) == ("le", at))
        if end is not None and any(simplify(subtract(add(c.right, ONE), end)) == ZERO for c in tests):
            return True
        value = value.yes
    if not isinstance(value, Read) or not program.has_func(value.name):
        return False
    axes = [n for n, e in enumerate(value.index) if e == at]
    return any(_is_zero_from(program, value.name, n, end) for n in axes)


def check_strides(kernel: Kernel) -> None:
    """ScheduleError if a tile has other strides than its instruction requires."""
    if kernel.instructions:
        known = {p.name: p.strides for p in kernel.params if isinstance(p, BufferParam)}
        _check_strides(kernel.body, known)


def _check_strides(s: Node, known: Mapping[str, tuple[int | None, ...]]) -> None:
    match s:
        case Alloc(name, _, extents, _, body):
            _check_strides(body, {**known, name: s.strides or _dense_strides(extents)})
        case Invoke(name, operands):
            chosen = INSTRUCTIONS[name]
            required = dict(chosen.strides)
            fragments = dict(chosen.fragments)
            for operand, spec_name in zip(operands, chosen.operands(), strict=True):
                if spec_name in fragments:
                    continue
                actual = tuple(known[operand.buffer][axis] for axis in operand.axes)
                _check_tile(chosen, operand.buffer, spec_name, actual, required.get(spec_name))
        case _:
            for child in children(s):
                if isinstance(child, Stmt):
                    _check_strides(child, known)


def _dense_strides(extents: tuple[Expr, ...]) -> tuple[int | None, ...]:
    """The row-major strides of a dense array, None for those that depend on an unknown extent."""
    strides: list[int | None] = [1]
    for e in reversed(extents[1:]):
        step = strides[-1]
        strides.append(step * max(int(e.value), 1) if isinstance(e, Const) and step else None)
    return tuple(reversed(strides))


def _check_tile(
    chosen: Instruction, buffer: str, operand: str, actual: tuple[int | None, ...],
    required: tuple[int | None, ...] | None,
) -> None:  # fmt: skip
    for axis, (a, b) in enumerate(zip(actual, required or actual, strict=True)):
        if b is not None and a != b:
            actual_text = "a stride that is known at a call only" if a is None else f"stride {a}"
            raise ScheduleError(
                f"instruction {chosen.name!r} takes {operand!r} with stride {b} in axis {axis}, "
                f"{buffer!r} has {actual_text}",
                loc=chosen.loc,
                label="declared here",
                hint=f"copy {buffer!r} into the layout of the instruction: cache_read and reorder_storage",
            )


def _match_definition(
    low: Lowering, active: OpenNest, chosen: Instruction, opened: dict[str, Expr], facts: Facts
) -> tuple[Operand, ...]:
    spec = chosen.meaning.funcs[0].definitions[-1]
    d = active.d
    inner = [x for x in active.nest.names() if x not in opened]
    spec_loops = _spec_loops(chosen, spec)
    if len(inner) != len(spec_loops):
        raise _Mismatch(f"{len(inner)} loops are inside, the instruction has {len(spec_loops)}")
    for loop, (name, extent) in zip(inner, spec_loops, strict=True):
        actual = simplify(active.extents[loop], facts)
        if actual != extent:
            at_edges = "give the array sizes that its tiles divide: tiles at its edges have fewer iterations"
            raise _Mismatch(
                f"loop {loop!r} has {show_expr(actual)} iterations, {name!r} of the instruction "
                f"{show_expr(extent)}",
                hint="" if isinstance(actual, Const) else at_edges,
            )
    if spec.where not in (d.where, TRUE):  # a predicate of the definition alone is tested by guards
        raise _Mismatch("the definition lacks the predicate of the instruction")
    if (d.combine is None) != (spec.combine is None) or (
        d.combine is not None and spec.combine is not None and d.combine.exprs != spec.combine.exprs
    ):
        raise _Mismatch("the definition combines in another way")
    values = {n: substitute(v, opened) for n, v in active.roots.items()}
    matched = dict(zip((name for name, _ in spec_loops), inner, strict=True))
    starts = {x: active.first_of(x) for x in inner}
    for x, (_, extent) in zip(inner, spec_loops, strict=True):
        last = add(starts[x], subtract(extent, ONE))
        facts = facts.with_range(x, starts[x], last)
    matcher = _OperandMatcher(low, values, matched, starts, facts)
    matcher.add_tile(
        low.buffers[active.func.name].names[0],
        low.buffers[active.func.name].index(tuple(substitute(e, values) for e in d.index)),
        spec.index,
    )
    for value, spec_value in zip(d.values, spec.values, strict=True):
        matcher.match_expr(value, spec_value)
    return tuple(matcher.in_order(chosen))


def _spec_loops(chosen: Instruction, spec: Definition) -> list[tuple[str, Expr]]:
    f = chosen.meaning.funcs[0]
    natural = dict(zip(f.variables, f.output_box(None), strict=True))
    loops = [(name, natural[name][1]) for name in spec.free]
    loops += [(name, hi) for name, _, hi in spec.ranges if hi is not None]
    return loops


class _OperandMatcher:
    """Matches a definition with the definition of an instruction, and collects the tile of each operand."""

    def __init__(
        self, low: Lowering, values: dict[str, Expr], matched: dict[str, str],
        starts: dict[str, Expr], facts: Facts,
    ) -> None:  # fmt: skip
        self.low, self.values, self.matched, self.starts, self.facts = (
            low,
            values,
            matched,
            starts,
            facts,
        )
        self.output: Operand | None = None
        self.inputs: dict[str, Operand] = {}

    def add_tile(self, buffer: str, index: tuple[Expr, ...], spec: tuple[Expr, ...]) -> Operand:
        """The tile that an access covers: its start, and the buffer's axis along each axis of the operand."""
        axes = []
        index = tuple(simplify(at, self.facts) for at in index)
        start = tuple(simplify(substitute(at, self.starts), self.facts) for at in index)
        moved = tuple(
            simplify(subtract(at, first), self.facts) for at, first in zip(index, start, strict=True)
        )
        loops = [{self.matched[v] for v in variables(e)} for e in spec]
        for e, used in zip(spec, loops, strict=True):
            moving = [n for n, at in enumerate(index) if used & variables(at)]
            if len(moving) != 1 or moved[moving[0]] != self.along_loops(e):
                names = " and ".join(sorted(used))
                raise _Mismatch(f"{buffer!r} does not move one by one along loop {names!r}")
            axes.append(moving[0])
        for x in self.matched.values():
            if not any(x in used for used in loops) and any(x in variables(at) for at in index):
                raise _Mismatch(f"{buffer!r} moves along loop {x!r}, its operand does not")
        tile = Operand(buffer, start, tuple(axes))
        if self.output is None:
            self.output = tile
        return tile

    def along_loops(self, spec: Expr) -> Expr:
        """An expression of the instruction's variables, in the loops that match them."""
        at = {v: subtract(Var(x), self.starts[x]) for v, x in self.matched.items()}
        return simplify(substitute(spec, at), self.facts)

    def match_expr(self, value: Expr, spec: Expr) -> None:
        """Raise _Mismatch unless two value expressions agree, with reads in the place of operands."""
        if variables(spec) and not any(True for _ in reads_in((spec,))):
            if simplify(substitute(value, self.values), self.facts) != self.along_loops(spec):
                raise _Mismatch(f"{show_expr(value)} is not {show_expr(spec)}")
            return
        if isinstance(value, Read) and isinstance(spec, Read):
            buffer = self.low.buffers.get(value.name)
            at = tuple(substitute(e, self.values) for e in value.index)
            name = value.name if buffer is None else buffer.names[value.component]
            tile = self.add_tile(name, at if buffer is None else buffer.index(at), spec.index)
            if value.dtype != spec.dtype or self.inputs.setdefault(spec.name, tile) != tile:
                raise _Mismatch(f"{value.name!r} does not fit operand {spec.name!r}")
            return
        if isinstance(value, Binary) and isinstance(spec, Binary) and value.op == spec.op in ("add", "mul"):
            es, specs = list(_operands(value, spec.op)), list(_operands(spec, spec.op))
            if len(es) == len(specs):
                self.match_in_any_order(es, specs)
                return
        if type(value) is not type(spec) or _node_fields(value) != _node_fields(spec):
            raise _Mismatch(f"{show_expr(value)} is not {show_expr(spec)}")
        self.match_all(children(value), children(spec))

    def match_in_any_order(self, es: list[Expr], specs: list[Expr]) -> None:
        """Raise _Mismatch unless the factors or summands `es` agree with `specs` in some order."""
        mismatch = None
        for n, e in enumerate(es):
            known = dict(self.inputs)
            try:
                self.match_expr(e, specs[0])
                self.match_in_any_order(es[:n] + es[n + 1 :], specs[1:])
            except _Mismatch as reason:
                self.inputs, mismatch = known, reason
            else:
                return
        if mismatch is not None:
            raise mismatch

    def match_all(self, es: Sequence[Node], specs: Sequence[Node]) -> None:
        """Raise _Mismatch unless two lists of expressions agree pairwise."""
        for a, b in zip(es, specs, strict=True):
            self.match_expr(a, b)  # type: ignore[arg-type]  # children of an Expr are Exprs

    def in_order(self, chosen: Instruction) -> list[Operand]:
        assert self.output is not None
        return [self.output, *(self.inputs[t.name] for t in chosen.meaning.inputs)]


def _operands(e: Expr, op: str) -> Iterator[Expr]:
    """The factors of a product, or the summands of a sum, of one type in whatever groups."""
    if isinstance(e, Binary) and e.op == op:
        yield from _operands(e.left, op)
        yield from _operands(e.right, op)
    else:
        yield e


def _node_fields(n: Node) -> tuple[object, ...]:
    """The fields of a node that take part in comparison and are not child nodes or tuples."""
    values = (getattr(n, f.name) for f in fields(n) if f.compare)
    return tuple(value for value in values if not isinstance(value, Node | tuple))
