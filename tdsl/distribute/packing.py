"""Arrays as contiguous memory that messages carry: packed before a send, unpacked after a receive."""

from __future__ import annotations

import numpy as np

from tdsl.codegen.runtime.arrays import Array


def receive_memory(place: tuple[Array, ...]) -> Array:
    """Contiguous memory to receive into: the array of `place` itself if it is one and contiguous."""
    (first, *more) = place
    if more:
        return np.empty(sum(p.nbytes for p in place), np.uint8)
    return first if first.flags.c_contiguous else np.empty(first.shape, first.dtype)


def pack(parts: tuple[Array, ...]) -> Array:
    """The elements of `parts` as one contiguous array; of several parts, their bytes one after the other."""
    whole = [np.ascontiguousarray(p) for p in parts]
    return whole[0] if len(whole) == 1 else np.concatenate([p.reshape(-1).view(np.uint8) for p in whole])


def unpack(array: Array, place: tuple[Array, ...]) -> None:
    """Copy a received array into `place`: the inverse of `pack`."""
    if len(place) == 1:
        if place[0] is not array:
            place[0][...] = array
        return
    ends = np.cumsum([p.nbytes for p in place])
    for part, received in zip(place, np.split(array, ends[:-1]), strict=True):
        part[...] = received.view(part.dtype).reshape(part.shape)
