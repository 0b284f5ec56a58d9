"""The root stages of a program: the funcs computed at the root, each with the funcs computed in its loops.

A root stage can run as a kernel of its own, with the temporaries between stages as arguments; the bytes that
it reads and writes follow from the region function.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tdsl.codegen.ir.kernel_names import KernelNames
from tdsl.codegen.ir.loops import (
    Alloc,
    Argument,
    Block,
    BufferParam,
    CopyTile,
    Invoke,
    Kernel,
    Operand,
    Prefetch,
    Stmt,
    Store,
    row_major,
)  # fmt: skip
from tdsl.codegen.runtime.signature import extent
from tdsl.core.node import frozen, post_order
from tdsl.lang.bounds import NO_FACTS
from tdsl.lang.expr import ONE, Const, Load
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, union_box
from tdsl.lang.simplify import add, subtract
from tdsl.schedule.bounds_inference import boxes_read, funcs_inside, required_boxes
from tdsl.schedule.state import Level, State
from tdsl.schedule.tree import ROOT, ScheduleTree, build_tree


@frozen
class RootStage:
    """A func computed at the root.

    `inside` are the funcs computed in its loops, each with the bytes of its box. `read` and `written` are
    bytes: the boxes of tensors outside of the stage that it reads and of those that it writes, each once.
    """

    func: str
    inside: tuple[tuple[str, int], ...]
    read: int
    written: int


def root_stages(state: State) -> tuple[RootStage, ...]:
    """The root stages of a complete state whose sizes are numbers, in execution order."""
    tree = build_tree(state)
    start = {name: state.program.func(name).natural for name in state.program.outputs}
    boxes = required_boxes(tree, state, (ROOT,), start, [], NO_FACTS)
    return tuple(_stage(state, tree, boxes, name) for name in tree.computed.get(ROOT, ()))


def _stage(state: State, tree: ScheduleTree, boxes: dict[str, Box], name: str) -> RootStage:
    nests = state.plan(name).nests
    levels = [Level(name, n, loop) for n, nest in enumerate(nests) for loop in nest.names()]
    inner_funcs = funcs_inside(tree, state, levels)
    members = [n for n in tree.order if n in inner_funcs and n in boxes]
    funcs = {name, *members}
    read: dict[str, Box] = {}
    for f in (state.program.func(n) for n in funcs if n in boxes):
        for source, box in _reads(f, boxes[f.name]).items():
            if source not in funcs:
                read[source] = union_box(read.get(source), box)
    outside = {r for f in state.program.funcs if f.name not in funcs for r in _sources(f)}
    outside |= set(state.program.outputs)
    written = [n for n in funcs if n in boxes and n in outside]
    return RootStage(
        name,
        tuple((n, bytes_of(state, n, boxes[n])) for n in members),
        sum(bytes_of(state, n, box) for n, box in read.items()),
        sum(bytes_of(state, n, boxes[n]) for n in written),
    )  # fmt: skip


def _reads(f: FuncDef, box: Box) -> dict[str, Box]:
    boxes: dict[str, Box] = {}
    for d in f.definitions:
        for source, touched in boxes_read(d, box, NO_FACTS).items():
            boxes[source] = union_box(boxes.get(source), touched)
    return boxes


def _sources(f: FuncDef) -> set[str]:
    return {r.name for d in f.definitions for r in d.reads}


def bytes_of(state: State, name: str, box: Box) -> int:
    """The bytes of a box of an input or a func; the bounds of the box are numbers."""
    if state.program.has_func(name):
        element = sum(t.bytes for t in state.program.func(name).dtypes)
    else:
        element = state.program.input(name).dtype.bytes
    return element * math.prod(
        max(0, extent(add(subtract(hi, lo), ONE), {})) for lo, hi in box if lo is not None and hi is not None
    )


def stage_kernels(kernel: Kernel, state: State) -> Iterator[tuple[str, Kernel]]:
    """Splits the kernel that `lower` returns for the state into one kernel for each root stage, in order.

    The temporaries between stages, which the kernel allocates around them, become row-major arguments of the
    same names. Checks at the root belong to the stage after them.
    """
    tree, names = build_tree(state), KernelNames(state.program)
    for n in tree.stored.get(ROOT, ()):  # in the order in which `lower` named them
        names.components(state.program.func(n))
    roots = {b: n for n in tree.computed.get(ROOT, ()) for b in names.components(state.program.func(n))}
    between: list[BufferParam] = []
    bodies: dict[str, list[Stmt]] = {}
    checks: list[Stmt] = []
    for s in _outermost_statements(kernel.body, between):
        stages = {roots[b] for b in _written(s) if b in roots}
        if not stages:
            checks.append(s)
            continue
        (name,) = stages
        bodies.setdefault(name, []).extend([*checks, s])
        checks = []
    for name, body in bodies.items():
        block = Block(tuple(body))
        params = used_params((*kernel.params, *between), block)
        yield name, replace(kernel, name=f"{kernel.name}_{name}", params=params, body=block)


def _outermost_statements(body: Stmt, between: list[BufferParam]) -> Iterator[Stmt]:
    """The statements outside of all loops; buffers allocated around them are added to `between`."""
    match body:
        case Block(parts):
            for part in parts:
                yield from _outermost_statements(part, between)
        case Alloc(name, dtype, extents, _, inner):
            shape = [e.value for e in extents if isinstance(e, Const)]
            assert len(shape) == len(extents), "sizes are numbers"
            between.append(BufferParam(name, dtype, extents, row_major(tuple(shape)), True))
            yield from _outermost_statements(inner, between)
        case _:
            yield body


def _written(s: Stmt) -> set[str]:
    stores = {n.buffer for n in post_order(s) if isinstance(n, Store)}
    return stores | {n.operands[0].buffer for n in post_order(s) if isinstance(n, Invoke)}


def used_params(params: Iterable[Argument], body: Stmt) -> tuple[Argument, ...]:
    """The parameters that `body` uses, with `written` set for the buffers that it stores to."""
    written = _written(body)
    buffers = {n.buffer for n in post_order(body) if isinstance(n, Load | Store | Prefetch | Operand)}
    buffers |= {n.source for n in post_order(body) if isinstance(n, CopyTile)}
    kept: list[Argument] = []
    for p in params:
        if not isinstance(p, BufferParam):
            kept.append(p)
        elif p.name in buffers:
            kept.append(replace(p, written=p.name in written))
    return tuple(kept)
