"""A plugin of pytest: with `--tdsl-check`, calls of compiled programs are compared with the interpreter."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

POINTS = 20_000  # evaluated by the interpreter in about a second


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("tdsl")
    group.addoption(
        "--tdsl-check", action="store_true", help="compare results of compiled programs with the interpreter"
    )
    group.addoption(
        "--tdsl-check-points", type=int, default=POINTS, metavar="POINTS",
        help="--tdsl-check leaves out programs of more points than these (default: %(default)s)",
    )  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Runs a test, with checks if `--tdsl-check` is given."""
    if not item.config.getoption("--tdsl-check"):
        return (yield)
    from tdsl.testing.checked_calls import checked_calls  # not before: importing tdsl takes time

    with checked_calls(item.config.getoption("--tdsl-check-points")) as skipped:
        result = yield
    item.user_properties += [("tdsl: not compared", reason) for reason in skipped]
    return result


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says which calls were not compared, and why."""
    reports = [r for rs in terminalreporter.stats.values() for r in rs if isinstance(r, pytest.TestReport)]
    calls = [r for r in reports if r.when == "call"]  # the report of the teardown has the same properties
    reasons = [str(why) for r in calls for name, why in r.user_properties if name == "tdsl: not compared"]
    for why in sorted({*reasons}):
        terminalreporter.write_line(f"tdsl: {reasons.count(why)} of the calls not compared: {why}")
