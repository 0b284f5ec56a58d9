"""Legality of `reverse_compute_at`: whether a consumer can run on the points one iteration produces."""

from __future__ import annotations

from tdsl.lang.expr import Var
from tdsl.lang.program import FuncDef
from tdsl.schedule.inlining import readers_of
from tdsl.schedule.state import (
    Fuse,
    Illegal,
    Level,
    Nest,
    Rename,
    Rotate,
    Split,
    State,
    is_reduction,
)


def check_after(state: State, func: str, level: Level) -> None:
    """Raise Illegal unless a func can be computed after its producer inside a loop of that producer."""
    f, source = state.program.func(func), state.program.func(level.func)
    d = f.definitions[0]
    if len(f.definitions) > 1 or d.init is not None:
        raise Illegal(f"{func!r} is not element-wise", "only pure funcs can follow their producer")
    if len(source.definitions) > 1:
        raise Illegal(f"{level.func!r} has updates, which come after that loop", "use compute_at instead")
    _check_elementwise(f, level.func)
    nest = state.plan(level.func).nests[level.definition]
    _check_complete(source, nest, level)
    _check_is_box(nest, level)
    for c in readers_of(state, level.func):
        if c.name != func:
            raise Illegal(f"{c.name!r} reads {level.func!r}, too", "only a sole consumer can follow it")
    if level.func in state.program.outputs:
        raise Illegal(f"{level.func!r} is an output", "only an intermediate can be consumed in place")


def _check_elementwise(f: FuncDef, producer: str) -> None:
    reads = [r for r in f.definitions[0].reads if r.name == producer]
    if not reads:
        raise Illegal(f"{f.name!r} does not read {producer!r}", "name its producer")
    variables = sorted(f.variables)
    for r in reads:
        if sorted(e.name if isinstance(e, Var) else "" for e in r.index) != variables:
            raise Illegal(
                f"{f.name!r} reads {producer!r} at other points than its own",
                "only element-wise consumers can follow their producer; use compute_at the other way",
                ((r.loc, "this read"),),
            )
        if r.index != reads[0].index:
            raise Illegal(f"{f.name!r} reads {producer!r} in two orders of its dimensions", "use compute_at")


def _check_complete(source: FuncDef, nest: Nest, level: Level) -> None:
    for x in nest.names()[: nest.position(level.loop) + 1]:
        if is_reduction(source, level.definition, nest, x):
            raise Illegal(
                f"inside {x!r} the values of {source.name!r} are not complete",
                f"place it outside of {x!r}",
            )


def _check_is_box(nest: Nest, level: Level) -> None:
    """Raise Illegal if the points that a body computes are not a box, the only shape that can be copied."""
    whole, block, fixed = "whole", "block", "fixed"
    at = nest.position(level.loop)
    parts = {x: fixed if n <= at else whole for n, x in enumerate(nest.names())}
    for r in reversed(nest.relations):
        match r:
            case Rename(old, new):
                parts[old] = parts.pop(new)
            case Rotate(old, new):
                part = parts.pop(new)
                if part == block:
                    raise Illegal(
                        f"the body of {level.loop!r} makes a part of {new!r}, which is no box",
                        f"do not split {new!r}",
                    )
                parts[old] = part
            case Split(parent, outer, inner):
                around, within = parts.pop(outer), parts.pop(inner)
                if around != fixed and within != whole:
                    raise Illegal(
                        f"the body of {level.loop!r} makes every few points of {parent!r} only",
                        f"put {outer!r} outside of {inner!r}, or both inside of {level.loop!r}",
                    )
                parts[parent] = within if around == fixed and within != whole else block
                if around == whole:
                    parts[parent] = whole
            case Fuse(fused, outer, inner):
                part = parts.pop(fused)
                if part == block:
                    raise Illegal(
                        f"the body of {level.loop!r} makes a part of {fused!r}, which is no box",
                        f"do not split {fused!r}",
                    )
                parts[outer] = parts[inner] = part
