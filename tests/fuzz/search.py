"""Random programs and graphs of operators, whose schedules by the search must give what they mean.

    python -m tests.fuzz.search --seed 1 --programs 1000             the programs of `tests.fuzz`
    python -m tests.fuzz.search --seed 1 --programs 1000 --graphs    operators of networks
    ... --target cuda [--compile]                                    kernels under emulation [and compiled]

Where extents are named, a schedule for larger ones is run on these, too; only this may be refused, for a
documented reason. Candidates of the search that cannot be written are counted by what is said of them, but
for recipes that are for other stages.
"""

from __future__ import annotations

import argparse
import re
import traceback
from collections import Counter
from collections.abc import Iterator

import tdsl as td
from tdsl.target import Target, as_target
from tdsl.tilegraph.search import Candidate, search
from tests.fuzz.campaign import program_of
from tests.fuzz.cases import Case, Meaning, Outcome, general, run_case
from tests.fuzz.choices import Seeded
from tests.fuzz.graphs import random_graph
from tests.fuzz.made import Made

TAKEN = 3  # candidates of a program that are run
SHOWN = 1500  # characters of what is said of a fault
LARGER = 16  # times what is run: the extents that are searched for
# What a schedule for larger extents may say of those that are run: tiles of tensor cores come whole.
OF_OTHERS = (r"not all iterations of the loops inside run", r"; a swizzle of \d+ needs rows")
# What may be said of a candidate that is none: the recipe is for others, or its tiles are too large.
UNSUITED = (r"^\w+ is not for '", r"bytes of shared memory for a block")


def graph_of(seed: int, number: int) -> Made:
    """The graph of a number."""
    return random_graph(Seeded(seed * 1_000_003 + number))


def outcomes_of(
    seed: int, number: int, target: str = "cpu", *, graphs: bool = False, compiled: bool = False
) -> Iterator[tuple[str, Outcome]]:
    """The labels of the first candidates for a program, and what running each gave."""
    made, meaning = (graph_of if graphs else program_of)(seed, number), Meaning()
    try:
        program = made.program()
    except td.ShapeError as error:  # names of extents that are equal in these numbers only
        yield "", Outcome("refused", f"program: {type(error).__name__}")
        return
    sizes = {n: v for n, v in made.sizes.items() if n in program.sizes}
    for times in (1, LARGER)[: 1 + (graphs and bool(sizes))]:
        asked = {n: v * times for n, v in sizes.items()}
        try:
            found = search(program, asked, as_target(target))
        except Exception as error:  # noqa: BLE001  # of the search, which has a schedule for everything
            kind = f"search: {type(error).__name__}"
            yield f"{times} x", Outcome(kind, traceback.format_exc())
            continue
        for label, error in found.refused.items():
            if not any(re.search(pattern, error.message) for pattern in UNSUITED):
                yield f"{times} x, {label}", Outcome("lost", general(error.message))
        for c in found.candidates[:TAKEN]:
            case = Case(made, c.schedule.to_json(), number % 1000, target)
            outcome = run_case(case, meaning)
            if times == 1 and outcome.kind == "refused" and not outcome.text.startswith("oracle"):
                outcome = Outcome(outcome.text)  # a search has no schedules that cannot be compiled
            elif times > 1 and any(re.search(pattern, outcome.text) for pattern in OF_OTHERS):
                outcome = Outcome("refused", outcome.kind)
            if compiled and not outcome.fault:
                outcome = _machine_code(c, asked, as_target(target)) or outcome
            yield f"{times} x, {c.label}", outcome


def _machine_code(c: Candidate, sizes: dict[str, int], target: Target) -> Outcome | None:
    """What is wrong with kernels for the sizes that were searched for; None where they spill nothing."""
    try:
        kernels = td.compile(c.schedule, target=target, **sizes).launch.kernels
    except td.TdslError as error:
        return Outcome(general(str(error)), str(error))
    spilled = [k for k in kernels if k.spills or k.stack]
    return Outcome("spills", "\n".join(map(str, spilled))) if spilled else None


def main() -> None:
    """Run programs and print what became of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--graphs", action="store_true", help="of operators of networks")
    parser.add_argument("--compile", action="store_true", help="to machine code of a GPU")
    chosen = parser.parse_args()
    again = " --graphs" * chosen.graphs + " --compile" * chosen.compile
    tally: Counter[str] = Counter()
    for number in range(chosen.first, chosen.first + chosen.programs):
        for label, outcome in outcomes_of(
            chosen.seed, number, chosen.target, graphs=chosen.graphs, compiled=chosen.compile
        ):
            told = f"{outcome.kind}: {outcome.text}" if outcome.kind in ("refused", "lost") else ""
            tally[told or (outcome.kind if outcome.kind == "same" else "fault")] += 1
            first = outcome.kind == "lost" and tally[told] == 1
            if first or (outcome.fault and outcome.kind != "lost"):
                print(
                    f"--seed {chosen.seed} --first {number} --programs 1 --target {chosen.target}{again}: "
                    f"{label}\n{outcome.kind}\n{outcome.text[-SHOWN:]}",
                    flush=True,
                )
        if number % 50 == 49:
            print(number + 1, dict(tally), flush=True)
    print(dict(tally))


if __name__ == "__main__":
    main()
