"""Parser of the subscripts of `einsum`, such as "ij,jk->ik" or "...ij,jk", to names of axes.

1. Split the text at "->" and commas; every term is letters, with at most one "..." in it.
2. Give the axes under "..." names of their own, counted from the right, as broadcasting does.
3. Without "->" the result has the axes under "...", then the letters that occur once, in their order.
"""

from __future__ import annotations

from itertools import chain

from tdsl.core.node import frozen
from tdsl.core.source import Loc
from tdsl.errors import DefinitionError, ShapeError, TypeMismatch, counted

DOTS = "..."


@frozen
class Subscripts:
    """The names of the axes of each operand, and of the result.

    `dots` are the names of the axes under "...", outermost first.
    """

    terms: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]
    dots: tuple[str, ...] = ()


def parse(text: str, ranks: tuple[int | None, ...], loc: Loc | None) -> Subscripts:
    """The parsed subscripts of operands with `ranks` dimensions (None for a value: as many as its letters).

    >>> parse("ij,jk->ik", (2, 2), None)
    Subscripts(terms=(('i', 'j'), ('j', 'k')), result=('i', 'k'), dots=())
    >>> parse("...i,i", (3, 1), None)
    Subscripts(terms=(('b1', 'b0', 'i'), ('i',)), result=('b1', 'b0'), dots=('b1', 'b0'))

    Raises DefinitionError for invalid subscripts, ShapeError if they do not match the ranks.
    """
    if not isinstance(text, str):
        raise TypeMismatch(
            f"the subscripts of einsum are a string, not {text!r}",
            loc=loc,
            label="this einsum",
            hint='td.einsum("ij,jk->ik", a, b): a letter for each axis',
        )
    inputs, arrow, output = text.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(ranks):
        raise ShapeError(
            f"{text!r} is for {counted(len(terms), 'operand')}, einsum is given {len(ranks)}",
            loc=loc,
            label="this einsum",
            hint='write the letters of each operand, with commas between: "ij,jk->ik"',
        )
    for term in (*terms, output):
        _check_term(term, text, loc)
    counts = [_dots_rank(t, rank, n, text, loc) for n, (t, rank) in enumerate(zip(terms, ranks, strict=True))]
    dots = tuple(f"b{n}" for n in reversed(range(max(counts, default=0))))
    named = tuple(_expand_dots(t, dots[len(dots) - n :]) for t, n in zip(terms, counts, strict=True))
    if arrow:
        return Subscripts(named, _result_names(output, named, dots, text, loc), dots)
    letters = [x for x in chain(*named) if x not in dots]
    once = sorted(x for x in {*letters} if letters.count(x) == 1)
    return Subscripts(named, (*dots, *once), dots)


def _check_term(term: str, text: str, loc: Loc | None) -> None:
    letters = term.replace(DOTS, "", 1)
    for x in letters:
        if not x.isalpha():
            raise DefinitionError(
                f"{x!r} in the subscripts {text!r} is no letter",
                loc=loc,
                label="this einsum",
                hint='letters name axes; "," separates operands, "->" comes before the result, '
                '"..." stands for the axes in front',
            )


def _dots_rank(term: str, rank: int | None, n: int, text: str, loc: Loc | None) -> int:
    """The number of axes for which "..." stands in the term of an operand."""
    letters = len(term.replace(DOTS, ""))
    if rank is None and DOTS in term:
        raise DefinitionError(
            f"operand {n} of {text!r} is a value: '...' says nothing of it",
            loc=loc,
            label="this einsum",
            hint="name its variables, each with a letter",
        )
    if rank is None or rank == letters or (DOTS in term and rank > letters):
        return 0 if rank is None else rank - letters
    raise ShapeError(
        f"operand {n} has {counted(rank, 'dimension')}, its subscripts {term!r} are for {letters}",
        loc=loc,
        label="this einsum",
        hint="write a letter for each dimension; '...' stands for any number of them",
    )


def _expand_dots(term: str, dots: tuple[str, ...]) -> tuple[str, ...]:
    before, ellipsis, after = term.partition(DOTS)
    return (*before, *(dots if ellipsis else ()), *after)


def _result_names(
    output: str,
    terms: tuple[tuple[str, ...], ...],
    dots: tuple[str, ...],
    text: str,
    loc: Loc | None,
) -> tuple[str, ...]:
    known = {*chain(*terms)}
    if dots and DOTS not in output:
        raise DefinitionError(
            f"the result of {text!r} leaves out the axes of '...'",
            loc=loc,
            label="this einsum",
            hint="write '...' in the result, too; only axes that have a letter are summed over",
        )
    for x in output.replace(DOTS, ""):
        if x not in known:
            raise DefinitionError(
                f"{x!r} is in the result of {text!r}, but in no operand",
                loc=loc,
                label="this einsum",
                hint="an axis of the result comes from an operand",
            )
        if output.count(x) > 1:
            raise DefinitionError(
                f"{x!r} is in the result of {text!r} twice",
                loc=loc,
                label="this einsum",
                hint="each axis of the result has a letter of its own; read the func at f[i, i] where "
                "a diagonal is wanted",
            )
    return _expand_dots(output, dots)
