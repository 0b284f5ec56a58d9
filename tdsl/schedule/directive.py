"""Directives as data: a name, a stage, arguments; applies them to states, converts them to JSON and back."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Protocol

from tdsl.core.node import frozen
from tdsl.core.source import Loc
from tdsl.errors import ScheduleError, did_you_mean
from tdsl.schedule import (
    add_first,
    atomics,
    caches,
    clone_in,
    factor_out,
    flatten,
    fold_update,
    fuse_reductions,
    in_blocks,
    interleave,
    launch,
    masked,
    merge_products,
    online,
    outline,
    overwrite,
    pipelines,
    places,
    ranks,
    reassociate,
    rfactor,
    scans,
    specialize,
    unflatten,
    unsigned,
)
from tdsl.schedule.arguments import check_arguments, check_stage, json_value
from tdsl.schedule.legality import recheck
from tdsl.schedule.state import Illegal, State

DIRECTIVES: dict[str, Callable[..., State]] = {
    **specialize.LOOP_DIRECTIVES, "atomic": atomics.atomic,
    "bind": launch.bind, "cooperate": launch.cooperate, "pipeline": pipelines.pipeline,
    "bulk_copy": pipelines.bulk_copy, "launch_bounds": launch.launch_bounds,
    "grid_sync": launch.grid_sync,
    "compute_at": places.compute_at, "store_at": places.store_at, "store_root": places.store_root,
    "compute_root": places.compute_root, "inline": places.inline,
    "reverse_compute_at": places.reverse_compute_at, "compute_with": places.compute_with,
    "reorder_storage": places.reorder_storage, "align_storage": places.align_storage,
    "fold_storage": places.fold_storage, "bound_extent": places.bound_extent, "set_scope": places.set_scope,
    "swizzle": places.swizzle,
    "stream_stores": places.stream_stores, "cache_policy": places.cache_policy,
    "prefetch": places.prefetch, "pin": places.pin,
    "cache_read": caches.cache_read, "cache_write": caches.cache_write, "rfactor": rfactor.rfactor,
    "specialize": specialize.specialize, "tensorize": specialize.tensorize,
    "flatten": flatten.flatten, "fold_update": fold_update.fold_update, "in_blocks": in_blocks.in_blocks,
    "unflatten": unflatten.unflatten, "unsigned": unsigned.unsigned,
    "online": online.online, "reassociate": reassociate.reassociate,
    "skip_masked": masked.skip_masked, "outline": outline.outline,
    "fuse_reductions": fuse_reductions.fuse_reductions,
    "factor_out": factor_out.factor_out, "merge_products": merge_products.merge_products,
    "add_first": add_first.add_first, "clone_in": clone_in.clone_in,
    "double": scans.double,
    **ranks.RANK_DIRECTIVES,
    "overwrite": overwrite.overwrite, "donate": overwrite.donate,
    "interleave": interleave.interleave,
}  # fmt: skip


@frozen
class Directive:
    """One step of a schedule. `arguments` are JSON values by name."""

    name: str
    func: str
    definition: int
    arguments: tuple[tuple[str, Any], ...]
    loc: Loc | None = field(default=None, compare=False)


def _argument_text(value: Any) -> str:
    if isinstance(value, tuple | list):
        inner = ", ".join(map(_argument_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def apply(directive: Directive, state: State) -> State:
    """The state after a directive; raises ScheduleError, with its source line, if it is illegal."""
    rule = DIRECTIVES.get(directive.name)
    if rule is None:
        raise ScheduleError(
            f"there is no directive {directive.name!r}",
            loc=directive.loc,
            label="this directive",
            hint=did_you_mean(directive.name, DIRECTIVES),
        )
    arguments = dict(directive.arguments)
    try:
        check_stage(state, directive.func, directive.definition)
        check_arguments(state, rule, arguments)
        result = rule(state, directive.func, directive.definition, **arguments)
        recheck(result, directive.func)
        ranks.check_distributed(result, directive.func)
        interleave.check_interleaved(result, directive.func)
    except Illegal as reason:
        raise ScheduleError(
            f"{_call_text(directive)} of {directive.func!r}: {reason.reason}",
            loc=directive.loc,
            label="this directive",
            related=reason.related,
            hint=reason.hint,
        ) from None
    new = result.by_name.keys() - state.by_name.keys()
    for name in new | ({directive.func} & result.by_name.keys()):
        result = result.with_plan(name, replace(result.plan(name), loc=directive.loc))
    return result


def _call_text(directive: Directive) -> str:
    named: list[Any] = []
    for name, value in directive.arguments:
        if name == "loops" and directive.name == "reorder":
            named += value
        elif name in ("loop", "outer", "inner", "source", "tensor") and value is not None:
            named.append(value)
    return f"{directive.name}({', '.join(map(_argument_text, named))})"


def to_json(directives: tuple[Directive, ...]) -> str:
    """Directives as JSON text, one a line."""
    rows = [
        json.dumps({"do": d.name, "func": d.func, "definition": d.definition, **dict(d.arguments)})
        for d in directives
    ]
    return "[" + ",\n ".join(rows) + "]"


def from_json(text: str, loc: Loc | None) -> tuple[Directive, ...]:
    """The directives in the text of `to_json`; raises ScheduleError for other text."""
    try:
        rows = json.loads(text)
    except (ValueError, TypeError) as error:
        raise _no_schedule(str(error), loc) from None
    if not isinstance(rows, list):
        raise _no_schedule(f"{rows!r} is no list of directives", loc)
    return tuple(_directive(row, loc) for row in rows)


def _no_schedule(why: str, loc: Loc | None) -> ScheduleError:
    return ScheduleError(
        f"this is not a schedule in JSON: {why}",
        loc=loc,
        label="this directive",
        hint="use the text of Schedule.to_json()",
    )


_KEYS = {"do": (str, "a name"), "func": (str, "a name"), "definition": (int, "a number")}

_RENAMED = {"apart": "producer_warps", "early": "overlap_mma"}  # arguments of version 0.1


def current_names(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that a call gives by their names in version 0.1, by their current names, with a warning."""
    for old, new in _RENAMED.items():
        if old in arguments:
            warnings.warn(f"{old}=... is deprecated: {new}=...", DeprecationWarning, stacklevel=3)
    return {_RENAMED.get(name, name): value for name, value in arguments.items()}


def _directive(row: Any, loc: Loc | None) -> Directive:
    if not isinstance(row, dict):
        raise _no_schedule(f"{row!r} is no directive", loc)
    for key, (kind, words) in _KEYS.items():
        if not isinstance(row.get(key), kind):
            raise _no_schedule(f"{key!r} of {row!r} must be {words}", loc)
    rest = {_RENAMED.get(key, key): value for key, value in row.items() if key not in _KEYS}
    return Directive(row["do"], row["func"], row["definition"], tuple(json_value(rest).items()), loc)


class Recorder(Protocol):
    """The interface of a schedule that stages use to apply and record directives."""

    state: State
    directives: tuple[Directive, ...]
    origins: dict[str, str]

    def __getitem__(self, stage: Any) -> Any:
        """The stage of a func, by handle or name."""

    def do(self, directive: Directive) -> None:
        """Apply a directive and record it."""

    def source_name(self, source: Any) -> str:
        """The name in this program of a tensor or func given by handle, by stage or by name."""
