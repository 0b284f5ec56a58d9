"""The disk cache returns what was stored or nothing, whatever happens to its files and folder."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pytest

from tdsl.codegen.runtime import cache
from tdsl.errors import CacheWarning

PAYLOAD = bytes(range(256)) * 3
KEY = cache.key("text", b"bytes")
NOBODY = 65534
needs_owners = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners of files")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty place for the cache of one test."""
    path = tmp_path / "cache"
    monkeypatch.setenv("TDSL_CACHE_DIR", str(path))
    monkeypatch.delenv("TDSL_CACHE", raising=False)
    monkeypatch.delenv("TDSL_TRUSTED_CACHE", raising=False)
    return path


@contextlib.contextmanager
def one_warning():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    assert [w.category for w in seen] == [CacheWarning]


@contextlib.contextmanager
def unprivileged(*paths):
    """Run as an ordinary user that owns `paths`: root may do everything."""
    if os.geteuid() != 0:
        yield
        return
    for path in paths:
        os.chown(path, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def entry(folder: Path) -> Path:
    (entry,) = folder.glob("*.entry")
    return entry


def in_new_process(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_payload_comes_back_and_counts(folder):
    before = cache.info()
    assert cache.load(KEY) is None
    cache.store(KEY, PAYLOAD, {"kernel": "blur"})
    assert cache.load(KEY) == PAYLOAD
    after = cache.info()
    assert (after.path, after.entries, after.problem) == (str(folder), 1, "")
    assert after.bytes == entry(folder).stat().st_size
    assert after.hits - before.hits == after.misses - before.misses == 1
    assert after.stored - before.stored == 1


def test_payload_may_be_empty_and_replaced(folder):
    cache.store(KEY, b"")
    assert cache.load(KEY) == b""
    cache.store(KEY, PAYLOAD)
    assert cache.load(KEY) == PAYLOAD


def test_folder_and_files_are_private(folder):
    cache.store(KEY, PAYLOAD)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry(folder).stat().st_mode) == 0o600


def test_entry_is_read_by_a_new_process(folder):
    cache.store(KEY, PAYLOAD)
    code = """
        import sys
        from tdsl.codegen.runtime import cache
        print(cache.load(sys.argv[1]).hex())
    """
    assert in_new_process(code, KEY).strip() == PAYLOAD.hex()


def test_truncated_entry_is_a_miss_and_is_put_aside(folder):
    cache.store(KEY, PAYLOAD)
    path = entry(folder)
    whole = path.read_bytes()
    with one_warning():
        for size in sorted({0, 1, 7, 8, 23, 24, 60, *range(0, len(whole), 61), len(whole) - 1}):
            path.write_bytes(whole[:size])
            assert cache.load(KEY) is None
            assert not path.exists()
    cache.store(KEY, PAYLOAD)
    assert cache.load(KEY) == PAYLOAD


def test_flipped_bit_anywhere_is_a_miss(folder):
    cache.store(KEY, PAYLOAD)
    path = entry(folder)
    whole = path.read_bytes()
    rejected = cache.info().rejected
    positions = [*range(32), *range(32, len(whole), 17), len(whole) - 1]
    with one_warning():
        for position in positions:
            damaged = bytearray(whole)
            damaged[position] ^= 1 << position % 8
            path.write_bytes(damaged)
            assert cache.load(KEY) is None
    assert cache.info().rejected - rejected == len(positions)


def test_appended_bytes_are_a_miss(folder):
    cache.store(KEY, PAYLOAD)
    with entry(folder).open("ab") as file:
        file.write(b"x")
    with one_warning():
        assert cache.load(KEY) is None


def test_other_version_is_a_miss(folder, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr(cache, "SCHEMA", cache.SCHEMA + 1)
        cache.store(KEY, PAYLOAD)
        assert cache.load(KEY) == PAYLOAD
    with one_warning():
        assert cache.load(KEY) is None


def test_entry_under_another_name_is_a_miss(folder):
    cache.store(KEY, PAYLOAD)
    other = cache.key("other")
    entry(folder).rename(folder / f"{other}.entry")
    with one_warning():
        assert cache.load(other) is None


@needs_owners
@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_only_regular_files_are_read(folder, tmp_path, kind):
    cache.store(KEY, PAYLOAD)
    path = entry(folder)
    path.rename(tmp_path / path.name)
    if kind == "link":
        path.symlink_to(tmp_path / path.name)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with one_warning():
        assert cache.load(KEY) is None
    cache.store(KEY, PAYLOAD)
    assert cache.load(KEY) == PAYLOAD
    assert entry(folder).is_file()


@needs_owners
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o720])
def test_folder_that_others_can_write_is_refused(folder, mode):
    cache.store(KEY, PAYLOAD)
    folder.chmod(mode)
    with one_warning():
        assert cache.load(KEY) is None
        assert cache.load(KEY) is None
    assert "can be written by other users" in cache.info().problem


