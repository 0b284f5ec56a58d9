"""Default schedules of random programs: they give what the program means, and are directives that replay.

    python -m tests.fuzz.defaults --seed 1 --programs 5000
    python -m tests.fuzz.defaults --seed 1 --only 17
    python -m tests.fuzz.defaults --seed 1 --target cuda

Programs are those of `tests.fuzz`, and contractions. Half of them are scheduled by an eager search, which
takes tiles, shared loops and trees at random where it can, whatever the price.
"""

from __future__ import annotations

import argparse
import contextlib
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tdsl as td
from tdsl.codegen.cpu.runtime import set_num_threads
from tdsl.machine.threads import num_threads
from tdsl.tilegraph import alternatives, kernels_together, trees
from tests.fuzz.campaign import program_of
from tests.fuzz.cases import Case, Meaning, Outcome, run_case
from tests.fuzz.choices import Seeded
from tests.fuzz.contractions import random_contraction
from tests.fuzz.made import Made
from tests.fuzz.placed import LAYOUTS
from tests.fuzz.replayed import check_replays

THREADS = (1, 2, 3, 4, 8)
ALWAYS = 1e9  # times as slow as another schedule, and taken


def default_of(seed: int, number: int, target: str = "cpu") -> tuple[Made, Case, bool, int]:
    """The program of a number, the case of its default schedule, whether it is eager, and the threads."""
    c = Seeded((seed * 1_000_003 + number) * 7919)
    made = program_of(seed, number) if number % 2 else random_contraction(c)
    layout = c.weighted(LAYOUTS)
    canaries = c.chance(50) and target == "cpu"
    layout = layout if target == "cpu" else "dense"
    case = Case(made, "[]", number % 1000, target, layout=layout, canaries=canaries, how="default")
    return made, case, c.chance(50), c.pick(THREADS)


def outcome_of(seed: int, number: int, target: str = "cpu") -> Outcome:
    """What running and replaying the default schedule of a number gave."""
    made, case, eager, threads = default_of(seed, number, target)
    before = num_threads()
    try:
        set_num_threads(threads)
        with eager_search(Seeded(number)) if eager else contextlib.nullcontext():
            outcome = run_case(case, Meaning())
            if outcome.kind != "same":
                return outcome
            s = td.Schedule(*made.outputs, target=target)
            check_replays(s, {n: v for n, v in made.sizes.items() if n in s.state.program.sizes})
    except Exception as error:  # noqa: BLE001  # a fault of what completes schedules
        return Outcome(f"replay: {type(error).__name__}", traceback.format_exc())
    finally:
        set_num_threads(before)
    return outcome


@contextlib.contextmanager
def eager_search(choices: Seeded) -> Iterator[None]:
    """Alternatives are taken wherever they can be written, each of the best trees as often as the others."""
    start = choices.integer(0, 1 << 30)
    best = trees.best_trees

    def shuffled(op: Any, machine: Any) -> Any:
        priced = best(op, machine)
        Seeded(start + len(op.func)).random.shuffle(priced)
        return priced

    changed: list[tuple[Any, str, Any]] = [
        (trees, "best_trees", shuffled), (trees, "NEARLY", ALWAYS), (trees, "CLEARLY", ALWAYS),
        (trees, "NEAR_BEST", 0.0), (trees, "FAR_FROM_BEST", 0.0), (trees, "WORTH", 0.0),
        (trees, "SHARE", 0.0),
        (kernels_together, "FAR_FROM_BEST", 0.0), (kernels_together, "CLEARLY", ALWAYS),
    ]  # fmt: skip
    if choices.chance(40):
        changed += [(alternatives, "CLEARLY", ALWAYS), (alternatives, "MUCH", 0.0)]
    saved = [(where, name, getattr(where, name)) for where, name, _ in changed]
    for where, name, value in changed:
        setattr(where, name, value)
    try:
        yield
    finally:
        for where, name, value in saved:
            setattr(where, name, value)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.defaults", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--target", default="cpu")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.programs)
    outcomes: Counter[str] = Counter()
    for number in numbers if options.only is None else [options.only]:
        if options.only is not None:
            print(default_of(options.seed, number, options.target)[1].source())
        outcome = outcome_of(options.seed, number, options.target)
        outcomes[outcome.kind] += 1
        if outcome.fault:
            print(f"fault {number} {outcome.kind}", flush=True)
            if options.only is not None:
                print(outcome.text)
    for kind, count in outcomes.most_common():
        print(f"{count:8} {kind}")
    return sum(n for kind, n in outcomes.items() if kind not in ("same", "refused")) > 0


if __name__ == "__main__":
    raise SystemExit(main())
