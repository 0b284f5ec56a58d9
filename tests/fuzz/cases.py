"""One case of the fuzzer: a program, a schedule, data, a target; what it gives against what it means."""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tdsl as td
from tdsl.codegen.ir.verify import verify
from tdsl.codegen.python.run import PythonExecutable
from tdsl.codegen.runtime.binding import output_shape
from tdsl.codegen.runtime.program_signature import signature_of
from tdsl.codegen.runtime.signature import dense_specialisation, size_sources
from tdsl.lang.program import Program
from tdsl.pipeline import make_kernel
from tdsl.schedule.bind import bind_state
from tdsl.schedule.legality import check_all
from tdsl.target import as_target
from tdsl.variant import Variant
from tests.fuzz.errors import Bounded, mismatch, reference
from tests.fuzz.made import Made
from tests.fuzz.placed import Placed

# What may be refused only when sizes are known, although every directive was accepted.
ALLOWED = (
    r"has no iterations to share",  # compute_with
    r"numba cannot compute with",
    r"has another number of iterations than",  # compute_with
    r"its number of iterations has no constant bound",  # vectorize, unroll
    r"fold_storage of .* dimension .* needs",
    r"bound_extent of .* dimension .* needs",
    r"outside of loop .* of",  # a consumer was added or moved after compute_at
    r"is stored at a loop but not computed inside it",
    r"is not computed at the root",  # compute_with, before compute_at of what its host reads
    r"is not around loop .* where .* is computed",
    r"is parallel, and its iterations would share",
    # kernels of a GPU
    r"a predicate of .* that reads .* is tested at loop",  # in nests bound to axes, or of an implied place
    r"is private to a thread, but loops over threads use it",
    r"only some threads of a block would reach a barrier",
    r"how many iterations of .* run on .* is not known before the launch",
    r"but each thread around it has",
    r"each thread has its own .*, but the producer is computed once",
    r"runs on .*, but is nested in another loop",
    r"is in shared memory, but not inside of a block",
    r"is parallel, on threads of a CPU, and the target .* is a GPU",
    r"kernels of a GPU cannot",
    r"no tile that loop .* fills in shared memory can be prefetched",
    r"copies by TMA need",
    r"threads combine their results in",
    r"is pipelined, but how often it runs differs",
    r"grid_sync of .*: ",
    r"the blocks of kernel .* wait for each other, and",
    r"copied as a whole (at|outside)|copied by TMA from",
    r"is copied by TMA, but what it copies is computed",
    r"cannot have producer warps",
    r"memory .* (is in heap memory, but allocated in a kernel|has a size that is not known)",
    r"memory, but its size is known at a call only",
)


