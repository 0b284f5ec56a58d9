"""Operators, compiled programs and graphs are pickled; another process computes the same bits with them."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tdsl as td
from tests import pickled

X = np.random.default_rng(0).standard_normal((9, 33)).astype(np.float32)

OBJECTS = {
    "operator": pickled.soft,
    "local operator": pickled.local_operator(),
    "compiled": pickled.soft.compile(),
    "compiled for sizes": pickled.soft.compile(M=9, N=33),
    "compiled for any size": pickled.soft.compile(dynamic="M"),
    "python": pickled.soft.compile(target="python"),
    "schedule": pickled.scheduled(),
    "graph": pickled.twice,
    "graph of a function": td.Graph(pickled.outer, fuse=False),
    "gradient": td.vjp(pickled.soft, "x").compile(),
}

CHILD = """
import pickle, sys
f, args = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(f(*args).tobytes())
"""


def arguments(name):
    return (X, X) if name == "gradient" else (X,)


@pytest.mark.parametrize("name", OBJECTS)
def test_another_process_computes_the_same_bits(name):
    f, args = OBJECTS[name], arguments(name)
    expected = f(*args)
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=pickle.dumps((f, args)),
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    assert done.stdout == expected.tobytes()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", OBJECTS)
def test_every_protocol_gives_an_equal_object(name, protocol):
    f, args = OBJECTS[name], arguments(name)
    again = pickle.loads(pickle.dumps(f, protocol))
    assert type(again) is type(f) and repr(again) == repr(f)
    assert again(*args).tobytes() == f(*args).tobytes()


def test_an_operator_of_a_module_is_pickled_by_name():
    assert pickle.loads(pickle.dumps(pickled.soft)) is pickled.soft
    assert pickle.loads(pickle.dumps(pickled.twice)) is pickled.twice


def test_a_copy_of_an_operator_takes_what_it_took():
    again = copy.copy(OBJECTS["local operator"])
    with pytest.raises(td.TypeMismatch, match="expected float32"):
        again(X.astype(np.float64))


def test_an_operator_without_its_function_has_no_derivative():
    again = pickle.loads(pickle.dumps(OBJECTS["local operator"]))
    with pytest.raises(td.TdslError, match="unpickled without its function"):
        td.vjp(again, "x").program


def test_a_graph_of_a_local_function_is_refused_by_pickle():
    with pytest.raises((pickle.PicklingError, AttributeError), match="local"):
        pickle.dumps(td.Graph(lambda x: x + 1))
