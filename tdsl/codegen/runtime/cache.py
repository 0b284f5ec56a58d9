"""The disk cache of compiled code: one file for each entry, verified before use; its errors fail no call.

The folder is `platformdirs.user_cache_dir("tdsl")`, or `TDSL_CACHE_DIR`; `TDSL_CACHE=0` turns the
cache off. Entries are machine code, so the folder must belong to the user and be writable by nobody
else, unless `TDSL_TRUSTED_CACHE` (paths separated by `os.pathsep`) names it. An entry is

    magic, schema, length of header, length of payload | header (JSON) | payload | sha256 of all before it

A file of any other content is renamed to the suffix `.bad` and counts as a miss.

`TDSL_CACHE_SHARED` names further folders, separated by `os.pathsep`: entries that are missing in the folder
of the user are read from there, nothing is written there. `TDSL_CACHE_SIZE` is the limit of the folder in
bytes: beyond it the entries that were not used for longest are removed.

Failures raise nothing; they give a `CacheWarning`, once in a process for each kind of problem and folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import struct
import threading
import time
import warnings
from collections.abc import Iterator, Mapping

from tdsl.core.folders import cache_folder
from tdsl.core.node import frozen
from tdsl.errors import CacheWarning

SCHEMA = 1  # version of the format of entries
_MAGIC = b"\x89tdsl\r\n\x1a"
_PREFIX = struct.Struct("<8sIIQ")
_DIGEST = 32  # bytes of a SHA-256 digest
_SUFFIX, _BAD, _TEMPORARY = ".entry", ".bad", ".tmp"
_PACKAGE = ".package"  # the hash of a package's files, which counts neither as an entry nor as a hit
_STALE_SECONDS = 3600.0
_DEFAULT_SIZE = 2_000_000_000
_KEPT = 0.9  # part of the limit that remains after a removal
_UNSEEN_STORES = 64  # of this process until it counts the entries of others again
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_CLOEXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@frozen
class CacheInfo:
    """The contents of the cache (`entries` files, `bytes` in all) and its statistics in this process.

    `path` is empty if the cache is turned off; `problem` is empty unless the cache cannot be used.
    `rejected` counts entries that were damaged or of another version.
    """

    path: str
    entries: int
    bytes: int
    hits: int
    misses: int
    stored: int
    rejected: int
    problem: str


class _RefusedError(Exception):
    """The folder or an entry must not be used; the message has the reason."""


@frozen
class _Folder:
    """An open folder; by descriptor if the system supports it, so that nobody can swap the folder."""

    path: str
    descriptor: int | None
    trusted: bool

    def at(self, name: str) -> str:
        return name if self.descriptor is not None else os.path.join(self.path, name)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path if self.descriptor is None else self.descriptor))

    def status(self, name: str) -> os.stat_result:
        return os.stat(self.at(name), dir_fd=self.descriptor, follow_symlinks=False)

    def touch(self, name: str) -> None:
        """Record that a file was used, for the removal of those that were not used for longest."""
        with contextlib.suppress(OSError):  # such as a folder that can only be read
            if time.time() - self.status(name).st_mtime > _STALE_SECONDS:
                os.utime(self.at(name), dir_fd=self.descriptor, follow_symlinks=False)

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.at(name), dir_fd=self.descriptor)

    def rename(self, old: str, new: str) -> None:
        at = self.descriptor
        os.replace(self.at(old), self.at(new), src_dir_fd=at, dst_dir_fd=at)


_lock = threading.Lock()
_counts = {"hits": 0, "misses": 0, "stored": 0, "rejected": 0}
_warned: set[tuple[str, str]] = set()


def key(*parts: str | bytes) -> str:
    """The key of an entry, a hash of `parts`: 64 hexadecimal digits; other lists of parts have other keys.

    >>> key("ab", "c") != key("a", "bc") != key(b"a", "bc")
    True
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%c%d:" % (b"s" if isinstance(part, str) else b"b", len(data)))
        digest.update(data)
    return digest.hexdigest()


def load(key: str) -> bytes | None:
    """The payload stored under `key`, or None."""
    if not cache_folder():
        return None
    payload = _load_private(key + _SUFFIX)
    if payload is None:
        payload = _load_shared(key + _SUFFIX)
    _count("misses" if payload is None else "hits")
    return payload


def _load_private(name: str) -> bytes | None:
    try:
        with _folder(create=False) as folder:
            if folder is None:
                return None
            try:
                payload = _read(folder, name)
            except FileNotFoundError:
                return None
            except (_RefusedError, OSError) as problem:
                _reject(folder, name, problem)
                return None
            folder.touch(name)
            return payload
    except FileNotFoundError:
        pass
    except (_RefusedError, OSError) as problem:
        _warn("cannot be used", problem)
    return None


