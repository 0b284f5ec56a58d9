"""One case of the fuzzer: a program, a schedule, data, a target; what it gives against what it means."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tdsl as td
from tdsl.codegen.binding import output_shape
from tdsl.codegen.python.run import PythonExecutable
from tdsl.codegen.signature import dense, places
from tdsl.codegen.verify import verify
from tdsl.compile import signature_of
from tdsl.pipeline import make_kernel
from tdsl.schedule.bind import bind_state
from tdsl.schedule.legality import check_all
from tdsl.target import as_target
from tdsl.variant import Variant, machine_of
from tests.fuzz.errors import Bounded, mismatch, reference
from tests.fuzz.programs import Made

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
    r"is not around loop .* where .* is computed",
    r"is parallel, and its iterations would share",
    # kernels of a GPU
    r"is a thread's own, but loops over threads use it",
    r"threads of a block wait for each other where only some of them come",
    r"how many iterations of .* run on .* is not known before the launch",
    r"but each thread around it has",
    r"each thread has a .* of its own, but what it follows is made once",
    r"runs on .*, but stands inside of another loop",
    r"is in shared memory, but not inside of a block",
    r"is parallel, on threads of a CPU, and the target .* is a GPU",
    r"kernels of a GPU cannot",
    r"nothing that loop .* makes in shared memory can be made ahead",
    r"copies as a whole need",
    r"threads combine their results in",
    r"is pipelined, but how often it runs differs",
    r"copied as a whole (at|outside|of)",
    r"is copied as a whole, but what it copies is computed",
    r"cannot be pipelined apart",
    r"a GPU has no atomic",
    r"memory .* (is in heap memory, but made inside of a kernel|has a size that is not known)",
    r"memory, but its size is known at a call only",
)


@dataclass(frozen=True, slots=True)
class Case:
    """`directives` is JSON; `dynamic` names sizes that stay open; `strided` asks for odd memory layouts.

    `text` asks for the CUDA text of kernels, compiled for the CPU, instead of their emulation.
    """

    made: Made
    directives: str
    seed: int = 0
    target: str = "cpu"
    dynamic: tuple[str, ...] = ()
    strided: bool = False
    text: bool = False

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

    known: dict[tuple[int, int], Any] = field(default_factory=dict)

    def of(self, made: Made, seed: int) -> tuple[dict[str, Any], tuple[Bounded, ...]]:
        key = (id(made), seed)
        if key not in self.known:
            self.known.clear()
            arguments = made.arguments(seed)
            results = reference(made.program(), arguments, made.sizes)
            self.known[key] = (made, arguments, results)
        return self.known[key][1:]


def run_case(case: Case, meaning: Meaning, checked: bool = False) -> Outcome:
    """Compile and run a case; `checked` runs the loops after all passes in Python that checks every index."""
    try:
        arguments, want = meaning.of(case.made, case.seed)
    except td.TdslError as error:
        return Outcome("refused", f"oracle: {type(error).__name__}")
    except Exception as error:  # noqa: BLE001  # a fault of the language, not of the compiler
        return Outcome(
            f"oracle: {type(error).__name__} {general(str(error))}", traceback.format_exc()
        )
    try:
        s = case.schedule()
        with np.errstate(all="ignore"):
            got = _checked(s, case, arguments) if checked else _called(s, case, arguments)
    except td.TdslError as error:
        text = str(error)
        rounded = '"round_up"' in case.directives and isinstance(error, td.IndexBoundError)
        if rounded or any(re.search(pattern, text) for pattern in ALLOWED):
            return Outcome("refused", re.sub(r"'[^']*'|\d+", "_", text.splitlines()[0]))
        return Outcome(f"{type(error).__name__}: {general(text)}", traceback.format_exc())
    except Exception as error:  # noqa: BLE001  # any other exception is a fault of the compiler
        where = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{type(error).__name__} in {where.filename.rpartition('/')[2]}:{where.name}"
        return Outcome(kind, traceback.format_exc())
    for n, (x, y) in enumerate(zip(want, got, strict=True)):
        wrong = mismatch(y, x)
        if wrong:
            return Outcome("wrong result", f"output {n}: {wrong}\nwant {x.value!r}\ngot  {y!r}")
    return Outcome("same")


def general(text: str) -> str:
    """The beginning of a message without the names and numbers in it."""
    return re.sub(r"'[^']*'|\d+", "_", text.splitlines()[0])[:90]


def _called(s: td.Schedule, case: Case, arguments: dict[str, Any]) -> tuple[np.ndarray, ...]:
    decided = places(signature_of(s.program))
    fixed = {n: v for n, v in case.made.sizes.items() if n in s.program.sizes and n not in decided}
    dynamic = [n for n in case.dynamic if n in decided]
    compiled = td.compile(s, target=case.target, dynamic=dynamic, **fixed)
    call = compiled
    if case.target == "cuda":
        call = td.emulate(compiled)
        if case.text:
            from tests.codegen.cuda.shim import text_of

            call = text_of(compiled)
    got = call(**{n: _strided(x) if case.strided else x for n, x in arguments.items()})
    return got if isinstance(got, tuple) else (got,)


def _strided(x: Any) -> Any:
    """The same values in memory that is neither dense nor in order."""
    if not isinstance(x, np.ndarray) or x.ndim == 0:
        return x
    wide = np.zeros((*(2 * n for n in x.shape[::-1]),), x.dtype).T
    view = wide[tuple(slice(None, None, -2) for _ in x.shape)]
    view[...] = x
    return view


def _checked(s: td.Schedule, case: Case, arguments: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """The kernel of the cpu target, after all passes, run in Python that checks every index."""
    signature = signature_of(s.program)
    sizes = {n: v for n, v in case.made.sizes.items() if n in s.program.sizes}
    check_all(s.state)
    state = bind_state(s.state, sizes)
    target = as_target("cpu")
    variant = Variant(state, target, machine_of(target), signature, dense(signature, sizes))
    kernel = make_kernel(variant)
    verify(kernel)
    outputs = [
        np.zeros(output_shape(signature, a, sizes), a.dtype.numpy) for a in signature.outputs
    ]
    given = {
        **arguments,
        **{a.name: x for a, x in zip(signature.outputs, outputs, strict=True)},
        **sizes,
    }
    PythonExecutable(kernel, checked=True).run([given[p.name] for p in kernel.params])
    return tuple(outputs)
