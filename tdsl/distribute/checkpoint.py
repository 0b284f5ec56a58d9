"""Checkpoints: the owned blocks of some tensors in a folder, for a later run on any grid.

A rank writes its blocks to files whose names have the sha256 of their contents, so that no file of the last
checkpoint is overwritten. When all ranks have, rank 0 replaces the manifest by renaming a new one, and
removes the files that it does not list: a run that ends at any moment leaves one of the two whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tdsl.codegen.runtime.arrays import Array
from tdsl.codegen.runtime.fingerprint import fingerprint
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.distribute import mpi
from tdsl.distribute.manifest import (
    NAME,
    SAVE_HINT,
    SUFFIX,
    Manifest,
    SavedBlock,
    SavedTensor,
    block_of_json,
    block_to_json,
)
from tdsl.errors import ShapeError, TargetError, TdslError, TypeMismatch
from tdsl.lang.program import Program
from tdsl.lang.types import DType
from tdsl.placement.ownership import (
    SpanBox,
    element_count,
    index_within,
    stored_shape,
)
from tdsl.placement.spans import PeriodicSpan, Span, contiguous_parts, intersect_spans

TEMPORARY = ".new"  # the suffix of files that are being written
FILE = re.compile(rf".*-\d+-[0-9a-f]{{16}}\{SUFFIX}(\{TEMPORARY})?")
DAMAGED_HINT = "restore the file from a copy of the folder, or start from a new folder"


@frozen
class SavedArray:
    """An array of a program as checkpoints have it: its box, dtype, placement as text, and owned boxes.

    `owners` are the boxes of the ranks that write it, the first rank of copies; `mine` is that of this rank.
    """

    name: str
    dtype: DType
    whole: SpanBox
    placement: str
    owners: Mapping[int, SpanBox]
    mine: SpanBox | None


def identity_of(program: Program) -> str:
    """A hash of the tensors of a program: names, shapes and dtypes; expressions and schedules do not matter.

    Shapes have the names of sizes, so that runs may differ in the sizes of tensors that are not saved.
    """
    inputs = [(t.name, t.dtype.name, t.shape) for t in program.inputs]
    funcs = [(f.name, tuple(t.name for t in f.dtypes), f.natural) for f in program.funcs]
    return fingerprint(tuple(sorted(inputs, key=_name)), tuple(sorted(funcs, key=_name)))


def _name(named: tuple[Any, ...]) -> str:
    return str(named[0])


def check_step(step: object) -> int:
    """The number of a step as an integer; TypeMismatch unless it is one, 0 or more."""
    if isinstance(step, bool) or not hasattr(step, "__index__") or int(step.__index__()) < 0:
        raise TypeMismatch(
            f"step={step!r} is no number of a step",
            loc=here(), label="this call", hint="pass the number of steps that are done: step=n",
        )  # fmt: skip
    return int(step.__index__())


def check_arrays(arrays: object) -> Mapping[str, Any]:
    """The blocks to save, by name; TypeMismatch unless it is a dictionary."""
    if not isinstance(arrays, Mapping):
        raise TypeMismatch(
            f"arrays={arrays!r} is no dictionary of blocks",
            loc=here(), label="this call", hint='name each block: p.save(folder, {"W": block}, step=n)',
        )  # fmt: skip
    return arrays


def save(
    folder: Path, program: str, identity: str, grid: str, step: int,
    arrays: Mapping[str, SavedArray], blocks: Mapping[str, Array], comm: Any,
) -> None:  # fmt: skip
    """Write the blocks of this rank, and on rank 0 the manifest; all ranks call it after they agreed to.

    TargetError on all ranks if a file of one cannot be written: the folder has the last checkpoint then.
    """
    written, error = list[tuple[str, SavedBlock]](), None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, block in blocks.items():
            box = arrays[name].owners[mpi.rank()]
            written.append((name, write_block(folder, name, mpi.rank(), box, block)))
    except OSError as problem:
        error = _write_error(folder, problem)
    message = json.dumps([[name, block_to_json(block)] for name, block in written]).encode()
    by_rank = mpi.gather_bytes(comm, None if error is not None else message)
    if error is None and by_rank is not None and mpi.rank() == 0:
        try:
            _write_manifest(folder, program, identity, grid, step, arrays, by_rank)
        except OSError as problem:
            error = _write_error(folder, problem)
    agree(comm, "", error)


def agree(comm: Any, what: str, error: TdslError | None) -> None:
    """Raise the error of this rank, or TargetError if another rank has one or passes another text `what`."""
    try:
        mpi.check_agreement(
            comm, fingerprint(what), "" if error is None else error.message,
            hint="see the error of that rank", differs="saves or loads another checkpoint",
        )  # fmt: skip
    except TargetError:
        if error is None:
            raise
    if error is not None:
        raise error


def _write_error(folder: Path, problem: OSError) -> TdslError:
    return TargetError(
        f"rank {mpi.rank()} cannot write {problem.filename or folder}: {problem.strerror}",
        loc=here(), label="this call", hint="pass a folder on a file system of all ranks, with enough space",
    )  # fmt: skip


def write_block(folder: Path, name: str, rank: int, box: SpanBox, block: Array) -> SavedBlock:
    """Write the block of a rank to a file, whose name has a checksum; OSError if that is not possible."""
    contents = np.ascontiguousarray(block).reshape(-1).view(np.uint8).data
    digest = hashlib.sha256(contents).hexdigest()
    file = f"{re.sub(r'[^A-Za-z0-9_.]', '_', name)}-{rank}-{digest[:16]}{SUFFIX}"
    _write_safely(folder / file, contents)
    return SavedBlock(rank, box, file, digest)


def _write_safely(path: Path, contents: Any) -> None:
    """Write a file under another name, then rename it, so that the file is whole where it exists."""
    temporary = path.with_name(path.name + TEMPORARY)
    with open(temporary, "wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _write_manifest(
    folder: Path, program: str, identity: str, grid: str, step: int,
    arrays: Mapping[str, SavedArray], by_rank: list[bytes],
) -> None:  # fmt: skip
    """Replace the manifest by one of new blocks, then remove the files of others."""
    blocks: dict[str, list[SavedBlock]] = {name: [] for name in arrays}
    for name, value in itertools.chain.from_iterable(map(json.loads, by_rank)):
        blocks[name].append(block_of_json(value))
    tensors = tuple(
        (name, SavedTensor(a.dtype.name, a.whole, a.placement, tuple(blocks[name])))
        for name, a in arrays.items()
    )
    manifest = Manifest(program, identity, grid, step, tensors)
    _sync_folder(folder)
    _write_safely(folder / NAME, manifest.to_json().encode())
    _sync_folder(folder)
    listed = {block.file for _, tensor in tensors for block in tensor.blocks}
    for path in folder.iterdir():
        if path.name not in listed and FILE.fullmatch(path.name):
            with contextlib.suppress(OSError):
                path.unlink()


def _sync_folder(folder: Path) -> None:
    """Have the names of a folder's files written to the disk, on systems that can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def check_manifest(
    manifest: Manifest | None, folder: Path, program: str, identity: str, *, loads: bool
) -> None:
    """Raise TargetError unless a folder has a checkpoint of a program, or none yet if it is to be written."""
    if manifest is None and loads:
        raise TargetError(
            f"{folder} has no manifest of a checkpoint", loc=here(), label="this call", hint=SAVE_HINT
        )
    if manifest is not None and manifest.identity != identity:
        other = (
            f"a program {manifest.program!r} whose tensors have other names, shapes or dtypes than those of "
            f"{program!r}"
        )
        raise TargetError(
            f"{folder / NAME} is of {other}", loc=here(), label="this call", hint="pass another folder"
        )


