"""Names say what a thing is: no variable, argument, function or type has a word that names nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tdsl"

# Each stood for a dozen things; docs/glossary.md has the terms of the field.
NAMELESS = {
    "made", "found", "own", "near", "apart", "beside", "held", "lies", "stands", "told", "wanted", "much",
    "midst", "alike", "asked",
}  # fmt: skip

# Public choices of recipes, whose names stay.
PUBLIC = {
    "autoschedule/block_tree/write_groups.py": {"held"},
    "autoschedule/recipes/online_tensor_cores.py": {"held"},
    "autoschedule/recipes/rows.py": {"beside"},
}


def names_in(tree: ast.AST) -> Iterator[str]:
    """The names that a file binds."""
    for n in ast.walk(tree):
        match n:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case (
                ast.FunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                yield name
            case ast.MatchAs(name=str() as name):
                yield name


def words(name: str) -> set[str]:
    """The words of a name in snake or camel case."""
    return set(re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower()))


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_names_are_words_of_the_field(path: Path) -> None:
    allowed = PUBLIC.get(str(path.relative_to(PACKAGE)), set())
    names = set(names_in(ast.parse(path.read_text(encoding="utf-8")))) - allowed
    assert {n for n in names if words(n) & NAMELESS} == set()
