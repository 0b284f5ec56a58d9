"""Fixtures of all tests: golden texts, a seeded generator, and how many cases run."""

import gc
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.nightly import NIGHTLY

TESTS = Path(__file__).parent

_SHARED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=25, **_SHARED)
settings.register_profile("ci", max_examples=50, derandomize=True, **_SHARED)
settings.register_profile("nightly", max_examples=2000, **_SHARED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts anew")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "in_part(n): n of the cases, evenly spread, run; all of them nightly")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `in_part(n)` lose all but n of their cases."""
    if NIGHTLY:
        return
    cases: defaultdict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("in_part"):
            cases[item.path, item.nodeid.split("[")[0]].append(item)
    left_out: set[pytest.Item] = set()
    for of_one in cases.values():
        (n,) = of_one[0].get_closest_marker("in_part").args
        chosen = {len(of_one) * k // n for k in range(n)}
        left_out.update(item for k, item in enumerate(of_one) if len(of_one) > n and k not in chosen)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have collections of garbage, which some tests ask for, pass over all that stays until the end."""
    gc.freeze()


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
