"""What a schedule will do before anything runs: bytes by level of memory, bytes held, time, and where each
func lives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tdsl.core.source import here
from tdsl.core.text import in_seconds
from tdsl.cost.block_memory import shared_bytes, stages_of
from tdsl.cost.caches import CacheModel
from tdsl.cost.gathers import gathered_points
from tdsl.cost.loopnests import Nests
from tdsl.cost.moved import Moved, MovedByName
from tdsl.cost.network import Received
from tdsl.cost.seconds import NestTime, time_of
from tdsl.cost.terms import Terms, terms_of
from tdsl.cost.traffic import beyond_cache, kept_in_blocks, of_blocks
from tdsl.errors import TargetError
from tdsl.lang.regions import restrict_ranges
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.schedule.constants import split_constants
from tdsl.schedule.properties import volume
from tdsl.schedule.state import GROUP, REGISTER, SHARED, State
from tdsl.schedule.tree import ROOT


@dataclass(frozen=True, slots=False, repr=False)
class Prediction:
    """A complete state on a machine.

    It is of what runs in each call; `once` makes before the first what depends on constants alone. `received`
    is what the busiest rank gets of others, where tensors are on ranks.
    """

    state: State
    machine: Machine
    once: State | None = None
    received: Received | None = None

    def __repr__(self) -> str:
        return f"<prediction of {self.state.program.name}: {in_seconds(self.seconds)}>"

    @staticmethod
    def of(state: State, machine: Machine, received: Received | None = None) -> Prediction:
        """The prediction for a complete state of known sizes; what runs once is separated from the calls."""
        split = split_constants(state)
        if split is None:
            return Prediction(state, machine, received=received)
        return Prediction(split.per_call, machine, split.once, received)

    @cached_property
    def nests(self) -> Nests:
        """The nests of the state as a tree."""
        return Nests.of(self.state)

    @cached_property
    def times(self) -> tuple[NestTime, ...]:
        """The time of each nest at the root, on ranks that of the one which computes the most of it."""
        times = (time_of(t, self.machine) for t in self.terms)
        return tuple(t.times(self._part(t.func)) for t in times)

    @cached_property
    def terms(self) -> tuple[Terms, ...]:
        """What each nest at the root asks of the machine."""
        return terms_of(self.nests, self.machine)

    def _part(self, name: str) -> float:
        """The part of a func that a rank computes; if it is not in the program, that of its readers."""
        if self.received is None:
            return 1.0
        computed, whole = dict(self.received.computed), self.nests.whole
        if name in computed and name in whole:
            return computed[name] / max(volume(whole[name]) or 1, 1)
        return max((self._part(reader) for reader in self.readers(name)), default=1.0)

    @property
    def seconds(self) -> float:
        """The time of all, with that of the network."""
        return sum(t.seconds for t in self.times) + self.network

    @property
    def network(self) -> float:
        """The longest time in which links bring a rank what it receives, in seconds."""
        return 0.0 if self.received is None else self.received.seconds

    def moved(self, level: str) -> MovedByName:
        """The bytes that a level exchanges with what is further out, by tensor and func.

        Of the last level these are the bytes that it exchanges with what is nearer; of a link to other ranks,
        where tensors are on ranks, those that the busiest rank receives over it.
        """
        links = {} if self.received is None else dict(self.received.moved)
        if level in links:
            return {tensor: Moved(read=size) for tensor, size in links[level]}
        memory = self.machine.level(level)
        if self.machine.block_threads:
            if memory.name == "registers":
                raise TargetError(
                    "what threads load into registers is not predicted",
                    loc=here(),
                    label="this level",
                    hint='ask for "shared", "L2" or "global"',
                )
            if memory.managed:
                return of_blocks(self.nests)
        return beyond_cache(self.nests, self._cache(memory), self.machine)

    def by_nest(self) -> list[MovedByName]:
        """What each nest at the root exchanges with the memory of a processor, by tensor and func."""
        level = self.machine.caches[-1]
        return CacheModel.of(self.nests, level, self.machine).by_nest()

    def _cache(self, level: MemoryLevel) -> MemoryLevel:
        return self.machine.caches[-1] if level.bytes is None else level

    def footprint(self, level: str) -> float:
        """The bytes that one instance of a level holds at a time of what is read from it again."""
        memory = self.machine.level(level)
        if self.machine.block_threads and memory.name in ("registers", "shared"):
            if memory.name == "registers":
                return kept_in_blocks(self.nests, REGISTER)
            return shared_bytes(self.state, self.nests.tree, self.nests.whole)
        if memory is self.machine.levels[-1]:
            return sum(self.whole(n) for n in self.nests.whole if self._is_array(n))
        return CacheModel.of(self.nests, memory, self.machine).peak_bytes()

    def _is_array(self, name: str) -> bool:
        return not self.state.program.has_func(name) or name in {s.func.name for s in self.nests.roots()}

    def whole(self, name: str) -> float:
        """The bytes of all of a func or input that is needed."""
        return self.nests.bytes_of(name, self.nests.whole[name])

    def kept(self, name: str) -> float:
        """The bytes of a func where it is stored, all slots of a pipeline; of what is not, all of it."""
        stored = self.nests.stored(name)
        return stages_of(self.state, self.nests.tree, name) * stored if stored else self.whole(name)

    @property
    def least(self) -> float:
        """Each input read once, of tables the rows that are asked for, each output written once."""
        program = self.state.program
        names = [t.name for t in program.inputs if t.name in self.nests.whole]
        return sum(map(self._gathered_bytes, names)) + sum(map(self.whole, program.outputs))

    def _gathered_bytes(self, name: str) -> float:
        total = 0.0
        for spot in self.nests.every():
            d = spot.func.definitions[spot.definition]
            if any(r.name == name for r in d.reads):
                points = gathered_points(d, name, restrict_ranges(spot.ranges((), wide=False), d.where))
                if points is None:
                    return self.whole(name)
                total += spot.times * points
        return min(self.whole(name), total * self.nests.element_bytes(name))

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
            nearest = "shared" if scope in (SHARED, GROUP) else "registers"
            return self.machine.level(nearest) if inner else levels[-1]
        for level in self.machine.caches:
            moved = self._moved_by_cache[level.name]
            if name not in moved or not moved[name].total:
                return level
        return levels[-1]

    @cached_property
    def _moved_by_cache(self) -> dict[str, MovedByName]:
        return {x.name: beyond_cache(self.nests, x, self.machine) for x in self.machine.caches}

    def needed_with(self, name: str) -> float:
        """The bytes that a level has to hold for a func to stay there until it is read.

        Of a cache all that is touched where it is stored, of a GPU what a block or thread has of it.
        """
        nests = self.nests
        if self.machine.block_threads:
            return self.kept(name)
        stored = (at for at, names in nests.tree.stored.items() if name in names)
        at = next(stored, ROOT)
        if at == ROOT:
            touched = [s.boxes(0) for s in nests.roots() if name in s.boxes(0)]
        else:
            spots = (s for s in nests.every() if (s.func.name, s.definition) == (at.func, at.definition))
            touched = [s.boxes(s.nest.names().index(at.loop) + 1) for s in spots]
        return max(sum(map(nests.bytes_of, boxes, boxes.values())) for boxes in touched)

    def readers(self, name: str) -> tuple[str, ...]:
        """The funcs that read an input or func."""
        return tuple(
            f.name
            for f in self.state.program.funcs
            if f.name != name and any(r.name == name for d in f.definitions for r in d.reads)
        )
