"""Checkpoints of owned blocks are loaded on any grid, survive a run that ends half way, and are checked."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import tdsl as td
from tdsl.distribute import checkpoint, launch, mpi
from tests.distribute.kills import killed_run
from tests.distribute.random_programs import Chooser
from tests.distribute.test_mpi import needs_mpi, ranks

i, j = td.vars("i j")
DTYPES = (td.bf16, td.f16, td.f8e4m3, td.f8e5m2, td.f32, td.f64, td.i8, td.u16, td.i32, td.i64, td.bool_)


def on_each_rank(p: Any, call: Callable[[int], Any]) -> list[Any]:
    """The results of a call on each rank of a program, the last rank first, in one process."""
    results, messages = [], []

    def gather(_: Any, message: bytes | None) -> list[bytes] | None:
        messages.append(message)
        return None if None in messages else messages if len(messages) == count else []

    count = p.plan().grid.size + p.plan().idle
    with (
        patch.object(mpi, "gather_bytes", gather),
        patch.object(mpi, "check_agreement", lambda *_, **__: None),
        patch.object(mpi, "ranks_of", lambda *_: None),
    ):
        for rank in reversed(range(count)):
            with patch.object(mpi, "rank", lambda rank=rank: rank):
                results.append(call(rank))
    return results[::-1]


def save(p: Any, folder: Path, step: int, **arrays: np.ndarray) -> None:
    on_each_rank(p, lambda r: p.save(folder, {n: p.block(n, a, r) for n, a in arrays.items()}, step=step))


def assert_loaded(p: Any, folder: Path, step: int, **arrays: np.ndarray) -> None:
    """Each rank loads its blocks of these arrays, bit by bit, in arrays that can be written to."""
    for rank, (loaded_step, blocks) in enumerate(on_each_rank(p, lambda _: p.load(folder))):
        assert loaded_step == step
        assert set(blocks) == set(arrays)
        for name, array in arrays.items():
            expected = p.block(name, array, rank)
            if expected is None:
                assert blocks[name] is None
            else:
                assert (blocks[name].dtype, blocks[name].shape) == (expected.dtype, expected.shape)
                assert blocks[name].tobytes() == expected.tobytes()
                assert blocks[name].flags.writeable


def copied(shape: tuple[int, ...], dtype: td.DType, placed: str, grid: td.Grid, idle: int = 0) -> Any:
    """A program that copies a matrix `a`, which is placed as a text says."""
    a, f = td.Tensor("a", shape, dtype), td.Func("f")
    f[i, j] = a[i, j]
    s = td.Schedule(f).place(a, placed, grid).place(f, f"ij -> {'* ' * len(grid.axes)}", grid)
    s[f].distribute("*" if len(grid.axes) == 1 else ("*",) * len(grid.axes), grid)
    return td.compile(s.ranks(grid.size + idle), target="python")


def random_program(c: Chooser, shape: tuple[int, int], dtype: td.DType) -> Any:
    """The same, placed at random on a random grid."""
    grid = td.Grid(**{x: c.number(1, 4) for x in "xy"[: c.number(1, 2)]})
    entries = [c.of(["i", "j", "*", c.number(0, n - 1)]) for n in grid.shape]
    for d in "ij":
        if entries.count(d) == 1 and c.yes():
            entries[entries.index(d)] = f"{d}/{c.number(1, 3)}"
    return copied(shape, dtype, f"ij -> {' '.join(map(str, entries))}", grid, c.number(0, 1))


@pytest.mark.parametrize("seed", range(24))
def test_blocks_are_loaded_on_another_grid(seed: int, tmp_path: Path) -> None:
    c = Chooser(seed, 0)
    shape, dtype = (c.number(0, 13), c.number(1, 9)), DTYPES[seed % len(DTYPES)]
    size, end = np.dtype(dtype.numpy).itemsize, 2 if dtype is td.bool_ else 256
    bits = c.rng.integers(0, end, (*shape, size), np.uint8)
    array = bits.view(dtype.numpy)[..., 0]
    save(random_program(c, shape, dtype), tmp_path, seed, a=array)
    for _ in range(3):
        assert_loaded(random_program(c, shape, dtype), tmp_path, seed, a=array)


def test_each_part_is_written_once_and_old_files_are_removed(tmp_path: Path) -> None:
    array, p = np.arange(24).reshape(6, 4), copied((6, 4), td.i64, "ij -> i *", td.Grid(x=2, y=2))
    (tmp_path / f"a-9-{0:016x}.block.new").touch()  # of a run that ended while it wrote
    (tmp_path / "notes.txt").touch()
    for step in range(3):
        save(p, tmp_path, step, a=array + step)
        assert sum(path.stat().st_size for path in tmp_path.glob("*.block")) == array.nbytes
        assert_loaded(p, tmp_path, step, a=array + step)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".block", ".block", ".json", ".txt"]


def test_outputs_of_several_values_and_scalars(tmp_path: Path) -> None:
    x, scale = td.Tensor("x", (6, 5), td.f64), td.Tensor("scale", (), td.f32)
    best, f = td.Func("best"), td.Func("f", shape=(6,))
    best[i], f[i] = td.argmax(x[i, j], axis=j), scale[()] * i
    grid = td.Grid(x=3)
    s = td.Schedule(best, f).place(x, "ij -> i", grid).place(scale, "-> 1", grid)
    for g in s.program.funcs:
        s.place(g.name, "i -> i", grid)[g.name].distribute(i, grid)
    p = td.compile(s, target="python")
    arrays = {"best": np.arange(6), "f": np.arange(6, dtype=np.float32), "scale": np.float32(1.5)}
    save(p, tmp_path, 1, **arrays)
    assert_loaded(p, tmp_path, 1, **arrays)


def test_another_size_is_possible_for_what_is_not_saved(tmp_path: Path) -> None:
    """Data of any number of rows, and weights."""

    def program(rows: int, columns: int = 3) -> Any:
        x, w, f = td.Tensor("x", ("N", "M"), td.i64), td.Tensor("w", ("M",), td.i64), td.Func("f")
        f[j] = td.sum(x[i, j] * w[j], axis=i)
        s = td.Schedule(f).place(x, "ij -> i", grid).place(w, "j -> *", grid).place(f, "j -> *", grid)
        s[f].distribute(i, grid)
        return td.compile(s, N=rows, M=columns)

    grid, array = td.Grid(x=2), np.arange(3)
    save(program(10), tmp_path, 1, w=array)
    assert_loaded(program(4), tmp_path, 1, w=array)
    with pytest.raises(
        td.ShapeError, match=r"'w' was saved as i64\[3\] on 0:3, this program has i64\[4\] on 0:4"
    ):
        on_each_rank(program(4, 4), lambda _: program(4, 4).load(tmp_path))


def test_a_failing_write_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    """A full disk on one rank, or while the manifest is written; a file that is left is removed later."""
    array, p = np.arange(24).reshape(6, 4), copied((6, 4), td.i64, "ij -> i", td.Grid(x=3))
    save(p, tmp_path, 1, a=array)
    write = checkpoint._write_safely
    for failing in ("a-1-", "manifest"):

        def full(path: Path, contents: Any, failing: str = failing) -> None:
            if path.name.startswith(failing):
                path.with_name(path.name + ".new").write_bytes(b"part")
                raise OSError(28, "No space left on device", str(path))
            write(path, contents)

        with (
            patch.object(checkpoint, "_write_safely", full),
            pytest.raises(td.TargetError, match=rf"rank \d cannot write .*{failing}.*: No space left"),
        ):
            save(p, tmp_path, 2, a=array * 2)
        assert_loaded(p, tmp_path, 1, a=array)
    save(p, tmp_path, 3, a=array * 3)
    assert len(list(tmp_path.iterdir())) == 4  # what was left of other writes is removed


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Any, Path]:
    """A program of three ranks and the folder of its checkpoint."""
    p = copied((6, 4), td.i64, "ij -> i", td.Grid(x=3))
    save(p, tmp_path, 1, a=np.arange(24).reshape(6, 4))
    return p, tmp_path


@pytest.mark.parametrize("spoil, says", [
    (lambda path: path.unlink(), "is missing"),
    (lambda path: path.write_bytes(path.read_bytes()[:-1]), "is damaged: its checksum or size"),
    (lambda path: path.write_bytes(bytes(len(path.read_bytes()))), "is damaged: its checksum or size"),
])  # fmt: skip
def test_a_missing_or_damaged_block_is_named(
    saved: tuple[Any, Path], spoil: Callable[[Path], None], says: str
) -> None:
    p, folder = saved
    (path,) = folder.glob("a-1-*.block")
    spoil(path)
    with pytest.raises(
        td.TargetError, match=f"{path}, the block of 'a' that rank 1 saved and rank 1 needs, {says}"
    ):
        on_each_rank(p, lambda rank: p.load(folder) if rank == 1 else None)
    on_each_rank(p, lambda rank: p.load(folder) if rank != 1 else None)


def changed(folder: Path, change: Callable[[Any], None]) -> None:
    path = folder / "manifest.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("change, says", [
    (lambda m: m.update(version=2), "has version 2, this version of tdsl reads version 1"),
    (lambda m: m.update(format="other"), "is no manifest of a checkpoint"),
    (lambda m: m.pop("tensors"), "is damaged: KeyError 'tensors'"),
    (lambda m: m["tensors"]["a"]["blocks"].pop(1), "has blocks of 0 of the 8 elements of 'a' that rank 1"),
    (lambda m: m["tensors"]["a"]["blocks"][0].update(file="../a.block"), "is damaged: ValueError '../a"),
    (lambda m: m["tensors"]["a"]["blocks"][0].update(box=[[0, 6], [0, 4]]), "its checksum or size is not"),
    (lambda m: m["tensors"]["a"]["blocks"][0].update(box=[[0, 2]]), "is damaged: ValueError zip"),
    (lambda m: m["tensors"]["a"]["blocks"][2].update(box=[[4, 7], [0, 4]]), "elements 4 to 7 of an axis"),
    (lambda m: m["tensors"].update(b=m["tensors"]["a"]), "has no array 'b'"),
    (lambda m: m.update(identity=""), "is of a program 'f' whose tensors have other names, shapes or dtypes"),
])  # fmt: skip
def test_a_wrong_manifest_is_an_error(
    saved: tuple[Any, Path], change: Callable[[Any], None], says: str
) -> None:
    p, folder = saved
    changed(folder, change)
    with pytest.raises(td.TdslError, match=says):
        on_each_rank(p, lambda rank: p.load(folder))


def test_expressions_may_change_and_tensors_may_not() -> None:
    def identity(dtype: td.DType, factor: int) -> str:
        a, f = td.Tensor("a", ("N",), dtype), td.Func("f")
        f[i] = a[i] * factor
        return checkpoint.identity_of(td.Schedule(f).program)

    assert identity(td.f32, 2) == identity(td.f32, 3) != identity(td.f64, 2)


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    p = copied((6, 4), td.i64, "ij -> i", td.Grid(x=1))
    (tmp_path / "file").write_text("text")
    for folder in (tmp_path, tmp_path / "none"):
        assert p.load(folder, missing_ok=True) is None
        with pytest.raises(td.TargetError, match="has no manifest of a checkpoint"):
            p.load(folder)
    for call in (lambda f: p.load(f, missing_ok=True), lambda f: p.save(f, {}, step=1)):
        with pytest.raises(td.TargetError, match=r"file/manifest\.json cannot be read: Not a directory"):
            call(tmp_path / "file")


FAILURES = """
import numpy as np, tdsl as td, os, sys
from tdsl.distribute import checkpoint
from tests.distribute.counting import START, step_on
p, me, folder = td.compile(step_on(2), target="python"), td.mpi.rank(), sys.argv[1]
x = p.block("x", START)
def write(*_):
    raise OSError(28, "No space left on device", "name")
