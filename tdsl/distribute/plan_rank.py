"""Generates the steps of one rank: those of all stages, in their order."""

from __future__ import annotations

from tdsl.communication.collective import Layout
from tdsl.communication.lifetimes import freed_after
from tdsl.communication.stages import Stage
from tdsl.communication.steps import Free, RankPlan, Step
from tdsl.distribute.rank import StageSteps


def plan_rank(
    layout: Layout, stages: tuple[Stage, ...], inputs: tuple[str, ...], outputs: tuple[str, ...], rank: int
) -> RankPlan:  # fmt: skip
    """The plan of one rank. Blocks of funcs that are no outputs are freed after their last reader.

    So are the blocks of inputs that are overwritten or donated.
    """
    at = layout.grid.coordinates(rank)
    boxes = ((name, layout.owned(name, at)) for name in inputs)
    owned_blocks = tuple((name, box) for name, box in boxes if box is not None)
    freed = {n: [x for x in names if layout.owned(x, at) is not None]
             for n, names in freed_after(stages, outputs).items()}  # fmt: skip
    steps: list[Step] = [Free(name) for name in freed.get(-1, ())]
    tag = 0
    for n, stage in enumerate(stages):
        stage_steps = StageSteps(layout, stage, at, tag, overlapped=stage.state.plan(stage.name).overlapped)
        stage_steps.run()
        steps += stage_steps.steps
        tag = stage_steps.tag
        overwritten = dict(stage.state.overwrites).get(stage.name)
        if overwritten is not None and layout.owned(overwritten, at) is not None:
            steps.append(Free(overwritten))
        steps += [Free(name) for name in freed.get(n, ())]
    return RankPlan(rank, owned_blocks, tuple(steps))
