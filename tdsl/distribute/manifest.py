"""The manifest of a checkpoint: a JSON file with the saved tensors, the file of each block, and checksums."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import TargetError
from tdsl.placement.ownership import SpanBox
from tdsl.placement.spans import PeriodicSpan, Span, block_cyclic

NAME, FORMAT, VERSION = "manifest.json", "tdsl checkpoint", 1
SUFFIX = ".block"  # of the files of blocks
SAVE_HINT = "p.save(folder, arrays, step=n) writes a checkpoint; load(folder, missing_ok=True) is None before"


@frozen
class SavedBlock:
    """A block of a tensor: the rank that wrote it, its box, its file in the folder, and the file's sha256."""

    rank: int
    box: SpanBox
    file: str
    sha256: str


@frozen
class SavedTensor:
    """A tensor of a checkpoint: the name of its dtype, its box, its placement as text, and its blocks."""

    dtype: str
    whole: SpanBox
    placement: str
    blocks: tuple[SavedBlock, ...]


@frozen
class Manifest:
    """What a checkpoint has: `identity` is a hash of the program's tensors, `grid` that of the saving run."""

    program: str
    identity: str
    grid: str
    step: int
    tensors: tuple[tuple[str, SavedTensor], ...]

    def to_json(self) -> str:
        """The text of the file."""
        tensors = {
            name: {
                "dtype": t.dtype,
                "whole": _box_to_json(t.whole),
                "placement": t.placement,
                "blocks": [block_to_json(b) for b in t.blocks],
            }
            for name, t in self.tensors
        }
        head = {"format": FORMAT, "version": VERSION}
        fields = {"program": self.program, "identity": self.identity, "grid": self.grid, "step": self.step}
        return json.dumps({**head, **fields, "tensors": tensors}, indent=1) + "\n"


def block_to_json(block: SavedBlock) -> dict[str, Any]:
    """A block as values of JSON."""
    return {"rank": block.rank, "box": _box_to_json(block.box), "file": block.file, "sha256": block.sha256}


def block_of_json(value: Any) -> SavedBlock:
    """The block that `block_to_json` returned as `value`; KeyError, TypeError or ValueError for others."""
    file = str(value["file"])
    if os.path.basename(file) != file or not file.endswith(SUFFIX):
        raise ValueError(f"{file!r} is no name of a block's file")
    return SavedBlock(int(value["rank"]), _box_of_json(value["box"]), file, str(value["sha256"]))


def _box_to_json(box: SpanBox) -> list[list[int]]:
    return [
        [*span, span.block, span.period, span.start] if isinstance(span, PeriodicSpan) else [*span]
        for span in box
    ]


def _box_of_json(value: Any) -> SpanBox:
    return tuple(map(_span_of_json, value))


def _span_of_json(value: Any) -> Span:
    lo, hi, *periodic = map(int, value)
    if not periodic:
        return lo, hi
    block, period, start = periodic
    return block_cyclic((lo, hi), block, period, start)


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a checkpoint; None if a folder has none.

    TargetError if it cannot be read, is not a manifest, is damaged, or has another version.
    """
    path = folder / NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise TargetError(
            f"{path} cannot be read: {reason}", loc=here(), label="this call", hint=SAVE_HINT
        ) from None
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise TargetError(
            f"{path} is no manifest of a checkpoint", loc=here(), label="this call", hint=SAVE_HINT
        )
    if value.get("version") != VERSION:
        raise TargetError(
            f"{path} has version {value.get('version')!r}, this version of tdsl reads version {VERSION}",
            loc=here(),
            label="this call",
            hint="load it with the version of tdsl that wrote it, or pass a new folder",
        )
    try:
        return _manifest_of_json(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TargetError(
            f"{path} is damaged: {type(error).__name__} {error}",
            loc=here(),
            label="this call",
            hint="restore it from a copy of the folder, or pass a new folder",
        ) from None


def _manifest_of_json(value: Any) -> Manifest:
    tensors = tuple((str(name), _tensor_of_json(t)) for name, t in value["tensors"].items())
    program, identity, grid = (str(value[key]) for key in ("program", "identity", "grid"))
    return Manifest(program, identity, grid, int(value["step"]), tensors)


def _tensor_of_json(value: Any) -> SavedTensor:
    dtype, whole = str(value["dtype"]), _box_of_json(value["whole"])
    blocks = tuple(map(block_of_json, value["blocks"]))
    for block in blocks:
        for (lo, hi), (first, end) in zip(block.box, whole, strict=True):
            if not first <= lo <= hi <= end:
                raise ValueError(f"{block.file} has elements {lo} to {hi} of an axis from {first} to {end}")
    return SavedTensor(dtype, whole, str(value["placement"]), blocks)
