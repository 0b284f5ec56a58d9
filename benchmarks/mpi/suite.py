"""Runs of the suite `mpi`: tdsl and ScaLAPACK on ranks taking turns, and the simulator by ranks."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rounds import KEEP_MEMORY, ROOT, THREAD_VARIABLES

# Rows, columns, terms.
PRODUCTS = {
    "square-1024": (1024, 1024, 1024),
    "square-2048": (2048, 2048, 2048),
    "flat": (2048, 2048, 256),
    "deep": (512, 512, 8192),
    "tall": (8192, 512, 512),
}
RANKS = (1, 2, 4)
BLOCK = 64  # of ScaLAPACK
CALLS = 5
SIMULATED = ("heat", "product")
SIMULATED_RANKS = (4, 16, 64, 256, 1024, 4096)
NEEDS = "apt-get install libscalapack-mpich-dev mpich libopenblas0-serial"


class Missing(Exception):
    """What a peer needs is not installed; the text says what to install."""


def run(console: Console, names: list[str], turns: int) -> list[dict[str, Any]]:
    """The records of the named products and simulations, all when none are named."""
    records = []
    names_known = [*PRODUCTS, *SIMULATED]
    for name in names or names_known:
        if name not in names_known:
            raise KeyError(f"no case {name!r}; there are {', '.join(names_known)}")
        new_records = simulated(name) if name in SIMULATED else product(name, turns)
        for record in new_records:
            console.print(table(record))
        records += new_records
    return records


def product(name: str, turns: int) -> list[dict[str, Any]]:
    """A product on each number of ranks: peers take turns, each in processes of its own."""
    records = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks in RANKS:
            commands = {"tdsl": _tdsl_command(name, ranks), "scalapack": None}
            peers: dict[str, dict[str, Any]] = {p: {"note": "", "turns_ms": []} for p in commands}
            try:
                commands["scalapack"] = _scalapack_command(name, ranks, Path(folder))
            except Missing as missing:
                peers["scalapack"]["note"] = str(missing)
            for turn in range(turns):
                order = list(commands)[:: 1 if turn % 2 else -1]
                for peer in order:
                    if commands[peer] is not None and not peers[peer]["note"]:
                        _add_turn(peers[peer], commands[peer])
            for peer in peers.values():
                if peer["turns_ms"]:
                    peer["median_ms"] = statistics.median(peer["turns_ms"])
            records.append({"case": name, "shape": PRODUCTS[name], "ranks": ranks, "peers": peers})
    return records


def _tdsl_command(name: str, ranks: int) -> list[str]:
    from tdsl.distribute.launch import command

    launched = command(ranks, "", [])[:-3]  # mpiexec and the interpreter
    sizes = map(str, PRODUCTS[name])
    return [*launched, "-m", "benchmarks.mpi.product", *sizes, str(CALLS)]


def _scalapack_command(name: str, ranks: int, folder: Path) -> list[str]:
    """ScaLAPACK's PDGEMM, compiled; Missing where it cannot be."""
    compiler, launcher = shutil.which("mpicc.mpich"), shutil.which("mpiexec.mpich")
    if compiler is None or launcher is None:
        raise Missing(f"no MPICH of the system: {NEEDS}")
    program = folder / "pdgemm"
    if not program.exists():
        source = Path(__file__).parent / "pdgemm.c"
        command = [compiler, "-O2", "-o", str(program), str(source), "-lscalapack-mpich"]
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode:
            raise Missing(f"ScaLAPACK cannot be linked: {NEEDS}")
    arguments = map(str, (*PRODUCTS[name], BLOCK, *_grid(name, ranks), CALLS))
    return [launcher, "-n", str(ranks), str(program), *arguments]


def _grid(name: str, ranks: int) -> tuple[int, int]:
    """The grid on which panels that go along rows and columns are the fewest elements."""
    m, n, k = PRODUCTS[name]

    def received(rows: int) -> float:
        columns = ranks // rows
        return (1 - 1 / columns) * m * k / rows + (1 - 1 / rows) * k * n / columns

    rows = min((d for d in range(1, ranks + 1) if not ranks % d), key=received)
    return rows, ranks // rows


def _add_turn(peer: dict[str, Any], command: list[str]) -> None:
    """One turn: its median time, and the bytes of a call."""
    environment = os.environ | KEEP_MEMORY | dict.fromkeys(THREAD_VARIABLES, "1") | {"PYTHONPATH": str(ROOT)}
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if process.returncode:
        peer["note"] = f"failed: {process.stderr.strip().splitlines()[-1:]}"
        return
    answer = json.loads(process.stdout)
    if not answer["right"]:
        peer["note"] = "WRONG result"
        return
    peer["turns_ms"].append(statistics.median(answer["ms"]))
    peer["bytes"] = answer["bytes"]
    peer["grid"] = answer.get("grid")


def simulated(name: str) -> list[dict[str, Any]]:
    """What planning and simulating cost, each number of ranks in a process of its own."""
    records = []
    for ranks in SIMULATED_RANKS:
        command = [sys.executable, "-m", "benchmarks.mpi.simulator", name, str(ranks)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        note = "" if not process.returncode else f"failed: {process.stderr.strip().splitlines()[-1:]}"
        seconds = json.loads(process.stdout) if not note else {}
        records.append({"case": name, "ranks": ranks, "simulated": seconds, "peers": {"": {"note": note}}})
    return records


def table(record: dict[str, Any]) -> Table:
    """One line a peer: its times and bytes."""
    out = Table(title=f"{record['case']} on {record['ranks']} ranks", title_justify="left")
    if "simulated" in record:
        seconds = record["simulated"]
        for head, key in (("plan of one s", "one_s"), ("volume of all s", "all_s"), ("run s", "run_s")):
            out.add_column(head, justify="right")
            seconds[key] = seconds.get(key, float("nan"))
        out.add_row(*(f"{seconds[key]:.3f}" for key in ("one_s", "all_s", "run_s")))
        return out
    for head in ("peer", "min ms", "median ms", "max ms", "bytes"):
        out.add_column(head, justify="left" if head == "peer" else "right", no_wrap=True)
    for name, peer in record["peers"].items():
        times = peer["turns_ms"]
        if not times:
            out.add_row(name, peer["note"])
            continue
        shown = (f"{ms:.2f}" for ms in (min(times), peer["median_ms"], max(times)))
        out.add_row(name, *shown, str(peer["bytes"]))
    return out
