"""Fixtures of all tests: golden texts, a seeded generator, and how hard hypothesis looks."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent

_SHARED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=25, **_SHARED)
settings.register_profile("ci", max_examples=50, derandomize=True, **_SHARED)
settings.register_profile("nightly", max_examples=2000, **_SHARED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Compares a text with tests/golden/<test file>/<test name>.txt, or writes it under --update-golden."""
    folder = TESTS / "golden" / request.path.relative_to(TESTS).with_suffix("")
    path = folder / f"{request.node.name}.txt"

    def check(text: str) -> None:
        text = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no {path.relative_to(TESTS)}: run pytest --update-golden"
        assert text == path.read_text()

    return check


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator that starts anew in every test."""
    return np.random.default_rng(0)
