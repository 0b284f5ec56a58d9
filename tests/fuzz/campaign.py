"""Many cases: programs by number, schedules by number, and what came of them.

Everything follows from (seed, program, schedule), so that a fault can be found again by its numbers.
"""

from __future__ import annotations

import contextlib
import functools
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import tdsl as td
from tdsl.lang.value import Value
from tdsl.machine.cpu import host, level
from tdsl.target import as_target
from tdsl.tilegraph.search import search
from tests.fuzz.cases import Case, Meaning, Outcome, run_case
from tests.fuzz.choices import Seeded
from tests.fuzz.made import Made
from tests.fuzz.pipelines import random_pipeline
from tests.fuzz.placed import LAYOUTS
from tests.fuzz.programs import random_program
from tests.fuzz.replayed import check_replays
from tests.fuzz.schedules import Tally, nest_stages, scramble
from tests.fuzz.structures import KINDS, random_structure

SLOW = 10.0  # seconds of CPU time that no case may take
TARGETS = {"cpu": 120, "python": 12, "numba": 1}  # numba compiles for seconds


@dataclass(slots=True)
class Fault:
    """Where a fault is found again, and its case where there is one."""

    program: int
    schedule: int
    outcome: Outcome
    case: Case | None = None
    checked: bool = False


@dataclass(slots=True)
class Report:
    """Cases by outcome and by kind, directives taken and dropped, faults, and the slowest case.

    Programs of the kinds in `without` are left out.
    """

    without: frozenset[str] = frozenset()
    programs: int = 0
    cases: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, int, int, str] = (0.0, 0, 0, "")  # seconds, program, schedule, target
    outcomes: Counter[str] = field(default_factory=Counter)
    tally: Tally = field(default_factory=Tally)
    faults: list[Fault] = field(default_factory=list)


def kind_of(seed: int, program: int) -> str:
    """The kind of the program of a number: random, a pipeline, or one of `structures`."""
    if program % 3 == 2:
        return "pipeline"
    return Seeded(seed + program).weighted(KINDS) if program % 5 in (0, 3) else "random"


def program_of(seed: int, program: int) -> Made:
    """The program of a number."""
    c, kind = Seeded(seed * 1_000_003 + program), kind_of(seed, program)
    if kind == "pipeline":
        return random_pipeline(c)
    return random_program(c) if kind == "random" else random_structure(c, kind)


def scheduled(made: Made, seed: int, program: int, schedule: int, tally: Tally) -> Case:
    """The case of a schedule's number; AssertionError where it does not print or store as it is."""
    c = Seeded((seed * 1_000_003 + program) * 1009 + schedule)
    often = made.kind in ("pipeline", "bounds")
    how = c.weighted(
        {"directives": 45, "nested": 50 if often else 15, "few": 15, "default": 15, "search": 10}
    )
    if made.kind == "long" and how in ("search", "nested", "directives"):
        how = "few"  # of many stages
    if how == "search":
        s = found_for(made, c)
    else:
        s = td.Schedule(*made.outputs)
        if how == "nested":
            tally.add(nest_stages(s, c))
        most = {"directives": 14, "nested": 5, "few": 3, "default": 0}[how]
        tally.add(scramble(s, c, conditions(made), most))
        if c.chance(20):
            _check_copies(s, made)
            with contextlib.suppress(td.TdslError):  # running the case tells whether that is right
                check_replays(s, {n: v for n, v in made.sizes.items() if n in s.state.program.sizes})
    dynamic = tuple(n for n in made.sizes if c.chance(60)) if c.chance(25) else ()
    case = Case(made, s.to_json(), program % 1000, dynamic=dynamic, layout=c.weighted(LAYOUTS), how=how)
    return replace(case, resized=other_extent(made, c))


def found_for(made: Made, c: Seeded) -> td.Schedule:
    """One of the schedules that a search finds."""
    program = made.program()
    sizes = {n: v for n, v in made.sizes.items() if n in program.sizes}
    return c.pick(search(program, sizes, as_target("cpu")).candidates).schedule