def _load_shared(name: str) -> bytes | None:
    """The payload of an entry in the first of the shared folders that has it, or None."""
    for path in filter(None, os.environ.get("TDSL_CACHE_SHARED", "").split(os.pathsep)):
        try:
            _check_not_public(os.stat(path), path)
            return _read(_Folder(path, None, trusted=True), name)
        except FileNotFoundError:
            continue
        except (_RefusedError, OSError) as problem:
            _count("rejected")
            _warn(f"cannot use {name} of the shared folder {path}", problem, kind=f"shared {path}")
    return None


def load_package_hash(key: str) -> str | None:
    """The hash of the package's files stored for the state of these files, or None."""
    payload = _load_private(key + _PACKAGE)
    return None if payload is None else payload.decode()


def store_package_hash(key: str, text: str) -> None:
    """Store the hash of the package's files for the state of these files."""
    _store(key, text.encode(), {}, _PACKAGE)


def store(key: str, payload: bytes, header: Mapping[str, object] | None = None) -> None:
    """Store `payload` under `key`; `header` is JSON metadata for a reader of the file."""
    if _store(key, payload, header or {}, _SUFFIX):
        _count("stored")


def _store(key: str, payload: bytes, header: Mapping[str, object], suffix: str) -> bool:
    text = json.dumps({**header, "key": key}, sort_keys=True).encode()
    data = _PREFIX.pack(_MAGIC, SCHEMA, len(text), len(payload)) + text + payload
    data += hashlib.sha256(data).digest()
    try:
        with _folder(create=True) as folder:
            if folder is not None:
                _write(folder, key + suffix, data)
                _limit_size(folder, len(data))
                return True
    except (_RefusedError, OSError) as problem:
        _warn("cannot be written", problem)
    return False


class _Size:
    """The bytes of all entries of a folder, as this process knows them."""

    def __init__(self) -> None:
        self.path, self.bytes, self.stores = "", 0, 0


_size = _Size()


def _size_limit() -> int:
    try:
        return int(os.environ.get("TDSL_CACHE_SIZE", "") or _DEFAULT_SIZE)
    except ValueError as error:
        raise _RefusedError(f"TDSL_CACHE_SIZE is a number of bytes: {error}") from None


def _limit_size(folder: _Folder, added: int) -> None:
    """Remove the entries that were not used for longest if all of them exceed the limit."""
    limit = _size_limit()
    with _lock:
        _size.bytes += added
        _size.stores += 1
        is_current = _size.path == folder.path and _size.stores < _UNSEEN_STORES
        if is_current and _size.bytes <= limit:
            return
        entries = []
        for name in folder.names():
            with contextlib.suppress(OSError):  # removed by another process
                if name.endswith((_SUFFIX, _BAD)):
                    status = folder.status(name)
                    entries.append((status.st_mtime_ns, status.st_size, name))
        total = sum(size for _, size, _ in entries)
        if total > limit:
            for _, size, name in sorted(entries):
                if total <= limit * _KEPT:
                    break
                folder.remove(name)
                total -= size
        _size.path, _size.bytes, _size.stores = folder.path, total, 0


def info() -> CacheInfo:
    """The contents and statistics of the cache."""
    path, problem = "", ""
    sizes: list[int] = []
    try:
        with _folder(create=False) as folder:
            if folder is not None:
                path = folder.path
                sizes = [folder.status(n).st_size for n in folder.names() if n.endswith(_SUFFIX)]
    except FileNotFoundError:
        path = cache_folder()
    except (_RefusedError, OSError) as refused:
        path, problem = cache_folder(), str(refused)
    with _lock:
        return CacheInfo(path, len(sizes), sum(sizes), **_counts, problem=problem)


def problem_of_writing() -> str:
    """Why no entry can be written to the cache; "" if one can be, or if the cache is turned off."""
    try:
        with _folder(create=True) as folder:
            if folder is not None:
                name = f"{key('problem_of_writing', str(os.getpid()))}{_TEMPORARY}"
                _write(folder, name, b"")
                folder.remove(name)
    except (_RefusedError, OSError) as problem:
        return str(problem)
    return ""


def verify() -> list[str]:
    """Check every entry; the names of the damaged ones, which are renamed to `.bad`.

    Temporary files of writers that were killed are removed.
    """
    bad = []
    with _listed("cannot be used") as (folder, names):
        for name in names:
            if name.endswith((_SUFFIX, _PACKAGE)):
                try:
                    _read(folder, name)
                except FileNotFoundError:
                    continue
                except (_RefusedError, OSError) as problem:
                    bad.append(name)
                    _reject(folder, name, problem)
            elif name.endswith(_TEMPORARY):
                with contextlib.suppress(OSError):
                    if time.time() - folder.status(name).st_mtime > _STALE_SECONDS:
                        folder.remove(name)
    return bad


