"""Runs on nodes whose links are limited, beside the prediction of `trace`: the suite `links`.

A node is a network namespace; its only way to others is a pair of virtual devices with a token bucket at both
ends, on a bridge. Messages of ranks on one node go over its loopback device. Links are so much slower than
processors that ranks may share a core. Latency and bandwidth are measured in the same namespaces, operations
by the ranks; `trace` predicts from them.
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import tdsl as td
from benchmarks.mpi.linked import CASES, Case
from benchmarks.rounds import ROOT, THREAD_VARIABLES
from tdsl.distribute.launch import command

NODES = 2
RATE = "100mbit"
BURST = "64kb"  # that a link passes at once
CALLS = 5
PING_PONG_S = 1.0
TIMEOUT_S = 120
BY_TCP = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"}  # also between the ranks of a node


class Unavailable(Exception):
    """This system has no network namespaces for this process; the text says what is missing."""


def run(console: Console, names: list[str], turns: int) -> list[dict[str, Any]]:
    """The records of the named cases, all when none are named, with a table; none where it cannot run."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise KeyError(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    try:
        with nodes(NODES, RATE) as prefix:
            links = [_ping_pong(prefix, per_node) for per_node in (1, 2)]
            records = [_record(name, prefix, links, turns) for name in names or CASES]
    except Unavailable as reason:
        console.print(f"skipped: {reason}")
        return [{"case": name, "peers": {"tdsl": {"note": f"skipped: {reason}"}}} for name in names or CASES]
    console.print(table(records))
    return records


@contextlib.contextmanager
def nodes(count: int, rate: str) -> Iterator[str]:
    """Network namespaces for a block, joined by links of a rate; yields the beginning of their names."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise Unavailable(f"no {missing[0]!r} (of iproute2)")
    prefix = f"td{os.getpid()}n"
    bridge = f"{prefix}b"
    with contextlib.ExitStack() as undo:
        _command("ip", "link", "add", "name", bridge, "type", "bridge")
        undo.callback(_command, "ip", "link", "del", bridge)
        _command("ip", "link", "set", bridge, "up")
        for n in range(count):
            inside, outside = f"{prefix}{n}", f"{prefix}o{n}"
            _command("ip", "netns", "add", inside)
            undo.callback(_command, "ip", "netns", "del", inside)  # with both devices
            _command(
                "ip", "link", "add", "name", outside, "type", "veth", "peer", "name", "link0", "netns", inside
            )
            _command("ip", "link", "set", outside, "master", bridge, "up")
            _command("ip", "-n", inside, "addr", "add", f"10.77.0.{n + 1}/24", "dev", "link0")
            for device in ("lo", "link0"):
                _command("ip", "-n", inside, "link", "set", device, "up")
            limit = ("root", "tbf", "rate", rate, "burst", BURST, "latency", "500ms")
            _command("tc", "-n", inside, "qdisc", "add", "dev", "link0", *limit)
            _command("tc", "qdisc", "add", "dev", outside, *limit)
        yield prefix


def _command(*words: str) -> None:
    process = subprocess.run(words, capture_output=True, text=True)
    if process.returncode:
        raise Unavailable(f"`{' '.join(words)}`: {process.stderr.strip()}")


def _on_nodes(prefix: str, ranks: int, per_node: int, module: str, *arguments: str) -> Any:
    """The JSON that a module prints on ranks, the first `per_node` of them on the first node."""
    launched = command(ranks, "", [])
    enter = f'exec ip netns exec {prefix}$((PMI_RANK / {per_node})) "$@"'
    words = [*launched[:3], "sh", "-c", enter, "sh", launched[3], "-m", module, *arguments]
    environment = os.environ | BY_TCP | dict.fromkeys(THREAD_VARIABLES, "1") | {"PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    if process.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{process.stderr[-2000:]}")
    return json.loads(process.stdout)


def _ping_pong(prefix: str, per_node: int) -> tuple[float, float]:
    """The latency and bandwidth between two ranks: on two nodes, or on one if it has both."""
    latency, bandwidth = _on_nodes(prefix, 2, per_node, "tdsl.distribute.pingpong", str(PING_PONG_S))
    return latency, bandwidth


def _record(name: str, prefix: str, links: list[tuple[float, float]], turns: int) -> dict[str, Any]:
    case = CASES[name]
    answers = [
        _on_nodes(prefix, NODES * case.per_node, case.per_node, "benchmarks.mpi.linked", name, str(CALLS))
        for _ in range(turns)
    ]
    times = [statistics.median(answer["ms"]) for answer in answers]
    peer = {"note": "" if all(a["right"] for a in answers) else "WRONG result", "turns_ms": times}
    predicted = 1e3 * predicted_seconds(case, links, max(answer["operations"] for answer in answers))
    return {
        "case": name,
        "ranks": NODES * case.per_node,
        "predicted_ms": predicted,
        "links": links,
        "peers": {"tdsl": peer},
    }


def predicted_seconds(case: Case, links: list[tuple[float, float]], operations: float) -> float:
    """The seconds of a call by the clock; `links` are latency and bandwidth between nodes and within one."""
    p = td.compile(case.build())
    levels = len(p.plan().grid.depths)
    latency, bandwidth = zip(*links[:levels], strict=True)
    with tempfile.TemporaryDirectory() as folder:
        return p.trace(
            Path(folder) / "trace.json", latency=latency, bandwidth=bandwidth, operations=operations,
            shared_by=1 if case.ring else None, collectives="ring" if case.ring else None,
        )  # fmt: skip


def table(records: list[dict[str, Any]]) -> Table:
    """One line a case: its times and what the clock predicts."""
    (latency, bandwidth), (_, within) = records[0]["links"]
    between = f"between them {bandwidth / 1e6:.1f} MB/s, {1e6 * latency:.0f} us"
    title = f"{NODES} nodes; {between}; in one {within / 1e6:.0f} MB/s"
    out = Table(title=title, title_justify="left")
    for head in ("case", "ranks", "min ms", "median ms", "max ms", "predicted ms", "predicted / median"):
        out.add_column(head, justify="left" if head == "case" else "right", no_wrap=True)
    for record in records:
        peer, predicted = record["peers"]["tdsl"], record["predicted_ms"]
        if peer["note"]:
            out.add_row(record["case"], str(record["ranks"]), peer["note"])
            continue
        median = statistics.median(peer["turns_ms"])
        shown = (min(peer["turns_ms"]), median, max(peer["turns_ms"]), predicted)
        out.add_row(
            record["case"], str(record["ranks"]), *(f"{ms:.1f}" for ms in shown), f"{predicted / median:.2f}"
        )
    return out
