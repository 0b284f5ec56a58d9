"""Which iterations of loops stand for all of them, where these run more or less often each time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tdsl.schedule.state import Fuse, Nest, Rename, Rotate, Split, roots_of

ASIDE = 0.4  # of the iterations of a loop through several dimensions, where one stands for the others
BEFORE = 0.3  # the same of terms, of which the results there have some where predicates cut others


def middle(nest: Nest, extents: Mapping[str, int]) -> dict[str, int]:
    """The iteration of each loop in which all variables of a nest are in the middle of their ranges.

    >>> from tdsl.schedule.state import Loop
    >>> nest = Nest((Loop("i_o"), Loop("i_i")), (Split("i", "i_o", "i_i", 256, None, "guard"),))
    >>> middle(nest, {"i": 512, "i_o": 2, "i_i": 256})
    {'i': 256, 'i_o': 1, 'i_i': 0}
    """
    index = {x: n // 2 for x, n in extents.items()}
    for r in nest.relations:
        match r:
            case Split(parent, outer, inner):
                index[outer], index[inner] = divmod(index[parent], max(extents[inner], 1))
            case Fuse(fused, outer, inner):
                index[fused] = index[outer] * extents[inner] + index[inner]
            case Rename(old, new) | Rotate(old, new):
                index[new] = index[old]
    return index


def aside(nest: Nest, extents: Mapping[str, int], terms: Collection[str] | None) -> dict[str, int]:
    """The iteration of each loop that stands for the others where these run alike: one in the midst.

    Of loops through several dimensions it is a little before that, where no outer dimension goes on. Where a
    predicate leaves `terms` to some results only, it is among those that the results of the midst have.

    >>> from tdsl.schedule.state import Loop
    >>> nest = Nest((Loop("k"), Loop("i_j")), (Fuse("i_j", "i", "j"),))
    >>> aside(nest, {"i_j": 101, "k": 11}, None), aside(nest, {"i_j": 101, "k": 11}, {"k"})
    ({'i_j': 40, 'k': 5}, {'i_j': 40, 'k': 3})
    """
    mixed = _mixed_loops(nest)
    if terms is None:
        parts = {x: ASIDE if x in mixed else 0.5 for x in extents}
    else:
        parts = {x: BEFORE if roots_of(nest, x) & {*terms} else ASIDE for x in extents}
    return {x: int((n - 1) * parts[x]) for x, n in extents.items()}


def _mixed_loops(nest: Nest) -> set[str]:
    """The loops that go through several dimensions, and parts of these.

    Half of all that these go through is often where an outer dimension goes on.
    """
    mixed = {r.fused for r in nest.relations if isinstance(r, Fuse)}
    for r in nest.relations:
        if isinstance(r, Split) and r.parent in mixed:
            mixed |= {r.outer, r.inner}
    return mixed