def clear() -> int:
    """Remove all entries, and files with the suffix `.bad` or `.tmp`; the number of files removed."""
    removed = 0
    with _listed("cannot be cleared") as (folder, names):
        for name in names:
            if name.endswith((_SUFFIX, _BAD, _TEMPORARY, _PACKAGE)):
                folder.remove(name)
                removed += 1
    return removed


@contextlib.contextmanager
def _listed(trouble: str) -> Iterator[tuple[_Folder, list[str]]]:
    """The folder and its file names, none if it does not exist; warns if the folder cannot be used."""
    with contextlib.ExitStack() as stack:
        nothing = _Folder("", None, False)
        try:
            folder = stack.enter_context(_folder(create=False))
            listed = (folder, folder.names()) if folder is not None else (nothing, [])
        except FileNotFoundError:
            listed = (nothing, [])
        except (_RefusedError, OSError) as problem:
            _warn(trouble, problem)
            listed = (nothing, [])
        yield listed


@contextlib.contextmanager
def _folder(create: bool) -> Iterator[_Folder | None]:
    """The opened folder after the check of its owner; None if the cache is off. FileNotFoundError if none."""
    path = cache_folder()
    if not path:
        yield None
        return
    if create:
        os.makedirs(path, mode=0o700, exist_ok=True)
    trusted = path in os.environ.get("TDSL_TRUSTED_CACHE", "").split(os.pathsep)
    if os.open not in os.supports_dir_fd:
        os.stat(path)
        yield _Folder(path, None, trusted)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _CLOEXEC)
    try:
        if not trusted:
            _check_owner(os.fstat(descriptor), path)
        yield _Folder(path, descriptor, trusted)
    finally:
        os.close(descriptor)


def _check_owner(status: os.stat_result, what: str) -> None:
    if status.st_uid != os.geteuid():
        raise _RefusedError(f"{what} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _RefusedError(f"{what} can be written by other users (chmod go-w {what})")


def _check_not_public(status: os.stat_result, what: str) -> None:
    if status.st_mode & stat.S_IWOTH:
        raise _RefusedError(f"{what} can be written by everybody (chmod o-w {what})")


def _read(folder: _Folder, name: str) -> bytes:
    """The payload of an entry; _RefusedError, with the reason, if the file is no valid entry."""
    data = _contents(folder, name)
    if len(data) < _PREFIX.size + _DIGEST:
        raise _RefusedError("too short")
    magic, schema, header_size, payload_size = _PREFIX.unpack_from(data)
    if magic != _MAGIC or schema != SCHEMA:
        raise _RefusedError("another format or version")
    if len(data) != _PREFIX.size + header_size + payload_size + _DIGEST:
        raise _RefusedError("another length than written")
    view = memoryview(data)
    if hashlib.sha256(view[:-_DIGEST]).digest() != view[-_DIGEST:]:
        raise _RefusedError("damaged")
    try:
        stored = json.loads(data[_PREFIX.size : _PREFIX.size + header_size])["key"]
    except (ValueError, KeyError, TypeError):
        raise _RefusedError("a header without a key") from None
    if stored != name.partition(".")[0]:
        raise _RefusedError("stored under another name")
    return data[_PREFIX.size + header_size : -_DIGEST]


def _contents(folder: _Folder, name: str) -> bytes:
    descriptor = os.open(folder.at(name), _FLAGS | _CLOEXEC, dir_fd=folder.descriptor)
    with open(descriptor, "rb", closefd=True) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _RefusedError("not a regular file")
        if folder.descriptor is not None and not folder.trusted:
            _check_owner(status, "the file")
        return file.read()


def _write(folder: _Folder, name: str, data: bytes) -> None:
    temporary = f"{name}.{os.getpid()}.{os.urandom(6).hex()}{_TEMPORARY}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | _CLOEXEC
    descriptor = os.open(folder.at(temporary), flags, 0o600, dir_fd=folder.descriptor)
    try:
        with open(descriptor, "wb", closefd=True) as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        folder.rename(temporary, name)
    except BaseException:  # an interrupt must not leave the file behind either
        folder.remove(temporary)
        raise


def _reject(folder: _Folder, name: str, problem: Exception) -> None:
    """Rename a bad entry to `.bad`, so that the next writer replaces it and a person can inspect it."""
    _count("rejected")
    _warn(f"holds a bad entry, {name}, which is left out", problem, kind="bad entry")
    try:
        folder.rename(name, name + _BAD)
    except OSError:
        folder.remove(name)


def _count(what: str) -> None:
    with _lock:
        _counts[what] += 1


def _warn(what: str, problem: Exception, kind: str = "") -> None:
    """Issue a CacheWarning, once in a process for each kind of problem and folder."""
    path = cache_folder()
    with _lock:
        if (kind, path) in _warned:
            return
        _warned.add((kind, path))
    warnings.warn(f"the disk cache {path} {what}: {problem}", CacheWarning, stacklevel=3)
