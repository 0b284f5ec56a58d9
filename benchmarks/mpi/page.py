"""docs/mpi-performance.md, written from the records of runs of the suite `mpi`."""

from typing import Any

HEAD = """# Performance on ranks

Written by `python -m benchmarks page` from the records of the runs below. `tdsl` multiplies by the recipe
`cosma`; `scalapack` is PDGEMM on blocks of 64 and the grid on which it moves least. Both have the same ranks,
one thread each, and take turns. Bytes are those that all ranks send in a call, counted at the calls of
MPI. A ratio is the time of ScaLAPACK over that of tdsl. With more ranks than cores, ranks share cores, and
only the bytes are meaningful.
"""


def markdown(records: list[dict[str, Any]]) -> str:
    """The page for the records of one or more runs."""
    results = [result for record in records for result in record["results"]]
    rows = [
        f"| {r['date']} | {r['cpu']}, {r['cores']} cores{_load(r)} | {r['rounds']} | `{r['command']}` |"
        for r in records
    ]
    versions = ", ".join(f"{name} {v}" for name, v in records[0]["versions"].items())
    lines = [
        HEAD, "| date | machine | turns | command |", "| --- | --- | --- | --- |", *rows, "",
        f"Python {records[0]['python']}, {versions}; {records[0]['system']}.", "",
        *_products([r for r in results if "simulated" not in r]),
        *_simulated([r for r in results if "simulated" in r]),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _products(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## Products of matrices", "",
        "| m n k | ranks | tdsl ms | scalapack ms | ratio | bytes of tdsl | of scalapack |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for r in results:
        ours, theirs = r["peers"]["tdsl"], r["peers"]["scalapack"]
        cells = [" ".join(map(str, r["shape"])), r["ranks"], _ms(ours), _ms(theirs)]
        if ours["turns_ms"] and theirs["turns_ms"]:
            cells.append(f"{theirs['median_ms'] / ours['median_ms']:.2f}")
        else:
            cells.append("")
        cells += [ours.get("bytes", ""), theirs.get("bytes", "")]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return [*lines, ""] if results else []


def _load(record: dict[str, Any]) -> str:
    """The load of the machine, where it had more work than the run."""
    load = record.get("load") or 0.0
    return f", load {load:.0f}" if load > record["cores"] else ""


def _ms(peer: dict[str, Any]) -> str:
    return f"{peer['median_ms']:.1f}" if peer["turns_ms"] else str(peer["note"])


def _simulated(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## Planning and simulating", "",
        "A step of a stencil (`heat`) and a product by `cosma`, of arrays of 512 x 512, in one process,",
        "in seconds of processor time: the plan of one rank; bytes, messages and memory of all ranks; then",
        "the plans of all ranks, their proof, the compilation of their tasks and the run.",
        "",
        "| program | ranks | plan of one s | volume of all s | rest s | memory MB | bytes received |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for r in results:
        s, note = r["simulated"], r["peers"][""]["note"]
        if note:
            lines.append(f"| {r['case']} | {r['ranks']} | {note} | | | | |")
            continue
        lines.append(
            f"| {r['case']} | {r['ranks']} | {s['one_s']:.3f} | {s['all_s']:.2f} | {s['run_s']:.2f} "
            f"| {s['peak_bytes'] / 1e6:.0f} | {s['received']} |"
        )
    return lines if results else []
