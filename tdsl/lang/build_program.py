"""`build_program`: turns output handles into a `Program`, with unique names and inferred ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdsl.core.source import here
from tdsl.errors import DefinitionError
from tdsl.lang.program import Program

if TYPE_CHECKING:  # what builds a program is not needed to import tdsl
    from tdsl.lang.collector import Collector


def build_program(
    outputs: tuple[Any, ...], parameters: tuple[Any, ...] = (), name: str | None = None
) -> Program:
    """The program that computes the funcs `outputs`; `parameters` are the handles of its first arguments.

    The other inputs follow in order of creation, except that the operands of an einsum are permuted to the
    order in which einsum was given them; if two einsums disagree, the later one decides.

    Raises DefinitionError for an undefined func, an output or a name used twice, ShapeError if ranges
    disagree.
    """
    from tdsl.lang.fold_counts import fold_counts
    from tdsl.lang.gradients.stop_gradient import without_stops

    return fold_counts(without_stops(inferred_program(outputs, parameters, name)[0]))


def inferred_program(
    outputs: tuple[Any, ...], parameters: tuple[Any, ...] = (), name: str | None = None
) -> tuple[Program, dict[str, Any]]:
    """As `build_program`, with all components of each func, and the handles of tensors and funcs by name."""
    from tdsl.lang.collector import Collector
    from tdsl.lang.infer import infer

    collected = Collector()
    for p in parameters:
        collected.input(p)
    for n, f in enumerate(outputs):
        _check_distinct(f, outputs[:n])
        collected.func(f)
    collected.check_extents()
    order = {name: n for n, name in enumerate(collected.arguments(len(parameters)))}
    names = tuple(collected.names[id(f)] for f in outputs)
    program = Program(
        name or outputs[0].name, tuple(sorted(collected.inputs, key=lambda t: order[t.name])),
        tuple(sorted(collected.scalars, key=lambda s: order[s.name])), tuple(collected.funcs),
        names, tuple(order), names,
    )  # fmt: skip
    return infer(program), collected.handles


def _collect(outputs: tuple[Any, ...]) -> Collector:
    from tdsl.lang.collector import Collector

    collected = Collector()
    for f in outputs:
        collected.func(f)
    return collected


def inputs_in_read_order(outputs: tuple[Any, ...]) -> tuple[str, ...]:
    """The inputs of a program in the order in which it reads them."""
    collected = _collect(outputs)
    return tuple(collected.created)


def _check_distinct(f: Any, before: tuple[Any, ...]) -> None:
    if any(f is other for other in before):
        raise DefinitionError(
            f"{f.name!r} is an output twice",
            loc=here(),
            label="needed here",
            related=((f.loc, "made here"),),
            hint=f"each output has memory of its own: return {f.name} once, or a func that copies it",
        )


def mutable_state(outputs: tuple[Any, ...]) -> tuple[tuple[str, int, bool], ...]:
    """The mutable state of each func: its name, number of definitions, and whether its shape is declared."""
    collected = _collect(outputs)
    return tuple((f.name, len(f.definitions), f.declared) for f in collected.funcs)


def names_by_handle(outputs: tuple[Any, ...]) -> dict[int, str]:
    """The unique name of each tensor and func that is reachable from `outputs`, by `id` of its handle."""
    collected = _collect(outputs)
    return collected.names
