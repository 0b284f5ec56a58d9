"""Checkpoints that cannot be saved or loaded."""

import atexit
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i = td.vars("i")
FOLDER = Path(tempfile.mkdtemp(prefix="tdsl_checkpoints_"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def doubled(dtype=td.f32):
    """A program on one rank."""
    a, f, grid = td.Tensor("a", ("N",), dtype), td.Func("f"), td.Grid(x=1)
    f[i] = a[i] * 2
    s = td.Schedule(f).place("a", "i -> i", grid).place("f", "i -> i", grid)
    s["f"].distribute(i, grid)
    return td.compile(s, N=4)


def saved(name, **changes):
    """The program, and the folder of a checkpoint whose manifest is changed."""
    p, folder = doubled(), FOLDER / name
    p.save(folder, {"a": np.zeros(4, np.float32)}, step=1)
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return p, folder


@wrong(td.TypeMismatch, "step=-1 is no number of a step", hint="step=n")
def step_before_the_first():
    doubled().save(FOLDER, {}, step=-1)  # here


@wrong(td.TypeMismatch, "'f' has no array 'b'", hint="There are: a, f")
def checkpoint_of_an_unknown_array():
    doubled().save(FOLDER, {"b": np.zeros(4)}, step=1)  # here


@wrong(td.TypeMismatch, "arrays=[] is no dictionary", hint='{"W": block}')
def checkpoint_of_a_list():
    doubled().save(FOLDER, [], step=1)  # here


@wrong(td.ShapeError, "a has shape (3,), expected (4,)", hint="p.block")
def checkpoint_of_a_block_of_another_shape():
    doubled().save(FOLDER, {"a": np.zeros(3, np.float32)}, step=1)  # here


@wrong(td.TypeMismatch, "ranks own partial results of 'total'", hint="place 'total' otherwise")
def checkpoint_of_partial_results():
    a, total, grid = td.Tensor("a", (4,), td.f32), td.Func("total"), td.Grid(x=1)
    total[()] = td.sum(a[i], axis=i)
    s = td.Schedule(total).place("a", "i -> i", grid).place("total", "-> partial(sum)", grid)
    s["total"].distribute(i, grid)
    td.compile(s).save(FOLDER, {"total": np.float32(1)}, step=1)  # here


@wrong(td.TargetError, "rank 0 cannot write /proc/tdsl: No such file", hint="a file system of all ranks")
def checkpoint_where_nobody_can_write():
    doubled().save("/proc/tdsl", {}, step=1)  # here


@wrong(td.TargetError, "has no manifest of a checkpoint", hint="missing_ok=True")
def load_of_nothing():
    doubled().load(FOLDER / "nothing")  # here


@wrong(td.TargetError, "cannot be read: Not a directory", hint="p.save(folder")
def load_of_a_file():
    doubled().load("/dev/null")  # here


@wrong(td.TargetError, "is no manifest of a checkpoint", hint="p.save(folder")
def load_of_another_format():
    p, folder = saved("format", format="other")
    p.load(folder)  # here


@wrong(td.TargetError, "has version 99, this version of tdsl reads version 1", hint="that wrote it")
def load_of_another_version():
    p, folder = saved("version", version=99)
    p.load(folder)  # here


@wrong(td.TargetError, "is damaged: KeyError 'dtype'", hint="a copy of the folder")
def load_of_a_damaged_manifest():
    p, folder = saved("damaged", tensors={"a": {}})
    p.load(folder)  # here


@wrong(td.TargetError, "is of a program 'f' whose tensors have other", hint="another folder")
def load_by_another_program():
    _, folder = saved("program")
    doubled(td.f64).load(folder)  # here


@wrong(td.TargetError, "the block of 'a' that rank 0 saved and rank 0 needs, is missing", hint="a copy")
def load_without_a_block():
    p, folder = saved("missing")
    next(folder.glob("a-0-*.block")).unlink()
    p.load(folder)  # here


@wrong(td.TargetError, "is damaged: its checksum or size is not that of the manifest", hint="a copy")
def load_of_a_damaged_block():
    p, folder = saved("block")
    next(folder.glob("a-0-*.block")).write_bytes(bytes(16)[:15])
    p.load(folder)  # here


@wrong(td.TargetError, "has blocks of 0 of the 4 elements of 'a' that rank 0 owns", hint="a copy")
def load_of_a_part():
    tensor = {"dtype": "f32", "whole": [[0, 4]], "placement": "i -> i", "blocks": []}
    p, folder = saved("part", tensors={"a": tensor})
    p.load(folder)  # here


@wrong(td.ShapeError, "'a' was saved as f32[5] on 0:5, this program has f32[4] on 0:4", hint="the sizes")
def load_of_another_size():
    tensor = {"dtype": "f32", "whole": [[0, 5]], "placement": "i -> i", "blocks": []}
    p, folder = saved("size", tensors={"a": tensor})
    p.load(folder)  # here
