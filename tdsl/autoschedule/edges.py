"""The text of each edge of a schedule: the memory level of its producer, what that saves and costs, or why.

An input, or a func materialised in full, has a line for each nest at the root that reads it, with the bytes
that this nest reads. A func kept in a cache, shared memory or registers has one line for all readers. Such a
func saves its memory traffic; a copy saves reloads of its source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, prod

from tdsl.autoschedule.choose_inline import choose_inline
from tdsl.autoschedule.explain import INLINE, Decision
from tdsl.core.text import in_bytes, in_seconds
from tdsl.cost.moved import Moved, total
from tdsl.cost.predict import Prediction
from tdsl.cost.traffic import of_stages
from tdsl.errors import counted
from tdsl.lang.affine import variables
from tdsl.lang.expr import TRUE, Expr, Read, Select
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import reads_in
from tdsl.machine.instructions.instruction import INSTRUCTIONS
from tdsl.machine.model import MemoryLevel
from tdsl.schedule.masked import unused_masks
from tdsl.schedule.properties import extents, root_boxes, unplaced_at_root, volume
from tdsl.schedule.state import FRAGMENT, GROUP, THREADS, State, initial_state, roots_of
from tdsl.schedule.tree import ROOT

REGISTER_BYTES = 4  # bytes of a GPU register
WARP = 32  # threads of a warp
ONCE = 1.005  # recomputation factors up to this are not reported


def explained(
    p: Prediction,
    given: State,
    decisions: Sequence[Decision] = (),
    notes: Sequence[str] = (),
    reasons: Mapping[str, str] | None = None,
) -> str:
    """Each edge and its memory level, the search's notes, bytes per level, predicted time.

    `decisions` completed the state `given`; `reasons` say why the search materialised a func.
    """
    program = p.state.program
    lines = [*_inlined(p, given, decisions), *_computed_once(p)]
    for name in (*(t.name for t in program.inputs), *(f.name for f in program.funcs)):
        if p.readers(name) and name in p.nests.whole:
            lines += _edges(p, name, (reasons or {}).get(name, ""))
    lines += [
        f"skip_masked of {name}: all terms are computed, {why}"
        for name, why in unused_masks(given, p.state, p.machine)
    ]
    lines += notes
    lines.append(f"bytes: {'; '.join(_levels(p))}; least {in_bytes(p.least)}")
    if p.received is not None:
        r = p.received
        links = (f"{name}: {in_bytes(sum(size for _, size in tensors))}" for name, tensors in r.moved)
        lines.append(
            f"{', '.join(links)} to rank {r.rank}, the busiest of {r.ranks}, "
            f"in {counted(r.messages, 'message')}: {in_seconds(p.network)}"
        )
    parts = (f"{t.func} {in_seconds(t.seconds)}, waiting for {t.waits_for}" for t in p.times)
    lines.append(f"time: {in_seconds(p.seconds)} ({'; '.join(parts)})")
    return "\n".join(lines)


def _levels(p: Prediction) -> list[str]:
    names = ["global"] if p.machine.block_threads else [x.name for x in p.machine.caches]
    return [f"{n} {in_bytes(total(p.moved(n)))}" for n in names]


def _computed_once(p: Prediction) -> Iterator[str]:
    if p.once is not None:
        once = Prediction(p.once, p.machine)
        for t in once.state.program.inputs:
            readers = ", ".join(once.readers(t.name))
            yield f"{t.name} -> {readers}: once, before any call, {in_bytes(once.whole(t.name))}"


def _inlined(p: Prediction, given: State, decisions: Sequence[Decision]) -> Iterator[str]:
    """The lines of funcs without storage: inlined into their readers, or merged into another func."""
    computed = {f.name for s in (p.state, p.once) if s is not None for f in s.program.funcs}
    fresh = initial_state(given.program)
    inlined = choose_inline(fresh, products_read_values=p.machine.block_threads > 0)[1]
    why = {d.func: "; ".join(d.why) for d in (*inlined, *decisions) if d.how == INLINE}
    whole = root_boxes(unplaced_at_root(fresh))
    for f in given.program.funcs:
        if f.name in computed or f.name not in whole:
            continue
        readers = ", ".join(dict.fromkeys(c.name for c, _ in given.consumers(f.name)))
        recomputed = _recompute_text(_times_inlined(p, given, f))
        yield f"{f.name} -> {readers}: inline, {why.get(f.name, 'as the schedule says')}{recomputed}"


def _times_inlined(p: Prediction, given: State, f: FuncDef) -> float:
    """Recomputation factor of an inlined func: evaluations by its readers per point."""
    whole = root_boxes(unplaced_at_root(initial_state(given.program)))
    points = 0.0
    for c, n in given.consumers(f.name):
        if c.name not in whole:
            continue
        factor = p.again.get(c.name)
        factor = _times_inlined(p, given, c) if factor is None else factor
        d = c.definitions[n]
        sizes = extents(c, d, whole[c.name])
        for index in {r.index for r in reads_in(d.values) if r.name == f.name}:
            used = {v for e in index for v in variables(e)}
            points += factor * prod(sizes[v] or 1 for v in c.definitions[n].variables if v in used)
    return points / max(volume(whole[f.name]) or 1, 1)


def _edges(p: Prediction, name: str, reason: str) -> Iterator[str]:
    """The lines of the edges from an input or func to its readers."""
    level, whole = p.home(name), in_bytes(p.whole(name))
    if level is not p.machine.levels[-1]:
        yield f"{name} -> {', '.join(p.readers(name))}: {_on_chip_text(p, name, level)}"
        return
    program, moved = p.state.program, p.moved(level.name).get(name, Moved())
    for root, readers, size in _reads(p, name):
        edge, read = f"{name} -> {', '.join(readers)}", in_bytes(size)
        if not program.has_func(name) or name in program.outputs:
            result = ", a result" if name in program.outputs else ""
            yield f"{edge}: from {level.name}, {read}, of {whole}{result}{_recompute_suffix(p, name)}"
        else:
            flow = f"{in_bytes(moved.written)} written, {read} read"
            why = "; ".join(x for x in (_why_in_memory(p, name, root, size), reason) if x)
            yield f"{edge}: through {level.name}, {flow}{_recompute_suffix(p, name)}: {why}"


def _reads(p: Prediction, name: str) -> Iterator[tuple[str, list[str], float]]:
    """(func at the root, readers in its loops, bytes read there) of an input or func; on a GPU by reader."""
    nests = p.nests
    roots = nests.roots()
    by_root: dict[str, list[str]] = {}
    for reader in p.readers(name):
        root = next((s.func.name for s in roots if reader in s.computed(0)), reader)
        by_root.setdefault(root, []).append(reader)
    if p.machine.block_threads:
        stages = of_stages(nests)
        for root, readers in by_root.items():
            for reader in readers:
                moved = stages.get(reader, {}).get(name)
                yield root, [reader], 0.0 if moved is None else moved.read
        return
    by_nest = list(zip(roots, p.by_nest(), strict=True))
    for root, readers in by_root.items():
        size = sum(m[name].read for s, m in by_nest if s.func.name == root and name in m)
        yield root, readers, size


def _why_in_memory(p: Prediction, name: str, root: str, size: float) -> str:
    """Why a func goes through memory to the nest of `root` that reads it."""
    owners = [s.func.name for s in p.nests.roots() if name in s.computed(0)]
    owner = owners[0] if owners else name
    if p.machine.block_threads:
        if owner != root:
            return f"the kernel of {owner} computes all of it before the kernel of {root} starts"
        return f"{root} writes and reads it there"
    cache, whole = p.machine.caches[-1], p.whole(name)
    room = p.machine.capacity(cache) or 0
    if not size:
        return f"{root} reads it from {cache.name}, which later writes it back"
    kept = f"{cache.name} keeps {in_bytes(room)}"
    if name not in p.nests.tree.stored.get(ROOT, ()):
        return f"{kept}, and the loops of {root} have a longer reuse distance"
    first = f"all of it is computed before {root} starts"
    if whole > room:
        return f"{first}, {in_bytes(whole - room)} more than {cache.name} keeps"
    return f"{first}, {kept}, and the reuse distance is longer"


def _on_chip_text(p: Prediction, name: str, level: MemoryLevel) -> str:
    """The text for a func that never leaves a level above memory."""
    whole = p.whole(name)
    text, recomputed = f"kept in {level.name}, {_room(p, name, level)}", _recompute_suffix(p, name)
    source, readers = copied(p.state.program.func(name)), p.readers(name)
    if all(_is_written_copy(p, r) for r in readers):
        return f"{text}{recomputed}: {', '.join(readers)} writes it back once, complete"
    if not source or _is_written_copy(p, name):
        less = in_bytes((1 + len(readers)) * whole)
        return f"{text}{recomputed}: {less} less at the last level"
    uses = _uses(p, name)
    text = f"{text}, a copy of {source}{recomputed}: each copied element read {_number(uses)} times"
    if not p.machine.block_threads:
        return text
    saved = max(uses - 1, 0.0) * p.again.get(name, 1.0) * whole
    return f"{text}, {in_bytes(saved)} of loads from {p.home(source).name} saved"


def _room(p: Prediction, name: str, level: MemoryLevel) -> str:
    """The bytes of a func in a level and the capacity of the level; registers are counted per thread."""
    needed = p.kept(name)
    if p.machine.block_threads and level.name == "registers":
        room = REGISTER_BYTES * p.machine.registers
        element = p.nests.element_bytes(name)
        needed = element * ceil(needed / element / _threads_of(p, name))
        return f"{in_bytes(needed)} of {in_bytes(room)} per thread"
    each = " per row of threads" if p.state.plan(name).scope == GROUP else ""
    return f"{in_bytes(needed)}{f' of {in_bytes(level.bytes)}' if level.bytes else ''}{each}"


def _threads_of(p: Prediction, name: str) -> float:
    """How many threads hold a func in registers: those of an instruction, or of the func's loops."""
    plan = p.state.plan(name)
    if plan.scope == FRAGMENT:
        used = (t for n in (name, *p.readers(name)) for t in p.state.plan(n).tensorizations)
        return max((INSTRUCTIONS[t.instruction].threads for t in used), default=WARP)
    spot = next(s for s in p.nests.every() if s.func.name == name)
    names = spot.nest.names()
    if plan.store is not None and plan.store.func == name:
        names = names[names.index(plan.store.loop) + 1 :]
    free = {*spot.func.definitions[0].free}
    thread_loops = (x for x in names if spot.kind(x) in THREADS and roots_of(spot.nest, x) <= free)
    return prod(spot.counts()[x] for x in thread_loops)


