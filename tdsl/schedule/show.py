"""Prints a schedule as the Python code that rebuilds it, and its loop nests."""

from __future__ import annotations

import json
from typing import Any, assert_never

from tdsl.placement.grid import grid_text
from tdsl.schedule.directive import Directive
from tdsl.schedule.state import SERIAL, AfterProducer, At, Inline, Place, Root, State, WithStage


def show_schedule(directives: tuple[Directive, ...]) -> str:
    """Directives as Python calls on a schedule named `s`, one a line; loops are given by name.

    >>> split = Directive("split", "f", 0, (("loop", "x"), ("factor", 8)))
    >>> print(show_schedule((split, Directive("parallel", "f", 0, (("loop", "x_o"),)))))
    s["f"].split("x", 8)
    s["f"].parallel("x_o")
    """
    return "\n".join(_call_text(d) for d in directives)


def show_nests(state: State) -> str:
    """The current loops of each definition and the place where it is computed, as text.

    >>> from tdsl.lang.build_program import build_program
    >>> from tdsl.lang.tensor import Func
    >>> from tdsl.lang.value import vars
    >>> from tdsl.schedule.state import initial_state
    >>> x, f = vars("x"), Func("f", (8,))
    >>> f[x] = x * 2
    >>> print(show_nests(initial_state(build_program((f,)))))
    f: x
    """
    lines = []
    for name, plan in state.plans:
        for n, nest in enumerate(plan.nests):
            loops = ", ".join(x.name if x.kind == SERIAL else f"{x.name} ({x.kind})" for x in nest.loops)
            where = "" if n or plan.place is None else f", {_place_text(plan.place)}"
            lines.append(f"{name}{f'.update({n - 1})' if n else ''}: {loops or 'no loops'}{where}")
    return "\n".join(lines)


def _place_text(place: Place) -> str:
    match place:
        case Root():
            return "at the root"
        case Inline():
            return "inlined"
        case At(level):
            return f"in {level.loop} of {level.func}"
        case AfterProducer(level):
            return f"after what {level.loop} of {level.func} makes"
        case WithStage(level):
            return f"with {level.func} down to {level.loop}"
        case _:
            assert_never(place)


def _call_text(d: Directive) -> str:
    a = dict(d.arguments)
    stage = _stage_text(d.func, d.definition)
    match d.name:
        case "cache_read":
            at = "" if a["loop"] is None else f", at={_value(a['loop'])}"
            pack = f", pack={dict(a['pack'])}" if a.get("pack") else ""
            rest = _options(
                a,
                "source",
                "loop",
                "pack",
                scope="auto",
                padded=False,
                mapped=False,
                inside=False,
                name=None,
            )
            return f"s.cache_read({_value(a['source'])}, {stage}{at}{rest}{pack})"
        case "cache_write":
            rest = _options(a, "loop", scope="auto", name=None)
            at = "" if a["loop"] is None else f", at={_value(a['loop'])}"
            return f"s.cache_write({stage}{at}{rest})"
        case "compute_at" | "store_at":
            where = _stage_text(a["consumer"], a["consumer_definition"])
            return f"{stage}.{d.name}({where}, {_value(a['loop'])})"
        case "reverse_compute_at":
            where = _stage_text(a["producer"], a["producer_definition"])
            return f"{stage}.{d.name}({where}, {_value(a['loop'])})"
        case "compute_with":
            where = _stage_text(a["other"], a["other_definition"])
            return f"{stage}.{d.name}({where}, {_value(a['loop'])})"
        case "reorder":
            return f"{stage}.reorder({', '.join(map(_value, a['loops']))})"
        case "flatten":
            names = ", ".join(map(_value, a["variables"]))
            return f"{stage}.flatten({names}{_options(a, 'variables')})"
        case "reorder_storage":
            return f"{stage}.reorder_storage({', '.join(map(_value, a['dims']))})"
        case "split":
            first = [_value(a["loop"])] + ([_value(a["factor"])] if "factor" in a else [])
            return f"{stage}.split({', '.join(first)}{_options(a, 'loop', 'factor')})"
        case "cooperate":
            return f"{stage}.cooperate({a['vector']}{_options(a, 'vector')})"
        case "prefetch":
            of = f", of={_value(a['of'])}" if a.get("of") else ""
            return f"{stage}.prefetch({_value(a['source'])}, {_value(a['loop'])}, {a['offset']}{of})"
        case "distribute":
            return f"{stage}.distribute({_value(a['loops'])}, {grid_text(a['grid'], 'td.')})"
        case "communicate":
            rest = _options(
                a, "tensors", "at", prefetch=0, deterministic=False, overlap=False, routed=None, since=None,
                until=None, behind=None,
            )  # fmt: skip
            return f"{stage}.communicate({_value(a['tensors'])}, at={_value(a['at'])}{rest})"
        case "rotate":
            return f"{stage}.rotate({_value(a['loop'])}, by={_value(a['by'])})"
        case "specialize":
            arguments = ", ".join(f"{k}={_value(v)}" for k, v in a.items())
            return f'{stage}.do("specialize", {arguments})'
        case "place" | "ranks" | "overwrite" | "donate" | "interleave":
            return f"s.{d.name}({_schedule_arguments(d, a)})"
        case _:
            return f"{stage}.{d.name}({', '.join(_value(v) for v in a.values())})"


def _schedule_arguments(d: Directive, a: dict[str, Any]) -> str:
    """The arguments of a directive of the whole schedule."""
    match d.name:
        case "place":
            return f"{_value(a['tensor'])}, {_value(a['notation'])}, {grid_text(a['grid'], 'td.')}"
        case "overwrite":
            return f"{_value(d.func)}, {_value(a['source'])}"
        case "interleave":
            items = ", ".join(_item_text(item) for item in a["items"])
            return f"[{items}]{_options(a, 'items', order=None)}"
        case _:
            return ", ".join(map(_value, a.values()))


def _item_text(item: tuple[tuple[str, str], ...]) -> str:
    """The loops that advance together: one as a pair of its func and its name, several as a list."""
    pairs = ", ".join(map(_value, item))
    return pairs if len(item) == 1 else f"[{pairs}]"


def _stage_text(func: str, definition: int) -> str:
    return f's["{func}"]' + (f".update({definition - 1})" if definition else "")


def _options(arguments: dict[str, Any], *done: str, **defaults: Any) -> str:
    rest = {k: v for k, v in arguments.items() if k not in done and not (k in defaults and v == defaults[k])}
    return "".join(f", {k}={_value(v)}" for k, v in rest.items())


def _value(value: Any) -> str:
    match value:
        case str():
            return json.dumps(value)
        case tuple():
            inner = ", ".join(map(_value, value))
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        case _:
            return repr(value)