def other_extent(made: Made, c: Seeded) -> tuple[str, int, int] | None:
    """An input that a program reads with another extent at one axis, or None: mostly, but for sizes."""
    places = [
        (name, axis, e)
        for name, (shape, _) in made.inputs.items()
        for axis, e in enumerate(shape)
        if name in made.program().parameters
    ]
    if not places or not c.chance(60 if made.kind == "sizes" else 8):
        return None
    name, axis, e = c.pick(places)
    return name, axis, max(e + c.pick((-1, 1, -2, 3, 40)), 0)


def conditions(made: Made) -> list[Any]:
    """What a schedule may be specialized for."""
    used = set(made.program().sizes)
    found = []
    for name, (shape, _) in made.inputs.items():
        t = made.names[name]
        for axis in range(len(shape)):
            extent = t.shape[axis]
            if isinstance(extent, Value) and set(made.sizes) & used:
                found += [extent % 4 == 0, extent > 4, extent < 4]
    return [x for x in found if _names(x) <= used]


def _names(x: Any) -> set[str]:
    from tdsl.core.node import post_order
    from tdsl.lang.expr import Size

    return {n.name for n in post_order(x.node) if isinstance(n, Size)}


def _check_copies(s: td.Schedule, made: Made) -> None:
    stored = td.Schedule(*made.outputs).replay(s.to_json())
    assert stored.state == s.state, "a replayed schedule has another state"
    assert stored.to_json() == s.to_json(), "a replayed schedule stores itself otherwise"
    printed = td.Schedule(*made.outputs)
    exec(str(s), {"s": printed, "td": td})
    assert printed.state == s.state, f"the printed schedule has another state:\n{s}"


def cases_of(case: Case, seed: int, program: int, schedule: int) -> Iterator[tuple[Case, bool]]:
    """The ways to run a case: machine code in general, and loops in checked Python at times."""
    c = Seeded(seed + program * 31 + schedule)
    if c.chance(20) and case.resized is None:
        yield case, True
    target = c.weighted({**TARGETS, **{f"cpu:{x}": 20 for x in _levels()}})
    yield replace(case, target=target, canaries=target.startswith("cpu") and c.chance(80)), False


@functools.cache
def _levels() -> tuple[str, ...]:
    """The levels of processors that this one has."""
    return tuple(x for x in ("sse2", "sse4", "avx2", "avx512") if level(x).has <= host().has)


def run_program(seed: int, program: int, schedules: int, report: Report, started: Any = None) -> None:
    """All schedules of one program; `started` is told before anything that could end the process."""
    if kind_of(seed, program) in report.without:
        return
    report.programs += 1
    try:
        made = program_of(seed, program)
    except Exception as error:  # noqa: BLE001  # a fault of the generator or of the language
        kind = f"generator: {type(error).__name__}"
        report.faults.append(Fault(program, -1, Outcome(kind, traceback.format_exc())))
        report.outcomes[kind] += 1
        return
    meaning = Meaning()
    for n in range(schedules):
        try:
            whole = scheduled(made, seed, program, n, report.tally)
        except Exception as error:  # noqa: BLE001  # a directive's fault, or a program that is none
            _, want = meaning.of(Case(made, "[]", program % 1000))
            if isinstance(want, td.TdslError) and isinstance(error, td.TdslError):
                report.outcomes[f"refused: oracle: {type(want).__name__}"] += 1
                continue
            outcome = Outcome(f"directive: {type(error).__name__}", traceback.format_exc())
            report.faults.append(Fault(program, n, outcome))
            report.outcomes[outcome.kind] += 1
            continue
        for case, checked in cases_of(whole, seed, program, n):
            if started is not None:
                started(n, case, checked)
            meaning.of(case)
            begin = time.process_time()
            outcome = run_case(case, meaning, checked)
            seconds = time.process_time() - begin
            if seconds > SLOW and not outcome.fault and not checked:
                outcome = Outcome("slow", f"{seconds:.1f} s")
            report.slowest = max(report.slowest, (seconds, program, n, case.target))
            report.cases.update([*case.kinds, "checked"] if checked else case.kinds)
            shown = f"{outcome.kind}: {outcome.text}" if outcome.kind == "refused" else outcome.kind
            report.outcomes[shown] += 1
            if outcome.fault:
                report.faults.append(Fault(program, n, outcome, case, checked))
                break
