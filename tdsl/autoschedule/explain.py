"""Decisions of the default schedule: the recipe chosen for each func, its numbers and the reasons."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from tdsl.autoschedule.block_tree.tree import BlockTree
from tdsl.autoschedule.patterns.bands import Bands
from tdsl.autoschedule.patterns.contraction import Contraction, RegisterTiles
from tdsl.autoschedule.patterns.strips import Strips
from tdsl.core.node import frozen
from tdsl.lang.program import FuncDef
from tdsl.schedule.dependence import is_independent
from tdsl.schedule.state import (
    SERIAL,
    AfterProducer,
    At,
    FuncPlan,
    State,
    WithStage,
    is_ordered,
    is_reduction,
)  # fmt: skip

INDEPENDENT = "independent iterations, left serial"
BY_HAND, INLINE, GENERAL, ROOT = "by hand", "inline", "general schedule", "root"


@frozen
class Decision:
    """The recipe that schedules `func`, the funcs `inside` its loops; `siblings`: reductions fused into them.

    `how` is the name of the recipe, or one of BY_HAND, INLINE, GENERAL and ROOT. `plan` are the patterns and
    numbers of the recipe, as frozen dataclasses. `why` are the reasons for it and against other recipes.
    """

    func: str
    how: str
    plan: tuple[object, ...] = ()
    inside: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    siblings: tuple[str, ...] = ()


def recipe_decision(before: State, after: State, owner: str, how: str, *plan: object) -> Decision:
    """The decision of a recipe; `inside` are the funcs that it scheduled besides the owner."""
    mentioned = {name for name, plan in after.plans if plan.scheduled}
    inside = tuple(n for n, p in before.plans if n in mentioned and not p.scheduled and n != owner)
    return Decision(owner, how, plan, inside)


def explain(decisions: Iterable[Decision], state: State | None = None) -> str:
    """Decisions as text: the recipe of each func, the numbers of its plan, the reasons.

    With the completed `state`, also why loops are serial, and the stages that the schedule added.

    >>> plan = RegisterTiles(16, 6, 4, parallel="j")
    >>> print(explain([Decision("c", "matmul", (plan,), ("acc",), ("a reason",))]))
    c: matmul, with acc inside
      6 x 64 register tiles (4 vectors of 16), all terms at once, no packing, threads over j
      a reason
    """
    lines, listed = [], set[str]()
    for d in decisions:
        inside = f", with {', '.join(d.inside)} inside" if d.inside else ""
        lines += [f"{d.func}: {d.how}{inside}"]
        lines += [f"  {text}" for text in (*map(plan_text, d.plan), *d.why) if text]
        if state is not None and d.how != INLINE:
            every = d.how in (BY_HAND, GENERAL, ROOT)
            lines += [f"  {text}" for text in _serial(state, d.func, every=every)]
            for name in (*d.inside, *d.siblings):
                lines += [f"  in {name}, {text}" for text in _serial(state, name, every=False)]
        listed |= {d.func, *d.inside, *d.siblings}
    added = () if state is None else [f.name for f in state.program.funcs if f.name not in listed]
    for name in added:
        assert state is not None
        plan = state.plan(name)
        match plan.place:
            case At(level) | AfterProducer(level) | WithStage(level):
                lines.append(f"{name}: added by the schedule, in {level.loop} of {level.func}")
            case _:
                lines.append(f"{name}: added by the schedule, at the root")
        lines += [f"  {text}" for text in (plan_text(plan), *_serial(state, name, every=True))]
    return "\n".join(lines)


def _serial(state: State, func: str, *, every: bool) -> Iterator[str]:
    """The reasons for the serial loops of a func; with `every` also for loops that could run in parallel."""
    if not state.program.has_func(func):
        return
    f = state.program.func(func)
    for n, nest in enumerate(state.plan(func).nests):
        by_reason: dict[str, list[str]] = {}
        for loop in nest.loops:
            if loop.kind == SERIAL:
                by_reason.setdefault(why_serial(state, f, n, loop.name), []).append(loop.name)
        for why, loops in by_reason.items():
            if every or why != INDEPENDENT:
                yield f"{', '.join(loops)}: {why}"


def why_serial(state: State, f: FuncDef, definition: int, loop: str) -> str:
    """The reason for a serial loop: a dependence between its iterations, or INDEPENDENT."""
    d = f.definitions[definition]
    nest = state.plan(f.name).nests[definition]
    reduces = is_reduction(f, definition, nest, loop) and not is_ordered(f, definition)
    if not reduces and is_independent(state, f.name, definition, loop):
        return INDEPENDENT
    if any(r.name == f.name for r in d.reads):
        return "reads what it wrote"
    if d.combine is None:
        return "overwrites what it wrote"
    return "a sequential reduction" + ("" if d.combine.associative else ", combiner not associative")


def plan_text(plan: object) -> str:
    """The numbers of a plan as text; plans of unknown types are shown by the names of their fields.

    >>> plan_text(Bands("i", 32, "h"))
    'bands of 32 rows of i, threads over h'
    """
    match plan:
        case Contraction():
            vectors = f"vectors along {plan.along} of {plan.moving.name}"
            if plan.windowed:
                return f"windows of {plan.terms} terms: {vectors}, several {plan.across} per tile"
            return f"a sum of {plan.terms} products: {vectors}, each used again along {plan.across}"
        case RegisterTiles():
            return _tiles(plan)
        case Strips(line, outer, parallel, height, _, _, stream, lines):
            each = f"strips of {height} lines of {line}" if height else f"each {line} line separately"
            around = f" inside of {', '.join(outer)}" if outer else ""
            together = f", {lines} at a time" if lines > 1 else ""
            stores = ", non-temporal stores" if stream else ""
            return f"{each}{around}{together}, threads over {parallel}{stores}"
        case Bands(row, rows, parallel):
            return f"bands of {rows} rows of {row}, {_threads(parallel)}"
        case FuncPlan():
            return "; ".join(_loops(plan))
        case BlockTree():
            return str(plan)
        case _:
            assert dataclasses.is_dataclass(plan)
            fields = [(f.name, getattr(plan, f.name)) for f in dataclasses.fields(plan)]
            used = [(name, x) for name, x in fields if (any(x) if isinstance(x, tuple) else x)]
            return ", ".join(f"{name} {value}" for name, value in used)


def _tiles(t: RegisterTiles) -> str:
    packed = {
        "no": "no packing",
        "block": "panels packed per cache block",
        "root": "panels packed once",
    }
    parts = [
        f"{t.rows} x {t.width} register tiles ({t.vectors} vectors of {t.lanes})",
        f"{t.terms} terms at a time" if t.terms else "all terms at once",
        *([f"{' and '.join(t.unroll)} unrolled"] if t.unroll else []),
        packed[t.panel],
        _threads(t.parallel) + (f" by bands of {t.band}" if t.band else ""),
    ]
    if t.dot:
        parts.append(f"terms summed by {t.dot}")
    return ", ".join(parts)


def _threads(parallel: str) -> str:
    return f"threads over {parallel}" if parallel else "one thread"


def _loops(plan: FuncPlan) -> Iterable[str]:
    """The loops of each definition, outermost first, with their kinds."""
    for nest in plan.nests:
        loops = [x.name + (f" ({x.kind})" if x.kind != SERIAL else "") for x in nest.loops]
        yield f"loops {' > '.join(loops)}" if loops else "no loops"
