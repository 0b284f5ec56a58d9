"""Checks of the named sizes that a user passes, `sizes={"N": 100}`, and of the equalities between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tdsl.core.node import post_order
from tdsl.core.source import here
from tdsl.errors import ShapeError, TypeMismatch, did_you_mean
from tdsl.lang.affine import as_sum
from tdsl.lang.agreement import Agreement
from tdsl.lang.expr import Expr, Size, const
from tdsl.lang.program import Program, bind_expr
from tdsl.lang.show import show_expr

AGREE_HINT = "give sizes that agree"


def check_sizes(
    owner: str, known: Sequence[str], sizes: object, *, others: Sequence[str] = (),
    fixed: Mapping[str, int] | None = None, equal: Iterable[tuple[str, Expr]] = (),
    agreements: Iterable[Agreement] = (),
) -> dict[str, int]:  # fmt: skip
    """The sizes that a user gave by name, as integers.

    ShapeError for an unknown name, for a value that is no non-negative integer, and for one that contradicts
    `fixed` sizes, `equal` expressions or `agreements`. `others` are names of arguments that are no sizes.

    >>> check_sizes("f", ("M", "N"), {"N": 3})
    {'N': 3}
    """
    fixed = fixed or {}
    if not isinstance(sizes, Mapping):
        raise TypeMismatch(
            f"sizes are given by name, not as {sizes!r}",
            loc=here(),
            label="this call",
            hint='sizes={"N": 100}',
        )
    checked: dict[str, int] = {}
    for name, value in sizes.items():
        if name in fixed and value == fixed[name]:
            continue
        if name in fixed:
            raise ShapeError(
                f"size {name!r} of {owner!r} is fixed to {fixed[name]}, it cannot be {value!r}",
                loc=here(),
                label="this call",
                hint=f"td.compile(..., {name}={value!r}) makes code for another size",
            )
        if name not in known and name not in dict(equal):
            raise ShapeError(
                f"{owner!r} has no size {name!r}",
                loc=here(),
                label="this call",
                hint=_unknown_size_hint(str(name), known, others),
            )
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
            raise ShapeError(
                f"size {name!r} must be a number of elements, not {value!r}",
                loc=here(),
                label="this call",
                hint="pass an integer that is not negative",
            )
        checked[name] = value.__index__()
    for name, other in equal:
        if name in sizes:
            checked |= _solve_for_size(owner, name, other, checked.pop(name), {**fixed, **checked})
    for a in agreements:
        check_agreement(a, {**fixed, **checked}, AGREE_HINT)
    return checked


def check_agreement(a: Agreement, sizes: Mapping[str, int], hint: str) -> None:
    """Raise ShapeError if the two extents of an agreement differ; no check if one of its sizes is unknown."""
    if not a.sizes <= sizes.keys():
        return
    (first, *_), (second, *_) = sides = a.map_extents(lambda e: bind_expr(e, sizes)).sides
    if first != second:
        raise ShapeError(
            f"{a.variable!r} has two extents: "
            + ", and ".join(f"{show_expr(e)} as axis {n} of {name!r}" for e, name, n, _ in sides),
            loc=here(),
            label="this call",
            related=a.related,
            hint=hint,
        )


def _unknown_size_hint(name: str, known: Sequence[str], others: Sequence[str]) -> str:
    """The hint of the error for an unknown size: a similar name, if there is one."""
    similar = [n for n in others if n.lower() == name.lower() or did_you_mean(name, (n,)).startswith("did")]
    if similar:
        return f"did you mean {similar[0]!r}? It is an argument of its own"
    return did_you_mean(name, known) if known else "leave it out: no extent has a name"


def _solve_for_size(
    owner: str, name: str, other: Expr, value: int, known: Mapping[str, int]
) -> dict[str, int]:
    """The size that follows from the value of size `name`, which is equal to the expression `other`.

    Empty if `other` has that value already. ShapeError if it has another one, or cannot be solved for a size.
    """
    is_now = bind_expr(other, known)
    if is_now == const(value):
        return {}
    total = as_sum(is_now)
    match list(total.terms.items()):
        case [(Size(open_), 1 | -1 as sign)] if (follows := sign * (value - total.constant)) >= 0:
            return {open_: int(follows)}
    text = show_expr(other)
    which = f", which is {show_expr(is_now)}" if is_now != other else ""
    left = sizes_in(is_now)
    raise ShapeError(
        f"size {name!r} of {owner!r} is {text} by its indices{which}, not {value}",
        loc=here(),
        label="this call",
        hint=f"give {' and '.join(left)} in place of {name}" if left
        else f"leave {name} out; axes indexed by one variable have one extent",
    )  # fmt: skip


def sizes_in(e: Expr) -> list[str]:
    """The names of the sizes in an expression, in alphabetical order."""
    return sorted({n.name for n in post_order(e) if isinstance(n, Size)})


def check_keywords(program: Program, **given: object) -> None:
    """Raise ShapeError for a keyword argument with an integer whose name is also that of a size."""
    for name, value in given.items():
        if isinstance(value, int) and name in program.sizes:
            raise ShapeError(
                f"{name}= of td.compile is not the size {name!r} of {program.name!r}",
                loc=here(),
                label="this call",
                hint=f"give it to the schedule: td.Schedule(f, sizes={{{name!r}: {value}}})",
            )


def dynamic_sizes(program: Program, dynamic: object, fixed: Mapping[str, int]) -> frozenset[str]:
    """The names of the sizes that may differ from call to call, from the argument `dynamic`."""
    listed = (dynamic,) if isinstance(dynamic, str) else dynamic
    if not isinstance(listed, list | tuple | set | frozenset | dict):
        raise TypeMismatch(
            f"dynamic= names sizes, it cannot be {dynamic!r}",
            loc=here(),
            label="this call",
            hint='dynamic="N", or dynamic=("M", "N")',
        )
    equal = dict(program.equal)
    names = [n for name in map(str, listed) for n in sizes_in(equal.get(name, Size(name)))]
    named = dict.fromkeys(names, 0)
    free = frozenset(check_sizes(program.name, program.sizes, named))
    for name in sorted(free & set(fixed)):
        raise ShapeError(
            f"size {name!r} is fixed to {fixed[name]} and dynamic",
            loc=here(),
            label="this call",
            hint="give its value, or name it in dynamic=; one of them",
        )
    return free
