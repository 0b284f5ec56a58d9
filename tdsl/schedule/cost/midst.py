"""Which iterations of loops stand for all of them, where these run more or less often each time."""

from __future__ import annotations

from collections.abc import Mapping

from tdsl.schedule.nest import Fuse, Nest, Rename, Rotate, Split


def middle(nest: Nest, extents: Mapping[str, int]) -> dict[str, int]:
    """The iteration of each loop in which all variables of a nest are in the middle of their ranges.

    >>> from tdsl.schedule.nest import Loop
    >>> nest = Nest((Loop("i_o"), Loop("i_i")), (Split("i", "i_o", "i_i", 256, None, "guard"),))
    >>> middle(nest, {"i": 512, "i_o": 2, "i_i": 256})
    {'i': 256, 'i_o': 1, 'i_i': 0}
    """
    made = {x: n // 2 for x, n in extents.items()}
    for r in nest.relations:
        match r:
            case Split(parent, outer, inner):
                made[outer], made[inner] = divmod(made[parent], max(extents[inner], 1))
            case Fuse(fused, outer, inner):
                made[fused] = made[outer] * extents[inner] + made[inner]
            case Rename(old, new) | Rotate(old, new):
                made[new] = made[old]
    return made
