"""Checks the types of the programs on the pages: `python -m docs.typed_pages`.

    page.md -> the lines of its examples, each at its line -> mypy, with the configuration of the examples

An example that shows an error is left out: it is wrong on purpose.
"""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path

from mypy import api

ROOT = Path(__file__).parent.parent
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {*(ROOT / "docs/decisions").glob("*")})
FOLDER = ROOT / "build" / "programs-of-pages"  # in one place, because the cache of mypy keeps its errors
_OPTIONS = (
    *("--config-file", str(ROOT / "examples/mypy.ini"), "--no-error-summary"),
    *("--allow-redefinition-new", "--local-partial-types"),  # a page uses a name for one value after another
)


def program(page: str) -> str:
    """The program of a page: the source of its examples, each at its line of the page.

    >>> program("A sum:\\n\\n" + 3 * ">" + " 1 + 1\\n2\\n")
    '\\n\\n1 + 1\\n'
    """
    lines = [""] * page.count("\n")
    for example in doctest.DocTestParser().get_examples(page):
        if example.exc_msg is None:
            source = example.source.splitlines()
            lines[example.lineno : example.lineno + len(source)] = source
    return "\n".join(lines).rstrip() + "\n"


def errors(pages: dict[str, str]) -> list[str]:
    """The errors of types in pages, given by path, each with the path and the line of its page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = {FOLDER / f"{re.sub(r'[^a-z]', '_', path.lower())}.py": path for path in pages}
    for file, path in files.items():
        file.write_text(program(pages[path]))
    said, failed, _ = api.run([*_OPTIONS, *map(str, files)])
    if failed:
        return [failed]
    for file, path in files.items():
        said = said.replace(str(file), path).replace(str(file.relative_to(ROOT)), path)
    return said.splitlines()


def main() -> int:
    """Prints the errors of all pages; 1 if there is one."""
    wrong = errors({str(page.relative_to(ROOT)): page.read_text() for page in PAGES})
    sys.stdout.write("\n".join([*wrong, f"{len(wrong)} errors of types in {len(PAGES)} pages\n"]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
