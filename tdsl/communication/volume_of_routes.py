"""The volume of routes, whose indices are known when they run only: expected numbers for all ranks."""

from __future__ import annotations

import numpy as np

from tdsl.communication.expected_rows import expected_elements, expected_rows, rounded_levels
from tdsl.communication.rank_boxes import Numbers, RankBoxes
from tdsl.communication.routed_reads import route_of
from tdsl.communication.stages import RoutedRead, Spans
from tdsl.communication.steps import ROUTE_TAGS, Route
from tdsl.communication.totals import Communication, Totals
from tdsl.placement.grid import Coordinates


def add_routes(totals: Totals, boxes: RankBoxes, inner: Spans) -> dict[str, Numbers]:
    """Add the routes of an iteration to the totals; returns the elements of the buffers of their rows."""
    stage, rows = boxes.stage, dict[str, Numbers]()
    for route in stage.routes:
        if stage.levels[route.name] != stage.fixed + len(inner):
            continue
        rows[route.name] = boxes.read(route.name, inner).counts()
        steps = _steps(boxes, route, inner, totals.tag)
        indices = totals.zeros()
        for step in steps:
            indices[list(step.ranks)] = [step.index_count(n) for n in range(len(step.ranks))]
        totals.allocate(route.key.name, indices)
        totals.allocate(route.name, rows[route.name])
        totals.free(route.key.name, indices)
        _communicate(totals, stage.name, route, steps)
    return rows


def _steps(boxes: RankBoxes, route: RoutedRead, inner: Spans, tag: int) -> list[Route]:
    """The route of each group of ranks."""
    layout, steps, seen = boxes.layout, list[Route](), set[int]()
    for rank in range(layout.grid.size):
        if rank not in seen:
            at: Coordinates = layout.grid.coordinates(rank)
            steps.append(route_of(boxes.stage, layout, route, at, inner, tag))
            seen.update(steps[-1].ranks)
    return steps


def _communicate(totals: Totals, func: str, route: RoutedRead, steps: list[Route]) -> None:
    """Add the three all-to-alls of a route, of numbers of rows, of offsets and of rows."""
    depths, zeros = totals.layout.grid.depths, totals.zeros
    sent, received = [zeros() for _ in range(ROUTE_TAGS)], [zeros() for _ in range(ROUTE_TAGS)]
    crossing = [[zeros() for _ in depths] for _ in range(ROUTE_TAGS)]
    messages = zeros()
    for step in steps:
        rows, elements = expected_rows(step)
        messages[list(step.ranks)] = min(len(step.ranks) - 1, 1)
        for n, rank in enumerate(step.ranks):
            for phase, (out, into) in enumerate(expected_elements(step, n)):
                sent[phase][rank], received[phase][rank] = out, into
            if len(depths) > 1:
                levels = _levels(totals, step, n)
                moved = (np.ones(len(rows)), rows[:, n], rows[n] * elements[n])
                for phase, values in enumerate(moved):
                    for level, count in enumerate(rounded_levels(values, levels, len(depths))):
                        crossing[phase][level][rank] = count
    for phase, tensor in enumerate((route.key.name, route.key.name, route.tensor)):
        by_level = tuple(crossing[phase]) if len(depths) > 1 else (received[phase],)
        totals.communicate(
            Communication(totals.tag, func, tensor, received[phase], sent[phase], messages, by_level)
        )


def _levels(totals: Totals, step: Route, member: int) -> Numbers:
    """The level of the grid that messages between a member and each other one cross; -1 for itself."""
    grid, rank = totals.layout.grid, step.ranks[member]
    return np.array([-1 if r == rank else grid.crossed_level((r, rank)) for r in step.ranks])
