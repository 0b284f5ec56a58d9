"""The costs of the steps of a rank: bytes and messages, and the memory of its buffers."""

from __future__ import annotations

from tdsl.communication.expected_rows import expected_elements
from tdsl.communication.steps import (
    ROUTE_TAGS,
    Allocate,
    Exchange,
    Free,
    RankPlan,
    Reduce,
    Route,
    Start,
    reduction_elements,
)
from tdsl.core.node import frozen
from tdsl.placement.ownership import element_count


@frozen
class Cost:
    """The bytes that a rank sends and receives, the number of messages received, its peak memory in bytes.

    A collective in which it receives data counts as one message. `moved` has the bytes received by tensor.
    `peak_step` is the step, counted from 1, at which the peak is first reached; 0 is the start.
    """

    sent: int
    received: int
    messages: int
    peak_memory: int
    moved: tuple[tuple[str, int], ...]
    peak_step: int = 0


def cost(plan: RankPlan, sizes: dict[str, int]) -> Cost:
    """The cost of a rank's steps; `sizes` has the bytes of an element of each tensor.

    What steps move whose sizes data decide is expected (`expected_rows.py`).
    """
    buffer_bytes = {name: element_count(box) * sizes[name] for name, box in plan.owned}
    tensors = {name: name for name, _ in plan.owned}
    peak, peak_step = sum(buffer_bytes.values()), 0
    sent = received = messages = 0
    moved: dict[str, int] = {}
    for number, step in enumerate(plan.steps, 1):
        match step:
            case Allocate(buffer, tensor, box, over):
                tensors[buffer] = tensor
                buffer_bytes[buffer] = element_count(box) * sizes[tensor]
                if over is not None:
                    buffer_bytes[over] = 0
                if sum(buffer_bytes.values()) > peak:
                    peak, peak_step = sum(buffer_bytes.values()), number
            case Free(buffer):
                del buffer_bytes[buffer]
            case Exchange(sends, receives, collective) | Start(Exchange(sends, receives, collective)):
                sent += sum(element_count(m.box) * sizes[tensors[m.buffer]] for m in sends)
                messages += min(len(receives), 1) if collective else len(receives)
                for m in receives:
                    size = element_count(m.box) * sizes[tensors[m.buffer]]
                    moved[tensors[m.buffer]] = moved.get(tensors[m.buffer], 0) + size
                    received += size
            case Reduce():
                tensor = tensors[step.source]
                out, into = reduction_elements(step, plan.rank)
                sent, received = sent + out * sizes[tensor], received + into * sizes[tensor]
                moved[tensor] = moved.get(tensor, 0) + into * sizes[tensor]
                messages += min(into, 1)
            case Route():
                elements = expected_elements(step, step.ranks.index(plan.rank))
                for tensor, (out, into) in zip((step.key, step.key, step.tensor), elements, strict=True):
                    sent, received = sent + out * sizes[tensor], received + into * sizes[tensor]
                    moved[tensor] = moved.get(tensor, 0) + into * sizes[tensor]
                messages += ROUTE_TAGS if len(step.ranks) > 1 else 0
            case _:
                pass
    return Cost(sent, received, messages, peak, tuple(sorted(moved.items())), peak_step)
