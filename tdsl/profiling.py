"""`Profile`: time and memory traffic of a call by root stage, each compiled and timed as its own kernel."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tdsl.codegen.ir.loops import BufferParam
from tdsl.codegen.lowering.root_stages import RootStage, root_stages, stage_kernels
from tdsl.codegen.python.count_bytes import count_bytes
from tdsl.codegen.runtime.arrays import (
    are_aligned,
    as_array,
    as_scalar,
    copy_overlapping,
    layout_of,
)
from tdsl.codegen.runtime.binding import bind, bind_outputs, bind_sizes, output_array, output_shape
from tdsl.codegen.runtime.cache_misses import last_level_misses
from tdsl.codegen.runtime.call import Executable
from tdsl.codegen.runtime.result_memory import new_output
from tdsl.codegen.runtime.signature import ArrayArg, Signature, Specialisation, extent
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.core.text import columns
from tdsl.cost.moved import total
from tdsl.cost.predict import Prediction
from tdsl.errors import TypeMismatch
from tdsl.pipeline import apply_passes, build_executable, completed_state, lower_variant
from tdsl.target import Target
from tdsl.variant import Variant

Run = Callable[[], object]


@frozen
class StageTime:
    """One root stage: median seconds, and the bytes of arrays outside the stage that it reads and writes.

    `inside` has the funcs that are computed in its loops, with the bytes of their values; their time is part
    of `seconds`, and their bytes are in neither `read` nor `written`.
    """

    name: str
    inside: tuple[tuple[str, int], ...]
    seconds: float
    read: int
    written: int


@frozen
class CacheBytes:
    """The traffic in bytes between a cache and the next level, as predicted and as counted by simulation."""

    name: str
    predicted: float
    counted: int


@dataclass(frozen=True, slots=True, repr=False)
class Profile:
    """Time and bytes of a call, by root stage. All sizes are fixed to those of the call, also dynamic ones.

    Each func at the root is compiled as a separate kernel, with the funcs computed in its loops, and the
    kernels run one after the other on the arguments of the call, with preallocated intermediate arrays.
    `seconds` of a stage is the median over `repeat` such rounds, after one warm-up round. `read` and
    `written` count each element of an array outside the stage once. `total` is the
    median time in seconds of the complete program in one kernel, with outputs preallocated; it differs from
    the sum of the stages by the allocation of intermediate arrays, and by LLVM's optimisations across stages.

    With counters, `caches` has the traffic beyond each cache for one thread, predicted and counted, and
    `misses` the cache misses from the hardware counters as text.
    """

    name: str
    stages: tuple[StageTime, ...]
    total: float
    repeat: int
    caches: tuple[CacheBytes, ...] = ()
    misses: str = ""

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        total = sum(s.seconds for s in self.stages) or 1.0
        rows = [("stage", "ms", "share", "read MB", "written MB", "GB/s")]
        for s in self.stages:
            nbytes_moved = s.read + s.written
            rows.append((
                s.name, f"{1e3 * s.seconds:.3f}", f"{s.seconds / total:.0%}", f"{s.read / 1e6:.2f}",
                f"{s.written / 1e6:.2f}", f"{nbytes_moved / 1e9 / s.seconds:.1f}" if s.seconds else "",
            ))  # fmt: skip
            rows += [(f"  {n}, inside", "", "", "", f"({nbytes / 1e6:.2f})", "") for n, nbytes in s.inside]
        rows.append(("all in one kernel", f"{1e3 * self.total:.3f}", "", "", "", ""))
        text = f"{self.name}: medians of {self.repeat}\n{columns(rows)}"
        if not self.caches:
            return text
        counts = [("beyond", "predicted MB", "counted MB", "ratio")]
        for c in self.caches:
            ratio = f"{c.predicted / c.counted:.2f}" if c.counted else ""
            counts.append((c.name, f"{c.predicted / 1e6:.3f}", f"{c.counted / 1e6:.3f}", ratio))
        return f"{text}\nbytes as one thread moves them\n{columns(counts)}\n{self.misses}"

    def _repr_html_(self) -> str:
        from tdsl.core.notebook import Listing

        return Listing(str(self))._repr_html_()


def profile(
    variant: Variant,
    executable: Executable,
    values: dict[str, Any],
    repeat: int,
    counters: bool = False,
) -> Profile:
    """Profiles a variant on arguments by name; `executable` is compiled from it. See `Profile`."""
    if not _is_count(repeat):
        raise TypeMismatch(
            f"repeat must be a positive integer, not {repeat!r}",
            loc=here(),
            label="this call",
            hint="repeat=5",
        )
    cache_bytes = (
        count_caches(variant, values) if counters else ()
    )  # first, so that its errors are raised before anything is timed
    state = completed_state(variant)
    runs: dict[str, Run] = {}
    for name, part in stage_kernels(lower_variant(variant), state):
        for p in part.params:
            if isinstance(p, BufferParam) and p.name not in values:
                values[p.name] = np.empty([extent(e, {}) for e in p.extents], p.dtype.numpy)
        part_executable = build_executable(apply_passes(part, variant.target), variant.target)
        runs[name] = _make_run(part_executable, [values[p.name] for p in part.params])
    runs[""] = _make_run(executable, [values[p.name] for p in variant.params])
    seconds = _medians(runs, repeat)
    stages = [_stage_time(s, seconds[s.func]) for s in root_stages(state) if s.func in seconds]
    result = Profile(variant.signature.name, tuple(stages), seconds[""], repeat)
    if not counters:
        return result
    return replace(result, caches=cache_bytes, misses=last_level_misses(runs[""]))


def count_caches(variant: Variant, values: Mapping[str, Any]) -> tuple[CacheBytes, ...]:
    """The traffic beyond each cache for one thread, predicted and counted by running the loops in Python."""
    kernel = apply_passes(lower_variant(variant), Target("python"))
    machine = replace(variant.machine, threads=1)
    caches = [replace(level, bytes=machine.capacity(level)) for level in machine.caches]
    counted = count_bytes(kernel, values, caches)
    predicted = Prediction(completed_state(variant), machine)
    return tuple(
        CacheBytes(level.name, total(predicted.moved(level.name)), counted[level.name])
        for level in machine.caches
    )


def _is_count(x: object) -> bool:
    """True if a value that a user passed is a positive integer."""
    return isinstance(x, int) and not isinstance(x, bool) and x > 0


def _stage_time(s: RootStage, seconds: float) -> StageTime:
    return StageTime(s.func, s.inside, seconds, s.read, s.written)


def arguments_of(
    signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
) -> tuple[dict[str, Any], Specialisation]:
    """All inputs and outputs by name, and the specialisation for exactly these arrays.

    An input that shares memory with an output is copied, so that all rounds compute the same results.
    """
    written = {
        arg.name: output_array(arg, given)
        for arg, given in zip(signature.outputs, bind_outputs(signature, out), strict=True)
        if given is not None
    }
    inputs, sizes = _inputs_of(signature, args, kwargs)
    names = [arg.name for arg in signature.inputs]
    values = dict(zip(names, copy_overlapping(inputs, list(written.values())), strict=True))
    for output in signature.outputs:
        array = written.get(output.name)
        if array is None or not array.flags.aligned:  # machine code takes aligned memory only
            array = new_output(output_shape(signature, output, sizes), output.dtype.numpy)
        values[output.name] = array
    layouts = tuple(layout_of(values[a.name], True) for a in signature.arrays)
    aligned = are_aligned(values[a.name] for a in signature.outputs)
    return values, Specialisation(tuple((n, sizes[n]) for n in signature.sizes), layouts, aligned)


def sizes_of(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that follow from the arguments of a call; checks all arguments."""
    return _inputs_of(signature, args, kwargs)[1]


def _inputs_of(
    signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, int]]:
    given = tuple(zip(signature.inputs, bind(signature, args, kwargs), strict=True))
    inputs = tuple(
        as_array(arg, value) if isinstance(arg, ArrayArg) else as_scalar(arg, value) for arg, value in given
    )
    named_inputs = zip(signature.inputs, inputs, strict=True)
    return inputs, bind_sizes(signature, [(arg, x) for arg, x in named_inputs if isinstance(arg, ArrayArg)])


def _make_run(executable: Executable, arguments: list[Any]) -> Run:
    """A function that runs an executable on fixed arguments, by its fast entry if that accepts them."""
    fast = executable.fast
    if fast is not None and fast(*arguments) is True:
        return lambda: fast(*arguments)
    return lambda: executable.run(arguments)


def _medians(runs: Mapping[str, Run], repeat: int) -> dict[str, float]:
    """The median seconds of each run over `repeat` rounds of all runs, after one warm-up round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeat + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}