@dataclass(frozen=True, slots=True)
class Case:
    """`directives` is JSON; `dynamic` names sizes that stay open; `layout` is how arrays lie in memory.

    `text` asks for the CUDA text of kernels, compiled for the CPU, instead of their emulation; `canaries`
    for red zones around the memory of kernels of a CPU. `resized` is an input that is given another extent
    at an axis: (name, axis, extent). `how` tells where the directives come from.
    """

    made: Made
    directives: str
    seed: int = 0
    target: str = "cpu"
    dynamic: tuple[str, ...] = ()
    layout: str = "dense"
    text: bool = False
    canaries: bool = False
    resized: tuple[str, int, int] | None = None
    how: str = "directives"

    @property
    def kinds(self) -> list[str]:
        """What is counted: the kind of program, what made the directives, target, and what is special."""
        special = {"dynamic": self.dynamic, "canaries": self.canaries, "other extent": self.resized}
        layout = [] if self.layout == "dense" else [f"layout {self.layout}"]
        return [
            f"program {self.made.kind}", f"schedule {self.how}", f"target {self.target}", *layout,
            *(name for name, there in special.items() if there),
        ]  # fmt: skip

    def schedule(self) -> td.Schedule:
        return td.Schedule(*self.made.outputs).replay(self.directives)

    def source(self) -> str:
        """Python that runs the case and compares."""
        made = self.made
        lines = str(self.schedule())
        call = f', target="{self.target}"' + (f", dynamic={self.dynamic}" if self.dynamic else "")
        return "\n".join(
            [
                made.source(self.seed),
                "s = td.Schedule(*outputs)",
                *([lines] if lines else []),
                "",
                *([f"# arrays lie in {self.layout}"] if self.layout != "dense" else []),
                *([f"# {self.resized}: input, axis, its extent"] if self.resized else []),
                "from tdsl.lang.interp import interpret",
                "want = interpret(s.program, arguments)",
                f"got = td.compile(s{call})(**arguments)",
                "for x, y in zip(want, got if isinstance(got, tuple) else (got,), strict=True):",
                "    wide = np.asarray(x, np.float64)",
                "    np.testing.assert_allclose(np.asarray(y, np.float64), wide, rtol=1e-3)",
            ]
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """`kind` is "same", "refused" (for a documented reason) or a fault; `text` tells more."""

    kind: str
    text: str = ""

    @property
    def fault(self) -> bool:
        return self.kind not in ("same", "refused")

    def like(self, other: Outcome) -> bool:
        """True for what is probably the same fault."""
        return self.kind == other.kind


@dataclass(slots=True)
class Meaning:
    """What programs mean, computed once for each and its data."""

    known: dict[Any, Any] = field(default_factory=dict)

    def of(self, case: Case) -> tuple[dict[str, Any], tuple[Bounded, ...] | Exception]:
        """The arguments of a case, and the results or what is wrong with these arguments."""
        made = case.made
        moves_factors = '"reassociate"' in case.directives
        key = (id(made), case.seed, case.resized, moves_factors)
        if key not in self.known:
            if len(self.known) > 4:
                self.known.clear()
            arguments, results = made.arguments(case.seed, case.resized), None
            try:
                program = made.program()
                sizes = _undecided(program, made.sizes)
                results = reference(program, arguments, sizes, moves_factors=moves_factors)
            except Exception as error:  # noqa: BLE001  # of the program, or a fault of the language
                results = error
            self.known[key] = (made, arguments, results)
        return self.known[key][1:]


def _undecided(program: Program, sizes: dict[str, int]) -> dict[str, int]:
    """The sizes that no argument tells."""
    decided = size_sources(signature_of(program))
    return {n: v for n, v in sizes.items() if n in program.sizes and n not in decided}


def run_case(case: Case, meaning: Meaning, checked: bool = False) -> Outcome:
    """Compile and run a case; `checked` runs the loops after all passes in Python that checks every index."""
    arguments, want = meaning.of(case)
    if isinstance(want, Exception):
        return _refused(case, arguments, want)
    try:
        s = case.schedule()
        with np.errstate(all="ignore"):
            got = _checked(s, case, arguments) if checked else _called(s, case, arguments, want)
    except td.TdslError as error:
        text = str(error)
        rounds = '"round_up"' in case.directives or '"pack"' in case.directives
        rounded = rounds and isinstance(error, td.IndexBoundError)
        # `td.compile` refuses what is right for empty arrays and results alone
        empty = 0 in case.made.sizes.values() or any(np.size(x.value) == 0 for x in want)
        rounded |= isinstance(error, td.IndexBoundError) and empty
        if rounded or any(re.search(pattern, text) for pattern in ALLOWED):
            return Outcome("refused", re.sub(r"'[^']*'|\d+", "_", text.splitlines()[0]))
        if case.resized is not None and isinstance(error, td.ShapeError | td.IndexBoundError):
            return Outcome("refused", f"other extent: {type(error).__name__}")
        return Outcome(f"{type(error).__name__}: {general(text)}", _told(error))
    except Touched as error:
        return Outcome("touched", str(error))
    except Exception as error:  # noqa: BLE001  # any other exception is a fault of the compiler
        return Outcome(_kind(error), _told(error))
    for n, (x, y) in enumerate(zip(want, got, strict=True)):
        wrong = mismatch(y, x)
        if wrong:
            return Outcome("wrong result", f"output {n}: {wrong}\nwant {x.value!r}\ngot  {y!r}")
    return Outcome("same")


def _refused(case: Case, arguments: dict[str, Any], why: Exception) -> Outcome:
    """What the interpreter refuses must be refused, or at least stay within memory."""
    if not isinstance(why, td.TdslError):  # a fault of the language, not of the compiler
        return Outcome(f"oracle: {type(why).__name__} {general(str(why))}", _told(why))
    oracle = f"oracle: {type(why).__name__}"
    try:
        s = case.schedule()
        with np.errstate(all="ignore"):
            _called(s, case, arguments, None)
            if case.resized is None or isinstance(why, td.IndexBoundError):
                _checked(s, case, arguments)  # a read whose value plays no part is left out
                return Outcome("refused", f"{oracle}, though loops stay inside")
    except td.TdslError as error:
        if isinstance(error, td.InternalError):
            return Outcome(f"{type(error).__name__}: {general(str(error))}", _told(error))
        return Outcome("refused", oracle)
    except Touched as error:
        return Outcome("touched", str(error))
    except Exception as error:  # noqa: BLE001
        return Outcome(f"accepted, {oracle}, {_kind(error)}", _told(why) + _told(error))
    return Outcome(f"accepted, {oracle}", _told(why))


def _told(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


def _kind(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {where.filename.rpartition('/')[2]}:{where.name}"


def general(text: str) -> str:
    """The beginning of a message without the names and numbers in it."""
    return re.sub(r"'[^']*'|\d+", "_", text.splitlines()[0])[:90]


class Touched(Exception):
    """A call changed what it must not."""


def _called(
    s: td.Schedule, case: Case, arguments: dict[str, Any], want: tuple[Bounded, ...] | None
) -> tuple[np.ndarray, ...]:
    """The results of a call with arrays in larger memory; those of `want` are written there, too."""
    signature = signature_of(s.program)
    decided = size_sources(signature)
    fixed = {n: v for n, v in case.made.sizes.items() if n in s.program.sizes and n not in decided}
    dynamic = [n for n in case.dynamic if n in decided]
    memory = Placed(case.seed, case.layout)
    given = {n: memory.input(n, x) for n, x in arguments.items()}
    out: Any = None
    if want is not None and (case.canaries or case.layout != "dense"):
        arrays = [
            memory.output(a.name, w.value.shape, w.value.dtype)
            for a, w in zip(signature.outputs, want, strict=True)
        ]
        out = tuple(arrays) if len(arrays) > 1 else arrays[0]
    with _debug("verify,canaries" if case.canaries else "verify"):
        compiled = td.compile(s, target=case.target, dynamic=dynamic, **fixed)
        call = compiled
        if case.target == "cuda":
            call = td.emulate(compiled)
            if case.text:
                from tests.codegen.cuda.shim import text_of

                call = text_of(compiled)
        got = call(**given) if out is None else call(**given, out=out)
    results = tuple(np.array(x) for x in (got if isinstance(got, tuple) else (got,)))
    if beside := memory.touched():
        raise Touched(beside)
    return results


@contextlib.contextmanager
def _debug(topics: str) -> Iterator[None]:
    before = os.environ.get("TDSL_DEBUG")
    os.environ["TDSL_DEBUG"] = topics
    try:
        yield
    finally:
        if before is None:
            del os.environ["TDSL_DEBUG"]
        else:
            os.environ["TDSL_DEBUG"] = before


def _checked(s: td.Schedule, case: Case, arguments: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """The kernel of the cpu target, after all passes, run in Python that checks every index."""
    signature = signature_of(s.program)
    sizes = {n: v for n, v in case.made.sizes.items() if n in s.program.sizes}
    check_all(s.state)
    state = bind_state(s.state, sizes)
    target = as_target("cpu")
    variant = Variant(state, target, target.machine(), signature, dense_specialisation(signature, sizes))
    kernel = make_kernel(variant)
    verify(kernel)
    outputs = [np.zeros(output_shape(signature, a, sizes), a.dtype.numpy) for a in signature.outputs]
    given = {
        **arguments,
        **{a.name: x for a, x in zip(signature.outputs, outputs, strict=True)},
        **sizes,
    }
    PythonExecutable(kernel, checked=True).run([given[p.name] for p in kernel.params])
    return tuple(outputs)
