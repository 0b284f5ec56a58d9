"""The programs in examples/ run as they stand."""

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))


def imports(program: Path) -> list[str]:
    """The packages that a program imports as a whole."""
    statements = [s for s in ast.parse(program.read_text()).body if isinstance(s, ast.Import)]
    return [alias.name.partition(".")[0] for s in statements for alias in s.names]


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs(program: Path) -> None:
    for package in imports(program):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    done = subprocess.run(
        [sys.executable, program],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 6
