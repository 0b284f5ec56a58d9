"""What all recipes have in common: they take a stage and choices of the user, and change all or nothing."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields, replace
from typing import Any, TypeVar, get_type_hints

from tdsl.core.source import here
from tdsl.errors import ScheduleError, TdslError, TypeMismatch, checked_call, did_you_mean
from tdsl.lang.definition import Definition
from tdsl.lang.regions import reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.arguments import has_type, json_value, type_text
from tdsl.schedule.fluent import Stage
from tdsl.schedule.state import is_ordered
from tdsl.target import as_target

_RENAMED = {"last": "lookup_axes", "hopper": "warpgroups"}  # choices of version 0.1

Rule = TypeVar("Rule", bound=Callable[..., Any])
Plan = TypeVar("Plan")


class Unsuited(Exception):
    """A recipe is for stages of another kind: why, and what may be done instead."""

    def __init__(self, reason: str, hint: str = "") -> None:
        self.reason, self.hint = reason, hint


def recipe(rule: Rule) -> Rule:
    """Make a recipe of a function: its first argument is a stage, and where it fails nothing is changed.

    A stage for which the function is Unsuited is a ScheduleError that says why.
    """

    applied = checked_call(rule)

    @checked_call
    @functools.wraps(rule)
    def run(stage: Stage, *args: Any, **options: Any) -> Any:
        if not isinstance(stage, Stage):
            raise TypeMismatch(
                f"a recipe takes a stage of a schedule, not {type(stage).__name__}",
                loc=here(),
                label="this recipe",
                hint=f"td.recipes.{rule.__name__}(s[f]), with s = td.Schedule(f)",
            )
        machine = options.get("machine")
        if machine is not None and not isinstance(machine, Machine):
            raise TypeMismatch(
                f"machine= takes a description of a machine, not {machine!r}",
                loc=here(),
                label="this recipe",
                hint="leave it out for the machine of the schedule's target",
            )
        for old in _RENAMED.keys() & options.keys():
            warnings.warn(f"{old}=... is deprecated: {_RENAMED[old]}=...", DeprecationWarning, stacklevel=3)
        options = {_RENAMED.get(name, name): value for name, value in options.items()}
        try:
            with stage.schedule.all_or_nothing():
                return applied(stage, *args, **options)
        except Unsuited as other:
            f = stage.schedule.state.program.func(stage.func)
            raise ScheduleError(
                f"{rule.__name__} is not for {stage.func!r}: {other.reason}",
                loc=here(),
                label="this recipe",
                related=[(f.definitions[stage.definition].loc or f.loc, "this stage")],
                hint=other.hint
                or _another_stage(rule, stage, args, options)
                or "the default schedule has a recipe for what no directive says",
            ) from None

    return run  # type: ignore[return-value]  # it has the signature of the rule


def _another_stage(
    rule: Callable[..., Any], stage: Stage, args: tuple[Any, ...], options: dict[str, Any]
) -> str:
    """A hint where a recipe is for a sum that a stage reads, as those inside of an expression are."""
    program = stage.schedule.state.program
    for r in reads_in(program.func(stage.func).definitions[stage.definition].values):
        if program.has_func(r.name) and program.func(r.name).definitions[0].init is not None:
            scratch = Stage(copy.copy(stage.schedule), r.name, 0)
            with contextlib.suppress(Unsuited, TdslError):
                inspect.unwrap(rule)(scratch, *args, **options)
                return f"it is for {r.name!r}, a sum that {stage.func!r} reads: s[{r.name!r}]"
    return ""


def if_suited(rule: Callable[..., Plan], stage: Stage, **options: Any) -> Plan | None:
    """What a recipe chooses for a stage that it has scheduled; None for a stage of another kind.

    What directives store as a ring buffer cannot be kept in registers: that excludes recipes that do so.
    """
    try:
        with stage.schedule.all_or_nothing():
            return inspect.unwrap(rule)(stage, **options)  # type: ignore[no-any-return]  # the rule's own
    except Unsuited:
        return None
    except ScheduleError:
        if not any(plan.fold for _, plan in stage.schedule.state.plans):
            raise
        return None


def gpu_of(stage: Stage, machine: Machine | None = None) -> Machine:
    """The `machine` that a recipe was given, or the GPU that a stage is scheduled for, or the default one."""
    known = machine or as_target(stage.schedule.target).machine()
    return known if machine is not None or known.gpu is not None else as_target("cuda").machine()


def reduction_of(stage: Stage, ranges: int | None = None) -> Definition:
    """The only definition of a stage, a reduction over so many variables, in any order."""
    f = stage.schedule.state.program.func(stage.func)
    d = f.definitions[0]
    if len(f.definitions) > 1:
        raise Unsuited("it has updates")
    if d.init is None or not d.ranges:
        raise Unsuited("it reduces nothing")
    if is_ordered(f, 0):
        raise Unsuited("its terms have to come in their order")
    if ranges is not None and len(d.ranges) != ranges:
        raise Unsuited(f"it reduces over {', '.join(v for v, _, _ in d.ranges)}, not over one variable")
    return d


def choose(plan: Plan, choices: Mapping[str, Any], **among: Collection[Any]) -> Plan:
    """A plan, a dataclass, with fields replaced by choices of the user; ScheduleError where they do not fit.

    A number is at least 1, or 0 where that is the default; `among`, or the metadata of a field, lists the
    values that it may have.
    """
    known: dict[str, Field[Any]] = {f.name: f for f in fields(plan)}  # type: ignore[arg-type]  # a plan is a dataclass
    types = get_type_hints(type(plan))
    given = {name: json_value(value) for name, value in choices.items()}
    for name, value in given.items():
        if name not in known:
            raise refused(f"there is no choice {name!r}", did_you_mean(name, known))
        expected = types[name]
        listed = among.get(name, known[name].metadata.get("among"))
        if not has_type(value, expected):
            raise refused(f"{name} must be {type_text(expected)}, not {value!r}", _listed(known))
        if expected is int and value < (least := 0 if known[name].default == 0 else 1):
            raise refused(f"{name} must be at least {least}, not {value}", _listed(known))
        if listed is not None and value not in listed:
            raise refused(f"{name} cannot be {value!r}", did_you_mean(value, map(repr, listed)))
    return replace(plan, **given)  # type: ignore[type-var]  # as above


def _listed(known: Mapping[str, Field[Any]]) -> str:
    """The choices there are, with their defaults."""
    shown = (n if f.default is MISSING else f"{n}={f.default!r}" for n, f in known.items())
    return f"the choices are: {', '.join(shown)}"


def refused(message: str, hint: str) -> ScheduleError:
    """The error of a recipe whose arguments do not fit."""
    return ScheduleError(message, loc=here(), label="this recipe", hint=hint)
