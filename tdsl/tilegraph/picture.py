"""A tile graph as text for graphviz: groups as boxes, bytes on edges."""

from __future__ import annotations

from tdsl.tilegraph.graph import TileGraph


def dot(graph: TileGraph) -> str:
    """The graph in the language of dot: funcs of one group stand in one box, edges carry all their bytes.

    >>> import tdsl as td
    >>> i, a, f, g = td.vars("i"), td.Tensor("a", (100,), td.f32), td.Func("f"), td.Func("g")
    >>> f[i] = td.exp(a[i])
    >>> g[i] = f[i] + 1
    >>> print(dot(TileGraph.of(td.Schedule(g).program).connect("f", "g", 1)))
    digraph g {
      a [shape=box];
      subgraph cluster_0 { f; g; }
      a -> f [label="400 B"];
      f -> g [label="400 B, level 1"];
    }
    """
    program = graph.program
    lines = [f"digraph {program.name} {{"]
    lines += [f"  {t.name} [shape=box];" for t in program.inputs]
    for n, group in enumerate(graph.groups()):
        inside = " ".join(f"{name};" for name in group)
        lines.append(f"  subgraph cluster_{n} {{ {inside} }}" if len(group) > 1 else f"  {inside}")
    for e in graph.edges:
        size = graph.bytes_moved(e.producer, graph.boxes[e.producer])
        level = f", level {e.level}" if e.level else ""
        lines.append(f'  {e.producer} -> {e.consumer} [label="{size:.0f} B{level}"];')
    return "\n".join([*lines, "}"])
