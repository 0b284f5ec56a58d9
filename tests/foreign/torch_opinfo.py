"""PyTorch's own samples of its operators (OpInfo), by the backend "tdsl" of `torch.compile`.

Each sample of an operator is captured as a graph of torch's core operators, compiled by the backend, and run.
The results have to be those of torch: of the same shapes and types, and as near to results in f64 as torch's.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from tdsl.torch.backend import compile_fx
from tdsl.torch.report import reports

TYPES = (torch.float32, torch.int64, torch.bool)
SAMPLES = 24  # at most, of an operator and a type
TOLERANCE = 2e-5
# They return memory that nobody has written.
UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
UNORDERED = {"topk", "kthvalue"}  # which of equal elements they take is not defined


@dataclass(frozen=True)
class Case:
    """A sample of an operator: its function, and the arguments."""

    name: str
    dtype: torch.dtype
    number: int
    function: Callable[..., Any]
    arguments: Any

    def __str__(self) -> str:
        return f"{self.name} {str(self.dtype).removeprefix('torch.')} {self.number}"


def cases(names: Sequence[str] = (), samples: int = SAMPLES) -> Iterator[Case]:
    """Samples of the operators of these names, of all by default, spread over those that torch has."""
    for info in op_db:
        name = ".".join(filter(None, (info.name, info.variant_test_name)))
        if (names and name not in names) or info.name in UNDEFINED:
            continue
        for dtype in TYPES:
            if dtype in info.supported_dtypes("cpu"):
                torch.manual_seed(0)
                every = list(info.sample_inputs("cpu", dtype))
                step = max(1, -(-len(every) // samples))
                for number, sample in list(enumerate(every))[::step]:
                    arguments = ((sample.input, *sample.args), sample.kwargs)
                    yield Case(name, dtype, number, info.op, arguments)


@dataclass(frozen=True)
class Outcome:
    """What became of a case: `kind` is one of KINDS; `detail` are the operators of torch, or the error."""

    kind: str
    detail: tuple[str, ...] = ()


KINDS = {
    "complete": "tdsl computed all nodes",
    "partly": "tdsl computed some nodes, torch the others",
    "by torch": "torch computed all nodes",
    "empty": "the graph has no nodes",
    "not captured": "torch captures no graph, or refuses the arguments",
    "random": "the results depend on random numbers",
    "wrong": "the results are not those of torch",
}


def run(case: Case) -> Outcome:
    """Compile a case and compare its results with those of torch."""
    flat, structure = pytree.tree_flatten(case.arguments)
    places = [n for n, x in enumerate(flat) if isinstance(x, torch.Tensor)]
    tensors = [flat[n] for n in places]

    def function(*given: torch.Tensor) -> Any:
        leaves = list(flat)
        for n, x in zip(places, given, strict=True):
            leaves[n] = x
        args, kwargs = pytree.tree_unflatten(leaves, structure)
        return tuple(x for x in pytree.tree_leaves(case.function(*args, **kwargs)) if torch.is_tensor(x))

    def fresh(dtype: torch.dtype | None = None) -> list[torch.Tensor]:
        return [x.to(dtype, copy=True) if dtype and x.is_floating_point() else x.clone() for x in tensors]

    try:
        expected, again = function(*fresh()), function(*fresh())
        module = make_fx(function)(*fresh())
    except Exception as error:  # noqa: BLE001  # torch raises dozens of types
        return Outcome("not captured", (_first_line(error),))
    if not all(map(_same, expected, again)) or any(map(_is_random, module.graph.nodes)):
        return Outcome("random")
    before = len(reports())
    try:
        results = compile_fx(module, fresh())(*fresh())
    except Exception as error:  # noqa: BLE001  # any error is a wrong outcome
        return Outcome("wrong", (f"{type(error).__name__}: {_first_line(error)}",))
    new = reports()[before:]
    if case.name in UNORDERED:
        results, expected = _taken(case, results), _taken(case, expected)
    for result, reference in zip(results, expected, strict=True):
        if not _agrees(result, reference):
            exact = function(*fresh(torch.float64))
            exact = _taken(case, exact) if case.name in UNORDERED else exact
            if not all(map(_as_near, results, expected, exact)):
                return Outcome("wrong", (f"{_compared(result, reference)}",))
    refused = [p.problem for r in new for p in r.parts if p.problem]
    by_torch = tuple(reason for r in new for reason in r.reasons) + tuple(refused)
    compiled = sum(r.compiled for r in new) - sum(p.nodes for r in new for p in r.parts if p.problem)
    if not sum(r.nodes for r in new):
        return Outcome("empty")
    return Outcome("complete" if not by_torch else "partly" if compiled else "by torch", by_torch)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:150]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))


def _taken(case: Case, results: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Values, the elements at the positions beside them, and whether no position is there twice."""
    (x, _, *args), kwargs = case.arguments
    dim = kwargs.get("dim", args[0] if args else -1)
    values, positions = results
    at = positions if positions.ndim == x.ndim else positions.unsqueeze(dim)
    once = (at.sort(dim).values.diff(dim=dim) > 0).all() if at.ndim else torch.tensor(True)
    return values, x.gather(dim, at).reshape(values.shape), once


def _is_random(node: torch.fx.Node) -> bool:
    """True if a node draws random numbers: samples set the seed where no graph captures it."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _agrees(result: torch.Tensor, expected: torch.Tensor) -> bool:
    try:
        tolerance = TOLERANCE if expected.dtype.is_floating_point else 0
        torch.testing.assert_close(
            result, expected, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False
        )
    except AssertionError:
        return False
    return True


def _as_near(result: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor) -> bool:
    """True if a result is as near to the exact one as that of torch, or within the tolerance."""
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return False
    if not result.dtype.is_floating_point:
        return torch.equal(result, expected)
    magnitude = exact.abs().max() if exact.numel() else 0
    error, of_torch = ((x.double() - exact).abs().nan_to_num().max() for x in (result, expected))
    return bool(error <= 2 * of_torch + TOLERANCE * magnitude) and torch.equal(
        result.isnan(), expected.isnan()
    )


def _compared(result: torch.Tensor, expected: torch.Tensor) -> str:
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return f"{result.dtype} {tuple(result.shape)} for {expected.dtype} {tuple(expected.shape)}"
    return f"differs by {(result.double() - expected.double()).abs().max():.2g}"


def main() -> int:
    """Run the samples of operators; how many are wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", help="operators, such as add or nn.functional.gelu; all by default"
    )
    parser.add_argument("--samples", type=int, default=SAMPLES, help="at most, of an operator and a type")
    parser.add_argument("--all", action="store_true", help="print the outcome of each case")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    kinds: Counter[str] = Counter()
    operators: defaultdict[str, set[str]] = defaultdict(set)
    left: Counter[str] = Counter()
    for case in cases(given.names, given.samples):
        torch._dynamo.reset()
        outcome = run(case)
        kinds[outcome.kind] += 1
        operators[outcome.kind].add(case.name)
        left.update(set(outcome.detail) if outcome.kind in ("partly", "by torch") else ())
        if given.all or outcome.kind == "wrong":
            print(case, outcome.kind, "; ".join(outcome.detail), flush=True)
    for reason, n in left.most_common(60):
        print(f"{n:5} cases in which torch computes {reason}")
    for kind, meaning in KINDS.items():
        print(f"{kinds[kind]:5} cases of {len(operators[kind]):3} operators {kind}: {meaning}")
    return kinds["wrong"]


if __name__ == "__main__":
    sys.exit(bool(main()))
