"""A picture of ranks over time, as SVG: what each computes, sends and receives, and when."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from tdsl.core.svg import COLOURS, svg
from tdsl.core.text import in_bytes, in_seconds
from tdsl.distribute.time_model import COMPUTE, RECEIVE, SEND, Slice

WIDTH, ROW, LEFT, BELOW = 900, 44, 70, 22  # of the time, of a rank, and margins, in pixels
LETTER = 6.2  # the width of a letter, in pixels
TOP_AND_HEIGHT = {COMPUTE: (4, 22), SEND: (28, 5), RECEIVE: (34, 5)}  # of a track in the row of its rank
LINKS = {SEND: "#3d85c6", RECEIVE: "#6aa84f"}


def timeline(title: str, slices: Sequence[Slice], ranks: int) -> str:
    """The slices of a trace: a row for each rank, with a track for tasks and thin ones for messages.

    A task has its number among those of its func on the rank if there are several, and the name of the func
    where it fits. The pointer shows the name, bytes and times of each slice.
    """
    from html import escape  # imported lazily: only pictures need it

    end = max((s.end for s in slices), default=0.0)
    scale, height = WIDTH / (end or 1.0), ROW * ranks + BELOW
    lines = [f"<title>{escape(title)}</title>"]
    for rank in range(ranks):
        lines.append(f'<text x="{LEFT - 8}" y="{ROW * rank + 19}" text-anchor="end">rank {rank}</text>')
        lines.append(f'<path d="M{LEFT} {ROW * (rank + 1) - 1}h{WIDTH}" stroke="#dddddd"/>')
    count = Counter((s.rank, s.name) for s in slices if s.track == COMPUTE)
    done, colours = Counter[tuple[int, str]](), defaultdict[int, dict[str, str]](dict)
    for s in sorted(slices, key=lambda s: (s.rank, s.begin)):
        text, colour = s.name, LINKS.get(s.track, "")
        if s.track == COMPUTE:
            of_rank = colours[s.rank]
            colour = of_rank.setdefault(s.name, COLOURS[len(of_rank) % len(COLOURS)])
            if count[s.rank, s.name] > 1:
                text = f"{s.name} {done[s.rank, s.name]}"
                done[s.rank, s.name] += 1
        (top, high), left, wide = TOP_AND_HEIGHT[s.track], LEFT + s.begin * scale, (s.end - s.begin) * scale
        if wide < 0.05:  # pixels: shorter than what can be seen
            continue
        moved = f", {in_bytes(s.bytes)}" if s.bytes else ""
        about = f"{s.track} {text}{moved}: {in_seconds(s.begin)} to {in_seconds(s.end)}"
        lines.append(
            f'<g><title>{escape(about)}</title><rect x="{left:.1f}" y="{ROW * s.rank + top}"'
            f' width="{wide:.1f}" height="{high}" fill="{colour}" stroke="#444444" stroke-width="0.5"/>'
        )
        label = next((x for x in (text, text.rpartition(" ")[2]) if LETTER * len(x) <= wide - 2), "")
        if s.track == COMPUTE and label:
            middle, line = left + wide / 2, ROW * s.rank + top + 15
            lines.append(f'<text x="{middle:.1f}" y="{line}" text-anchor="middle">{escape(label)}</text>')
        lines.append("</g>")
    lines += [
        f'<text x="{LEFT}" y="{height - 6}">0</text>',
        f'<text x="{LEFT + WIDTH}" y="{height - 6}" text-anchor="end">{in_seconds(end)}</text>',
    ]
    return svg(LEFT + WIDTH + 10, height, lines)
