"""A picture of the memory of a graph over its steps, as SVG."""

from __future__ import annotations

from collections.abc import Mapping

from tdsl.core.svg import COLOURS, svg
from tdsl.core.text import in_bytes
from tdsl.graph.memory import Key, MemoryPlan

STEP, HIGH, LEFT, BELOW = 56, 240, 70, 34  # the width of a step, the height of the memory, margins, in pixels


def memory_picture(title: str, memory: MemoryPlan[Key], names: Mapping[Key, str], steps: int) -> str:
    """The results between the kernels of a plan: columns are steps, the height is the offset in the block.

    A result is as wide as it is live and as high as its bytes. The pointer shows its name and size.
    """
    from html import escape  # imported lazily: only pictures need it

    width, height = LEFT + STEP * max(steps, 1) + 10, HIGH + BELOW
    scale = HIGH / max(memory.peak, 1)
    lines = [f"<title>memory of {escape(title)}: {escape(str(memory))}</title>"]
    for n, (result, buffer) in enumerate(memory.buffers.items()):
        x, columns = LEFT + STEP * buffer.first, min(buffer.last, steps - 1) - buffer.first + 1
        high = buffer.nbytes * scale
        top = HIGH - memory.offsets[result] * scale - high
        name = names[result]
        text = f"{name}: {in_bytes(buffer.nbytes)}, steps {buffer.first} to {buffer.last}"
        lines.append(
            f'<g><title>{escape(text)}</title><rect x="{x}" y="{top:.1f}" width="{STEP * columns - 2}"'
            f' height="{max(high, 1):.1f}" fill="{COLOURS[n % len(COLOURS)]}" stroke="#444444"/>'
        )
        letters = (STEP * columns - 8) // 6
        if high >= 12:
            lines.append(f'<text x="{x + 4}" y="{top + high / 2 + 4:.1f}">{escape(name[:letters])}</text>')
        lines.append("</g>")
    for n in range(steps):
        middle = LEFT + STEP * n + STEP // 2
        lines.append(f'<text x="{middle}" y="{HIGH + 14}" text-anchor="middle">{n}</text>')
    lines += [
        f'<text x="{LEFT - 6}" y="10" text-anchor="end">{in_bytes(memory.peak)}</text>',
        f'<text x="{LEFT - 6}" y="{HIGH}" text-anchor="end">0</text>',
        f'<text x="{LEFT}" y="{HIGH + 30}" fill="#666666">step</text>',
    ]
    return svg(width, height, lines)