def copied(f: FuncDef) -> str:
    """The source that a func copies element by element, perhaps with padding; "" for a func that is no copy.

    >>> import tdsl as td
    >>> i, a, f = td.vars("i"), td.Tensor("a", (8,), td.f32), td.Func("f")
    >>> f[i] = a[7 - i]
    >>> copied(td.Schedule(f).program.func("f"))
    'a'
    """
    d = f.definitions[0]
    if len(f.definitions) > 1 or d.init is not None or d.where != TRUE:
        return ""
    names = {_read(v) for v in d.values}
    return names.pop() if len(names) == 1 else ""


def _read(e: Expr) -> str:
    match e:
        case Read(name):
            return name
        case Select(_, yes, _):
            return _read(yes)
        case _:
            return ""


def _is_written_copy(p: Prediction, name: str) -> bool:
    """True for a copy of a func with no other reader, kept no nearer than its source."""
    source = copied(p.state.program.func(name))
    if not p.state.program.has_func(source) or p.readers(source) != (name,):
        return False
    order = [x.name for x in p.machine.levels]
    return order.index(p.home(name).name) >= order.index(p.home(source).name)


def _uses(p: Prediction, name: str) -> float:
    """Reuse factor of a copy: reads per element copied."""
    used = computed = 0.0
    for spot in p.nests.every():
        points = spot.times * prod(spot.points())
        reads = spot.func.definitions[spot.definition].reads
        used += points * len({r.index for r in reads if r.name == name})
        computed += points if spot.func.name == name else 0.0
    return used / max(computed, 1.0)


def _recompute_suffix(p: Prediction, name: str) -> str:
    if not p.state.program.has_func(name):
        return ""
    source, times = copied(p.state.program.func(name)), p.again.get(name, 1.0)
    if not source:
        return _recompute_text(times)
    beyond = max(p.whole(name) / max(p.whole(source), 1.0), 1.0)  # copies go beyond edges in whole tiles
    return _recompute_text(times * beyond, "copied")


def _recompute_text(times: float, verb: str = "computed") -> str:
    return f", each point {verb} {_number(times)} times" if times > ONCE else ""


def _number(n: float) -> str:
    """A number rounded to two decimals, without trailing zeros.

    >>> _number(1.144), _number(65536.0)
    ('1.14', '65,536')
    """
    return f"{n:,.2f}".rstrip("0").rstrip(".")
