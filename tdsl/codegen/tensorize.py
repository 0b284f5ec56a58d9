"""Replace a loop and its body by an instruction, after checking that both mean the same.

The nest's loops from the chosen one inwards are matched with the variables of the instruction's meaning,
in order; then the two definitions must agree: the same combiner, the same value expression, with each read
of the nest moving along the matched loops exactly as the instruction's operand moves along its axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdsl.codegen.loops import Invoke, Operand
from tdsl.errors import ScheduleError
from tdsl.lang.affine import as_sum, variables
from tdsl.lang.bounds import Facts
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Const, Expr, Read, Var
from tdsl.lang.show import show_expr
from tdsl.lang.simplify import simplify, substitute
from tdsl.node import Node, children
from tdsl.schedule.instruction import INSTRUCTIONS, Instruction
from tdsl.schedule.nest import Tensorization
from tdsl.schedule.required import Active

if TYPE_CHECKING:
    from tdsl.codegen.lower import Lowering


class _Mismatch(Exception):  # a reason, made a ScheduleError below
    pass


def invoke(low: Lowering, active: Active, plan: Tensorization, facts: Facts) -> Invoke:
    """The instruction in the place of the loops from `plan.loop` inwards; ScheduleError if it differs."""
    chosen = INSTRUCTIONS[plan.instruction]
    try:
        operands = _match(low, active, chosen, active.opened, facts)
    except _Mismatch as reason:
        raise ScheduleError(
            f"tensorize({plan.loop!r}) of {active.func.name!r}: {reason}",
            loc=low.state.plan(active.func.name).loc,
            label="scheduled here",
            related=((chosen.loc, f"instruction {chosen.name!r} is declared here"),),
            hint="split and reorder so that the inner loops are those of the instruction",
        ) from None
    low.messages.instructions[chosen.name] = None
    return Invoke(chosen.name, operands)


def _match(
    low: Lowering, active: Active, chosen: Instruction, opened: dict[str, Expr], facts: Facts
) -> tuple[Operand, ...]:
    meaning = chosen.meaning.funcs[0].definitions[-1]
    own = active.d
    inner = [x for x in active.nest.names() if x not in opened]
    theirs = _loops(chosen, meaning)
    if len(inner) != len(theirs):
        raise _Mismatch(f"{len(inner)} loops stand inside, the instruction has {len(theirs)}")
    for mine, (name, extent) in zip(inner, theirs, strict=True):
        have = simplify(active.extents[mine], facts)
        if have != extent:
            raise _Mismatch(
                f"loop {mine!r} has {show_expr(have)} iterations, {name!r} of the instruction "
                f"{show_expr(extent)}"
            )
    if active.d.where != meaning.where and active.d.where != Const(True, active.d.where.dtype):  # type: ignore[union-attr]
        raise _Mismatch("the definition has a predicate")
    if (own.combine is None) != (meaning.combine is None) or (
        own.combine is not None
        and meaning.combine is not None
        and own.combine.exprs != meaning.combine.exprs
    ):
        raise _Mismatch("the definition combines in another way")
    values = {n: substitute(v, opened) for n, v in active.roots.items()}
    matched = dict(zip((name for name, _ in theirs), inner, strict=True))
    starts = {x: active.first_of(x) for x in inner}
    writer = _Operands(low, values, matched, starts, facts)
    writer.tile(
        low.buffers[active.func.name].names[0],
        low.buffers[active.func.name].index(tuple(substitute(e, values) for e in own.index)),
        meaning.index,
    )
    for value, theirs_value in zip(own.values, meaning.values, strict=True):
        writer.same(value, theirs_value)
    return tuple(writer.ordered(chosen))


def _loops(chosen: Instruction, meaning: Definition) -> list[tuple[str, Expr]]:
    f = chosen.meaning.funcs[0]
    natural = dict(zip(f.variables, f.output_box(None), strict=True))
    made = [(name, natural[name][1]) for name in meaning.free]
    made += [(name, hi) for name, _, hi in meaning.ranges if hi is not None]
    return made


class _Operands:
    """Collects the tile of each operand while two expressions are compared."""

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

    def tile(self, buffer: str, index: tuple[Expr, ...], theirs: tuple[Expr, ...]) -> Operand:
        """The tile that an access covers: the axis of the buffer along each axis of the operand."""
        axes = []
        for e in theirs:
            if not isinstance(e, Var):
                raise _Mismatch("an operand of the instruction is indexed by more than a variable")
            loop = self.matched[e.name]
            moving = [n for n, at in enumerate(index) if loop in variables(at)]
            if len(moving) != 1 or as_sum(index[moving[0]]).terms.get(Var(loop)) != 1:
                raise _Mismatch(f"{buffer!r} does not move one by one along loop {loop!r}")
            axes.append(moving[0])
        used = {self.matched[e.name] for e in theirs if isinstance(e, Var)}
        for x in self.matched.values():
            if x not in used and any(x in variables(at) for at in index):
                raise _Mismatch(f"{buffer!r} moves along loop {x!r}, its operand does not")
        start = tuple(simplify(substitute(at, self.starts), self.facts) for at in index)
        made = Operand(buffer, start, tuple(axes))
        if self.output is None:
            self.output = made
        return made

    def same(self, mine: Expr, their: Expr) -> None:
        """Raise unless two value expressions agree, reads matching operands."""
        if isinstance(mine, Read) and isinstance(their, Read):
            buffer = self.low.buffers.get(mine.name)
            at = tuple(substitute(e, self.values) for e in mine.index)
            name = mine.name if buffer is None else buffer.names[mine.component]
            made = self.tile(name, at if buffer is None else buffer.index(at), their.index)
            if mine.dtype != their.dtype or self.inputs.setdefault(their.name, made) != made:
                raise _Mismatch(f"{mine.name!r} does not fit operand {their.name!r}")
            return
        if type(mine) is not type(their) or _label(mine) != _label(their):
            raise _Mismatch(f"{show_expr(mine)} is not {show_expr(their)}")
        for a, b in zip(children(mine), children(their), strict=True):
            self.same(a, b)  # type: ignore[arg-type]  # children of an Expr are Exprs

    def ordered(self, chosen: Instruction) -> list[Operand]:
        assert self.output is not None
        return [self.output, *(self.inputs[t.name] for t in chosen.meaning.inputs)]


def _label(n: Node) -> tuple[object, ...]:
    """What of a node is not a child."""
    return tuple(
        value
        for name in n.__dataclass_fields__
        if name != "loc" and not isinstance(value := getattr(n, name), Node | tuple)
    )
