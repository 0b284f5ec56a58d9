"""The least time of a func on a machine with any schedule: little is gained where a price is close to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from tdsl.cost.seconds import bytes_per_second, work_seconds
from tdsl.cost.terms import VECTOR, Body, Issue
from tdsl.lang.definition import Definition
from tdsl.lang.operations import operations_of
from tdsl.lang.program import FuncDef, Program
from tdsl.lang.regions import Box
from tdsl.machine.model import Machine
from tdsl.schedule.properties import element_bytes, extents, volume


def operation_seconds(d: Definition, machine: Machine) -> Iterator[tuple[frozenset[str], float]]:
    """The variables that each operation of a point needs, and its seconds on one thread in full vectors."""
    for x in operations_of(d):
        body = Body(((Issue(VECTOR, x.op, x.dtype.name), x.count),))
        yield x.needs, sum(work_seconds(body, machine).values())


def point_seconds(d: Definition, sizes: Mapping[str, int | None], machine: Machine) -> float:
    """The seconds of one thread for a point of a definition if no value is computed twice."""
    return sum(
        seconds / prod(n or 1 for v, n in sizes.items() if v not in needs)
        for needs, seconds in operation_seconds(d, machine)
    )


def least_work(f: FuncDef, boxes: Mapping[str, Box], machine: Machine) -> float:
    """The time of the operations of a func on all threads; `boxes` are those that are needed of each func."""
    work = 0.0
    for d in f.definitions:
        sizes = extents(f, d, boxes[f.name])
        work += prod(n or 1 for n in sizes.values()) * point_seconds(d, sizes, machine) / machine.threads
    return work


def least_seconds(program: Program, f: FuncDef, boxes: Mapping[str, Box], machine: Machine) -> float:
    """The time of the operations of a func on all threads, or of its bytes that come from memory at least.

    `boxes` are those that are needed of each func and input.
    """
    read = {r.name for d in f.definitions for r in d.reads} - {f.name}
    moved = sum((volume(boxes[n]) or 0) * element_bytes(program, n) for n in read if n in boxes)
    moved += 2 * (volume(boxes[f.name]) or 0) * element_bytes(program, f.name)
    far = bytes_per_second(machine.levels[-1], machine, machine.threads)
    return max(least_work(f, boxes, machine), moved / far if moved > machine.llc_bytes else 0.0)
