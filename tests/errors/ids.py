"""The messages of all errors, from the source of the package: `python -m tests.errors.ids` renews their list.

New templates get the next identifiers, those that are no longer raised are retired. Programs that raise a
message come from the catalogues.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import tdsl as td
from tdsl import errors
from tdsl.core.error_ids import HOLE, Message, id_of, messages
from tests.errors.case import MARK, Case

PACKAGE = Path(td.__file__).parent
FILE = PACKAGE / "error_ids.json"
PAGE = PACKAGE.parent / "docs" / "error-ids.md"
CODES = {
    name: kind.code
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, td.TdslError)
}
TEMPORARY = rf"{re.escape(tempfile.gettempdir())}/\w+"  # a folder of another name in each run
LONGEST = 14  # lines of a program that is shown


def templates() -> set[tuple[str, str]]:
    """The code and the template of every message that the package raises."""
    files = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]
    return {entry for tree in files for entry in _of_file(tree)}


def _of_file(tree: ast.Module) -> Iterator[tuple[str, str]]:
    scopes = [(tree, n) for n in tree.body]
    while scopes:
        scope, node = scopes.pop()
        if isinstance(node, ast.FunctionDef):
            scope = node
        match node:
            case ast.Call(ast.Name(name), [message, *_]) if name in CODES:
                yield from ((CODES[name], text) for text in _texts(message, scope) if text)
        scopes += [(scope, child) for child in ast.iter_child_nodes(node)]


def _texts(e: ast.expr, scope: ast.AST, depth: int = 0) -> list[str]:
    """The texts that an expression may have, with holes for what varies."""
    match e:
        case ast.Constant(str(text)):
            return [text]
        case ast.JoinedStr(values):
            parts = [_texts(v, scope, depth) if isinstance(v, ast.Constant) else [HOLE] for v in values]
            return ["".join(p) for p in product(*parts)]
        case ast.IfExp(_, body, other):
            return _texts(body, scope, depth) + _texts(other, scope, depth)
        case ast.BinOp(left, ast.Add(), right):
            return [a + b for a in _texts(left, scope, depth) for b in _texts(right, scope, depth)]
        case ast.Name(name) if depth < 3:
            values = [
                n.value
                for n in ast.walk(scope)
                if isinstance(n, ast.Assign)
                and any(isinstance(t, ast.Name) and t.id == name for t in n.targets)
            ]
            return [text for v in values for text in _texts(v, scope, depth + 1)] or [HOLE]
        case _:
            return [HOLE]


def cases() -> Iterator[Case]:
    """The wrong programs of all catalogues."""
    for path in sorted(Path(__file__).parent.glob("catalogue_*.py")):
        yield from importlib.import_module(f"tests.errors.{path.stem}").CASES


def renewed() -> list[Message]:
    """The messages with identifiers: those that are known, retired or not, then new ones."""
    raised, known = templates(), messages()
    listed = [replace(m, retired=(m.code, m.template) not in raised) for m in known]
    new = sorted(raised - {(m.code, m.template) for m in known})
    return listed + [Message(f"TD{len(known) + n:04}", *one) for n, one in enumerate(new, 1)]


def with_programs(listed: list[Message]) -> list[Message]:
    """The messages with the shortest program of the catalogues that raises each of them."""
    programs: dict[str, tuple[str, str]] = {}
    for case in cases():
        try:
            case.program()
        except td.TdslError as error:
            name, text = id_of(error.code, error.message), _text(case)
            if text.count("\n") < LONGEST and len(text) < len(programs.get(name, (text + " ",))[0]):
                shown = f"{error.message} [{error.code}]\n  hint: {error.hint}"
                programs[name] = text, re.sub(TEMPORARY, "/runs", shown)
    return [replace(m, program=p[0], shown=p[1]) if (p := programs.get(m.id)) else m for m in listed]


def _text(case: Case) -> str:
    """The lines of a wrong program, with a mark at the line of the error."""
    lines = inspect.getsource(case.program).splitlines()
    body = lines[next(n for n, line in enumerate(lines) if line.startswith("def ")) + 1 :]
    return textwrap.dedent("\n".join(body)).strip().replace(MARK, "# <- here")


def page(listed: list[Message]) -> str:
    """The page of the documentation that lists all messages."""
    lines = [
        "# Messages of errors",
        "",
        "Every error has an identifier, `error.id`, which stays the same from release to release; `...` is",
        "what varies. `tdsl explain TD0042` shows an entry. [errors.md](errors.md) has the kinds of errors.",
        "",
    ]
    for m in listed:
        if m.retired:
            continue
        lines += [f"## {m.id}", "", f"`{m.template.replace(HOLE, '...')}` [{m.code}]".replace("``", "`"), ""]
        if m.program:
            lines += ["```text", *m.program.splitlines(), "", *m.shown.splitlines(), "```", ""]
    return "\n".join(lines)


def write(listed: list[Message]) -> None:
    text = ",\n".join(
        json.dumps({k: v for k, v in asdict(m).items() if v}, ensure_ascii=False) for m in listed
    )
    FILE.write_text(f"[\n{text}\n]\n")
    messages.cache_clear()


def main() -> None:
    if not FILE.exists():
        FILE.write_text("[]")
    write(renewed())
    listed = with_programs([*messages()])
    write(listed)
    PAGE.write_text(page(listed))
    print(f"{len(listed)} messages, {sum(bool(m.program) for m in listed)} with a program")


if __name__ == "__main__":
    main()