def attempt(**options):
    try:
        p.save(folder, {"x": options.get("x", x)}, step=options.get("step", 1))
    except td.TdslError as error:
        text = f"{me}: {error.message}\\n"
        os.write(1, text.encode())
attempt(x=x[me:])
attempt(step=me)
if me:
    whole, checkpoint.write_block = checkpoint.write_block, write
attempt()
if me:
    checkpoint.write_block = whole
attempt()
step, blocks = p.load(folder)
assert step == 1 and np.array_equal(blocks["x"], x)
"""


@needs_mpi
def test_an_error_of_one_rank_is_one_of_all(tmp_path: Path) -> None:
    done = ranks(2, "-c", FAILURES, str(tmp_path), seconds=30)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "0: rank 1 saves or loads another checkpoint than rank 0",
        "0: rank 1: rank 1 cannot write name: No space left on device",
        "0: rank 1: x has shape (5, 7), expected (6, 7)",
        "1: rank 1 cannot write name: No space left on device",
        "1: rank 1 saves or loads another checkpoint than rank 0",
        "1: x has shape (5, 7), expected (6, 7)",
    ]


@pytest.mark.parametrize(
    "codes, restarts, ranks_of_runs, code",
    [([0], 3, [3], 0), ([1, 9, 0], 3, [3, 2, 1], 0), ([1, 1, 1, 1], 3, [3, 2, 1, 1], 1), ([7], 0, [3], 7)],
)
def test_a_run_that_fails_is_restarted_on_fewer_ranks(
    codes: list[int], restarts: int, ranks_of_runs: list[int], code: int
) -> None:
    started = []

    def once(count: int, script: str, arguments: list[str]) -> tuple[int, bool]:
        started.append(count)
        return codes[len(started) - 1], False

    with patch.object(launch, "_launch_once", once):
        assert launch.launch(3, "program.py", [], restarts) == code
    assert started == ranks_of_runs
    with patch.object(launch, "_launch_once", lambda *_: (130, True)):
        assert launch.launch(3, "program.py", [], 2) == 130  # by Ctrl-C


@needs_mpi
def test_killed_ranks_lose_one_step_at_most() -> None:
    """Restarted on two ranks, then on one; `python -m tests.distribute.kills` has 50 kills."""
    with tempfile.TemporaryDirectory() as folder:
        assert max(killed_run(1, 3, 2, Path(folder), 60)) <= 1
