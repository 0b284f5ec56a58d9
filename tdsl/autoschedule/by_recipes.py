"""The default schedule by recipes: directives for all that those of the user leave open.

1. Funcs that are cheap, or read in one place only, are inlined.
2. A contraction (a sum over products, with reuse in two directions) gets register tiles.
3. Row-wise chains and stencils are computed inside the loops of their last stage.
4. The rest is computed at the root.
Then every nest is vectorised along contiguous memory, and its outer loops run on threads. Places at the root,
tile trees, nested tiles or shared loops may take their place (`tilegraph.default`). On a GPU each func is a
kernel of its own, together with the funcs that only its rows read.

Results change in the last bits of float reductions only, whose order changes with lanes and partial results.
What directives say is kept; what they leave open is filled in (`open_stages`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from tdsl.autoschedule.best_block import block_arg_reductions
from tdsl.autoschedule.choose_inline import choose_inline
from tdsl.autoschedule.explain import BY_HAND, GENERAL, ROOT, Decision, recipe_decision
from tdsl.autoschedule.open_stages import (
    fill_in,
    host_funcs,
    move_threads,
    open_at_root,
    open_threads,
    place_readers,
    text_by_hand,
    with_threads_only,
)
from tdsl.autoschedule.patterns.bands import plan_bands
from tdsl.autoschedule.patterns.contraction import Contraction, find_window, plan_tiles, recognize
from tdsl.autoschedule.patterns.groups import group_of
from tdsl.autoschedule.patterns.joint_reductions import join_reductions
from tdsl.autoschedule.patterns.parts import count_parts, in_parts
from tdsl.autoschedule.patterns.rows import shape_nest
from tdsl.autoschedule.patterns.sibling_reductions import find_sibling_reductions, reduce_siblings
from tdsl.autoschedule.patterns.streaming import pays_to_stream
from tdsl.autoschedule.patterns.strips import Strips, plan_strips, separate_products
from tdsl.autoschedule.recipes.bands import write_bands
from tdsl.autoschedule.recipes.choices import if_suited
from tdsl.autoschedule.recipes.computed_operands import outline_results
from tdsl.autoschedule.recipes.conv import convolve
from tdsl.autoschedule.recipes.inner_sums import inner_sums
from tdsl.autoschedule.recipes.matmul import tile
from tdsl.autoschedule.recipes.online_bands import LEAST as FEW_ROWS
from tdsl.autoschedule.recipes.online_bands import OnlineBands, needs_tiles, online_bands
from tdsl.autoschedule.recipes.pairs import pairs
from tdsl.autoschedule.recipes.rows import RowChain, plan_rows, write_rows
from tdsl.autoschedule.recipes.stencil import write_strips
from tdsl.autoschedule.unflatten_quotients import unflatten_quotients
from tdsl.errors import ScheduleError
from tdsl.lang.regions import Box
from tdsl.machine.model import Machine
from tdsl.schedule.bind import bind_state
from tdsl.schedule.directive import Directive
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.fold_update import is_most_of
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.masked import remove_unused_masks, unused_masks, with_masks
from tdsl.schedule.properties import (
    extents,
    root_boxes,
    unplaced_at_root,
    work_per_point,
)
from tdsl.schedule.state import AfterProducer, Root, State


class Completed(NamedTuple):
    """A state with a place and loops for every func, the decisions, and their directives."""

    state: State
    decisions: tuple[Decision, ...]
    directives: tuple[Directive, ...]


def complete_by_recipes(state: State, machine: Machine) -> Completed:
    """The state with a place and loops for every func by recipes, without the search."""
    given, schedule = state, BaseSchedule.of_state(with_masks(state))
    if machine.has_vectors:
        _fold_updates(schedule)
        if not machine.block_threads:
            unflatten_quotients(schedule)
    online: list[Decision] = []
    if machine.block_threads:
        from tdsl.autoschedule.on_gpu import schedule_online

        online = schedule_online(schedule, machine)  # before inlining: weights are a separate stage
        join_reductions(schedule, host_funcs(schedule.state))
    decisions = _inline(schedule, products_read_values=machine.block_threads > 0)
    if "mma" in machine.features:
        outline_results(schedule)
    place_readers(schedule)
    if not machine.block_threads:
        online = _long_rows(schedule, machine)
    if machine.has_vectors and not machine.block_threads:
        block_arg_reductions(schedule, machine, host_funcs(schedule.state))
    order = _order(given, schedule.state)
    decisions += online
    decided = {name for d in online for name in (d.func, *d.inside)}
    plans, rooted = schedule.state.plans, open_at_root(schedule.state) - decided
    open_ = {name for name, plan in plans if not plan.scheduled} - host_funcs(schedule.state)
    by_hand = [name for name, _ in plans if name not in open_ | rooted | decided]
    added: dict[str, tuple[str, ...]] = {}
    if machine.has_vectors:
        boxes = root_boxes(unplaced_at_root(schedule.state))
        of_owners = _schedule_owners(schedule, open_, rooted, boxes, machine)
        decisions += of_owners
        with_threads = {d.func for d in of_owners}
        by_hand = [name for name in by_hand if name not in with_threads]
        added = fill_in(schedule, by_hand, boxes, machine)
    elif machine.block_threads:
        from tdsl.autoschedule.on_gpu import schedule_on_gpu

        schedule.state = unplaced_at_root(schedule.state)
        said = {name: tuple(text_by_hand(plan)) for name, plan in plans}
        kernels = schedule_on_gpu(schedule, open_ | rooted, machine)
        decisions += [replace(d, why=(*d.why, *said.get(d.func, ()))) for d in kernels]
    else:
        decisions += [Decision(name, ROOT, why=("the target has no vectors",)) for name in open_ | rooted]
    for name in by_hand:
        by_default = (f"by default: {', '.join(added[name])}",) if name in added else ()
        decisions.append(Decision(name, BY_HAND, (schedule.state.plan(name),), why=by_default))
    order = _order(given, schedule.state) | order
    decisions.sort(key=lambda d: order[d.func])
    state = inline_funcs(unplaced_at_root(schedule.state))  # recipes may have inlined some, too
    whole = remove_unused_masks(state, machine)
    left_out = dict(unused_masks(given, whole, machine))
    with_reasons = map(
        functools.partial(_with_policies_left_out, whole), _with_masks_left_out(decisions, left_out)
    )
    return Completed(whole, tuple(with_reasons), schedule.directives)


def _fold_updates(schedule: BaseSchedule) -> None:
    """Fold updates of most points of an output without directives into its first definition.

    Funcs inside of the loops of others stay as they are: their points wait in a cache to be overwritten.
    """
    hosts = host_funcs(schedule.state)
    for name in schedule.state.program.outputs:
        state, f = schedule.state, schedule.state.program.func(name)
        plan = state.plan(name)
        if len(f.definitions) == 1 or plan.scheduled or plan.place is not None or name in hosts:
            continue
        if not any(state.consumers(name)) and is_most_of(f, extents(f, f.definitions[1], f.natural)):
            with suppress(ScheduleError):
                schedule[name].update(0).fold_update()


def _schedule_owners(
    schedule: BaseSchedule, open_: set[str], rooted: set[str], boxes: dict[str, Box], machine: Machine
) -> list[Decision]:
    """Schedule the funcs whose loops are open with the funcs that these alone read; the decisions.

    `open_` are without directives, `rooted` at the root by hand; those with threads by hand are added.
    """
    state, decisions, done = schedule.state, list[Decision](), set[str]()
    threads = {n: v for n, v in with_threads_only(state).items() if n in boxes}
    parted = {name for name in open_ if name in boxes and _has_parts(state, name, boxes[name])}
    for name in _in_order(state, open_ | rooted | threads.keys()):
        if name in done:
            continue
        if name not in boxes:
            decisions.append(Decision(name, ROOT, why=("none of its values is needed",)))
            continue
        group = group_of(schedule.state, name, open_ - done - parted)
        given = schedule.state.plan(name)
        if name in threads:
            around = _around_threads(schedule, name, threads[name], group, boxes, machine)
            if around is None:
                continue
            decision = around
        else:
            decision = _schedule_group(schedule, name, group, boxes, machine)
        decision = replace(decision, why=(*decision.why, *text_by_hand(given)))
        done |= {name, *decision.inside, *decision.siblings}
        decisions.append(decision)
        reason = (f"reduced in parts in the loops of {name}",)
        decisions += [Decision(x, decision.how, why=reason) for x in decision.siblings]
    return decisions


def _order(given: State, state: State) -> dict[str, float]:
    """The order of funcs, each func that was added since just before the func it was added for."""
    order: dict[str, float] = {f.name: n for n, f in enumerate(given.program.funcs)}
    at = float(len(order))
    for f in reversed(state.program.funcs):
        at = order.get(f.name, at)
        order.setdefault(f.name, at - 0.5)
    return order


def _with_masks_left_out(decisions: Iterable[Decision], left_out: Mapping[str, str]) -> Iterator[Decision]:
    """The decisions, with a reason for each `skip_masked` that has no effect."""
    for d in decisions:
        names = [n for n in (d.func, *d.inside, *d.siblings) if n in left_out]
        reasons = (f"skip_masked of {n}: all terms are computed, {left_out[n]}" for n in names)
        yield replace(d, why=(*d.why, *reasons)) if names else d


def _with_policies_left_out(state: State, d: Decision) -> Decision:
    """The decision, with a reason for each `cache_policy` that has no effect, since no array is loaded."""
    plan, arrays = state.by_name.get(d.func), {x.name for x in state.program.inputs}
    arrays |= {name for name, p in state.plans if p.place in (None, Root())}
    policies = () if plan is None else plan.policies
    reasons = (
        f"cache_policy of {x}: it is not an array in global memory" for x, _ in policies if x not in arrays
    )
    return replace(d, why=(*d.why, *reasons))


def read_in_tiles(schedule: BaseSchedule, machine: Machine) -> list[tuple[str, OnlineBands]]:
    """Apply `online_bands` to sums over rows too long for the caches whose weights read other reductions.

    Does nothing if any func has directives, since these sums change the funcs that they read. Returns the
    sums with their plans.
    """
    applied: list[tuple[str, OnlineBands]] = []
    if not machine.has_vectors or any(plan.scheduled for _, plan in schedule.state.plans):
        return applied
    state = bind_state(schedule.state, schedule.sizes)
    open_ = {g.name for g in state.program.funcs}
    for f in state.program.funcs:
        d = f.definitions[0]
        single = len(f.definitions) == 1 and d.init is not None and len(d.free) > 1
        if not single or not schedule.state.program.has_func(f.name):
            continue
        group = map(state.program.func, group_of(state, f.name, open_))
        # scores, weights and funcs between them; others have one value per row
        arrays = max(sum(len(g.variables) >= len(f.variables) for g in group), 2)
        if not needs_tiles(d, arrays, machine):
            continue
        if (extents(f, d, f.natural)[d.free[-2]] or 0) < FEW_ROWS:
            continue
        try:
            with schedule.all_or_nothing():
                plan = online_bands(schedule[f.name], machine=machine)
        except ScheduleError:
            continue  # its terms need nothing, or nothing that can be corrected
        applied.append((f.name, plan))
    return applied


def _long_rows(schedule: BaseSchedule, machine: Machine) -> list[Decision]:
    decisions = []
    for name, plan in read_in_tiles(schedule, machine):
        inside = tuple(n for n, p in schedule.state.plans if p.scheduled and n != name)
        decisions.append(Decision(name, "online_bands", (plan,), inside))
    return decisions


def _inline(schedule: BaseSchedule, *, products_read_values: bool) -> list[Decision]:
    """Inline the funcs that `choose_inline` chooses, and replace their reads at once; the decisions."""
    state, decisions = choose_inline(schedule.state, products_read_values=products_read_values)
    schedule.state = _without_unread_hosts(inline_funcs(state))
    schedule.directives += tuple(Directive("inline", d.func, 0, ()) for d in decisions)
    return decisions


def _in_order(state: State, open_: set[str]) -> list[str]:
    """Consumers before producers; last the reductions that may run in the loops of other funcs."""
    names = [f.name for f in reversed(state.program.funcs) if f.name in open_]
    return sorted(names, key=lambda name: _is_lone_sum(state, name, open_))


def _has_parts(state: State, name: str, box: Box) -> bool:
    """True for a reduction of many rows to few values, which is computed in parts (`count_parts`)."""
    f = state.program.func(name)
    return len(f.definitions) == 1 and count_parts(f, 0, box) > 0


def _is_lone_sum(state: State, name: str, open_: set[str]) -> bool:
    """True for a reduction that no func reads, of inputs or of funcs that other funcs read, too."""
    reduces = state.program.func(name).definitions[0].init is not None
    read = any(True for _ in state.consumers(name))
    return reduces and not read and not group_of(state, name, open_)


def _without_unread_hosts(state: State) -> State:
    """The state with funcs at the root that are placed after a producer which they no longer read."""
    for name, plan in state.plans:
        match plan.place:
            case AfterProducer(level) if level.func not in state.program.func(name).definitions[0].sources:
                state = state.with_plan(name, replace(plan, place=Root()))
    return state


def by_recipe(
    schedule: BaseSchedule, state: State, owner: str, group: list[str], boxes: dict[str, Box],
    machine: Machine,
) -> Decision | None:  # fmt: skip
    """Apply the recipe that fits a func and its group, the funcs that it alone reads; the decision.

    `state` is that of the schedule with known sizes. Returns None if no recipe fits.
    """
    before = schedule.state
    bands = plan_bands(state, owner, group, boxes, machine)
    if bands is not None:
        write_bands(schedule, *bands, machine)
        return recipe_decision(before, schedule.state, owner, "bands", *bands[1:])
    contraction = recognize(state, owner, group, boxes)
    if isinstance(contraction, Contraction):
        how, tiled = "conv", convolve(schedule, contraction, machine)
        if not tiled:
            tiled, how = [(contraction, plan_tiles(contraction, machine))], "matmul"
            tile(schedule, *tiled[0])
        return recipe_decision(before, schedule.state, owner, how, *chain.from_iterable(tiled))
    separate = separate_products(state, owner, group, boxes, machine)
    if separate:
        group = group_of(state, owner, {*group} - separate)
    sums = if_suited(inner_sums, schedule[owner], machine=machine) if group else None
    if sums is not None:
        return recipe_decision(before, schedule.state, owner, "inner_sums", sums)
    pair_plan = if_suited(pairs, schedule[owner], machine=machine) if group else None
    if pair_plan is not None:
        return recipe_decision(before, schedule.state, owner, "pairs", pair_plan)
    window = find_window(state, owner, group, boxes) if len(group) <= 1 else None
    tiled = [] if window is None else convolve(schedule, window, machine)
    if tiled:
        return recipe_decision(before, schedule.state, owner, "conv", *chain.from_iterable(tiled))
    f = state.program.func(owner)
    if len(f.definitions) == 1 and f.definitions[0].init is None:
        return _fuse_group(schedule, state, owner, group, boxes, machine)
    return None


def _schedule_group(
    schedule: BaseSchedule, owner: str, group: list[str], boxes: dict[str, Box], machine: Machine
) -> Decision:
    state = schedule.state
    decision = by_recipe(schedule, state, owner, group, boxes, machine)
    if decision is not None:
        return decision
    f = state.program.func(owner)
    siblings = reduce_siblings(schedule[owner], boxes, machine)
    if siblings:
        return Decision(owner, GENERAL, (schedule.state.plan(owner),), siblings=siblings)
    for n in range(len(f.definitions)):
        stage = Stage(schedule, owner, n)
        if not in_parts(stage, boxes[owner], machine.vector_bytes):
            shape_nest(stage, boxes[owner], machine.vector_bytes, outer=True)
    if pays_to_stream(schedule.state, owner, boxes, work_per_point(f), machine):
        schedule[owner].stream_stores()
    alone = "no func that it alone reads stays in a cache along its lines"
    reasons = (
        f"not matmul: {recognize(state, owner, group, boxes)}",
        f"not strips: {alone if group else 'it alone reads no func'}",
    )
    return Decision(owner, GENERAL, (schedule.state.plan(owner),), why=reasons)


def _around_threads(
    schedule: BaseSchedule, owner: str, loop: str, group: list[str], boxes: dict[str, Box], machine: Machine
) -> Decision | None:
    """As `_schedule_group` for a func of which a directive says that `loop` runs on threads.

    None if no loop is over this variable alone, or threads work on parts of a reduction.
    """
    if count_parts(schedule.state.program.func(owner), 0, boxes[owner]):
        return None
    try:
        with schedule.all_or_nothing():
            open_threads(schedule[owner], loop)
            decision = _schedule_group(schedule, owner, group, boxes, machine)
            move_threads(schedule[owner], loop)
    except ScheduleError:
        return None
    return decision


def _fuse_group(
    schedule: BaseSchedule, state: State, owner: str, group: list[str], boxes: dict[str, Box],
    machine: Machine,
) -> Decision | None:  # fmt: skip
    """Compute a group inside the loops of its owner, by rows or strips; None if that gives no locality."""
    plan = plan_strips(state, owner, group, boxes, machine)
    row, *columns = state.program.func(owner).variables or ("",)
    if plan is None and columns and find_sibling_reductions(state, owner, row, boxes, machine):
        plan = Strips(row, (), row, 0, ())
    if plan is None:
        return None
    if plan.height:
        write_strips(schedule, owner, plan, boxes, machine)
        return Decision(owner, "strips", (plan,), plan.inside)
    row_chain = RowChain.of(state, owner, plan, boxes)
    rows = plan_rows(state, row_chain, boxes, machine)
    write_rows(schedule, row_chain, rows, boxes, machine)
    siblings = rows.beside.names if rows.beside else ()
    plan = replace(plan, stream=rows.stream)
    return Decision(owner, "rows", (plan,), plan.inside, siblings=siblings)
