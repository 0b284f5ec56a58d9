"""A file is about one thing: it has a bounded length, and a name that says what it is about."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("tdsl", "tests", "benchmarks")
LINES = 500
NAMES_THAT_SAY_NOTHING = {"base", "common", "helper", "helpers", "misc", "util", "utils"}


def files() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_file_is_short_and_well_named(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES
    assert not NAMES_THAT_SAY_NOTHING & {path.stem, path.parent.name}
