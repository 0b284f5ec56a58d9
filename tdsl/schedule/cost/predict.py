"""What a schedule will do before anything runs: bytes by level of memory, bytes held, time, and where each
func lives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from tdsl.errors import ShapeError, TargetError, counted
from tdsl.schedule.bind import bind_state
from tdsl.schedule.constants import split_constants
from tdsl.schedule.cost.caches import CacheModel
from tdsl.schedule.cost.loopnests import Nests
from tdsl.schedule.cost.machine import Machine, MemoryLevel
from tdsl.schedule.cost.moved import Bytes, Moved, total
from tdsl.schedule.cost.network import Received, busiest, link_of, network_seconds
from tdsl.schedule.cost.roofline import NestTime, roofline, seconds
from tdsl.schedule.cost.traffic import beyond_cache, kept_in_blocks, of_blocks
from tdsl.schedule.default import decide
from tdsl.schedule.explain import INLINE, Decision
from tdsl.schedule.facts import volume
from tdsl.schedule.nest import REGISTER, SHARED, State
from tdsl.source import here


@dataclass(frozen=True, slots=False)
class Prediction:
    """A completed state on a machine, and what was decided for what had been left open.

    It is of what runs in each call; `once` makes before the first what depends on constants alone. `received`
    is what the busiest rank gets of others, where tensors are on ranks.
    """

    state: State
    machine: Machine
    decisions: tuple[Decision, ...]
    once: State | None = None
    received: Received | None = None

    @staticmethod
    def of(state: State, sizes: dict[str, int], machine: Machine) -> Prediction:
        """The prediction for a state and sizes; ShapeError where some are left open."""
        missing = [n for n in state.program.sizes if n not in sizes]
        if missing:
            raise ShapeError(
                f"what {state.program.name!r} moves depends on sizes that are not known: "
                f"{', '.join(missing)}",
                loc=here(),
                label="this call",
                hint=f"give them to the schedule: sizes={dict.fromkeys(missing, 100)}",
            )
        bound = bind_state(state, sizes)
        made, decisions = decide(bound, machine)
        return replace(Prediction.of_calls(made, machine, decisions), received=busiest(bound))

    @staticmethod
    def of_calls(
        state: State, machine: Machine, decisions: tuple[Decision, ...] = ()
    ) -> Prediction:
        """The prediction for a complete state."""
        apart = split_constants(state)
        if apart is None:
            return Prediction(state, machine, decisions)
        return Prediction(apart.each, machine, decisions, apart.once)

    @cached_property
    def nests(self) -> Nests:
        """The nests of the state as a tree."""
        return Nests.of(self.state)

    @cached_property
    def times(self) -> tuple[NestTime, ...]:
        """The time of each nest at the root, on ranks that of the one which computes the most of it."""
        return tuple(t.times(self._part(t.func)) for t in roofline(self.nests, self.machine))

    def _part(self, name: str) -> float:
        """Which part of a func a rank computes: what is not in the program, as much as of its readers."""
        if self.received is None:
            return 1.0
        made, whole = dict(self.received.made), self.nests.whole
        if name in made and name in whole:
            return made[name] / max(volume(whole[name]) or 1, 1)
        return max((self._part(reader) for reader in self.readers(name)), default=1.0)

    @property
    def seconds(self) -> float:
        """The time of all, with that of the network."""
        return seconds(self.times) + self.network

    @property
    def network(self) -> float:
        """The seconds in which the busiest rank receives what it needs."""
        if self.received is None:
            return 0.0
        return network_seconds(self.received, link_of(self.machine))

    def moved(self, level: str) -> Bytes:
        """The bytes that a level exchanges with what is further out, by tensor and func.

        Of the last level these are the bytes that it exchanges with what is nearer; of the network, where
        tensors are on ranks, those that the busiest rank receives.
        """
        if self.received is not None and level == link_of(self.machine).name:
            return {n: Moved(read=size) for n, size in self.received.moved}
        found = self.machine.level(level)
        if self.machine.block_threads:
            if found.name == "registers":
                raise TargetError(
                    "what threads load into registers is not predicted",
                    loc=here(),
                    label="this level",
                    hint='ask for "shared", "L2" or "global"',
                )
            if found.managed:
                return of_blocks(self.nests)
        return beyond_cache(self.nests, self._cache(found), self.machine.threads)

    def _cache(self, level: MemoryLevel) -> MemoryLevel:
        return self.machine.caches[-1] if level.bytes is None else level

    def held(self, level: str) -> float:
        """The bytes that one instance of a level holds at a time, of what is used again from there."""
        found = self.machine.level(level)
        if self.machine.block_threads and found.name in ("registers", "shared"):
            scope = SHARED if found.name == "shared" else REGISTER
            return kept_in_blocks(self.nests, scope)
        if found is self.machine.levels[-1]:
            return sum(self.whole(n) for n in self.nests.whole if self._is_array(n))
        return CacheModel.of(self.nests, found, self.machine.threads).held()

    def _is_array(self, name: str) -> bool:
        return not self.state.program.has_func(name) or name in {
            s.func.name for s in self.nests.roots()
        }

    def whole(self, name: str) -> float:
        """The bytes of all of a func or input that is needed."""
        return self.nests.bytes_of(name, self.nests.whole[name])

    @property
    def least(self) -> float:
        """Each input read once, each output written once."""
        program = self.state.program
        names = [t.name for t in program.inputs if t.name in self.nests.whole]
        return sum(self.whole(n) for n in (*names, *program.outputs))

    @cached_property
    def again(self) -> dict[str, float]:
        """How often each point of each func is computed."""
        points: dict[str, float] = {}
        for spot in self.nests.every():
            if spot.definition == 0:
                name = spot.func.name
                points[name] = points.get(name, 0.0) + spot.times * (volume(spot.box) or 0)
        return {
            n: p / max(volume(self.nests.whole[n]) or 1, 1)
            for n, p in points.items()
            if n in self.nests.whole
        }

    def home(self, name: str) -> MemoryLevel:
        """The nearest level that a func never leaves; the last for inputs, outputs, and what leaves all."""
        program, levels = self.state.program, self.machine.levels
        if not program.has_func(name) or name in program.outputs:
            return levels[-1]
        if self.machine.block_threads:
            scope = self.state.plan(name).scope
            inner = name not in of_blocks(self.nests)
            near = {SHARED: "shared", REGISTER: "registers"}.get(scope, "registers")
            return self.machine.level(near) if inner else levels[-1]
        for level in self.machine.caches:
            moved = self._moved_by_cache[level.name]
            if name not in moved or not moved[name].total:
                return level
        return levels[-1]

    @cached_property
    def _moved_by_cache(self) -> dict[str, Bytes]:
        return {
            x.name: beyond_cache(self.nests, x, self.machine.threads) for x in self.machine.caches
        }

    def readers(self, name: str) -> tuple[str, ...]:
        """The funcs that read an input or func."""
        return tuple(
            f.name
            for f in self.state.program.funcs
            if f.name != name and any(r.name == name for d in f.definitions for r in d.reads)
        )


def explained(p: Prediction, notes: Iterable[str] = ()) -> str:
    """Each edge with where it lives and why, then bytes by level, and the time."""
    program = p.state.program
    lines = [f"{d.func}: inline, {'; '.join(d.why)}" for d in p.decisions if d.how == INLINE]
    if p.once is not None:
        once = Prediction(p.once, p.machine, ())
        for t in p.once.program.inputs:
            made = ", ".join(once.readers(t.name))
            lines.append(f"{t.name} -> {made}: once, before any call, {_size(once.whole(t.name))}")
    for name in (*(t.name for t in program.inputs), *(f.name for f in program.funcs)):
        readers = p.readers(name)
        if readers and name in p.nests.whole:
            lines.append(f"{name} -> {', '.join(readers)}: {_edge(p, name, len(readers))}")
    lines += notes
    lines.append(f"bytes: {'; '.join(_levels(p))}; least {_size(p.least)}")
    if p.received is not None:
        r = p.received
        lines.append(
            f"{link_of(p.machine).name}: {_size(r.bytes)} to rank {r.rank}, the busiest of {r.ranks}, "
            f"in {counted(r.messages, 'message')}: {_time(p.network)}"
        )
    parts = (f"{t.func} {_time(t.seconds)}, waiting for {t.waits_for}" for t in p.times)
    lines.append(f"time: {_time(p.seconds)} ({'; '.join(parts)})")
    return "\n".join(lines)


def _edge(p: Prediction, name: str, readers: int) -> str:
    level, whole = p.home(name), p.whole(name)
    again = p.again.get(name, 1.0)
    paid = f", each point computed {again:.2f} times" if again > 1.005 else ""
    if level is not p.machine.levels[-1]:
        saved = (1 + readers) * whole
        room = f" of {_size(level.bytes)}" if level.bytes else ""
        held = p.nests.stored(name) or whole
        return f"kept in {level.name}, {_size(held)}{room}: {_size(saved)} less at the last level{paid}"
    moved = p.moved(p.machine.levels[-1].name).get(name)
    read = moved.read if moved else 0.0
    if p.state.program.has_func(name) and name not in p.state.program.outputs:
        return (
            f"through {level.name}, {_size(read + whole)}: {_size(whole)} fit nowhere nearer{paid}"
        )
    return f"from {level.name}, {_size(read)}, of {_size(whole)}{paid}"


def _levels(p: Prediction) -> list[str]:
    names = [x.name for x in p.machine.caches]
    if p.machine.block_threads:
        names = ["global"]
    return [f"{n} {_size(total(p.moved(n)))}" for n in names]


def _size(n: float) -> str:
    """Bytes with three digits.

    >>> _size(512), _size(2097152), _size(5.12e8)
    ('512 B', '2.10 MB', '512 MB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}" if n / size >= 100 else f"{n / size:.2f} {unit}"
    return f"{n:.0f} B"


def _time(s: float) -> str:
    """Seconds with a unit.

    >>> _time(0.00123), _time(4.5e-6)
    ('1.23 ms', '4.50 us')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if s >= size:
            return f"{s / size:.2f} {unit}"
    return f"{s * 1e6:.2f} us"
