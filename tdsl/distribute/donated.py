"""`Donated`: a block of an input whose memory the caller leaves to a call."""

from __future__ import annotations

import numpy as np

from tdsl.codegen.runtime.arrays import Array
from tdsl.core.source import here
from tdsl.errors import TypeMismatch, checked_call


class Donated:
    """The block of an input that a call of a distributed program frees after its last reader.

    The schedule donates the input (`Schedule.donate`), and the caller passes `td.Donated(block)`: the memory
    is free once nothing else refers to the block. One call takes it; TypeMismatch afterwards. `block` is None
    on a rank that owns no elements.

    >>> import numpy as np
    >>> Donated(np.arange(3.0)).block
    array([0., 1., 2.])
    """

    @checked_call
    def __init__(self, block: Array | None) -> None:
        if not isinstance(block, np.ndarray | None):
            raise TypeMismatch(
                f"{type(block).__name__} is no array of NumPy, which could be donated",
                loc=here(),
                label="this call",
                hint='td.Donated(p.block("X", array))',
            )
        self._block, self._is_freed = block, False

    @property
    def block(self) -> Array | None:
        """The array, None of a rank without elements; TypeMismatch if a call has taken it."""
        if self._is_freed:
            raise TypeMismatch(
                "this block was donated to a call, which has freed it",
                loc=here(),
                label="this call",
                hint="donate another block: td.Donated(p.block(name, array))",
            )
        return self._block

    def release(self) -> None:
        """Drop the reference to the array."""
        self._block, self._is_freed = None, True

    def __repr__(self) -> str:
        return "<donated block, freed>" if self._is_freed else "<donated block>"