def load_block(folder: Path, tensor: SavedTensor, array: SavedArray, rank: int) -> Array | None:
    """The block of an array that a rank owns, from the files whose boxes intersect it; None for no elements.

    A file is read as a whole for its checksum, in pieces; of its elements only those of the block are stored.
    ShapeError if the array has another shape or dtype than the tensor that was saved, TargetError with
    the file, the tensor and the rank that wrote it for a block that is missing or damaged.
    """
    if (tensor.dtype, tensor.whole) != (array.dtype.name, array.whole):
        saved = f"{tensor.dtype}{list(stored_shape(tensor.whole))}"
        raise ShapeError(
            f"{array.name!r} was saved as {saved} on {_ranges(tensor.whole)}, this program has "
            f"{array.dtype.name}{list(stored_shape(array.whole))} on {_ranges(array.whole)}",
            loc=here(), label="this call", hint="load it for the sizes of the run that saved it",
        )  # fmt: skip
    box = array.mine
    if box is None:
        return None
    block, count = np.empty(stored_shape(box), array.dtype.numpy), 0
    for source in tensor.blocks:
        parts = list(shared_boxes(source.box, box))
        if parts:
            stored = _read_block(folder, array, source, rank)
            for part in parts:
                block[index_within(part, box)] = stored[index_within(part, source.box)]
                count += element_count(part)
    if count != element_count(box):
        raise TargetError(
            f"{folder / NAME} has blocks of {count} of the {element_count(box)} elements of {array.name!r} "
            f"that rank {rank} owns",
            loc=here(), label="this call", hint=DAMAGED_HINT,
        )  # fmt: skip
    return block


def _ranges(box: SpanBox) -> str:
    return ", ".join(f"{lo}:{hi}" for lo, hi in box) or "one element"


def shared_boxes(saved: SpanBox, box: SpanBox) -> Iterator[SpanBox]:
    """Boxes that together are the intersection of two, each of them contiguous in both where periods differ.

    >>> list(shared_boxes(((0, 4), (0, 9)), ((2, 8), (5, 9))))
    [((2, 4), (5, 9))]
    """
    spans = [
        [span for span in _shared_spans(a, b) if span[0] < span[1]] for a, b in zip(saved, box, strict=True)
    ]
    yield from itertools.product(*spans)


def _shared_spans(a: Span, b: Span) -> Iterator[Span]:
    match a, b:
        case PeriodicSpan(), PeriodicSpan() if (a.block, a.period) != (b.block, b.period):
            for part in contiguous_parts(a):
                both = intersect_spans(part, b)
                if both[0] < both[1]:
                    yield from contiguous_parts(both)
        case _:
            yield intersect_spans(a, b)


def _read_block(folder: Path, array: SavedArray, saved: SavedBlock, rank: int) -> Array:
    """The array in a file, mapped into memory; TargetError if it is missing, or another than was saved."""
    path = folder / saved.file
    what = f"{path}, the block of {array.name!r} that rank {saved.rank} saved and rank {rank} needs"
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = element_count(saved.box) * array.dtype.numpy.itemsize
        if digest == saved.sha256 and path.stat().st_size == size:
            return np.memmap(path, array.dtype.numpy, "r", shape=stored_shape(saved.box))
    except FileNotFoundError:
        raise TargetError(f"{what}, is missing", loc=here(), label="this call", hint=DAMAGED_HINT) from None
    except OSError as problem:
        raise TargetError(
            f"{what}, cannot be read: {problem.strerror}", loc=here(), label="this call", hint=DAMAGED_HINT
        ) from None
    raise TargetError(
        f"{what}, is damaged: its checksum or size is not that of the manifest",
        loc=here(), label="this call", hint=DAMAGED_HINT,
    )  # fmt: skip