@needs_owners
def test_trusted_folder_is_used_as_it_is(folder, monkeypatch):
    cache.store(KEY, PAYLOAD)
    folder.chmod(0o770)
    monkeypatch.setenv("TDSL_TRUSTED_CACHE", os.pathsep.join(["/elsewhere", str(folder)]))
    assert cache.load(KEY) == PAYLOAD


@needs_owners
def test_entry_that_others_can_write_is_a_miss(folder):
    cache.store(KEY, PAYLOAD)
    entry(folder).chmod(0o666)
    with one_warning():
        assert cache.load(KEY) is None


@needs_owners
def test_folder_of_another_user_is_refused(monkeypatch, tmp_path):
    if os.geteuid() == 0:
        foreign = tmp_path / "foreign"
        foreign.mkdir(mode=0o700)
        os.chown(foreign, NOBODY, NOBODY)
    else:
        foreign = Path("/usr")
    monkeypatch.setenv("TDSL_CACHE_DIR", str(foreign))
    with one_warning():
        assert cache.load(KEY) is None
        cache.store(KEY, PAYLOAD)
    assert "belongs to another user" in cache.info().problem


@needs_owners
def test_read_only_folder_still_serves_entries(folder, tmp_path):
    for path in (tmp_path, *tmp_path.parents):  # other users may pass, up to where they can already
        if path.stat().st_mode & 0o001:
            break
        path.chmod(0o755)
    cache.store(KEY, PAYLOAD)
    folder.chmod(0o500)
    with unprivileged(entry(folder), folder):
        assert cache.load(KEY) == PAYLOAD
        with one_warning():
            cache.store(cache.key("new"), PAYLOAD)
            cache.store(cache.key("newer"), PAYLOAD)


def test_file_in_place_of_the_folder_costs_one_warning(folder):
    folder.write_text("not a folder")
    with one_warning():
        cache.store(KEY, PAYLOAD)
        cache.store(KEY, PAYLOAD)
    assert folder.read_text() == "not a folder"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failed_write_leaves_the_old_entry_and_no_rubbish(folder, monkeypatch, call):
    cache.store(KEY, b"old")

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with one_warning():
        cache.store(KEY, PAYLOAD)
    assert cache.load(KEY) == b"old"
    assert [p.name for p in folder.iterdir()] == [f"{KEY}.entry"]


def test_cache_can_be_turned_off(folder, monkeypatch):
    monkeypatch.setenv("TDSL_CACHE", "0")
    cache.store(KEY, PAYLOAD)
    assert cache.load(KEY) is None
    assert cache.info().path == ""
    assert not folder.exists()
    assert cache.verify() == []
    assert cache.clear() == 0


def test_verify_names_damaged_entries_and_removes_old_temporaries(folder):
    cache.store(KEY, PAYLOAD)
    other = cache.key("other")
    cache.store(other, PAYLOAD)
    path = folder / f"{other}.entry"
    path.write_bytes(path.read_bytes()[:-1])
    old, young = folder / "x.1.tmp", folder / "y.1.tmp"
    for temporary in (old, young):
        temporary.touch()
    os.utime(old, (time.time() - 7200,) * 2)
    with one_warning():
        assert cache.verify() == [path.name]
    assert cache.verify() == []
    assert young.exists()
    assert not old.exists()
    assert cache.load(KEY) == PAYLOAD


def test_clear_removes_files_of_the_cache_only(folder):
    cache.store(KEY, PAYLOAD)
    (folder / "notes.txt").write_text("mine")
    assert cache.clear() == 1
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]
    assert cache.load(KEY) is None


def test_no_folder_is_an_empty_cache(folder):
    assert cache.verify() == []
    assert cache.clear() == 0
    info = cache.info()
    assert (info.path, info.entries, info.bytes, info.problem) == (str(folder), 0, 0, "")


