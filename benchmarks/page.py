"""docs/performance.md, written from the records of runs."""

from collections.abc import Iterable
from typing import Any

from benchmarks import goals, report
from benchmarks.cases import ALL

HEAD = """# Performance

Written by `python -m benchmarks page` from the records of the runs below. A ratio is the time of a peer over
that of tdsl with its default schedule, so it is above 1 where tdsl is faster; [benchmarks.md](benchmarks.md)
describes the method. Ratios hold for this machine and these versions; absolute times vary from run to run.
"""


OURS = (
    "tdsl",
    "tdsl-hand",
    "tdsl-in-order",
)  # by other schedules: nobody that tdsl could lose against

HOW = {"tdsl-hand": " (schedule by hand)", "tdsl-search": " (schedule by the search)"}
CHAINS = """# Chains of operators

Written by `python -m benchmarks page` from the records of the runs below: the chains that papers on fusion
measure, in f32, scaled down in batches, heads or rows where they take long on two cores. tdsl compiles each
as one program by the schedule of the search (`Graph.autoschedule`); `tdsl-unfused` gives each operator a
kernel of its own with the default schedule, as `td.Graph(f, fuse=False)` does; `torch-compile` is PyTorch's
compiler on the same operators. All are checked against NumPy in double precision. A ratio is the time of a
peer over that of tdsl, so it is above 1 where the fused program is faster. `chain-43-*` are single
operators, with nothing to fuse. Rates count the operations of the chain as written, although products of
three matrices may be computed in another order. The machine was otherwise idle, but it shares its processor
with others. The run of chain-14 to chain-42 was repeated, and the second run counts, since in the first
chain-31 had a ratio of 0.86 to the same kernels as separate calls. `chain-30-8`, 0.93 in the second run,
and `chain-25-16x224` were measured in another run as well: the placement of 100 MB of weights in memory
differs from process to process. Compile times include the search, on such a machine.

`python -m benchmarks kernels` compiles the results of the search for these chains for sm_80 and sm_90a; it
needs no GPU and runs nothing. `benchmarks/results/chains-cuda.json` has the registers, spills and shared
bytes of every kernel, and its predicted bytes of global memory, fused and unfused.
"""


def markdown(records: list[dict[str, Any]]) -> str:
    """The page for the records of one or more runs, which may be of different cases."""
    cases = [case for record in records for case in record["results"]]
    lines = goals.summarize(cases)
    head = HEAD
    if all(case["group"] == "chains" for case in cases):
        whole = sum(case.group == "chains" for case in ALL.values())
        measured = len({case["case"] for case in cases})
        head = f"{CHAINS}\nThe records have {measured} of the {whole} chains of the group.\n"
    parts = [head, _runs(records), _goals(lines), _losses(cases)]
    parts += [_group(name, cases) for name in dict.fromkeys(case["group"] for case in cases)]
    return "\n".join(parts)


def _runs(records: list[dict[str, Any]]) -> str:
    rows = [
        (
            r["date"],
            f"{r['cpu']}, {r['cores']} cores",
            r["threads"],
            r["rounds"],
            f"`{r['command']}`",
        )
        for r in records
    ]
    versions = ", ".join(f"{name} {version}" for name, version in records[0]["versions"].items())
    table = _table(("date", "machine", "threads", "rounds", "command"), rows)
    return f"{table}\nPython {records[0]['python']}, {versions}; {records[0]['system']}.\n"


def _goals(lines: list[dict[str, Any]]) -> str:
    rows = []
    for line in lines:
        goal = line["goal"]
        rows.append(
            (
                line["group"] + HOW.get(line["ours"], ""),
                "best of " * (len(line["peers"]) > 1) + ", ".join(line["peers"]),
                len(line["cases"]),
                f"{line['mean']:.2f}",
                f"{line['least']:.2f}",
                f"{goal['mean']}" + (f", none under {goal['least']}" if goal["least"] else ""),
                "yes" if line["met"] else "no",
                f"{max(case['compile_ms'] for case in line['cases'].values()):.0f}",
            )
        )
    heads = ("group", "peer", "cases", "mean ratio", "least", "goal", "met", "longest compile ms")
    return f"## Goals\n\nMeans are geometric.\n\n{_table(heads, rows)}"


def _losses(cases: Iterable[dict[str, Any]]) -> str:
    """Every peer that is faster."""
    lost = []
    for case in cases:
        ours = case["peers"].get("tdsl", {}).get("turns_ms")
        for name, peer in case["peers"].items():
            if ours and peer["turns_ms"] and name not in OURS:
                ratio = goals.ratio(peer["turns_ms"], ours)
                if ratio < 1:
                    lost.append((case["case"], name, f"{ratio:.2f}"))
    lost.sort(key=lambda row: row[2])
    body = _table(("case", "peer", "ratio"), lost) if lost else "Nowhere in these cases.\n"
    return f"## Where tdsl loses\n\n{body}"


def _group(name: str, cases: Iterable[dict[str, Any]]) -> str:
    cases_of_group = [case for case in cases if case["group"] == name]
    others = list(dict.fromkeys(p for case in cases_of_group for p in case["peers"] if p != "tdsl"))
    rows = []
    for case in cases_of_group:
        ours = case["peers"].get("tdsl", {})
        if ours.get("turns_ms"):
            ms, compile_ms = ours["median_ms"], ours["compile_ms"]
            rate = report.rate(case["flops"], case["bytes"], ms)
            ratios = [_ratio(case["peers"].get(other), ours) for other in others]
            rows.append(
                (
                    case["case"],
                    case["title"],
                    f"{ms:.3g}",
                    rate,
                    *ratios,
                    f"{compile_ms:.0f}",
                )
            )
    heads = ("case", "what", "ms", "rate", *(f"/ {other}" for other in others), "compile ms")
    return f"## Group {name or 'without a goal'}\n\n{_table(heads, rows)}"


def _ratio(peer: dict[str, Any] | None, ours: dict[str, Any]) -> str:
    if peer is None:
        return ""
    return f"{goals.ratio(peer['turns_ms'], ours['turns_ms']):.2f}" if peer["turns_ms"] else peer["note"]


def _table(heads: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)
