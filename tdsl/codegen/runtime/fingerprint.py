"""Fingerprints of programs, schedules and options: the keys of the disk cache.

A value is hashed in a canonical form that numbers equal subexpressions alike, so the fingerprint does not
depend on which subexpressions are one object, on hash seeds, or on source locations.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any

from tdsl.core.node import Node, post_order


def fingerprint(*values: Any) -> str:
    """The sha256 of values: strings, numbers, tuples, frozen sets, frozen dataclasses, nodes.

    Equal values have equal fingerprints in every process; fields that equality ignores (source locations)
    are ignored.

    >>> from tdsl.lang.expr import Binary, Var, const
    >>> fingerprint(Binary("add", Var("i"), const(1))) == fingerprint(Binary("add", Var("i"), const(2)))
    False
    """
    import hashlib  # loads a shared library that importing tdsl does not need

    canonical = _CanonicalForm()
    last = canonical.token(values)
    return hashlib.sha256("\n".join((*canonical.tokens, last)).encode()).hexdigest()


class _CanonicalForm:
    """The canonical form of values: the texts of dataclasses, numbered in order of first appearance."""

    def __init__(self) -> None:
        self.tokens: dict[str, str] = {}  # text of a dataclass -> its token
        self.token_of_id: dict[int, str] = {}  # id of a dataclass -> its token

    def token(self, value: Any) -> str:
        token_of_id = self.token_of_id.get(id(value))
        if token_of_id is not None:
            return token_of_id
        match value:
            case None | bool():
                return repr(value)
            case str():
                return f"{len(value)}'{value}"
            case tuple():
                return f"({','.join([self.token(x) for x in value])})"
            case Node():
                # Children first, so that a deep expression needs no deep recursion.
                for n in post_order(value):
                    if id(n) not in self.token_of_id:
                        self.assign_number(n)
                return self.token_of_id[id(value)]
            case float():
                return float(value).hex()
            case frozenset():
                return f"{{{','.join(sorted(map(self.token, value)))}}}"
            case _ if dataclasses.is_dataclass(value):
                return self.assign_number(value)
            case _:
                return str(int(value))

    def assign_number(self, value: Any) -> str:
        names = _field_names(type(value))
        text = f"{type(value).__name__}({','.join([self.token(getattr(value, n)) for n in names])})"
        token = self.token_of_id[id(value)] = self.tokens.setdefault(text, f"#{len(self.tokens)}")
        return token


_FIELD_NAMES: dict[type, tuple[str, ...]] = {}


def _field_names(cls: Any) -> tuple[str, ...]:
    if cls not in _FIELD_NAMES:
        _FIELD_NAMES[cls] = tuple(f.name for f in dataclasses.fields(cls) if f.compare)
    return _FIELD_NAMES[cls]


_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _source_files() -> list[os.DirEntry[str]]:
    """The Python files of the package."""
    folders, files = [_FOLDER], []
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    files.append(entry)
                elif entry.is_dir() and not entry.name.startswith("__"):
                    folders.append(entry.path)
    return sorted(files, key=lambda entry: entry.path)


def _package_stamp() -> str:
    """The paths, sizes and modification times of the package's Python files, as text."""
    stats = ((entry.path, entry.stat()) for entry in _source_files())
    return "\n".join(f"{path} {status.st_size} {status.st_mtime_ns}" for path, status in stats)


# Evaluated on import of the package: the code of these files compiles in this process.
_STAMP = _package_stamp()


@functools.cache
def package_hash() -> str:
    """The sha256 of the package's Python files, the same for equal copies of the package.

    It is read from the disk cache if the files are as they were when it was stored. If a file was changed
    after the package was imported, it is a hash that no other process has.
    """
    from tdsl.codegen.runtime import cache

    key = cache.key("package", _STAMP)
    stored = cache.load_package_hash(key)
    if stored is not None:
        return stored
    files = [(os.path.relpath(entry.path, _FOLDER), _content(entry.path)) for entry in _source_files()]
    if _package_stamp() != _STAMP:
        return cache.key("changed package", _STAMP, str(os.getpid()))
    result = cache.key(*(part for file in files for part in file))
    cache.store_package_hash(key, result)
    return result


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
