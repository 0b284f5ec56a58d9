"""Records of tuning: files of JSON lines, one for each trial, to which lines are appended and never changed.

A line is written by one call while the file is locked, so that several processes can append to one file. A
process that is killed leaves at most a part of a line; the next line begins after a line break. Lines that
are damaged or of another version are skipped with a warning, and are never removed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import TypeMismatch

try:
    import fcntl
except ImportError:  # Windows: a line is still written by one call
    fcntl = None  # type: ignore[assignment]

SCHEMA = 1  # version of the format of lines
Paths: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"


@frozen
class Task:
    """What the times of trials belong to: a program (its fingerprint), its sizes, target and processor."""

    program: str
    sizes: dict[str, int]
    target: str
    cpu: str
    threads: int

    def is_same_program(self, other: Task) -> bool:
        """True if the tasks differ at most in sizes and processors."""
        return (self.program, self.target) == (other.program, other.target)

    def is_same_machine(self, other: Task) -> bool:
        """True if times of the tasks were measured on equal processors with equal numbers of threads."""
        return (self.cpu, self.threads) == (other.cpu, other.threads)

    def distance(self, other: Task) -> float:
        """The sum over all sizes of the absolute differences of their binary logarithms."""
        if self.sizes.keys() != other.sizes.keys():
            return math.inf
        pairs = ((n, other.sizes[name]) for name, n in self.sizes.items())
        return sum(abs(math.log2(max(a, 0.5) / max(b, 0.5))) for a, b in pairs)


@frozen
class Record:
    """The measurement of a schedule, and of the default schedule in the same process, in turns.

    `problem` is empty if the schedule can be used; otherwise `seconds` and `default_seconds` are 0.
    """

    task: Task
    label: str
    directives: str
    seconds: float
    default_seconds: float
    problem: str
    date: str

    @property
    def ratio(self) -> float:
        """The seconds of the schedule divided by those of the default; infinite if it cannot be used."""
        return math.inf if self.problem else self.seconds / self.default_seconds

    def to_line(self) -> bytes:
        """The line of the file, with its line break."""
        row = {"schema": SCHEMA, **asdict(self), "directives": json.loads(self.directives)}
        return json.dumps(row, separators=(",", ":")).encode() + b"\n"


class _OtherVersionError(Exception):
    """The line is of another version of the format."""


def _parse(line: bytes) -> Record:
    row = json.loads(line)
    if row["schema"] != SCHEMA:
        raise _OtherVersionError
    task, seconds, default = row["task"], float(row["seconds"]), float(row["default_seconds"])
    sizes = {str(name): int(n) for name, n in task["sizes"].items()}
    problem, rows = str(row["problem"]), row["directives"]
    if not problem and not (0 < seconds < math.inf and 0 < default < math.inf):
        raise ValueError
    if not isinstance(rows, list) or not all(isinstance(d, dict) for d in rows):
        raise TypeError
    texts = (str(task[key]) for key in ("program", "target", "cpu"))
    program, target, cpu = texts
    return Record(
        Task(program, sizes, target, cpu, int(task["threads"])), str(row["label"]), canonical(rows),
        seconds, default, problem, str(row["date"]),
    )  # fmt: skip


def canonical(directives: object) -> str:
    """The text by which lists of directives (JSON values, or their text) are compared."""
    rows = json.loads(directives) if isinstance(directives, str) else directives
    return json.dumps(rows, separators=(",", ":"))


class RecordFile:
    """A file of records that is read as it grows, and appended to.

    TypeMismatch if it cannot be opened; `origin` is the hint then.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, writable: bool = False,
        origin: str = 'records="product.jsonl", in a folder that exists',
    ) -> None:  # fmt: skip
        self.path, self._origin, self._offset = os.fspath(path), origin, 0
        if writable:
            with self._opened(os.O_RDWR | os.O_CREAT | os.O_APPEND):
                pass

    @contextlib.contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        try:
            if os.path.isdir(self.path):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            file = os.open(self.path, flags | getattr(os, "O_CLOEXEC", 0), 0o644)
        except OSError as error:
            raise TypeMismatch(
                f"the file of records {self.path!r} cannot be opened: {error.strerror}",
                loc=here(), label="this call", hint=self._origin,
            ) from None  # fmt: skip
        try:
            yield file
        finally:
            os.close(file)

    def identity(self) -> tuple[str, int, int]:
        """The path with the device and inode of the file, which differ if another file has replaced it."""
        with self._opened(os.O_RDONLY) as file:
            status = os.fstat(file)
        return self.path, status.st_dev, status.st_ino

    def new_records(self) -> list[Record]:
        """The records of lines that were added since the last call; skips damaged lines with a warning."""
        with self._opened(os.O_RDONLY) as file, os.fdopen(os.dup(file), "rb") as lines:
            lines.seek(self._offset)
            data = lines.read()
        complete = data.rfind(b"\n") + 1  # the rest is being written, or was not completed
        self._offset += complete
        records, damaged, foreign = list[Record](), 0, 0
        for line in data[:complete].splitlines():
            if not line.strip():
                continue
            try:
                records.append(_parse(line))
            except _OtherVersionError:
                foreign += 1
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                damaged += 1
        if damaged or foreign:
            warnings.warn(
                f"{self.path}: {damaged} damaged lines and {foreign} of another version are skipped",
                stacklevel=2,
            )
        return records

    def append(self, record: Record) -> None:
        """Add a line at the end of the file; after a partial line it begins with a line break."""
        with self._opened(os.O_RDWR | os.O_CREAT | os.O_APPEND) as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
            size = os.fstat(file).st_size
            is_partial = size > 0 and _last_byte(file, size) != b"\n"
            line = b"\n" * is_partial + record.to_line()
            while line:
                line = line[os.write(file, line) :]


def _last_byte(file: int, size: int) -> bytes:
    os.lseek(file, size - 1, os.SEEK_SET)
    return os.read(file, 1)


def read(paths: Paths) -> list[Record]:
    """All records of a file, or of several files in their order."""
    several = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
    return [r for path in several for r in RecordFile(path).new_records()]


def by_relevance(records: Iterable[Record], task: Task) -> list[Record]:
    """The records whose schedules may suit a task, best first.

    Those of the same sizes on the same processor come first, then those of the nearest sizes, then those of
    other processors; among equals the fastest relative to the default. Schedules with problems are left out.
    """
    usable = (r for r in records if not r.problem and task.is_same_program(r.task))
    ranked = sorted(usable, key=lambda r: (not task.is_same_machine(r.task), task.distance(r.task), r.ratio))
    return [r for r in ranked if task.distance(r.task) < math.inf]


def sizes_text(sizes: Mapping[str, Any]) -> str:
    """Sizes as in a call, such as "M=96, K=300"."""
    return ", ".join(f"{name}={n}" for name, n in sizes.items())
