"""The progress bar of tuning."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(
    name: str, seconds: float, trials: int | None
) -> Iterator[Callable[[int, int, float], None]]:
    """A function that shows the trials, the failures, and the best time relative to the default.

    The bar shows the used part of the budget. Nothing is shown unless the error stream is a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    start = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task(f"tuning {name}", total=1.0)

        def advance(count: int, failed: int, ratio: float) -> None:
            used = (time.monotonic() - start) / seconds
            used = max(used, count / trials) if trials else used
            text = f"tuning {name}: {count} trials, {failed} failed, {1 / min(ratio, 1.0):.2f} x default"
            bar.update(row, description=text, completed=min(used, 1.0))

        yield advance
