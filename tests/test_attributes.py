"""A misspelt method is told which one is near; what asks whether there is one gets an answer."""

import copy
import re
from types import ModuleType
from typing import Any

import pytest

import tdsl as td

i = td.vars("i")
a, f = td.Tensor("a", (8,), td.f32), td.Func("f")
f[i] = a[i]
schedule = td.Schedule(f)


@td.op
def doubled(x: td.f32["N"]) -> td.Func:
    y = td.Func("y")
    y[i] = x[i] * 2
    return y


compiled = td.compile(f)
MISSPELT = [
    pytest.param(thing, wrong, right, id=f"{type(thing).__name__}.{wrong}")
    for thing, wrong, right in (
        (f, "withshape", "with_shape"),
        (schedule, "tojson", "to_json"),
        (schedule[f], "vectorise", "vectorize"),
        (compiled, "lops", "loops"),
        (a, "dtyp", "dtype"),
        (doubled, "autosched", "autoschedule"),
        (td, "tensor", "Tensor"),
        (td.recipes, "tensor_core", "tensor_core_matmul"),
        (td.cuda, "is_availabel", "is_available"),
    )
]


@pytest.mark.parametrize("thing, wrong, right", MISSPELT)
def test_a_misspelt_method_gets_the_most_similar_name(thing: Any, wrong: str, right: str) -> None:
    with pytest.raises(td.UnknownAttribute) as caught:
        getattr(thing, wrong)
    assert isinstance(caught.value, AttributeError)
    assert f"did you mean {right!r}?" in caught.value.hint
    assert caught.value.loc.file == __file__


@pytest.mark.parametrize("thing, wrong, right", MISSPELT)
def test_hasattr_and_getattr_with_a_default_work(thing: Any, wrong: str, right: str) -> None:
    assert hasattr(thing, right)
    assert not hasattr(thing, wrong)
    assert getattr(thing, wrong, 3) == 3


@pytest.mark.parametrize(
    "thing, name, hint",
    [
        (doubled, "explain", "doubled.schedule().explain"),
        (doubled, "loops", "doubled.compile().loops"),
        (td.Graph(doubled), "footprint", "autoschedule of a graph"),
    ],
)
def test_attributes_of_schedules_and_compiled_programs_are_hinted(thing: Any, name: str, hint: str) -> None:
    assert not hasattr(thing, name)
    with pytest.raises(td.UnknownAttribute) as caught:
        getattr(thing, name)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "module", [td, td.cuda, td.mpi, td.onnx, td.recipes, td.testing], ids=lambda m: m.__name__
)
def test_modules_list_public_names_alone(module: ModuleType) -> None:
    lazy = {"__version__", "jax", "onnx", "torch"} if module is td else set()
    assert {*dir(module)} == {*module.__all__} | lazy


def test_protocols_get_an_attribute_error() -> None:
    assert str(copy.copy(schedule)) == str(schedule)
    with pytest.raises(AttributeError) as caught:
        schedule.__array__()
    assert not isinstance(caught.value, td.TdslError)


@pytest.mark.parametrize(
    "thing, name",
    [
        (schedule, "check_unchanged"),
        (schedule, "of_state"),
        (schedule[f], "do"),
        (compiled, "variant"),
        (doubled, "function"),
    ],
)
def test_what_other_parts_of_tdsl_use_is_not_listed(thing: Any, name: str) -> None:
    assert hasattr(thing, name)
    assert name not in dir(thing)
    with pytest.raises(td.UnknownAttribute) as caught:
        getattr(thing, name + "x")
    assert name not in re.findall(r"\w+", caught.value.hint)
