"""What a call of a compiled kernel costs beyond the driver's own launch.

    python -m benchmarks.launch_cost

The driver is a stand-in of a few lines of C that starts nothing (`tests/codegen/cuda/fake_driver.py`), so
what is measured is the work of the CPU on our side of it; no GPU is needed, and none is used.
"""

import statistics
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tdsl as td
from tdsl.codegen.cuda.device_array import DeviceArray
from tdsl.codegen.cuda.device_call import DeviceCalls
from tdsl.codegen.cuda.driver import Device, Driver
from tdsl.codegen.cuda.executable import CudaExecutable
from tdsl.codegen.cuda.record import KernelRecord, Module
from tdsl.pipeline import make_kernel
from tests.codegen.cuda.fake_driver import FakeDriver

GOAL_US = 5.0
ARRAYS = 3  # two inputs and a result, as of a matrix product


def program(fake: FakeDriver) -> tuple[td.Compiled, Device]:
    """A sum of two arrays, compiled for the stand-in."""
    i = td.vars("i")
    a, b = (td.Tensor(name, ("N",), td.f32) for name in "ab")
    f = td.Func("f")
    f[i] = a[i] + b[i]
    compiled, driver = td.compile(f, target="cuda"), Driver(fake.path)
    record = KernelRecord("f", ("a", "f"), (8, 1, 1), (128, 1, 1), 0, 0, 8, 0, 0)
    module = Module("", "sm_90a", (record,), (), (), b"\x7fELF")

    def build(specialisation: Any) -> CudaExecutable:
        kernel = make_kernel(compiled.variant(specialisation))
        return CudaExecutable(module, kernel.params, lambda: kernel, driver.device)

    compiled.build = build
    compiled._device_calls = DeviceCalls(compiled, driver.device)
    return compiled, driver.device()


def costs() -> dict[str, float]:
    """Microseconds of each kind of call."""
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeDriver(Path(folder))
        fake.quiet()
        f, device = program(fake)
        x, y, out = (array(device, 1024) for _ in range(ARRAYS))
        f(x, y, out=out)
        (executable,) = f.executables.values()
        start = executable.launcher(device).start
        places = [v.pointer for v in (x, y, out)]
        return {
            "the launch alone, addresses known": microseconds(lambda: start(places, 1)),
            "f(x, y, out=z)": microseconds(lambda: f(x, y, out=out)),
            "f(x, y), with memory for the result": microseconds(lambda: f(x, y)),
        }


def array(device: Device, count: int) -> DeviceArray:
    """Memory of the stand-in."""
    memory = device.allocate(4 * count)
    return DeviceArray(device, memory.pointer, (count,), np.float32, memory)


def microseconds(call: Callable[[], object], number: int = 20_000) -> float:
    """The median time of a call."""
    call()
    return 1e6 * statistics.median(timeit.repeat(call, number=number, repeat=5)) / number


def main() -> None:
    """Print them."""
    for name, cost in costs().items():
        print(f"{cost:6.2f} us  {name}")


if __name__ == "__main__":
    main()
