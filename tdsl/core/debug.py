"""Debug output of the compiler, by two environment variables that are read at each use, and the pass runner.

TDSL_DEBUG=topic,topic    topics to write to stderr; they are in TOPICS
TDSL_DUMP=folder          where to write intermediate code: NAME.00.PASS.txt, NAME.ll, NAME.s, NAME.py
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tdsl.core.source import here
from tdsl.errors import TdslError, did_you_mean

T = TypeVar("T")

TOPICS = {
    "passes": "the loops after each pass, or that it changed nothing",
    "time": "milliseconds of each stage of compiling",
    "verify": "check the loops after each pass, and name the pass that broke them",
    "canaries": "name memory of a kernel on the target cpu beyond which it writes",
    "llvm": "the LLVM IR of each kernel before LLVM's own passes",
    "asm": "the machine code of each kernel",
    "python": "the Python text of each kernel",
    "cuda": "the CUDA text of each program",
    "cache": "each lookup in the disk cache, and whether it succeeds",
}

always_verify = False  # as by TDSL_DEBUG=verify, but cached kernels are still used: set by the tests


def topics() -> frozenset[str]:
    """The topics of TDSL_DEBUG; a TdslError names one that does not exist.

    >>> os.environ["TDSL_DEBUG"] = "passes,time"
    >>> sorted(topics())
    ['passes', 'time']
    >>> del os.environ["TDSL_DEBUG"]
    """
    words = os.environ.get("TDSL_DEBUG", "").replace(",", " ").split()
    for word in words:
        if word not in TOPICS:
            hint = did_you_mean(word, TOPICS)
            raise TdslError(f"TDSL_DEBUG has no topic {word!r}", loc=here(), label="this call", hint=hint)
    return frozenset(words)


def is_enabled(topic: str) -> bool:
    """True if TDSL_DEBUG names the topic."""
    assert topic in TOPICS, topic
    return topic in topics()


def is_compilation_logged() -> bool:
    """True if debug output of compilation is requested: then kernels are compiled even if they are cached.

    >>> is_compilation_logged()
    False
    """
    return bool(os.environ.get("TDSL_DUMP")) or bool(topics() - {"time", "cache", "canaries"})


def log(topic: str, text: Callable[[], str] | str) -> None:
    """Write to stderr if TDSL_DEBUG names the topic; a text costly to build is passed as a function."""
    if is_enabled(topic):
        sys.stderr.write((text() if callable(text) else text).rstrip("\n") + "\n")


def dump(file: str, text: Callable[[], str] | str) -> None:
    """Write a text to a file in the folder TDSL_DUMP, if that is set; TdslError if it cannot be written."""
    folder = os.environ.get("TDSL_DUMP")
    if not folder:
        return
    path = os.path.join(folder, re.sub(r"[^\w.-]", "_", file))
    try:
        os.makedirs(folder, exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write((text() if callable(text) else text).rstrip("\n") + "\n")
    except OSError as e:
        hint = "point TDSL_DUMP to a folder that can be written, or unset it"
        raise TdslError(
            f"cannot write {path}: {e.strerror}", loc=here(), label="this call", hint=hint
        ) from None


@contextmanager
def timed(stage: str) -> Iterator[None]:
    """Write the duration of a stage to stderr, under the topic time."""
    start = time.perf_counter()
    yield
    log("time", lambda: f"{stage}: {1e3 * (time.perf_counter() - start):.1f} ms")


def run_passes(
    x: T,
    passes: Iterable[Callable[[T], T]],
    *,
    show: Callable[[T], str] = str,
    verify: Callable[[T], None] | None = None,
    name: str = "",
) -> T:
    """`x` after all passes, in order; TDSL_DEBUG=passes writes it after each to stderr, TDSL_DUMP to files.

    `verify` raises an AssertionError for an invalid `x`. It is called after each pass under
    TDSL_DEBUG=verify, and the error then names the pass.

    >>> def double(n):
    ...     return 2 * n
    >>> run_passes(3, (double, abs))
    6
    """
    for position, step in enumerate(passes):
        before, start = x, time.perf_counter()
        x = step(x)
        ms = 1e3 * (time.perf_counter() - start)
        title = _pass_name(step)
        enabled = topics()
        if "passes" in enabled:
            body = "(unchanged)" if x == before else show(x)
            sys.stderr.write(f"--- {title} {ms:.1f} ms\n{body}\n")
        elif "time" in enabled:
            sys.stderr.write(f"{title}: {ms:.1f} ms\n")
        if os.environ.get("TDSL_DUMP"):
            dump(f"{name or 'kernel'}.{position:02}.{title}.txt", show(x))
        if verify is not None and (always_verify or "verify" in enabled):
            _verify_after(title, x, verify, show)
    return x


def _verify_after(title: str, x: T, verify: Callable[[T], None], show: Callable[[T], str]) -> None:
    try:
        verify(x)
    except AssertionError as e:
        e.add_note(f"after the pass {title}:\n{show(x)}")
        raise


def _pass_name(step: Callable[..., Any]) -> str:
    inner = getattr(step, "func", step)  # functools.partial has no name of its own
    return str(getattr(inner, "__name__", type(inner).__name__))
