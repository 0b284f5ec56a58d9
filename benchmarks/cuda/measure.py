"""Cases built, checked and timed on a GPU. Every peer is timed by the events of the GPU, with cold caches."""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tdsl as td
from benchmarks.case import Array, Arrays, PeerMissing
from benchmarks.cuda.case import GpuCase, in_single
from benchmarks.rounds import Timing
from benchmarks.torch_peers import array, tensor
from tdsl.codegen.cuda.device_array import DeviceArray
from tdsl.codegen.cuda.driver import Device
from tdsl.codegen.cuda.timing import Clock
from tdsl.machine.devices import arch_for
from tdsl.machine.gpu import runs_on

RUNS_PER_TURN = 10  # timed runs, of which the median is a turn
Call = Callable[[], object]


def compare(case: GpuCase, device: Device, rounds: int, peers: list[str]) -> tuple[td.Compiled, list[Timing]]:
    """Times of our kernels and of the peers, all of them, or those named."""
    start = time.perf_counter()
    compiled = case.compiled(case.sizes, device_arch(device, case))
    compiled.executable(compiled.specialisation({}))
    compile_ms = 1e3 * (time.perf_counter() - start)
    arrays = case.arrays(compiled)
    expected = case.expected(*in_single(arrays))
    clock = Clock(device)
    calls: dict[str, Call] = {}
    timings = [Timing("tdsl", compile_ms=compile_ms)]
    calls["tdsl"] = _prepare_ours(case, compiled, arrays, device, expected, timings[0])
    for name, peer in peers_of(case).items():
        if not peers or name in peers:
            timings.append(Timing(name))
            calls[name] = _prepare_peer(case, compiled, peer, arrays, expected, timings[-1])
    for n in range(rounds):
        first = n % len(timings)
        for t in timings[first:] + timings[:first]:
            if not t.note:
                t.turns.append(statistics.median(clock.times(calls[t.peer], RUNS_PER_TURN)))
    if case.bound and (not peers or "copy" in peers):
        ms = 1e3 * case.bytes(compiled) / clock.copy_bandwidth()
        timings.append(Timing("copy", turns=[ms] * rounds))
    return compiled, timings


def device_arch(device: Device, case: GpuCase) -> str:
    """The architecture to compile a case for: its own, or the one that runs best on the GPU."""
    return case.arch if runs_on(case.arch, device.arch) else arch_for(device.arch)


def peers_of(case: GpuCase) -> dict[str, Callable[..., Any]]:
    """The peers of a case, and the one named "torch" through torch.compile."""
    peers = dict(case.peers)
    if "torch" in peers:
        peers["torch-compile"] = _torch_compiled(peers["torch"])
    return peers


def _torch_compiled(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.cache
    def compile_with(torch: Any) -> Any:
        return torch.compile(functools.partial(f, torch), dynamic=False)

    return lambda torch, *tensors: compile_with(torch)(*tensors)


def _prepare_ours(
    case: GpuCase, compiled: td.Compiled, arrays: Arrays, device: Device, expected: Array, timing: Timing
) -> Call:  # fmt: skip
    device_arrays = [on_gpu(device, a) for a in arrays]
    try:
        out = compiled(*device_arrays)
        error, right = case.error(compiled, out.numpy(), expected)
    except td.TdslError as problem:
        timing.note = problem.message
        return lambda: None
    if not right:
        timing.note = f"WRONG result: off by {error:.1e}"
    return lambda: compiled(*device_arrays, out=out)


def on_gpu(device: Device, a: Array) -> DeviceArray:
    """A copy of an array."""
    memory = device.allocate(a.nbytes)
    memory.fill(np.ascontiguousarray(a))
    return DeviceArray(device, memory.pointer, a.shape, a.dtype, memory)


def _prepare_peer(
    case: GpuCase, compiled: td.Compiled, peer: Callable[..., Any], arrays: Arrays, expected: Array,
    timing: Timing,
) -> Call:  # fmt: skip
    try:
        import torch

        if not torch.cuda.is_available():
            raise PeerMissing("a PyTorch for CUDA")
        torch.set_grad_enabled(False)
        torch.backends.cuda.matmul.allow_tf32 = False
        tensors = [tensor(torch, a).cuda() for a in arrays]
        start = time.perf_counter()
        result = array(torch, peer(torch, *tensors).cpu())
        timing.compile_ms = 1e3 * (time.perf_counter() - start)
    except ImportError:
        timing.note = "pip install torch"
    except PeerMissing as missing:
        timing.note = str(missing)
    except Exception as problem:  # noqa: BLE001  # a backend that does not take the case is no fault of ours
        timing.note = f"{type(problem).__name__}: {str(problem).splitlines()[0]}"
    if timing.note:
        return lambda: None
    error, right = case.error(compiled, result, expected)
    if not right:
        timing.note = f"WRONG result: off by {error:.1e}"
    return lambda: peer(torch, *tensors)