def test_writers_and_readers_in_processes_never_see_half_an_entry(folder):
    code = """
        import sys, warnings
        from tdsl.codegen.runtime import cache
        warnings.simplefilter("error")
        own = int(sys.argv[1])
        for turn in range(40):
            key = cache.key(str(turn % 3))
            cache.store(key, bytes([own]) * 5000 + key.encode())
            found = cache.load(key)
            assert found[:5000] in {bytes([n]) * 5000 for n in range(4)}, turn
            assert found[5000:] == key.encode()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    writers = [subprocess.Popen([*command, str(writer)]) for writer in range(4)]
    assert [w.wait() for w in writers] == [0] * 4
    assert len(list(folder.iterdir())) == 3
    assert cache.verify() == []


def test_keys_depend_on_parts_types_and_order():
    parts = [(), ("",), (b"",), ("a", "b"), ("b", "a"), ("ab",), (b"ab",), ("a", b"b"), ("ab", "")]
    assert len({cache.key(*p) for p in parts}) == len(parts)


def test_entries_that_were_not_used_for_longest_are_removed_beyond_the_limit(folder, monkeypatch):
    keys = [cache.key(str(n)) for n in range(10)]
    for age, key in enumerate(keys):
        cache.store(key, bytes(1000))
        os.utime(folder / f"{key}.entry", (time.time() - 10_000 * (10 - age),) * 2)
    assert cache.load(keys[0]) is not None  # used now
    (size,) = {path.stat().st_size for path in folder.iterdir()}
    monkeypatch.setenv("TDSL_CACHE_SIZE", str(6 * size))
    cache.store(KEY, bytes(1000))
    assert cache.info().bytes <= 0.9 * 6 * size
    assert [cache.load(key) is not None for key in (keys[0], *keys[1:6], keys[9], KEY)] == [
        True, *[False] * 5, True, True,
    ]  # fmt: skip


def test_entries_of_other_processes_count_towards_the_limit(folder, monkeypatch):
    cache.store(KEY, bytes(1000))
    monkeypatch.setenv("TDSL_CACHE_SIZE", "20000")
    program = "import sys; from tdsl.codegen.runtime import cache\n" + textwrap.dedent("""
        for n in range(100):
            cache.store(cache.key(sys.argv[1], str(n)), bytes(1000))
    """)
    writers = [subprocess.Popen([sys.executable, "-W", "error", "-c", program, str(n)]) for n in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    for n in range(65):
        cache.store(cache.key(str(n)), bytes(1000))
    assert 0 < cache.info().bytes <= 20_000 + 3 * 20_000 and cache.verify() == []


def test_a_limit_that_is_no_number_is_reported(folder, monkeypatch):
    monkeypatch.setenv("TDSL_CACHE_SIZE", "2GB")
    with pytest.warns(CacheWarning, match="TDSL_CACHE_SIZE is a number of bytes"):
        cache.store(KEY, PAYLOAD)
    assert cache.load(KEY) == PAYLOAD


def test_a_shared_folder_is_read_and_never_written(folder, tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    monkeypatch.setenv("TDSL_CACHE_DIR", str(shared))
    cache.store(KEY, PAYLOAD)
    monkeypatch.setenv("TDSL_CACHE_DIR", str(folder))
    assert cache.load(KEY) is None
    monkeypatch.setenv("TDSL_CACHE_SHARED", os.pathsep.join([str(tmp_path / "none"), str(shared)]))
    before = sorted((p.name, p.stat().st_mtime_ns) for p in shared.iterdir())
    hits = cache.info().hits
    assert cache.load(KEY) == PAYLOAD and cache.info().hits == hits + 1
    cache.store(cache.key("other"), PAYLOAD)
    assert sorted((p.name, p.stat().st_mtime_ns) for p in shared.iterdir()) == before
    monkeypatch.setenv("TDSL_CACHE", "0")
    assert cache.load(KEY) is None


@pytest.mark.parametrize("fault", ["damaged", "public"])
def test_a_bad_shared_folder_is_reported_and_left_as_it_is(fault, folder, tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    monkeypatch.setenv("TDSL_CACHE_DIR", str(shared))
    cache.store(KEY, PAYLOAD)
    if fault == "damaged":
        path = entry(shared)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    else:
        shared.chmod(0o777)
    monkeypatch.setenv("TDSL_CACHE_DIR", str(folder))
    monkeypatch.setenv("TDSL_CACHE_SHARED", str(shared))
    with one_warning():
        assert cache.load(KEY) is None
    assert [p.name for p in shared.iterdir()] == [f"{KEY}.entry"]
