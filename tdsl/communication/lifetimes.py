"""When the blocks of tensors are freed: after the last stage that reads them."""

from __future__ import annotations

from tdsl.communication.stages import Stage


def freed_after(stages: tuple[Stage, ...], outputs: tuple[str, ...]) -> dict[int, tuple[str, ...]]:
    """The funcs and donated inputs whose blocks are freed after each stage, by the number of the stage.

    These are funcs that are no outputs, and inputs that the schedule donates; inputs that no stage reads are
    freed before the first one, number -1.
    """
    last = {name: n for n, s in enumerate(stages) for name in (s.name, *map(s.tensor_of, s.sources))}
    donated = stages[0].state.donated if stages else ()
    freed: dict[int, tuple[str, ...]] = {}
    for name in (*donated, *(s.name for s in stages if s.name not in outputs)):
        n = last.get(name, -1)
        freed[n] = (*freed.get(n, ()), name)
    return freed
