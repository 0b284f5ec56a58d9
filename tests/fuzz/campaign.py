"""Many cases: programs by number, schedules by number, and what came of them.

Everything follows from (seed, program, schedule), so that a fault can be found again by its numbers.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import tdsl as td
from tdsl.lang.value import Value
from tests.fuzz.cases import Case, Meaning, Outcome, run_case
from tests.fuzz.choices import Seeded
from tests.fuzz.pipelines import random_pipeline
from tests.fuzz.programs import Made, random_program
from tests.fuzz.schedules import Tally, nest_stages, scramble


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
    """Cases by outcome, directives taken and dropped, and faults."""

    outcomes: Counter[str] = field(default_factory=Counter)
    tally: Tally = field(default_factory=Tally)
    faults: list[Fault] = field(default_factory=list)


def program_of(seed: int, program: int) -> Made:
    """The program of a number."""
    c = Seeded(seed * 1_000_003 + program)
    return random_pipeline(c) if program % 3 == 2 else random_program(c)


def scheduled(made: Made, seed: int, program: int, schedule: int, tally: Tally) -> Case:
    """The case of a schedule's number; AssertionError where it does not print or store as it is."""
    c = Seeded((seed * 1_000_003 + program) * 1009 + schedule)
    s = td.Schedule(*made.outputs)
    # the first schedules leave most to the default
    most = (0, 3)[schedule] if schedule < 2 else 14
    if schedule > 1 and c.chance(60 if program % 3 == 2 else 25):
        tally.add(nest_stages(s, c))
        most = 5
    tally.add(scramble(s, c, conditions(made), most))
    _check_copies(s, made)
    dynamic = tuple(n for n in made.sizes if c.chance(60)) if c.chance(20) else ()
    return Case(made, s.to_json(), program % 1000, dynamic=dynamic, strided=c.chance(15))


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
    from tdsl.lang.expr import Size
    from tdsl.node import post_order

    return {n.name for n in post_order(x.node) if isinstance(n, Size)}


def _check_copies(s: td.Schedule, made: Made) -> None:
    stored = td.Schedule(*made.outputs).replay(s.to_json())
    assert stored.state == s.state, "a replayed schedule has another state"
    assert stored.to_json() == s.to_json(), "a replayed schedule stores itself otherwise"
    printed = td.Schedule(*made.outputs)
    exec(str(s), {"s": printed, "td": td})
    assert printed.state == s.state, f"the printed schedule has another state:\n{s}"


def cases_of(case: Case, seed: int, program: int, schedule: int) -> Iterator[tuple[Case, bool]]:
    """The ways to run a case: checked Python sometimes, machine code always, other targets at times."""
    c = Seeded(seed + program * 31 + schedule)
    if c.chance(40):
        yield case, True
    yield case, False
    if c.chance(8):
        yield replace(case, target="python"), False
    if c.chance(3):
        yield replace(case, target="numba"), False


def run_program(
    seed: int, program: int, schedules: int, report: Report, started: Any = None
) -> None:
    """All schedules of one program; `started` is told before anything that could end the process."""
    try:
        made = program_of(seed, program)
    except Exception:  # noqa: BLE001  # a fault of the generator or of the language
        report.faults.append(Fault(program, -1, Outcome("generator", traceback.format_exc())))
        report.outcomes["generator"] += 1
        return
    meaning = Meaning()
    for n in range(schedules):
        try:
            whole = scheduled(made, seed, program, n, report.tally)
        except Exception as error:  # noqa: BLE001  # a directive's fault
            outcome = Outcome(f"directive: {type(error).__name__}", traceback.format_exc())
            report.faults.append(Fault(program, n, outcome))
            report.outcomes[outcome.kind] += 1
            continue
        for case, checked in cases_of(whole, seed, program, n):
            if started is not None:
                started(n, case, checked)
            outcome = run_case(case, meaning, checked)
            shown = f"{outcome.kind}: {outcome.text}" if outcome.kind == "refused" else outcome.kind
            report.outcomes[shown] += 1
            if outcome.fault:
                report.faults.append(Fault(program, n, outcome, case, checked))
                break
