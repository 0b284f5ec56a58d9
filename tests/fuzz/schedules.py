"""Random schedules: directives of every kind, drawn with an eye to what is there.

    s = td.Schedule(*outputs)
    tally = scramble(s, Seeded(7), conditions)

A directive that is not legal where it is drawn raises a ScheduleError and is dropped; any other exception
is a fault. `Tally` counts what was taken and what was dropped, by directive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tdsl as td
from tdsl.lang.regions import reads_in
from tdsl.schedule.fluent import Stage
from tdsl.schedule.legality import depends_on
from tdsl.schedule.masked import masked_funcs
from tdsl.schedule.state import CACHE_POLICIES, COOPERATIVE, SCOPES, TAILS, At, Level, is_reduction, levels_of
from tdsl.tilegraph.schedule import Schedule
from tests.fuzz.choices import Choices

FACTORS = (1, 2, 3, 4, 5, 8, 16)
WEIGHTS = {
    "split": 14, "tile": 5, "divide": 3, "fuse": 7, "reorder": 9, "rename": 2, "unroll": 5, "vectorize": 12,
    "reduction lanes": 4, "parallel": 6, "serial": 1, "compute_at": 22, "slide": 9, "store_at": 4,
    "store_root": 3, "inline": 6, "compute_root": 3, "reverse_compute_at": 6, "compute_with": 6,
    "cache_read": 6, "cache_write": 6, "reorder_storage": 3, "align_storage": 3, "fold_storage": 3,
    "rfactor": 7, "atomic": 5, "specialize": 4, "prefetch": 3, "stream_stores": 2, "set_scope": 2, "pin": 1,
    "unsigned": 1, "online": 1, "reassociate": 1, "skip_masked": 1, "outline": 1, "factor_out": 1,
    "fuse_reductions": 2, "cache_policy": 1,
    "bound_extent": 3, "flatten": 3,
}  # fmt: skip
FIRST = ("reassociate", "online", "unsigned", "fuse_reductions", "factor_out")  # want loops as they were


@dataclass(slots=True)
class Tally:
    """How often each directive was taken and dropped, and the reasons for which it was dropped."""

    taken: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.taken += other.taken
        self.dropped += other.dropped


def scramble(s: Schedule, choices: Choices, conditions: list[Any], most: int = 14) -> Tally:
    """Give a schedule up to `most` random directives; `conditions` are those that it may specialize for."""
    maker = Directives(s, choices, conditions)
    for name in FIRST:
        if choices.chance(30):
            maker.attempt(name)
    for _ in range(choices.integer(0, most)):
        maker.one()
    return maker.tally


def nest_stages(s: Schedule, choices: Choices) -> Tally:
    """Compute most stages inside loops of their consumers, last ones first, stored further out or not."""
    maker = Directives(s, choices, [])
    names = [f.name for f in s.state.program.funcs]
    for name in reversed(names):
        for _ in range(choices.integer(0, 2)):
            maker.on_one(name, choices.weighted({"split": 4, "reorder": 3, "fuse": 1, "vectorize": 3}))
        if name not in s.state.program.outputs and choices.chance(85):
            maker.on_one(name, choices.weighted({"slide": 6, "compute_at": 3, "compute_root": 1}))
    return maker.tally


class NotHere(Exception):
    """The program has nothing that the directive is for."""


class Directives:
    """Draws directives for the schedule as it is."""

    def __init__(self, s: Schedule, choices: Choices, conditions: list[Any]) -> None:
        self.s, self.c, self.conditions = s, choices, conditions
        self.tally = Tally()
        self.only: str | None = None
        self.made: dict[str, Callable[[], Any]] = {
            name: getattr(self, "do_" + name.replace(" ", "_")) for name in WEIGHTS
        }

    def one(self) -> None:
        self.attempt(self.c.weighted(WEIGHTS))

    def on_one(self, func: str, name: str) -> None:
        """A directive on a func that is given."""
        self.only = func
        self.attempt(name)
        self.only = None

    def attempt(self, name: str) -> None:
        before = self.s.state, self.s.directives
        try:
            self.made[name]()
        except NotHere:
            self.s.state, self.s.directives = before
        except td.ScheduleError:
            self.s.state, self.s.directives = before
            self.tally.dropped[name] += 1
        else:
            self.tally.taken[name] += 1

    # what there is

    def func(self, *, output: bool | None = None) -> str:
        if self.only is not None:
            return self.only
        names = [
            f.name
            for f in self.s.state.program.funcs
            if output is None or (f.name in self.s.state.program.outputs) == output
        ]
        return self.pick(names)

    def pick(self, items: Any) -> Any:
        listed = list(items)
        if not listed:
            raise NotHere
        return self.c.pick(listed)

    def stage(self, name: str | None = None) -> Stage:
        name = self.func() if name is None else name
        count = len(self.s.state.program.func(name).definitions)
        n = self.c.integer(0, count - 1)
        return self.s[name] if n == 0 else self.s[name].update(n - 1)

    def loops(self, stage: Stage, *, reduced: bool | None = None) -> list[str]:
        f = self.s.state.program.func(stage.func)
        nest = self.s.state.plan(stage.func).nests[stage.definition]
        return [
            x
            for x in nest.names()
            if reduced is None or is_reduction(f, stage.definition, nest, x) == reduced
        ]

    def loop(self, stage: Stage, *, reduced: bool | None = None) -> str:
        return self.pick(self.loops(stage, reduced=reduced))

    def dimension(self, name: str) -> Any:
        f = self.s.state.program.func(name)
        return self.pick(f.variables) if self.c.chance(50) else self.pick(range(len(f.variables)))

    def first_legal(self, places: list[tuple[str, str]], directive: Callable[..., Any]) -> None:
        """A directive that few programs have a place for, at the first that takes it from a random one on."""
        at = self.c.integer(0, max(len(places) - 1, 0))
        for n, place in enumerate(dict.fromkeys(places[at:] + places[:at])):
            try:
                directive(*place)
                return
            except td.ScheduleError:
                if n == len(places) - 1:
                    raise
        raise NotHere

    def level(self, func: str) -> tuple[Stage, str]:
        """A loop of a consumer, or of what that is computed in."""
        consumers = list(self.s.state.consumers(func))
        if not consumers:
            raise NotHere
        g, n = self.pick(consumers)
        stage = self.s[g.name] if n == 0 else self.s[g.name].update(n - 1)
        place = self.s.state.plan(g.name).place
        if isinstance(place, At) and self.c.chance(40):
            return self.of_level(place.level)
        # funcs that others are computed in, too: the same loop fits both
        taken = [x for x in self.loops(stage) if Level(g.name, n, x) in self.levels()]
        return stage, self.pick(taken) if taken and self.c.chance(50) else self.loop(stage)

    def levels(self) -> set[Level]:
        return {x for _, plan in self.s.state.plans for x in levels_of(plan)}

    def of_level(self, level: Level) -> tuple[Stage, str]:
        stage = self.s[level.func]
        if level.definition:
            stage = stage.update(level.definition - 1)
        return stage, level.loop

    # loops

    def do_split(self) -> None:
        stage = self.stage()
        tail = self.pick((*TAILS, "guard", "guard"))
        x = self.loop(stage)
        if self.c.chance(25):
            stage.split(x, nparts=self.pick((1, 2, 3, 4)), tail=tail)
        else:
            stage.split(x, self.pick(FACTORS), tail=tail)

    def do_tile(self) -> None:
        stage = self.stage()
        names = self.loops(stage)[-2:]
        stage.tile(names, [self.pick(FACTORS) for _ in names], tail=self.pick(TAILS))

    def do_divide(self) -> None:
        stage = self.stage()
        stage.divide(self.loop(stage), self.pick((1, 2, 3, 5)))

    def do_fuse(self) -> None:
        stage = self.stage()
        names = self.loops(stage)
        if len(names) < 2:
            raise NotHere
        at = self.c.integer(0, len(names) - 2)
        stage.fuse(names[at], names[at + 1])

    def do_reorder(self) -> None:
        stage = self.stage()
        names = self.loops(stage)
        if len(names) < 2:
            raise NotHere
        count = self.c.integer(2, len(names))
        chosen = [names.pop(self.c.integer(0, len(names) - 1)) for _ in range(count)]
        stage.reorder(*chosen)

    def do_flatten(self) -> None:
        stage = self.stage()
        d = self.s.state.program.func(stage.func).definitions[stage.definition]
        free, summed = d.free, [name for name, _, _ in d.ranges]
        names = list(self.pick([x for x in (free, summed) if len(x) > 1]))
        count = self.c.integer(2, len(names))
        first = self.c.integer(0, len(names) - count)
        stage.flatten(*names[first : first + count])

    def do_rename(self) -> None:
        stage = self.stage()
        stage.rename(self.loop(stage), f"q{self.c.integer(0, 9)}")

    def do_unroll(self) -> None:
        stage = self.stage()
        stage.unroll(self.loop(stage), self.pick((None, 2, 3, 4)))

    def do_vectorize(self) -> None:
        stage = self.stage()
        x = self.loops(stage, reduced=False)[-1:] if self.c.chance(70) else self.loops(stage)
        stage.vectorize(self.pick(x), self.pick((None, 2, 3, 4, 4, 8, 8, 16)))

    def reduction(self) -> Stage:
        stages = [
            (f.name, n) for f in self.s.state.program.funcs for n, d in enumerate(f.definitions) if d.ranges
        ]
        name, n = self.pick(stages)
        return self.s[name].update(n - 1) if n else self.s[name]

    def do_reduction_lanes(self) -> None:
        stage = self.reduction()
        stage.vectorize(self.loop(stage, reduced=True), self.pick((None, 2, 4, 8)))

    def do_parallel(self) -> None:
        stage = self.stage()
        free = self.loops(stage, reduced=False)
        stage.parallel(self.pick(free[:1] if self.c.chance(60) else self.loops(stage)))

    def do_serial(self) -> None:
        stage = self.stage()
        stage.serial(self.loop(stage))

    def do_atomic(self) -> None:
        stages = [
            (f.name, n)
            for f in self.s.state.program.funcs
            for n, d in enumerate(f.definitions)
            if d.ranges and d.combine is not None
        ]
        name, n = self.pick(stages)
        stage = self.s[name].update(n - 1) if n else self.s[name]
        stage = stage.atomic()
        if self.c.chance(80):
            stage.parallel(self.loop(stage, reduced=True))

    # places

    def do_compute_at(self) -> None:
        name = self.func(output=False)
        self.s[name].compute_at(*self.level(name))

    def do_slide(self) -> None:
        name = self.func(output=False)
        stage, x = self.level(name)
        names = self.loops(stage)
        self.s[name].compute_at(stage, x)
        outer = names[: names.index(x) + 1]
        if self.c.chance(40):
            self.s[name].store_root()
        else:
            self.s[name].store_at(stage, self.pick(outer))

    def inside(self) -> tuple[str, At]:
        """A func that is computed inside a loop."""
        plans = self.s.state.plans
        name = self.pick(n for n, plan in plans if isinstance(plan.place, At))
        place = self.s.state.plan(name).place
        assert isinstance(place, At)
        return name, place

    def do_store_at(self) -> None:
        name, place = self.inside()
        stage, x = self.of_level(place.level)
        names = self.loops(stage)
        self.s[name].store_at(stage, self.pick(names[: names.index(x) + 1]))

    def do_store_root(self) -> None:
        self.s[self.inside()[0]].store_root()

    def do_inline(self) -> None:
        funcs, outputs = self.s.state.program.funcs, self.s.state.program.outputs
        pure = [f.name for f in funcs if len(f.definitions) == 1 and not f.definitions[0].ranges]
        self.s[self.pick(n for n in pure if n not in outputs)].inline()

    def do_compute_root(self) -> None:
        self.s[self.func()].compute_root()

    def do_reverse_compute_at(self) -> None:
        followed = []
        for f in self.s.state.program.funcs:
            readers = {g.name: g for g, _ in self.s.state.consumers(f.name)}
            if len(readers) == 1 and len(f.definitions) == 1:
                (g,) = readers.values()
                if not g.definitions[0].ranges and len(g.definitions) == 1:
                    followed.append((f.name, g.name))
        producer, name = self.pick(followed)
        self.s[name].reverse_compute_at(producer, self.loop(self.s[producer], reduced=False))

    def do_compute_with(self) -> None:
        state = self.s.state
        single = [f.name for f in state.program.funcs if len(f.definitions) == 1]
        pairs = [
            (a, b)
            for a in single
            for b in single
            if a != b and not depends_on(state, a, b) and not depends_on(state, b, a)
        ]
        a, b = self.pick(pairs)
        # nests of one shape: the first loops of both
        depth = self.c.integer(1, 2)
        self.s[a].compute_with(b, self.pick(self.loops(self.s[b])[:depth]))

    def do_fold_storage(self) -> None:
        name = self.inside()[0] if self.c.chance(60) else self.func(output=False)
        self.s[name].fold_storage(self.dimension(name), self.pick((1, 2, 3, 4, 8, 16)))

    def do_bound_extent(self) -> None:
        name = self.inside()[0] if self.c.chance(60) else self.func(output=False)
        extent = () if self.c.chance(50) else (self.pick((2, 3, 4, 8, 16)),)
        self.s[name].bound_extent(self.dimension(name), *extent)

    def do_align_storage(self) -> None:
        name = self.func(output=False)
        self.s[name].align_storage(self.dimension(name), self.pick((1, 2, 4, 8)))

    def do_reorder_storage(self) -> None:
        name = self.func(output=False)
        left = list(range(len(self.s.state.program.func(name).variables)))
        order = []
        while left:
            order.append(left.pop(self.c.integer(0, len(left) - 1)))
        self.s[name].reorder_storage(*order)

    def do_set_scope(self) -> None:
        self.s[self.func(output=False)].set_scope(self.pick(x for x in SCOPES if x not in COOPERATIVE))

    def do_stream_stores(self) -> None:
        self.s[self.func()].stream_stores()

    def do_cache_policy(self) -> None:
        stage = self.stage()
        stage.cache_policy(self.source(stage), self.pick(CACHE_POLICIES))

    def do_pin(self) -> None:
        self.s[self.func()].pin()

    def do_prefetch(self) -> None:
        stage = self.stage()
        stage.prefetch(self.source(stage), self.loop(stage), self.c.integer(1, 3))

    # stages

    def source(self, stage: Stage) -> str:
        f = self.s.state.program.func(stage.func)
        d = f.definitions[stage.definition]
        return self.pick(dict.fromkeys(r.name for r in reads_in(d.expressions()) if r.name != f.name))

    def do_unsigned(self) -> None:
        program = self.s.state.program
        places = [
            (f.name, r.name)
            for f in program.funcs
            for r in reads_in(f.definitions[0].expressions())
            if r.dtype == td.i8
        ]
        self.first_legal(places, lambda func, source: self.s[func].unsigned(source))

    def do_online(self) -> None:
        places = [
            (f.name, x) for f in self.s.state.program.funcs for x in self.loops(self.s[f.name], reduced=True)
        ]
        self.first_legal(places, lambda func, x: self.s[func].online(x, self.c.pick(FACTORS)))

    def do_skip_masked(self) -> None:
        self.s[self.pick(masked_funcs(self.s.state.program))].skip_masked()

    def do_reassociate(self) -> None:
        program = self.s.state.program
        sums = [f.name for f in program.funcs if f.definitions[0].ranges]
        places = [(func, source) for func in sums for source in sums if func != source]
        self.first_legal(places, lambda func, source: self.s[func].reassociate(source))

    def do_factor_out(self) -> None:
        program = self.s.state.program
        sums = [f.name for f in program.funcs if f.definitions[0].ranges]
        self.first_legal([(name,) for name in sums], lambda func: self.s[func].factor_out())

    def do_outline(self) -> None:
        program = self.s.state.program
        places = [(f.name, v) for f in program.funcs for v in f.definitions[0].variables]
        self.first_legal(places, lambda func, v: self.s[func].outline(v))

    def do_fuse_reductions(self) -> None:
        reductions = [f.name for f in self.s.state.program.funcs if f.definitions[0].ranges]
        places = [(func, other) for func in reductions for other in reductions if func != other]
        self.first_legal(places, lambda func, other: self.s[func].fuse_reductions(other))

    def do_cache_read(self) -> None:
        stage = self.stage()
        source = self.source(stage)
        program = self.s.state.program
        ranks = {t.name: len(t.shape) for t in program.inputs}
        rank = ranks.get(source)
        if rank is None:
            rank = len(program.func(source).variables)
        pack = {}
        if rank and self.c.chance(30):
            pack = {self.c.integer(0, rank - 1): self.pick((2, 3, 4, 8))}
        at = self.loop(stage) if self.c.chance(75) else None
        padded = self.c.chance(35)
        mapped = not padded and self.c.chance(20)
        d = program.func(stage.func).definitions[stage.definition]
        along = self.pick(d.variables) if self.c.chance(15) else None
        made = self.s.cache_read(source, stage, at, pack=pack, padded=padded, mapped=mapped, along=along)
        if self.c.chance(30):
            made.vectorize(self.pick(self.loops(made)[-1:]), 4)

    def do_cache_write(self) -> None:
        stage = self.s[self.func()]
        free = self.loops(stage, reduced=False)
        made = self.s.cache_write(stage, self.pick(free))
        if self.c.chance(30) and self.loops(made):
            made.vectorize(self.pick(self.loops(made)[-1:]), 4)

    def do_rfactor(self) -> None:
        stage = self.reduction()
        x = self.loop(stage, reduced=True)
        if self.c.chance(60):
            inner, outer = self.c.chance(50), stage.split(x, self.pick(FACTORS))
            x = outer[inner].name
        made = stage.rfactor(x)
        if self.c.chance(40):
            self.s[made.func].compute_at(stage, self.loop(stage, reduced=False))
        if self.c.chance(40):
            made.parallel(self.loop(made, reduced=False))

    def do_specialize(self) -> None:
        if not self.conditions:
            raise NotHere
        stage = self.stage()

        def recipe(inner: Stage) -> None:
            own = Directives(inner.schedule, self.c, [])
            own.stage = lambda name=None: inner  # type: ignore[method-assign, assignment, misc]
            for _ in range(self.c.integer(1, 3)):
                kind = self.c.pick(("split", "reorder", "vectorize", "parallel", "unroll", "fuse"))
                own.made[kind]()

        stage.specialize(self.pick(self.conditions), recipe)
