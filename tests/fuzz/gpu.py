"""Random schedules for a GPU: what `scramble` leaves serial runs on blocks and threads.

Reductions are shared out among threads; what blocks read is copied by threads or as a whole, and fetched
ahead. A schedule that no GPU can run is replaced by another one.

    python -m tests.fuzz.gpu --programs 100 --schedules 3 --seed 0

Kernels run under emulation, which finds races, too.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable

import tdsl as td
from tdsl.lang.regions import reads_in
from tdsl.schedule.fluent import Stage
from tdsl.schedule.legality import loops_around
from tdsl.schedule.state import BLOCKS, PARALLEL, SERIAL, SHARED, THREADS, At, Root, is_reduction
from tests.fuzz.campaign import conditions, program_of
from tests.fuzz.cases import Case, Meaning, Outcome, run_case
from tests.fuzz.choices import Choices, Seeded
from tests.fuzz.schedules import scramble

FACTORS = (2, 3, 4, 8)
WARPS = (*FACTORS, 16, 32)  # threads that share a reduction
DRAWS = 5  # schedules that are tried until one can run


def on_a_gpu(s: td.Schedule, choices: Choices) -> None:
    """Bind free loops of stages that have a place of their own, consumers before what they read."""
    for name in reversed([f.name for f in s.state.program.funcs]):
        for n in range(len(s.state.program.func(name).definitions)):
            stage = s[name] if n == 0 else s[name].update(n - 1)
            place = s.state.plan(name).place
            for loop in s.state.plan(name).nests[n].loops:
                if loop.kind == PARALLEL:  # threads of a CPU
                    stage.serial(loop.name)
            if isinstance(place, At) and n == 0:
                _inside(s, stage, choices)
            elif isinstance(place, Root) or name in s.state.program.outputs:
                _at_root(s, stage, choices)
    _ahead(s, choices)
    for name in s.state.program.outputs:
        if choices.chance(15):
            _tried(s, s[name].grid_sync)


def _ahead(s: td.Schedule, c: Choices) -> None:
    """Fetch what stands in shared memory inside of serial loops ahead."""
    for name, plan in s.state.plans:
        if isinstance(plan.place, At) and plan.scope == SHARED and c.chance(70):
            level = plan.place.level
            host = s[level.func]
            stage = host if level.definition == 0 else host.update(level.definition - 1)
            whole = c.chance(30)
            if whole:
                _tried(s, s[name].bulk_copy)
            _tried(s, stage.pipeline, level.loop, c.pick((2, 3, 4)), whole and c.chance(50))


def _free(s: td.Schedule, stage: Stage) -> list[str]:
    """The free serial loops that stand outside of all others, outermost first."""
    f = s.state.program.func(stage.func)
    nest = s.state.plan(stage.func).nests[stage.definition]
    found: list[str] = []
    for x in nest.loops:
        if x.kind != SERIAL or is_reduction(f, stage.definition, nest, x.name):
            break
        found.append(x.name)
    return found


def _tried(s: td.Schedule, directive: Callable[..., object], *arguments: object) -> None:
    """Give a directive, if it is legal."""
    before = s.state, s.directives
    try:
        directive(*arguments)
    except td.ScheduleError:
        s.state, s.directives = before


def _at_root(s: td.Schedule, stage: Stage, c: Choices) -> None:
    """One or two loops over blocks, inside of them one or two over threads."""
    blocks = ["blockIdx.x", "blockIdx.y"]
    threads = ["threadIdx.x", "threadIdx.y"]
    for axis in blocks[: c.integer(0, 2)]:
        free = _free(s, stage)
        if free:
            loop = free[0]
            if c.chance(60):
                _tried(s, stage.split, loop, c.pick(FACTORS))
            loop = _free(s, stage)[0]
            _tried(s, stage.bind, loop, axis)
    for axis in threads[: c.integer(0, 2)]:
        free = _free_inside(s, stage)
        if free:
            loop = c.pick(free)
            if c.chance(60):
                _tried(s, stage.split, loop, c.pick(FACTORS))
                loop = c.pick(_free_inside(s, stage))
            _tried(s, stage.bind, loop, axis)

    if c.chance(40):
        _tried(s, _reduce_on_threads, s, stage, c)
    if c.chance(40):
        _tried(s, _copy, s, stage, c)


def _reduce_on_threads(s: td.Schedule, stage: Stage, c: Choices) -> None:
    """Threads reduce parts, and combine them."""
    f = s.state.program.func(stage.func)
    nest = s.state.plan(stage.func).nests[stage.definition]
    loops = [x.name for x in nest.loops if is_reduction(f, stage.definition, nest, x.name)]
    if loops:
        _, part = stage.split(c.pick(loops), c.pick(WARPS))
        stage.bind(part, "threadIdx.x")


def _copy(s: td.Schedule, stage: Stage, c: Choices) -> None:
    """Copy what a loop inside of a block reads into shared memory, by threads or as a whole."""
    d = s.state.program.func(stage.func).definitions[stage.definition]
    sources = sorted({r.name for r in reads_in(d.expressions())} - {stage.func})
    loops = s.state.plan(stage.func).nests[stage.definition].loops
    blocks = [n for n, x in enumerate(loops) if x.kind in BLOCKS]
    if not sources or not blocks:
        return
    at = c.pick([x.name for x in loops[blocks[-1] :]])
    tile = s.cache_read(c.pick(sources), stage, at=at, scope=SHARED, filled=c.chance(30))
    if c.chance(30):
        _tried(s, tile.bulk_copy)
    elif c.chance(60):
        _tried(s, tile.cooperate, c.pick((1, 2, 4)))


def _free_inside(s: td.Schedule, stage: Stage) -> list[str]:
    f = s.state.program.func(stage.func)
    nest = s.state.plan(stage.func).nests[stage.definition]
    return [
        x.name for x in nest.loops if x.kind == SERIAL and not is_reduction(f, stage.definition, nest, x.name)
    ]


def _inside(s: td.Schedule, stage: Stage, c: Choices) -> None:
    """Shared memory, made by all threads or some, for what is computed inside of a block."""
    around = loops_around(s.state, stage.func)
    kinds = {s.state.plan(x.func).nests[x.definition].kind(x.loop) for x in around}
    if not any("Idx" in kind for kind in kinds) or not c.chance(70):
        return
    _tried(s, stage.set_scope, SHARED)
    if s.state.plan(stage.func).scope != SHARED:
        return
    if kinds & set(THREADS) and c.chance(50):
        _tried(s, stage.cooperate, c.pick((1, 2, 4)))
        return
    free = _free_inside(s, stage)
    if free and c.chance(70):
        axis = c.pick(("threadIdx.x", "threadIdx.y"))
        _tried(s, stage.bind, c.pick(free), axis)


def case_of(seed: int, program: int, schedule: int, text: bool = False) -> Case:
    """The case of two numbers, the same in every run; `text` runs the CUDA text of its kernels."""
    made = program_of(seed, program)
    c = Seeded((seed * 1_000_003 + program) * 2003 + schedule)
    s = td.Schedule(*made.outputs)
    scramble(s, c, conditions(made), 6)
    if c.chance(60):
        _fetch(s, c)
    on_a_gpu(s, c)
    return Case(made, s.to_json(), program % 1000, target="cuda", text=text)


def _fetch(s: td.Schedule, c: Choices) -> None:
    """Compute what the outputs read inside of them."""
    for name in s.state.program.outputs:
        stage = s[name]
        loops = [x.name for x in stage.loops]
        readers = [f.name for f in s.state.program.funcs if f.name not in s.state.program.outputs]
        for other in readers[:3]:
            if loops and c.chance(60):
                _tried(s, s[other].compute_at, stage, c.pick(loops))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.gpu")
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--schedules", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--text", action="store_true", help="run CUDA text compiled by g++")
    parser.add_argument("--only", metavar="PROGRAM:SCHEDULE")
    options = parser.parse_args()
    if options.only:
        program, schedule = map(int, options.only.split(":"))
        case = case_of(options.seed, program, schedule, options.text)
        outcome = run_case(case, Meaning())
        print(case.schedule(), outcome.kind, outcome.text, sep="\n")
        return outcome.fault
    outcomes, replaced = Counter[str](), Counter[str]()
    end = time.monotonic() + options.seconds
    for program in range(options.first, options.first + options.programs):
        if time.monotonic() > end:
            break
        meaning = Meaning()
        for first in range(options.schedules):
            outcome = Outcome("")
            for schedule in range(first, DRAWS * options.schedules, options.schedules):
                if schedule > first:
                    replaced[outcome.text] += 1
                outcome = outcome_of(options.seed, program, schedule, meaning, options.text)
                if outcome.kind != "refused" or outcome.text.startswith("oracle"):
                    break
            shown = outcome.kind if outcome.kind != "refused" else f"refused: {outcome.text}"
            outcomes[shown] += 1
            if outcome.fault:
                print(f"--seed {options.seed} --only {program}:{schedule}  {outcome.kind}", flush=True)
    for title, found in (("", outcomes), ("refused, and replaced:", replaced)):
        print(*[title] * bool(title), *(f"{n:6} {kind}" for kind, n in found.most_common()), sep="\n")
    return any(not kind.startswith(("same", "refused")) for kind in outcomes)


def outcome_of(seed: int, program: int, schedule: int, meaning: Meaning, text: bool = False) -> Outcome:
    """What comes of a case; `meaning` is kept for all schedules of a program."""
    try:
        case = case_of(seed, program, schedule, text)
    except Exception as error:  # noqa: BLE001  # a directive's fault
        return Outcome(f"directive: {type(error).__name__}: {error}")
    return run_case(case, meaning)


if __name__ == "__main__":
    sys.exit(main())
