"""What `torch.compile(backend="tdsl")` compiled, and what it left to torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from tdsl.core.notebook import Listing
from tdsl.errors import counted


@dataclass
class Part:
    """A part of a graph that tdsl computes; `problem` says why torch computes it in the end."""

    name: str
    nodes: int
    problem: str = ""


@dataclass
class GraphReport:
    """A graph: its nodes, those of its compiled parts, and how many torch computes for which reason."""

    nodes: int
    compiled: int = 0
    parts: list[Part] = field(default_factory=list)
    reasons: Mapping[str, int] = field(default_factory=dict)

    def add(self, name: str, module: torch.fx.GraphModule) -> Part:
        """A new part of this graph."""
        part = Part(name, sum(n.op == "call_function" for n in module.graph.nodes))
        self.parts.append(part)
        return part

    def lines(self) -> list[str]:
        """The report as lines of text."""
        compiled = f"{self.compiled} of {counted(self.nodes, 'node')} in {counted(len(self.parts), 'part')}"
        left = [f"  torch computes {n} x {reason}" for reason, n in sorted(self.reasons.items())]
        refused = [p for p in self.parts if p.problem]
        by_torch = [f"  torch computes {p.name}, {counted(p.nodes, 'node')}: {p.problem}" for p in refused]
        return [f"graph: {compiled}", *left, *by_torch]


_reports: list[GraphReport] = []


def report_of(module: torch.fx.GraphModule) -> GraphReport:
    """The report of a graph that is being compiled, added to those of the process."""
    _reports.append(GraphReport(sum(n.op == "call_function" for n in module.graph.nodes)))
    return _reports[-1]


def reports() -> tuple[GraphReport, ...]:
    """The reports of the graphs that were compiled in this process, in order."""
    return tuple(_reports)


def report() -> Listing:
    """The graphs that the backend "tdsl" has compiled in this process, and what torch computes of them."""
    return Listing("\n".join(line for r in _reports for line in r.lines()) or "no graph was compiled")
