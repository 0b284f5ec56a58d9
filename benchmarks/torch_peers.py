"""Peers that compute with PyTorch on the CPU, eagerly or compiled.

    peers={"tdsl": ..., **torch_peers.peers(lambda torch, x: torch.softmax(x, -1))}

A function gets the module and the input as tensors, which share the memory of the arrays. Gradients are
off; a function that wants some says `with torch.enable_grad()`.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import ml_dtypes

from benchmarks.case import Array, Arrays, Call, Converted, PeerMissing, Prepare

Function = Callable[..., Any]


def peers(f: Function, *, channels_last: bool = False) -> dict[str, Prepare]:
    """`torch` and `torch-compile`, and with `channels_last` both of them again in that layout."""
    prepared = {"torch": peer(f), "torch-compile": peer(f, compiled=True)}
    if channels_last:
        prepared["torch-last"] = peer(f, channels_last=True)
        prepared["torch-last-compile"] = peer(f, compiled=True, channels_last=True)
    return prepared


def peer(f: Function, *, compiled: bool = False, channels_last: bool = False) -> Prepare:
    """`f(torch, *tensors)` as a peer, through torch.compile if `compiled`.

    `channels_last` gives tensors of four dimensions that memory format, before anything is timed.
    """

    def prepare(arrays: Arrays) -> Call:
        try:
            import torch
        except ImportError:
            raise PeerMissing("pip install torch") from None
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
        torch.set_grad_enabled(False)
        tensors = [tensor(torch, a) for a in arrays]
        if channels_last:
            format_ = torch.channels_last
            tensors = [t.to(memory_format=format_) if t.ndim == 4 else t for t in tensors]
        run = functools.partial(f, torch)
        if compiled:
            run = torch.compile(run, dynamic=False)
        return Converted(lambda: run(*tensors), lambda result: array(torch, result))

    return prepare


def tensor(torch: Any, a: Array) -> Any:
    """The tensor on the memory of an array."""
    if a.dtype.name in (
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
    ):  # whose names are PyTorch's, too
        return torch.from_numpy(a.view(f"i{a.itemsize}")).view(getattr(torch, a.dtype.name))
    return torch.from_numpy(a)


def array(torch: Any, t: Any) -> Array:
    """The array on the memory of a tensor."""
    if t.dtype == torch.bfloat16:
        return t.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return t.numpy()
