"""Tests and doctests keep their kernels in a folder of their own."""

import os
from importlib.util import find_spec

import pytest

# The modules that write CUDA text can be imported with the extra "cuda" only.
if find_spec("tvm") is None:
    collect_ignore_glob = ["tdsl/codegen/cuda/*.py", "tests/codegen/cuda/shim.py"]


@pytest.fixture(scope="session", autouse=True)
def _private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The cache of the user is neither filled nor used."""
    os.environ["TDSL_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def _built_in_machine() -> None:
    """What the user has measured does not change the schedules of tests."""
    os.environ["TDSL_MACHINE"] = "builtin"
