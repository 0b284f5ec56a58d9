"""How a Halide program is compiled and called on NumPy arrays."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.case import Array, Arrays, Call, PeerMissing, Prepare

try:
    import halide as hl
except ImportError:
    hl = None

AUTOSCHEDULER = "Adams2019"


@dataclass(frozen=True)
class Program:
    """A Halide pipeline: inputs in the order of the arrays, the output func and its NumPy shape.

    `schedule()` applies the schedule by hand.
    """

    inputs: Sequence[Any]
    output: Any
    shape: tuple[int, ...]
    schedule: Callable[[], None]


def peers(module: str) -> dict[str, Prepare]:
    """The two Halide peers of a case, by the name of the module with its program."""
    return {
        "halide-manual": lambda arrays: prepare(program(module), arrays, by_hand=True),
        "halide-auto": lambda arrays: prepare(program(module), arrays, by_hand=False),
    }


def program(module: str) -> ModuleType:
    """The module with a program, imported only where Halide is installed."""
    if hl is None:
        raise PeerMissing("pip install halide==21.0.0")
    import importlib

    return importlib.import_module(f"benchmarks.halide.{module}")


def prepare(module: ModuleType, arrays: Arrays, *, by_hand: bool) -> Call:
    """Schedule and compile; the call writes into one output array."""
    built: Program = module.build(arrays, by_hand)
    target = hl.get_jit_target_from_environment()
    if by_hand:
        built.schedule()
    else:
        _schedule_itself(built, arrays, target)
    compiled = built.output.compile_to_callable(list(built.inputs), target)
    out: Array = np.zeros(built.shape, np.float32)
    buffers = [hl.Buffer(a) for a in (*arrays, out)]

    def call() -> Array:
        compiled(*buffers)
        return out

    return call


def _schedule_itself(built: Program, arrays: Arrays, target: Any) -> None:
    for parameter, array in zip(built.inputs, arrays, strict=True):
        parameter.set_estimates(extents(array.shape))
    built.output.set_estimates(extents(built.shape))
    plugins = Path(hl.__file__).parent / "lib64"
    hl.load_plugin(str(plugins / f"libautoschedule_{AUTOSCHEDULER.lower()}.so"))
    threads = os.environ.get("HL_NUM_THREADS", str(os.cpu_count()))
    parameters = hl.AutoschedulerParams(AUTOSCHEDULER, {"parallelism": threads})
    hl.Pipeline(built.output).apply_autoscheduler(target, parameters)


def extents(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """The region of a whole array, fastest axis first."""
    return [(0, int(n)) for n in reversed(shape)]


def lanes() -> int:
    """The number of float lanes of a vector of this machine."""
    return int(hl.get_host_target().natural_vector_size(hl.Float(32)))


def fix_shape(parameter: Any, shape: tuple[int, ...]) -> None:
    """Promise that an input is dense and has this shape."""
    stride = 1
    for axis, extent in enumerate(reversed(shape)):
        parameter.dim(axis).set_bounds(0, extent).set_stride(stride)
        stride *= extent


def variables(names: str) -> list[Any]:
    """Halide variables for names with spaces between."""
    return [hl.Var(name) for name in names.split()]


def funcs(names: str) -> list[Any]:
    """Halide funcs for names with spaces between."""
    return [hl.Func(name) for name in names.split()]
