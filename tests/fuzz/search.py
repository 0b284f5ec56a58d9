"""Random graphs of operators, each candidate schedule of which must give what the program means.

python -m tests.fuzz.search --seed 1 --programs 1000
"""

from __future__ import annotations

import argparse
from collections import Counter

from tdsl.target import Target
from tdsl.tilegraph.search import Candidate, candidates
from tests.fuzz.campaign import program_of
from tests.fuzz.cases import Case, Meaning, Outcome, run_case

TAKEN = 3  # candidates of a program that are run


def outcomes_of(seed: int, number: int) -> list[tuple[Candidate, Outcome]]:
    """The first candidates for a program, and what running each gave."""
    made, meaning = program_of(seed, number), Meaning()
    program = made.program()
    sizes = {n: v for n, v in made.sizes.items() if n in program.sizes}
    found = candidates(program, sizes, Target("cpu"))[:TAKEN]
    return [(c, run_case(Case(made, c.schedule.to_json(), number % 1000), meaning)) for c in found]


def main() -> None:
    """Run programs and print what became of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    chosen = parser.parse_args()
    tally: Counter[str] = Counter()
    for number in range(chosen.first, chosen.first + chosen.programs):
        for candidate, outcome in outcomes_of(chosen.seed, number):
            tally[outcome.kind if outcome.kind in ("same", "refused") else "fault"] += 1
            if outcome.fault:
                print(f"--seed {chosen.seed} --first {number} --programs 1: {candidate.label}")
                print(outcome.kind, outcome.text)
        if number % 50 == 49:
            print(number + 1, dict(tally), flush=True)
    print(dict(tally))


if __name__ == "__main__":
    main()
