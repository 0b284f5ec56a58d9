"""Bugs put into the compiler by hand, one at a time: how many does the fuzzer find, and how fast?

    python -m tests.fuzz.mutants --seconds 600

Each is a small change of one file, made in a copy of the package that the fuzzer then runs on.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

# (title, file, what stands there, what is put there)
MUTANTS = (
    ("tail one too long", "schedule/loop_relations.py",
     'guards.append(Binary("lt", values[parent]', 'guards.append(Binary("le", values[parent]'),
    ("guard of a tail dropped", "schedule/loop_relations.py",
     "                if not exact:\n                    guards",
     "                if False:\n                    guards"),
    ("shifted tail not shifted", "schedule/loop_relations.py",
     "start = maximum(minimum(start, last, facts), ZERO, facts)", "start = maximum(start, ZERO, facts)"),
    ("fused loop taken apart the wrong way", "schedule/loop_relations.py",
     'values[outer] = Binary("floordiv", values[fused], extents[inner])',
     'values[outer] = Binary("floordiv", values[fused], extents[outer])'),
    ("last block of a split lost", "schedule/loop_relations.py",
     "extents[outer] = ceildiv(whole, const(factor), facts)",
     "extents[outer] = floordiv(whole, const(factor), facts)"),
    ("ring half as long", "schedule/sliding.py",
     "return 1 << max(needed - 1, 0).bit_length()",
     "return max((1 << max(needed - 1, 0).bit_length()) // 2, 1)"),
    ("sliding window starts one too late", "codegen/lowering/lower.py",
     "new = maximum(lo, add(before, ONE)", "new = maximum(lo, add(before, const(2))"),
    ("origin of a box forgotten", "codegen/lowering/buffers.py",
     'e if lo == ZERO else Binary("sub", e, lo)', "e"),
    ("storage order only half applied", "codegen/lowering/buffers.py",
     "return tuple(position[axis] for axis in self.order)", "return tuple(position)"),
    ("stride of a dense array off by one", "codegen/ir/loops.py",
     "step *= max(extent, 1)", "step *= max(extent - 1, 1)"),
    ("predicate dropped", "codegen/lowering/guards.py",
     "related.guards, conjuncts(builder.d.where)", "related.guards, []"),
    ("predicate applied to the start of a sum", "codegen/lowering/guards.py",
     "if not (g.predicate and pos.mode == INIT)", "if True"),
    ("start of a reduction left out", "codegen/lowering/loop_nest.py",
     "return [*start, *self._lower(replace(pos, mode=UPDATE), ctx)]",
     "return [*self._lower(replace(pos, mode=UPDATE), ctx)]"),
    ("sides of a combiner swapped", "codegen/lowering/values.py",
     '(old if n.name[0] == "a" else new)', '(new if n.name[0] == "a" else old)'),
    ("atomic update as a plain store", "codegen/lowering/values.py", "atomic=op, fast=fast", "fast=fast"),
    ("inlined with its variables in another order", "schedule/inlining.py",
     "zip(d.free, read.index, strict=True)", "zip(d.free, read.index[::-1], strict=True)"),
    ("reflected one too far", "codegen/passes/expand_padding.py",
     "period = add(last, last, facts)", "period = add(last, n, facts)"),
    ("symmetric padding repeats another element", "codegen/passes/expand_padding.py",
     "subtract(const(-1), i)", "subtract(ZERO, i)"),
    ("wrapped at the wrong end", "codegen/passes/expand_padding.py",
     'Binary("ge", i, n)', 'Binary("gt", i, n)'),
    ("outer mask lost", "codegen/passes/vectorize.py",
     'mask = wide if mask is None else Binary("and", mask, wide)', "mask = wide"),
    ("unrolled copies all the same", "codegen/passes/unroll.py",
     "add(loop.lo, const(k))", "add(loop.lo, const(k - k % 2))"),
    ("bounded loop one too short", "codegen/passes/bound_loops.py",
     "add(subtract(hi, lo, facts), ONE, facts)", "subtract(hi, lo, facts)"),
    ("interior one too long", "codegen/passes/partition.py",
     "add(last, ONE, facts), end", "add(last, add(ONE, ONE), facts), end"),
    ("partial sums without their predicate", "schedule/rfactor.py",
     "where = conjunction([*related.guards, d.where])", "where = d.where"),
    ("box of consumers not united", "schedule/bounds_inference.py",
     "boxes[name] = union_box(boxes.get(name), box, facts)", "boxes[name] = box"),
    ("box of a tile reaches beyond the tail", "schedule/bounds_inference.py",
     "intersection((lo_, hi_), (first, last), facts)", "(lo_, hi_)"),
    ("integer division rounds toward zero", "codegen/cpu/int_arith.py",
     'select(b, t, needs_fix, b.v(f"add {t} {q}, {minus}"), q)', "q"),
    ("memory one element short", "codegen/cpu/allocate.py",
     "furthest = sum((e - 1) * abs(s)", "furthest = -1 + sum((e - 1) * abs(s)"),
    ("memory of a size that is known late too short", "codegen/cpu/allocate.py",
     'b.v(f"add i64 {step}, 0")', 'b.v(f"sub i64 {step}, {a.dtype.bytes}")'),
    ("vector store one element further", "codegen/cpu/memory.py",
     'b.do(f"store {type_} {name}, ptr {at.pointer}, align {at.align}")\n        return\n    cx.has',
     """b.do(f"store {type_} {name}, ptr {b.v(f'getelementptr i8, ptr {at.pointer}, i64 8')}, align 1")
        return
    cx.has"""),
    ("signed widening as unsigned", "codegen/cpu/convert.py",
     '"sext" if x.dtype.kind == "i" else "zext"', '"zext" if x.dtype.kind == "i" else "zext"'),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="of CPU for each, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="those with this in their title")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if options.only in m[0]]
    found = 0
    for title, file, old, new in chosen:
        caught, seconds = hunt(file, old, new, options.seed, options.seconds)
        found += caught is not None
        print(f"| {title} | `{file}` | {caught or 'not found'} | {seconds:.0f} |", flush=True)
    print(f"\n{found} of {len(chosen)}")
    return 0


def hunt(file: str, old: str, new: str, seed: int, seconds: float) -> tuple[str | None, float]:
    """The kind of fault that the fuzzer tells first with a change in place, or None; CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "tdsl", f"{folder}/tdsl")
        shutil.copytree(ROOT / "tests", f"{folder}/tests")
        path = Path(folder, "tdsl", file)
        text = path.read_text()
        assert old in text, f"{file} has changed: {old!r}"
        path.write_text(text.replace(old, new))
        words = ["--programs", 100_000, "--schedules", 2, "--seed", seed, "--cpu-seconds", seconds,
                 "--stop", 1]  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz", *map(str, words)],
            cwd=folder, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": folder},
        )  # fmt: skip
    told = re.search(r"^fault (\S+) (.*)$", done.stdout, re.MULTILINE)
    spent = re.search(r"(\d+) s of CPU$", done.stdout, re.MULTILINE)
    assert spent is not None, done.stderr
    return told[2][:60] if told else None, float(spent[1])


if __name__ == "__main__":
    sys.exit(main())
