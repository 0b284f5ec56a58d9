"""Reads of one tensor at distant places, which are fetched as boxes of their own and not as one box of all.

c[i, j] = a[i, j] - a[i, 0] * a[0, j]    row 0 is fetched, without the rows between it and those of a rank

Such reads are renamed: each group has a name of its own (an alias of the tensor), which the stage reads as a
source. Groups are the same for all ranks and iterations of a stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from tdsl.communication.collective import Layout, outer_spans
from tdsl.communication.stages import Ranges, Stage
from tdsl.core.node import Node, transform
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Expr, Read
from tdsl.lang.program import FuncDef, map_expressions
from tdsl.lang.regions import reads_in
from tdsl.placement.ownership import SpanBox, contains, element_count, intersection, is_contiguous

MAX_SAMPLED_RANKS = 7  # of which the boxes decide which reads have a box of their own
MAX_GROUPED_READS = 32  # different reads of a tensor in a stage; more are one box
WORTH_SEPARATION = 1.5  # one box of all reads costs more than so many times the boxes of the groups

Site = tuple[str, int, tuple[Expr, ...]]  # a read: the func, the number of its definition, the index
Sample = tuple[Ranges, SpanBox | None]  # the ranges of variables in an iteration of a rank, the block it owns


def with_separate_reads(stages: tuple[Stage, ...], layout: Layout) -> tuple[tuple[Stage, ...], Layout]:
    """The stages with distant reads of a tensor as reads of aliases of it, and the layout with these."""
    aliases: dict[str, str] = {}
    result = []
    for stage in stages:
        routed = {r.name for r in stage.routes}
        for tensor in (s for s in stage.sources if s not in routed):
            groups = _groups(stage, layout, tensor)
            names: dict[Site, str] = {}
            for n, group in enumerate(groups[1:], 2):
                name = unused_name(f"{tensor}_{n}", {*layout.wholes, *aliases, *program_names(stage)})
                aliases[name] = tensor
                names |= dict.fromkeys(group, name)
            if names:
                stage = renamed(stage, tensor, names)
        result.append(stage)
    wholes, placements = dict(layout.wholes), dict(layout.placements)
    for name, tensor in aliases.items():
        wholes[name], placements[name] = wholes[tensor], placements[tensor]
    return tuple(result), Layout(layout.grid, placements, wholes, {**layout.aliases, **aliases})


def renamed(stage: Stage, tensor: str, names: Mapping[Site, str]) -> Stage:
    """A stage that reads `tensor` at some sites by other names, which are sources of the stage."""
    aliases = dict.fromkeys(names.values(), tensor)
    ahead = dict(stage.ahead)
    if tensor in ahead:
        ahead |= dict.fromkeys(aliases, ahead[tensor])
    levels = stage.levels | dict.fromkeys(aliases, stage.levels[tensor])
    return replace(
        stage,
        func=_renamed_func(stage.func, tensor, names),
        task_funcs=tuple(_renamed_func(f, tensor, names) for f in stage.task_funcs),
        routed_funcs=tuple(_renamed_func(f, tensor, names) for f in stage.routed_funcs),
        sources=(*stage.sources, *aliases),
        levels=levels,
        ahead=ahead,
        aliases={**stage.aliases, **aliases},
        _boxes={}, _dependencies={}, _spans={}, _indices={}, _reads={},
    )  # fmt: skip


def _renamed_func(f: FuncDef, tensor: str, names: Mapping[Site, str]) -> FuncDef:
    def of(number: int, d: Definition) -> Definition:
        def visit(n: Node) -> Node:
            if isinstance(n, Read) and n.name == tensor:
                return replace(n, name=names.get((f.name, number, n.index), tensor))
            return n

        return map_expressions(d, lambda e: transform(e, visit))

    if not any(site[0] == f.name for site in names):
        return f
    return replace(f, definitions=tuple(of(n, d) for n, d in enumerate(f.definitions)))


def _groups(stage: Stage, layout: Layout, tensor: str) -> list[tuple[Site, ...]]:
    """The sites that read a tensor, in groups of one box each; none if all reads are one box.

    Two groups are merged unless that increases the elements that ranks receive and have in buffers. All reads
    stay one box, as those of a halo, unless that costs much more than the groups.
    """
    sites = list(dict.fromkeys(_sites(stage, tensor)))
    is_kept = layout.placements[tensor].partial or tensor in dict(stage.state.overwrites).values()
    is_nested = any(r.name == tensor for _, _, index in sites for r in reads_in(index))
    if is_kept or is_nested or not 1 < len(sites) <= MAX_GROUPED_READS:
        return []
    samples = list(samples_of(stage, layout, tensor))
    costs: dict[frozenset[Site], int] = {}

    def cost(group: frozenset[Site]) -> int:
        if group not in costs:
            costs[group] = _cost(stage, tensor, group, samples)
        return costs[group]

    groups: list[frozenset[Site]] = []
    for site in sites:
        new = frozenset({site})
        while True:
            fitting = (g for g in groups if cost(g | new) <= cost(g) + cost(new))
            partner = next(fitting, None)
            if partner is None:
                break
            groups.remove(partner)
            new |= partner
        groups.append(new)
    if cost(frozenset(sites)) <= WORTH_SEPARATION * sum(map(cost, groups)):
        return []
    ordered = [tuple(site for site in sites if site in group) for group in groups]
    return sorted(ordered, key=lambda group: sites.index(group[0]))


def _sites(stage: Stage, tensor: str) -> Iterator[Site]:
    first = stage.definition_index
    for f in (stage.func, *stage.task_funcs):
        for n, d in enumerate(f.definitions):
            if f is not stage.func or n == first or not first:
                yield from ((f.name, n, r.index) for r in d.reads if r.name == tensor)


def samples_of(stage: Stage, layout: Layout, tensor: str) -> Iterator[Sample]:
    """Iterations of ranks from the first to the last, in the first, a middle and the last step of loops."""
    size = layout.grid.size
    ranks = {n * (size - 1) // max(MAX_SAMPLED_RANKS - 1, 1) for n in range(MAX_SAMPLED_RANKS)}
    if size <= MAX_SAMPLED_RANKS:
        ranks = set(range(size))
    loops = stage.outer[stage.fixed : stage.levels[tensor]]
    counts = stage.counts[stage.fixed : stage.levels[tensor]]
    firsts = [stage.loops[x][0] for x in loops]
    steps = {
        tuple(lo + part * (n - 1) // 2 for lo, n in zip(firsts, counts, strict=True)) for part in range(3)
    }
    for rank in sorted(ranks):
        at = layout.grid.coordinates(rank)
        for step in sorted(steps):
            ranges = stage.ranges(outer_spans(at, tuple((n, n + 1) for n in step)))
            if ranges is not None:
                yield ranges, layout.owned(tensor, at)


def _cost(stage: Stage, tensor: str, group: Iterable[Site], samples: Iterable[Sample]) -> int:
    """The elements that ranks receive and store in buffers if the reads of a group are one box."""
    trial, total = renamed(stage, tensor, dict.fromkeys(group, "")), 0
    for ranges, block in samples:
        box = trial.box_of_ranges("", ranges)
        if box is None or (block is not None and is_contiguous(block) and contains(block, box)):
            continue
        local = None if block is None else intersection(block, box)
        total += 2 * element_count(box) - (0 if local is None else element_count(local))
    return total


def program_names(stage: Stage) -> set[str]:
    """The names of the tensors, funcs and scalars of the program of a stage."""
    program = stage.state.program
    return {*program.parameters, *(f.name for f in program.funcs), *(s.name for s in program.scalars)}


def unused_name(name: str, used: set[str]) -> str:
    """The name, with underscores appended while it is one of `used`."""
    while name in used:
        name += "_"
    return name
