"""Tests and doctests keep their kernels in a folder of their own."""

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tdsl.core import debug

# Modules that can be imported with an extra only.
collect_ignore_glob = [
    "docs/gallery/*.md",  # tests/test_gallery.py runs these
    "tests/foreign/torch_*.py",  # commands, whose modules import torch and what its own tests need
]
if find_spec("tvm") is None:
    collect_ignore_glob += ["tdsl/codegen/cuda/*.py", "tests/codegen/cuda/shim.py"]
if find_spec("torch") is None:
    collect_ignore_glob += ["tdsl/torch/*.py", "docs/torch.md", "tests/torch/programs.py"]
else:
    # After torch.compile Python 3.11 cannot parse (python/cpython#106905), and pytest parses what it imports.
    import_module("hypothesis.control")
if find_spec("jax") is None:
    collect_ignore_glob += ["tdsl/jax/*.py", "docs/jax.md"]
if find_spec("onnx") is None:
    collect_ignore_glob += ["tdsl/onnx/*.py", "docs/onnx.md", "tests/onnx/*.py", "tests/foreign/*onnx*.py"]
if find_spec("opt_einsum") is None:
    collect_ignore_glob += ["tests/foreign/*opt_einsum.py"]


def pytest_collect_file(file_path: Path) -> None:
    """Import the package of a module first.

    pytest would begin with the module, have its package import it, and run it again: there would be two of
    each of its classes, and neither equal to the other.
    """
    package = file_path.relative_to(Path(__file__).parent).parent.parts
    if file_path.suffix == ".py" and package[:1] == ("tdsl",):
        import_module(".".join(package))


@pytest.fixture(scope="session", autouse=True)
def _private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The cache of the user is neither filled nor used."""
    os.environ["TDSL_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def _verified_loops() -> None:
    """Loops are checked after each pass."""
    debug.always_verify = True


@pytest.fixture(scope="session", autouse=True)
def _built_in_machine() -> None:
    """What the user has measured does not change the schedules of tests."""
    os.environ["TDSL_MACHINE"] = "builtin"


@pytest.fixture(autouse=True)
def _target_of_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages show what there is without TDSL_TARGET."""
    if request.path.suffix == ".md" or request.path.name == "test_docs.py":
        monkeypatch.delenv("TDSL_TARGET", raising=False)
