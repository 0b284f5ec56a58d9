"""`from tdsl import *` needs no optional package."""

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["torch"] = None  # as if PyTorch were not installed
from tdsl import *
assert "Func" in globals() and "recipes" in globals() and "torch" not in globals()
"""


def test_all_public_names_are_there_without_optional_packages():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
