"""vectorize: runs iterations as vector lanes; the partial results of a reduction are combined after it."""

from __future__ import annotations

from contextlib import suppress

from tdsl.errors import ShapeError
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Const, Var
from tdsl.schedule.dependence import accumulated_read, check_dependences, is_independent
from tdsl.schedule.inlining import with_inlined_indices
from tdsl.schedule.loops import check_positive, find_loop, iterations_of, set_kind, split_with_kind
from tdsl.schedule.properties import extent, needed_box
from tdsl.schedule.rfactor import vectorize_reduction
from tdsl.schedule.state import (
    VECTORIZED,
    Illegal,
    State,
    is_ordered,
    is_reduction,
    roots_of,
)  # fmt: skip

MAX_LANES = 1024


def vectorize(state: State, func: str, definition: int, *, loop: str, factor: int | None = None) -> State:
    """Run the iterations of a loop (or groups of `factor` of them) as vector lanes."""
    name = find_loop(state, func, definition, loop)
    nest, f = state.plan(func).nests[definition], with_inlined_indices(state, func)
    d = f.definitions[definition]
    in_lanes = accumulated_read(f, definition) is not None
    in_lanes = in_lanes and not roots_of(nest, name) & {v for e in d.index for v in variables(e)}
    if is_reduction(f, definition, nest, name) and not is_ordered(f, definition) and not in_lanes:
        try:
            vectorized = _as_lanes(state, func, definition, name, factor)
            lane = name if factor is None else nest.fresh_name(f"{name}_v")
            independent = d.init is None
            independent = independent and is_independent(vectorized, func, definition, lane)
        except Illegal:
            independent = False
        if not independent:  # lanes update the same elements
            return vectorize_reduction(state, func, definition, name, factor)
    vectorized = _as_lanes(state, func, definition, name, factor)
    try:
        check_dependences(vectorized, func, definition)
    except Illegal as reason:  # a hint that names the user's loop, not the loop of lanes
        raise Illegal(reason.reason, f"leave {name!r} serial", reason.related) from None
    return vectorized


def _as_lanes(state: State, func: str, definition: int, name: str, factor: int | None) -> State:
    """Run the iterations of a loop, or groups of `factor` of them, as vector lanes."""
    if factor is not None:
        lanes = check_positive(factor, "the number of lanes")
        if lanes > MAX_LANES:
            raise Illegal(f"{lanes} lanes are too many", "use a small multiple of the vector width")
        return split_with_kind(state, func, definition, name, lanes, "v", VECTORIZED)
    extent = iterations_of(state, func, definition, name)
    if extent is None:
        d = state.program.func(func).definitions[definition]
        extent = iterations_of(state, func, definition, name, _extents_needed(state, func, d))
    if extent is not None and extent > MAX_LANES:
        raise Illegal(
            f"{name!r} has {extent} iterations, too many for one vector",
            f"say how many lanes: vectorize({name!r}, 16)",
        )
    if extent is None:
        raise Illegal(
            f"the number of iterations of {name!r} is not a constant here",
            f"say how many lanes: vectorize({name!r}, 16)",
        )
    return set_kind(state, func, definition, name, VECTORIZED)


def _extents_needed(state: State, func: str, d: Definition) -> dict[str, int | None]:
    """The constant extents of the variables of a func on the box that its readers need."""
    f, extents = state.program.func(func), dict[str, int | None]()
    with suppress(ShapeError):  # the program has an output whose range is not known
        box = needed_box(state, f)
        for axis, e in enumerate(d.index):
            if isinstance(e, Var) and all(isinstance(end, Const) for end in box[axis]):
                extents[e.name] = extent(box, axis)
    return extents
