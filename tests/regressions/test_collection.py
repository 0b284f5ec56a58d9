"""Tests run in any order, doctests of modules first."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_module_whose_doctests_come_first_is_the_one_that_others_import():
    test = "tests/regressions/test_copies.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tdsl/core/node.py", test],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
